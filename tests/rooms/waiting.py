"""Waits for what other threads bring about, and counts these threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_PATIENCE_S = 20.0


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; fail where it never holds."""
    end = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def threads(name: str) -> int:
    """Count the threads whose names begin so."""
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


def fetching() -> int:
    """Count the threads that fetch ahead."""
    return threads("table-loader-fetch")
