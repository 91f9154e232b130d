"""Lanes on threads of this process, which outlive an epoch.

An allocator keeps memory for each thread: a new thread begins with none, and that of an ended one is reused late. New
threads for each epoch would cost a few percent of a short epoch, and let memory grow over many.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from torch_table_loader.batching.rows import each_alone
from torch_table_loader.cancellation import SLICE_S, cancellable, start
from torch_table_loader.engine.sizing import BLOCKS_AHEAD
from torch_table_loader.engine.workers.executor import (
    NOTHING_FETCHED,
    LaneExecutor,
    begin_lanes,
    check_home,
    join_tails,
)
from torch_table_loader.forks import this_process

if TYPE_CHECKING:
    from torch_table_loader.batching.rows import Rows, SizedBatches
    from torch_table_loader.engine.work.lane_work import LaneBatches, LaneMetrics, LaneWork
    from torch_table_loader.ranges import FetchStats


T = TypeVar("T")


def popped(values: list[T]) -> T | None:
    """Take the last value of a list that threads share out of it; None if there is none left.

    >>> popped([1, 2]), popped([])
    (2, None)
    """
    try:
        return values.pop()
    except IndexError:  # one who asks before may find what another thread takes
        return None


class ThreadPool:
    """Keeps idle threads for reuse; the threads end together with the pool."""

    def __init__(self) -> None:
        self._idle: list[_Worker] = []
        self._numbers = itertools.count()
        self._end = weakref.finalize(self, _shut_down, self._idle)

    def __reduce__(self) -> tuple[type[ThreadPool], tuple[()]]:
        """Copy and pickle as a pool without threads."""
        return ThreadPool, ()

    def begin(self, job: Callable[[], None]) -> Callable[[], None]:
        """Run a job in a thread, and return a function that waits until it is over and its thread may be reused.

        The job should not raise, since only `threading.excepthook` would see the error. The function does not
        wait if called in that thread, or if a fork left the thread behind.
        """
        worker, over = self._worker(), threading.Event()
        worker.jobs.put((job, over))

        def wait() -> None:
            if worker.thread.is_alive() and worker.thread is not threading.current_thread():
                over.wait()

        return wait

    def shut_down(self) -> None:
        """End the idle threads."""
        _shut_down(self._idle)

    def _worker(self) -> _Worker:
        """Return a live idle thread (a fork leaves none to the child), or start one."""
        while (worker := popped(self._idle)) is not None:
            if worker.thread.is_alive():
                return worker
        return _Worker(f"table-loader-{next(self._numbers)}", self._idle)


class _Worker:
    """A thread and its queue of jobs."""

    __slots__ = ("jobs", "thread")

    def __init__(self, name: str, idle: list[_Worker]) -> None:
        self.jobs: SimpleQueue[tuple[Callable[[], None], threading.Event] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, args=(idle,), name=name, daemon=True)
        start(self.thread)

    def _run(self, idle: list[_Worker]) -> None:
        while (given := self.jobs.get()) is not None:
            job, over = given
            try:
                job()
                idle.append(self)
            finally:  # an error ends the thread, and is reported like that of any thread; nobody waits for it in vain
                del given, job  # what it holds must not live until the next one comes
                over.set()


def _shut_down(idle: list[_Worker]) -> None:
    ended = []
    while (worker := popped(idle)) is not None:
        ended.append(worker)
        worker.jobs.put(None)
    for worker in ended:
        if worker.thread is not threading.current_thread():  # the garbage collector may run in any thread
            worker.thread.join()


class _Bell:
    """Wakes the one thread that may wait; a `threading.Condition` takes more steps, and some where nobody waits.

    Whoever calls its methods holds the lock.
    """

    __slots__ = ("_lock", "_rung", "_waited_for")

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._rung = threading.Lock()
        self._waited_for = False

    def wait(self, seconds: float) -> None:
        """Release the lock until the bell rings, for so many seconds at most; it may also end early."""
        self._rung.acquire(blocking=False)  # it may have been rung when the last wait was just over
        self._waited_for = True
        self._lock.release()
        try:
            self._rung.acquire(timeout=seconds)
        finally:
            self._lock.acquire()
            self._waited_for = False

    def ring(self) -> None:
        """Wake the thread that waits, if any."""
        if self._waited_for:
            self._waited_for = False
            self._rung.release()


class _Lane:
    """A lane's blocks on their way from a thread to the consumer."""

    __slots__ = ("batches", "busy", "done", "error", "read", "ready", "waiting")

    def __init__(self, batches: LaneBatches) -> None:
        self.batches = batches
        self.ready: deque[SizedBatches] = deque()
        self.waiting = 0
        self.busy = False
        self.read = False
        """Nothing is left to read; its part of the tails may still be missing."""
        self.done = False
        self.error: BaseException | None = None


