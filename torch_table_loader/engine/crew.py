"""Threads that outlive an epoch.

An allocator keeps memory for each thread: a new one begins with none, and what an old one had is found again late.
New threads for each epoch cost a few percent of a short one, and let memory grow over many.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue


class Crew:
    """Keeps threads that have nothing to do, for whoever wants them next; they end with it."""

    def __init__(self) -> None:
        """Begin without threads."""
        self._idle: list[_Hand] = []
        self._numbers = itertools.count()
        self._end = weakref.finalize(self, _dismiss, self._idle)

    def __reduce__(self) -> tuple[type[Crew], tuple[()]]:
        """Copy and pickle as a crew without threads."""
        return Crew, ()

    def begin(self, job: Callable[[], None]) -> Callable[[], None]:
        """Do something in a thread.

        Args:
            job: should raise nothing, since nobody hears it but `threading.excepthook`.

        Returns:
            Waits until the job is over and its thread may be wanted again; called in that thread, or where a fork
            left the thread behind, it does not wait.
        """
        hand, over = self._hand(), threading.Event()
        hand.jobs.put((job, over))

        def wait() -> None:
            if hand.thread.is_alive() and hand.thread is not threading.current_thread():
                over.wait()

        return wait

    def dismiss(self) -> None:
        """End the threads that have nothing to do."""
        _dismiss(self._idle)

    def _hand(self) -> _Hand:
        """Find a thread that lives (a fork leaves none of them to the child), or start one."""
        while self._idle:
            hand = self._idle.pop()
            if hand.thread.is_alive():
                return hand
        return _Hand(f"table-loader-{next(self._numbers)}", self._idle)


class _Hand:
    """A thread, and what it is told to do."""

    __slots__ = ("jobs", "thread")

    def __init__(self, name: str, idle: list[_Hand]) -> None:
        self.jobs: SimpleQueue[tuple[Callable[[], None], threading.Event] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, args=(idle,), name=name, daemon=True)
        self.thread.start()

    def _run(self, idle: list[_Hand]) -> None:
        while (told := self.jobs.get()) is not None:
            job, over = told
            try:
                job()
                idle.append(self)
            finally:  # an error ends the thread, and is told as that of any thread; nobody waits for it in vain
                del told, job  # what it holds must not live until the next one comes
                over.set()


def _dismiss(idle: list[_Hand]) -> None:
    ended = []
    while idle:
        ended.append(idle.pop())
        ended[-1].jobs.put(None)
    for hand in ended:
        if hand.thread is not threading.current_thread():  # the collector runs where it likes
            hand.thread.join()
