"""What a local file system knows of a file beyond size and time of modification."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path

from torch_table_loader.records import LocalVersion

_MOUNTS = Path("/proc/self/mountinfo")
_BOOT = Path("/proc/sys/kernel/random/boot_id")

_UNSTABLE = ("fuse", "cifs", "smb", "vboxsf")
"""File systems, by the beginning of their names, that may give a file another inode each time it is looked up: FUSE
clients of object stores do once they forget it, and Windows servers may have no numbers at all."""


def local_version(status: os.stat_result) -> LocalVersion | None:
    """Return inode and time of the last change; None where the file system's numbers do not last."""
    if status.st_dev in _unstable_devices():
        return None
    return LocalVersion(_machine(), status.st_ino, status.st_ctime_ns)


def unstable_devices(mountinfo: str) -> frozenset[int]:
    """Return the devices whose inode numbers do not last.

    Args:
        mountinfo: as /proc/self/mountinfo has it, see proc_pid_mountinfo(5).

    >>> line = "36 35 0:52 / /mnt/bucket rw shared:1 - fuse.gcsfuse bucket rw"
    >>> unstable_devices(line) == {os.makedev(0, 52)}
    True
    """
    found = set()
    for line in mountinfo.splitlines():
        mount, _, kind = line.partition(" - ")
        if kind.startswith(_UNSTABLE):
            major, minor = mount.split()[2].split(":")
            found.add(os.makedev(int(major), int(minor)))
    return frozenset(found)


@cache
def _unstable_devices() -> frozenset[int]:
    try:
        return unstable_devices(_MOUNTS.read_text(errors="surrogateescape"))
    except OSError:  # not Linux
        return frozenset()


@cache
def _machine() -> str:
    """Name this machine, or container, until it starts again."""
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"
