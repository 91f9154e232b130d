"""Lets the threads of gloo drop what they hold before Python ends.

torch 2.13 keeps these threads after DDP, even if the process group is destroyed. A thread that drops the last tensors
of a step while Python ends aborts the process: "terminate called without an active exception" (pytorch/pytorch#190489).
"""

from __future__ import annotations

import atexit
import time
from pathlib import Path

THREADS = Path("/proc/self/task")


def is_busy(thread: Path) -> bool:
    try:
        name, state = (thread / "comm").read_text(), (thread / "stat").read_text().rpartition(") ")[2][0]
    except OSError:  # it has ended, or there is no /proc
        return False
    return name.startswith("pt_gloo_runloop") and state != "S"


def wait_for_gloo() -> None:
    """Wait until no thread of gloo has run for three looks in a row, half a minute at most."""
    idle, end = 0, time.monotonic() + 30
    while idle < 3 and THREADS.exists() and time.monotonic() < end:
        time.sleep(0.01)  # without Python's lock, which a thread may want
        idle += 1
        if any(map(is_busy, THREADS.iterdir())):
            idle = 0


atexit.register(wait_for_gloo)
