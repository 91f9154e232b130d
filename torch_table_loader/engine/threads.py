"""Lanes on threads of this process, or in the caller's own thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from torch_table_loader.engine.sizes import BLOCKS_AHEAD
from torch_table_loader.engine.work import LaneBatches

if TYPE_CHECKING:
    from torch_table_loader.batching.rows import Rows
    from torch_table_loader.engine.crew import Crew
    from torch_table_loader.engine.roles import JoiningWork, LaneWork
    from torch_table_loader.engine.work import LaneClock


class CallerServer:
    """Reads a lane when its batch is asked for, in the thread that asks."""

    def __init__(self, work: LaneWork, start: int, prefetch: int | None) -> None:
        """Prepare the lanes.

        Args:
            work: the rank's.
            start: steps taken before.
            prefetch: batches that are finished together at most; None for those of a decoded run of rows.
        """
        self._joining = work.joining(start)
        self._lanes = begin_lanes(work, start, self._joining)
        self._prefetch = prefetch

    @property
    def clocks(self) -> list[LaneClock]:
        """What each lane has done so far."""
        return [lane.clock for lane in self._lanes]

    def take(self, lane: int) -> list[Any] | None:
        """Read the lane on to its next block; when all lanes are done, their tails make the last batches."""
        block = self._lanes[lane].next_block(self._prefetch)
        if block is not None or self._joining is None:
            return block
        joining, self._joining = self._joining, None
        _hand_out(joining.tails(rests_of(self._lanes)), self._lanes)
        return self._lanes[lane].next_block(self._prefetch)

    def rest(self, lane: int) -> Rows | None:
        """Return the rows that a lane which is done left over."""
        return self._lanes[lane].rest

    def close(self, *, is_over: bool = False) -> None:  # noqa: ARG002 there is no thread to keep
        """Close every file."""
        for lane in self._lanes:
            lane.close()


class _Lane:
    """A lane's blocks on their way from a thread to the consumer."""

    __slots__ = ("batches", "busy", "done", "error", "read", "ready", "waiting")

    def __init__(self, batches: LaneBatches) -> None:
        self.batches = batches
        self.ready: deque[list[Any]] = deque()
        self.waiting = 0
        self.busy = False
        self.read = False
        """Nothing is left to read; its part of the tails may be missing still."""
        self.done = False
        self.error: BaseException | None = None


