"""Counts what a loader may leave behind: threads, worker processes, open files."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path


def lane_threads() -> list[threading.Thread]:
    """List the threads that serve lanes."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("table-loader")]


def children() -> set[int]:
    """List this process's children that still run (zombies and multiprocessing's own helpers left out)."""
    found = set()
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return {pid for pid in found if _works(pid)}


def _works(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    helper = "resource_tracker" in command or ("forkserver" in command and "main(" in command)
    return status.rpartition(")")[2].split()[0] != "Z" and not helper


def open_files(root: Path) -> list[str]:
    """List the files below a directory that this process holds open."""
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(entry))  # noqa: PTH115 - the text is wanted, not a path that resolves
        except FileNotFoundError:
            continue
    return [link for link in links if link.startswith(str(root))]


def resident_bytes() -> int:
    """Give the memory of this process that is resident and not shared with files."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024
