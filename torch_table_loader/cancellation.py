"""Whether what a thread waits for is still wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_asked: ContextVar[Callable[[], bool] | None] = ContextVar("table_loader_cancelled", default=None)


def cancelled() -> bool:
    """Return whether this thread should stop to wait: its caller said so, or the program ends."""
    asked = _asked.get()
    return (asked is not None and asked()) or not threading.main_thread().is_alive()


@contextmanager
def cancellable(is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """Let what this thread does inside stop to wait for a store once a function says so.

    Args:
        is_cancelled: asked several times a second, by this thread.

    >>> with cancellable(lambda: True):
    ...     cancelled()
    True
    """
    token = _asked.set(is_cancelled)
    try:
        yield
    finally:
        _asked.reset(token)