class ThreadServer:
    """Threads that always work on the lane whose batches are needed first.

    A lane pauses while finished batches of it wait: `prefetch` of them, or, where the caller left that open, those of
    `BLOCKS_AHEAD` decoded runs of rows (with a `collate_fn`, so many batches).
    """

    def __init__(self, work: LaneWork, start: int, crew: Crew, threads: int, prefetch: int | None) -> None:
        """Start the threads.

        Args:
            work: the rank's.
            start: steps taken before.
            crew: has the threads; one that was left early keeps none.
            threads: how many serve the lanes.
            prefetch: finished batches of a lane that may wait; None for `BLOCKS_AHEAD` blocks of them.
        """
        self._joining = work.joining(start)
        self._lanes = [_Lane(batches) for batches in begin_lanes(work, start, self._joining)]
        self._prefetch = BLOCKS_AHEAD if prefetch is None and work.collate_fn is not None else prefetch
        self._lock = threading.Lock()
        self._work_wanted = threading.Condition(self._lock)
        self._block_ready = threading.Condition(self._lock)
        self._stopped = False
        self._running = threads
        self._crew = crew
        self._waits = [crew.begin(self._run) for _ in range(threads)]

    @property
    def clocks(self) -> list[LaneClock]:
        """What each lane has done so far."""
        return [lane.batches.clock for lane in self._lanes]

    def take(self, lane: int) -> list[Any] | None:
        """Wait for a lane's next block."""
        wanted = self._lanes[lane]
        with self._lock:
            while not wanted.ready:
                if (error := self._error_of(wanted)) is not None:
                    raise error
                if wanted.done or self._stopped:
                    return None
                self._block_ready.wait()
            block = wanted.ready.popleft()
            wanted.waiting -= len(block)
            self._work_wanted.notify()
            return block

    def rest(self, lane: int) -> Rows | None:
        """Return the rows that a lane which is done left over."""
        return self._lanes[lane].batches.rest

    def close(self, *, is_over: bool = False) -> None:
        """Close every file, and end every thread that nobody else works with, unless the next epoch may want it."""
        with self._lock:
            self._stopped = True
            self._work_wanted.notify_all()
            self._block_ready.notify_all()
        for wait in self._waits:
            wait()
        for lane in self._lanes:
            lane.ready.clear()
        if not is_over:
            self._crew.dismiss()

    def _error_of(self, lane: _Lane) -> BaseException | None:
        """Return a lane's own error; where it waits for its part of the tails, that of any lane."""
        if lane.error is not None or lane.done or not lane.read:
            return lane.error
        return next((other.error for other in self._lanes if other.error is not None), None)

    def _run(self) -> None:
        """Work until nothing is left to do; the last to end closes the files, even where it was the one to close us."""
        while (job := self._next_job()) is not None:
            job()
        with self._lock:
            self._running -= 1
            is_last = self._running == 0
        if is_last:
            for lane in self._lanes:
                lane.batches.close()

    def _next_job(self) -> Callable[[], None] | None:
        """Wait for something to do; None when there will be nothing."""
        with self._lock:
            while not self._stopped:
                to_read = [lane for lane in self._lanes if not (lane.read or lane.error)]
                if not to_read:
                    return self._last_job()
                wanting = [lane for lane in to_read if not lane.busy and self._has_room(lane)]
                if wanting:
                    lane = min(wanting, key=lambda lane: lane.waiting)
                    lane.busy = True
                    room = None if self._prefetch is None else self._prefetch - lane.waiting
                    return partial(self._read_on, lane, room)
                self._work_wanted.wait()
            return None

    def _has_room(self, lane: _Lane) -> bool:
        if self._prefetch is None:
            return len(lane.ready) < BLOCKS_AHEAD
        return lane.waiting < self._prefetch

    def _last_job(self) -> Callable[[], None] | None:
        """When all lanes are read, one thread joins their tails."""
        if self._joining is None or any(lane.error for lane in self._lanes):
            return None
        joining, self._joining = self._joining, None
        return partial(self._join_tails, joining)

    def _read_on(self, lane: _Lane, room: int | None) -> None:
        block, error = None, None
        try:
            block = lane.batches.next_block(room)
        except BaseException as caught:  # noqa: BLE001 the consumer raises it, in its own thread
            error = caught
        with self._lock:
            lane.busy = False
            lane.error = error
            if block is not None:
                if room is None:
                    lane.ready.append(block)
                else:  # one by one, since what the consumer holds beside its batch waits too
                    lane.ready.extend([batch] for batch in block)
                lane.waiting += len(block)
            elif error is None:
                lane.read = True
                lane.done = self._joining is None
            self._block_ready.notify()
            if lane.read or lane.error:
                self._work_wanted.notify_all()

    def _join_tails(self, joining: JoiningWork) -> None:
        lanes, error = [lane.batches for lane in self._lanes], None
        try:
            _hand_out(joining.tails(rests_of(lanes)), lanes)
        except BaseException as caught:  # noqa: BLE001 the consumer raises it, in its own thread
            error = caught
        with self._lock:
            for lane in self._lanes:
                lane.error = error
                lane.read = False
            self._block_ready.notify()


def begin_lanes(work: LaneWork, start: int, joining: JoiningWork | None) -> list[LaneBatches]:
    """Begin every lane where the plan stands.

    Args:
        work: the rank's.
        start: steps taken before; where rows are not counted, lanes begin at their start.
        joining: see `LaneBatches`.
    """
    begun = work.plan.batches_before(start) if work.plan.counted else [0] * work.lanes
    return [LaneBatches(work, lane, batches, joining) for lane, batches in enumerate(begun)]


def _hand_out(tails: list[Rows], lanes: list[LaneBatches]) -> None:
    """Let each lane go on with the rank's last batches that fall to it."""
    for number, lane in enumerate(lanes):
        lane.add_tails(tails[number :: len(lanes)])


def rests_of(lanes: list[LaneBatches]) -> list[Rows]:
    """Return what the lanes left over, in lane order, reading lanes that have no full batch left to their end."""
    for lane in lanes:
        while lane.next_block() is not None:
            msg = "a lane made a full batch after the plan's last"
            raise AssertionError(msg)
    return [lane.rest for lane in lanes if lane.rest is not None]
