"""The client of this machine's files; those of other stores are in `far/`."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs as arrow_fs
from typing_extensions import override

from torch_table_loader.local_files import make_folder, new_file, write_whole
from torch_table_loader.ranges import Client, Found
from torch_table_loader.records import FileVersion, LocalVersion

_COPY_BYTES = 1 << 24

_MOUNTS = Path("/proc/self/mountinfo")
_BOOT = Path("/proc/sys/kernel/random/boot_id")

_UNSTABLE = ("fuse", "cifs", "smb", "vboxsf")
"""File systems, by the beginning of their names, that may give a file another inode each time it is looked up: FUSE
clients of object stores do once they forget it, and Windows servers may have no numbers at all."""

_SPECIAL = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


class LocalClient(Client):
    """Files on this machine."""

    def __init__(self) -> None:
        """Open nothing."""
        self.native = arrow_fs.LocalFileSystem()

    def open(self, path: str) -> pa.NativeFile:
        """Open with plain reads: a mapping would die with SIGBUS if a file is cut short."""
        self._refuse_special(path)
        return self.native.open_input_file(path)

    @override
    def stat(self, path: str) -> Found:
        """Return what is at a path; follow links, as `open` does."""
        return found_here(path, os.stat(path))  # noqa: PTH116 - hot: 10,000 files

    @override
    def walk(self, root: str, *, recursive: bool) -> Iterator[Found]:
        """List a directory; follow links to directories, but never into a directory on the path walked so far."""
        return self._walk(root, recursive=recursive, through=frozenset())

    def _walk(self, root: str, *, recursive: bool, through: frozenset[tuple[int, int]]) -> Iterator[Found]:
        here = os.stat(root)  # noqa: PTH116
        identity = (here.st_dev, here.st_ino)
        if identity in through:
            return
        with os.scandir(root) as entries:
            listed = list(entries)
        for entry in listed:
            if not entry.is_dir():
                yield found_here(entry.path, entry.stat())
            elif recursive:
                yield from self._walk(entry.path, recursive=True, through=through | {identity})
            else:
                yield Found(entry.path, None)

    @override
    def read(self, path: str) -> bytes:
        self._refuse_special(path)
        return Path(path).read_bytes()

    @override
    def read_range(self, path: str, start: int, stop: int, etag: str | None) -> Any:
        with self.open(path) as file:
            return file.read_at(stop - start, start)

    def _refuse_special(self, path: str) -> None:
        """Raise TableError for a FIFO or device: opening or reading it could block forever."""
        if (found := self.stat(path)).special:
            found.file_version()

    @override
    def write(self, path: str, data: bytes) -> None:
        """Write a temporary file beside the file, then rename it."""
        target = Path(path)
        if not target.parent.is_dir():
            make_folder(target.parent)
        write_whole(target.parent.resolve() / target.name, data)  # the folder may be a link; the file in it may not

    @override
    def put_file(self, local: str, path: str) -> None:
        """Copy a file to a temporary name beside its place, then rename it."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target = target.parent.resolve() / target.name
        with new_file(target) as (unfinished, copy), Path(local).open("rb") as file:
            shutil.copyfileobj(file, copy, _COPY_BYTES)
            copy.close()
            unfinished.replace(target)


def found_here(path: str, status: os.stat_result) -> Found:
    """Return what is at a path of this machine, by what the system says of it."""
    if not stat.S_ISREG(status.st_mode):
        return Found(path, None, _SPECIAL.get(stat.S_IFMT(status.st_mode), ""))
    return Found(path, _version_of(status))


def version_here(path: str) -> FileVersion | None:
    """Return the version of a file of this machine; None where there is none, and others say why."""
    try:
        status = os.stat(path)  # noqa: PTH116 - hot: each row group
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(status.st_mode):
        return _version_of(status)
    return None


def _version_of(status: os.stat_result) -> FileVersion:
    return _version_by(status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino, status.st_ctime_ns)


@lru_cache(maxsize=1024)
def _version_by(num_bytes: int, mtime_ns: int, device: int, inode: int, ctime_ns: int) -> FileVersion:
    """Return a version; of a file that is asked for again and again it is the same object, which compares at once.

    It knows inode and change time unless the file system's inode numbers are not stable.
    """
    local = None
    if device not in _unstable_devices():
        local = LocalVersion(_machine(), inode, ctime_ns)
    return FileVersion(num_bytes, mtime_ns, local=local)


def unstable_devices(mountinfo: str) -> frozenset[int]:
    """Return the devices with unstable inode numbers in /proc/self/mountinfo; see proc_pid_mountinfo(5).

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
    """Return a name of this machine or container that stays the same until it restarts."""
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"
