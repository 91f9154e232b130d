"""Waits for conditions that other threads bring about, and counts these threads."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext

import pytest

PATIENCE_S = 60.0
"""Limit of all waiting: only what hangs takes so long, on any machine."""


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; fail if it never holds."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def until_only(threads: Collection[threading.Thread]) -> None:
    """Wait until no other thread is alive; fail with the names and the stacks of those that are."""
    until_ended(lambda: [thread for thread in threading.enumerate() if thread not in threads])


def until_ended(living: Callable[[], Collection[threading.Thread]]) -> None:
    """Wait until a function lists no thread; fail with the names and the stacks of those that it lists."""
    end = time.monotonic() + PATIENCE_S
    while others := living():
        if time.monotonic() > end:
            frames = sys._current_frames()
            stacks = {thread.name: traceback.format_stack(frames.get(thread.ident or 0)) for thread in others}
            pytest.fail("\n".join(f"{name} lives on:\n{''.join(stack)}" for name, stack in stacks.items()))
        time.sleep(0.005)


def ends_in_a_fork(
    target: Callable[[], object], meanwhile: Callable[[], AbstractContextManager[object]] = nullcontext
) -> None:
    """Call a function in a forked process, which must end without an error.

    Args:
        meanwhile: makes the block in which the process begins.
    """
    with meanwhile():
        child = multiprocessing.get_context("fork").Process(target=target)
        child.start()
    child.join(PATIENCE_S)
    ended = child.exitcode
    child.kill()
    child.join()
    assert ended == 0


def threads(name: str) -> int:
    """Count the threads whose names have a prefix."""
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


def fetching() -> int:
    """Count the threads that fetch ahead."""
    return threads("table-loader-fetch")
