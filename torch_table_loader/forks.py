"""What a process that starts by fork must not find as a thread left it that only its parent has: locks above all.

A fork copies the memory of all threads, and the thread that forks alone. A lock that another one held is held for ever
in the new process, and what that thread was to do is never done there.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_IMPORTS_S = 5.0
"""How long an import of another thread is waited for: it may be the program itself."""

_forks = 0
_awaited: set[str] = set()
"""Modules whose import took longer than that; they are not waited for again."""


def this_process() -> int:
    """Return a number that is another one in a process that this one forks, and in those that it forks."""
    return _forks


class OfProcess(Generic[T]):
    """A value that each process makes for itself, also one that starts by fork; so do copies and pickles.

    >>> import threading
    >>> lock = OfProcess(threading.Lock)
    >>> with lock.own:
    ...     lock.own.locked()
    True
    """

    __slots__ = ("__weakref__", "_made", "_make", "own")

    own: T
    """This process's; once it is made, no step in Python is due to it."""

    def __init__(self, make: Callable[[], T]) -> None:
        """Make nothing yet.

        Args:
            make: called once in each process that asks; where threads ask at the same time, one result is kept.
        """
        self._make = make
        self._made: dict[int, T] = {}
        _own.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as one of which nothing was made."""
        return type(self), (self._make,)

    def __getattr__(self, name: str) -> Any:
        """Make `own`, which a process is asked for the first time."""
        if name != "own":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.own = own = self._made.setdefault(_forks, self._make())
        return own


_own: weakref.WeakSet[OfProcess[Any]] = weakref.WeakSet()
"""All that live."""


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 a forked process has a number of its own
    _forks += 1
    for each in _own:
        with suppress(AttributeError):  # it was not made
            del each.own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def settle() -> None:
    """Wait until no other thread does what Python does once and under a lock, before this process forks.

    The new process would wait for ever if it imports a module that a thread of this one was importing.
    """
    tempfile.gettempdir()
    end = time.monotonic() + _IMPORTS_S
    while left := _imported_elsewhere():
        if time.monotonic() > end:
            _awaited.update(left)
            return
        time.sleep(0.001)


def _imported_elsewhere() -> set[str]:
    """Return the modules that other threads import now."""
    begun = {name for name, module in list(sys.modules.items()) if _is_begun(module)} - _awaited
    frame: FrameType | None = sys._getframe(1)  # its own would hold itself, and with it its callers
    while begun and frame is not None:
        if frame.f_code.co_name == "<module>":
            begun.discard(frame.f_globals.get("__name__", ""))
        frame = frame.f_back
    return begun


def _is_begun(module: Any) -> bool:
    try:  # another way to ask would load a module that is loaded when it is used
        return bool(getattr(object.__getattribute__(module, "__spec__"), "_initializing", False))
    except AttributeError:
        return False
