"""Counts what a loader may leave behind: threads, worker processes, open files."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from pathlib import Path

from tests.waiting import PATIENCE_S, until_ended

_left: list[threading.Thread] = []
"""Those that a file of tests left, which then failed: no later file waits for them, or fails by them."""


def lane_threads() -> list[threading.Thread]:
    """List the threads that serve lanes."""
    return [each for each in threading.enumerate() if each.name.startswith("table-loader") and each not in _left]


def requests_end() -> None:
    """Wait for the threads that ask a store; fail with their stacks if some do not end."""

    def asking() -> list[threading.Thread]:
        return [thread for thread in lane_threads() if thread.name == "table-loader-request"]

    try:
        until_ended(asking)
    finally:
        _left.extend(asking())


def lane_threads_end() -> bool:
    """Wait for the threads that serve lanes: those that ask a store end soon after their loader, not with it."""
    end = time.monotonic() + PATIENCE_S
    while lane_threads() and time.monotonic() < end:
        time.sleep(0.005)
    return not lane_threads()


def children() -> set[int]:
    """List the processes that this one started through multiprocessing, by whichever method, and that still run."""
    return {process.pid for process in multiprocessing.active_children() if process.pid is not None}


def open_files(root: Path) -> list[str]:
    """List the files below a directory that this process holds open."""
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(entry))  # noqa: PTH115 - the text is wanted, not a path that resolves
        except FileNotFoundError:
            continue
    return [link for link in links if link.startswith(str(root))]
