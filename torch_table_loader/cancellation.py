"""Whether what a thread waits for is still wanted, and waits that end where it is not.

Some calls cannot be interrupted: a client of a store waits outside Python, for seconds or for ever. Only threads that
may be left behind (`unattended`) make such a call. All others have it made by one of those (`interruptibly`), so that
they can be waited for: each ends soon after what it works for is no longer wanted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

from torch_table_loader.errors import StorageError, WorkerError
from torch_table_loader.forks import this_process

T = TypeVar("T")

SLICE_S = 0.1
"""Seconds within which a wait ends once nobody needs what it waits for.

The main thread's waits have this limit, too: a signal that arrives just before it begins to wait does not wake it.
"""

LEAVE_S = 0.3
"""Seconds that a call is waited for once it is not wanted: a thread that comes back from a client of a store while
Python ends would end the process with an error."""


class _Block:
    """A block whose waits end once its function, or that of a block around it, says so.

    Its function is let go when it ends: clients of stores keep copies of a context for as long as a connection is idle.
    """

    __slots__ = ("around", "is_cancelled")

    def __init__(self, is_cancelled: Callable[[], bool], around: _Block | None) -> None:
        self.is_cancelled: Callable[[], bool] | None = is_cancelled
        self.around = around


_block: ContextVar[_Block | None] = ContextVar("table_loader_block", default=None)
_unattended: ContextVar[bool] = ContextVar("table_loader_unattended", default=False)


def cancelled() -> bool:
    """Return whether this thread should stop to wait: its caller said so, or the program ends."""
    return _is_unwanted() or not threading.main_thread().is_alive()


def check_wanted() -> None:
    """Raise StorageError if what this thread does is no longer wanted."""
    if _block.get() is not None and _is_unwanted():
        raise StorageError("nobody waits for these rows any longer: what asked for them was left, or has failed")


def _is_unwanted() -> bool:
    block = _block.get()
    while block is not None:
        is_cancelled = block.is_cancelled
        if is_cancelled is None or is_cancelled():
            return True
        block = block.around
    return False


@contextmanager
def cancellable(is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """Let what this thread does inside stop to wait for a store once a function, or that of a block around it, says so.

    Args:
        is_cancelled: asked several times a second, by this thread.

    >>> with cancellable(lambda: True):
    ...     cancelled()
    True
    """
    block = _Block(is_cancelled, _block.get())
    token = _block.set(block)
    try:
        yield
    finally:
        _block.reset(token)
        block.is_cancelled = None


@contextmanager
def unattended() -> Iterator[None]:
    """Let this thread, a daemon that may be left behind, make calls that cannot be interrupted by itself."""
    token = _unattended.set(True)
    try:
        yield
    finally:
        _unattended.reset(token)


def interruptibly(call: Callable[[], T], seconds: float | None = None) -> T:
    """Return the result of a call that cannot be interrupted, such as a request to a store.

    Args:
        call: left to itself if this thread is cancelled or interrupted; what it gives is then dropped.
        seconds: to wait for it at most; None for as many as it takes.

    Raises:
        StorageError: it is no longer wanted.
        TimeoutError: it took longer.

    >>> interruptibly(lambda: time.sleep(9), 0.01)
    Traceback (most recent call last):
    TimeoutError: no whole answer came in 0 s
    """
    check_wanted()
    if _unattended.get() and seconds is None:
        return call()
    end = None if seconds is None else time.monotonic() + seconds
    outcome, over, left = Future[T](), threading.Event(), threading.Event()
    context = copy_context()
    asking = (_answer, call, outcome, over, left)
    start(threading.Thread(target=context.run, args=asking, name="table-loader-request", daemon=True))
    try:
        while not over.wait(SLICE_S):
            check_wanted()
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"no whole answer came in {seconds:.0f} s")
        return outcome.result()
    finally:
        left.set()
        over.wait(LEAVE_S)
        del outcome  # its error knows this frame


def _answer(call: Callable[[], T], outcome: Future[T], over: threading.Event, left: threading.Event) -> None:
    try:
        with unattended(), cancellable(left.is_set):
            outcome.set_result(call())
    except BaseException as error:  # noqa: BLE001 raised where the result is waited for
        outcome.set_exception(error)
    over.set()


def wait_for(condition: threading.Condition, over: Callable[[], bool], timeout: float | None = None) -> bool:
    """Wait as `Condition.wait_for` does, but not longer than this thread's work is wanted.

    Args:
        over: whether what it waits for has happened.
        timeout: seconds to wait; None for as many as it takes.

    Raises:
        StorageError: it is no longer wanted.
    """
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = SLICE_S if end is None else min(SLICE_S, end - time.monotonic())
        if condition.wait_for(over, max(left, 0)):
            return True
        if left <= 0:
            return False
        check_wanted()


def result_of(future: Future[T]) -> T:
    """Wait for the result of a call in a thread."""
    while not future.done():
        with suppress(TimeoutError):  # the call's own comes again below
            return future.result(SLICE_S)
    return future.result()


def start(thread: threading.Thread) -> threading.Thread:
    """Start a thread.

    Raises:
        WorkerError: the system refused it.
    """
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        if "interpreter shutdown" in str(error):
            raise
        raise WorkerError(
            f"expected one more thread, but the system refused it ({error}); this process has "
            f"{threading.active_count()} of Python's. Raise the limit of processes and threads (ulimit -u, or that of "
            "the container or its cgroup) or of address space (ulimit -v), or use fewer workers: num_workers=0 reads "
            "without threads of its own"
        ) from error
    return thread


class Threads(Executor):
    """Threads for the work of a block. If an error ends it, what they work on and wait for is no longer wanted.

    >>> with Threads(2, "example") as threads:
    ...     list(threads.map(abs, [-1, 2]))
    [1, 2]
    """

    def __init__(self, threads: int, name: str, *, joined: bool = False) -> None:
        """Start no thread yet.

        Args:
            joined: whether the block ends with them in any case, because they write or decode. Others only ask a
                store, and are left behind if it does not answer.
        """
        self._most, self._name, self._joined = threads, name, joined
        self._left = False
        self._home = this_process()
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[tuple[threading.Thread, threading.Event]] = []
        """Each with what it sets when it ends."""
        self._idle = threading.Semaphore(0)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Begin a call, in a copy of this thread's context."""
        outcome = Future[T]()
        self._calls.put((outcome, partial(copy_context().run, self._call, fn, *args, **kwargs)))
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
            ended = threading.Event()
            thread = threading.Thread(target=self._run, args=(ended,), name=self._name, daemon=True)
            self._threads.append((thread, ended))
            start(thread)
        return outcome

    def map(self, fn: Callable[..., T], *iterables: Iterable[Any], **unused: Any) -> Iterator[T]:
        """Begin a call for each item, and yield the results in the same order."""
        assert not unused, "no call has a limit of its own"  # noqa: S101 nobody passes one
        calls = deque(self.submit(fn, *each) for each in zip(*iterables, strict=False))
        return (result_of(calls.popleft()) for _ in range(len(calls)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for all calls; after an error only for those that run, which end soon or are left behind.

        In a forked process, which may drop a block that its parent is in, there are no threads to wait for.
        """
        if self._home != this_process():
            return
        self._left = kind is not None
        for _ in self._threads:
            self._calls.put(None)
        end = time.monotonic() + LEAVE_S
        for thread, ended in self._threads:
            # An interrupt may come while a thread begins: it cannot be joined then, or never begins.
            waits = self._joined and thread.ident is not None
            if ended.wait(max(0.0, end - time.monotonic()) if self._left and not waits else None):
                thread.join()

    def _run(self, ended: threading.Event) -> None:
        while (given := self._calls.get()) is not None:
            outcome, call = given
            if self._left or not outcome.set_running_or_notify_cancel():
                continue
            try:
                outcome.set_result(call())
            except BaseException as error:  # noqa: BLE001 raised where the result is waited for
                outcome.set_exception(error)
            del given, outcome, call  # what they hold must not live until the next one comes
            self._idle.release()
        ended.set()

    def _call(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        with cancellable(lambda: self._left), nullcontext() if self._joined else unattended():
            return fn(*args, **kwargs)