class ThreadExecutor(LaneExecutor):
    """An executor whose threads always work on the lane whose batches are needed first.

    A lane pauses while finished batches of it wait: `prefetch` of them or, if the caller left that open, those of
    `BLOCKS_AHEAD` decoded runs of rows (with a `collate_fn`, so many batches).
    """

    def __init__(self, work: LaneWork, start: int, pool: ThreadPool, prefetch: int | None) -> None:
        """Start the threads.

        Args:
            pool: the pool of threads; threads of an epoch that was abandoned do not return to it.
            prefetch: finished batches of a lane that may wait; None for those of `BLOCKS_AHEAD` blocks.
        """
        self._work = work
        self._home = this_process()
        self._joins = work.joins_tails(start)
        """Whether the tails of the lanes still have to be joined."""
        self._prefetch = prefetch
        if prefetch is None and work.calls_functions:
            self._prefetch = BLOCKS_AHEAD
        batches_of_lanes, self._ahead = begin_lanes(work, start)
        self._lanes = [_Lane(batches) for batches in batches_of_lanes]
        self._lock = threading.RLock()  # the garbage collector may close this wherever it runs
        self._work_wanted = threading.Condition(self._lock)
        self._resting = 0
        """Threads that wait until work is wanted."""
        self._block_ready = _Bell(self._lock)
        self._stopped = False
        self._running = threads = work.servers
        self._pool = pool
        self._threads: set[threading.Thread] = set()
        self._waits: list[Callable[[], None]] = []
        try:
            self._waits += (pool.begin(self._run) for _ in range(threads))
        except BaseException:
            with self._lock:
                self._running -= threads - len(self._waits)
                nobody_closes = not self._running
            self.close()
            if nobody_closes:
                self._close_files()
            raise

    @property
    def metrics(self) -> list[LaneMetrics]:
        """Statistics of each lane so far."""
        return [lane.batches.metrics for lane in self._lanes]

    @property
    def fetched(self) -> FetchStats:
        """Statistics of fetching for the lanes so far."""
        if self._ahead is None:
            return NOTHING_FETCHED
        return self._ahead.stats

    def take(self, lane: int) -> SizedBatches | None:
        """Wait for a lane's next block."""
        check_home(self._home)
        wanted = self._lanes[lane]
        with self._lock:
            while not wanted.ready:
                if (error := self._error_of(wanted)) is not None:
                    raise error
                if wanted.done or self._stopped:
                    return None
                self._block_ready.wait(SLICE_S)
            block = wanted.ready.popleft()
            wanted.waiting -= len(block)
            if self._resting:
                self._work_wanted.notify()
            return block

    def rest(self, lane: int) -> list[Rows]:
        """Return the rows left over by a finished lane."""
        return self._lanes[lane].batches.rest

    def close(self, *, is_over: bool = False) -> None:
        """Close every file, and end every thread that has no other work, unless the next epoch may need it.

        A forked process has a copy without threads, and leaves it as it is.
        """
        if self._home != this_process():
            return
        with self._lock:
            self._stopped = True
            self._work_wanted.notify_all()
            self._block_ready.ring()
        if self._ahead is not None:  # a thread may be waiting for bytes
            self._ahead.close()
        # The garbage collector may call this in one of these threads. If that holds the lock, the others end later.
        if threading.current_thread() not in self._threads:
            for wait in self._waits:
                wait()
        for lane in self._lanes:
            lane.ready.clear()
        if not is_over:
            self._pool.shut_down()

    def _error_of(self, lane: _Lane) -> BaseException | None:
        """Return a lane's own error; if it waits for its part of the tails, the error of any lane."""
        if lane.error is not None or lane.done or not lane.read:
            return lane.error
        return next((other.error for other in self._lanes if other.error is not None), None)

    def _run(self) -> None:
        """Work until nothing is left to do; the last thread to end closes the files, even if it closed the executor."""
        self._threads.add(threading.current_thread())
        with cancellable(lambda: self._stopped):
            while (job := self._next_job()) is not None:
                job()
        with self._lock:
            self._running -= 1
            is_last = self._running == 0
        if is_last:
            self._close_files()

    def _close_files(self) -> None:
        for lane in self._lanes:
            lane.batches.close()

    def _next_job(self) -> Callable[[], None] | None:
        """Wait for something to do; None when there is nothing left."""
        with self._lock:
            while not self._stopped:
                wanting: _Lane | None = None
                to_read = 0
                for lane in self._lanes:
                    if lane.read or lane.error:
                        continue
                    to_read += 1
                    fewer = wanting is None or lane.waiting < wanting.waiting
                    if fewer and not lane.busy and self._has_room(lane):
                        wanting = lane
                if not to_read:
                    return self._last_job()
                if wanting is not None:
                    wanting.busy = True
                    return partial(self._read_on, wanting, self._room(wanting))
                self._resting += 1
                self._work_wanted.wait()
                self._resting -= 1
            return None

    def _room(self, lane: _Lane) -> int | None:
        """Return how many batches of a lane may be made now; None: those of a read."""
        if self._prefetch is None:
            return None
        return self._prefetch - lane.waiting

    def _has_room(self, lane: _Lane) -> bool:
        room = self._room(lane)
        if room is None:
            return len(lane.ready) < BLOCKS_AHEAD
        return room > 0

    def _last_job(self) -> Callable[[], None] | None:
        """When all lanes are read, one thread joins their tails."""
        if not self._joins or any(lane.error for lane in self._lanes):
            return None
        self._joins = False
        return self._join_tails

    def _read_on(self, lane: _Lane, room: int | None) -> None:
        block, error = None, None
        try:
            block = lane.batches.next_block(room)
        except BaseException as caught:  # noqa: BLE001 the consumer raises it, in its own thread
            if not self._stopped:  # else nobody waits for it
                error = caught
        with self._lock:
            lane.busy = False
            lane.error = error
            if block is not None:
                if room is None:
                    lane.ready.append(block)
                else:  # one by one, since what the consumer holds beside its batch waits too
                    lane.ready.extend(each_alone(block))
                lane.waiting += len(block)
            elif error is None:
                lane.read = True
                lane.done = not self._joins
            self._block_ready.ring()
            if lane.read or lane.error:
                self._work_wanted.notify_all()

    def _join_tails(self) -> None:
        error = None
        try:
            join_tails(self._work, [lane.batches for lane in self._lanes], self._ahead)
        except BaseException as caught:  # noqa: BLE001 the consumer raises it, in its own thread
            error = caught
        with self._lock:
            for lane in self._lanes:
                lane.error = error
                lane.read = False
            self._block_ready.ring()
