"""Lanes on threads of this process, or in the caller's own thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_table_loader.engine.work import LaneBatches

if TYPE_CHECKING:
    from torch_table_loader.batching.rows import Rows
    from torch_table_loader.engine.work import EpochWork, LaneClock


class CallerServer:
    """Reads a lane when its batch is asked for, in the thread that asks."""

    def __init__(self, work: EpochWork, begun: Sequence[int]) -> None:
        """Prepare the lanes.

        Args:
            work: the rank's.
            begun: batches that each lane has delivered before.
        """
        self._lanes = [LaneBatches(work, lane, start) for lane, start in enumerate(begun)]

    @property
    def clocks(self) -> list[LaneClock]:
        """What each lane has done so far."""
        return [lane.clock for lane in self._lanes]

    def take(self, lane: int) -> list[Any] | None:
        """Read the lane on to its next block."""
        return self._lanes[lane].next_block()

    def rest(self, lane: int) -> Rows | None:
        """Give the rows that a lane which is done left over."""
        return self._lanes[lane].rest

    def close(self) -> None:
        """Close every file."""
        for lane in self._lanes:
            lane.close()


class _Lane:
    """A lane's blocks on their way from a thread to the consumer."""

    __slots__ = ("batches", "busy", "done", "error", "ready", "waiting")

    def __init__(self, batches: LaneBatches) -> None:
        self.batches = batches
        self.ready: deque[list[Any]] = deque()
        self.waiting = 0
        self.busy = False
        self.done = False
        self.error: BaseException | None = None


class ThreadServer:
    """Threads that always work on the lane whose batches are needed first.

    A lane pauses while a block of it waits (or, where the caller set `prefetch`, while so many batches wait).
    """

    def __init__(self, work: EpochWork, begun: Sequence[int], threads: int, prefetch: int | None) -> None:
        """Start the threads.

        Args:
            work: the rank's.
            begun: batches that each lane has delivered before.
            threads: how many serve the lanes.
            prefetch: batches that a lane may hold ready; None for one block.
        """
        self._lanes = [_Lane(LaneBatches(work, lane, start)) for lane, start in enumerate(begun)]
        self._prefetch = 1 if prefetch is None else prefetch
        self._lock = threading.Lock()
        self._work_wanted = threading.Condition(self._lock)
        self._block_ready = threading.Condition(self._lock)
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._run, name=f"table-loader-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def clocks(self) -> list[LaneClock]:
        """What each lane has done so far."""
        return [lane.batches.clock for lane in self._lanes]

    def take(self, lane: int) -> list[Any] | None:
        """Wait for a lane's next block."""
        wanted = self._lanes[lane]
        with self._lock:
            while not wanted.ready:
                if wanted.error is not None:
                    raise wanted.error
                if wanted.done or self._stopped:
                    return None
                self._block_ready.wait()
            block = wanted.ready.popleft()
            wanted.waiting -= len(block)
            self._work_wanted.notify()
            return block

    def rest(self, lane: int) -> Rows | None:
        """Give the rows that a lane which is done left over."""
        return self._lanes[lane].batches.rest

    def close(self) -> None:
        """End every thread and close every file."""
        with self._lock:
            self._stopped = True
            self._work_wanted.notify_all()
            self._block_ready.notify_all()
        for thread in self._threads:
            thread.join()
        for lane in self._lanes:
            lane.batches.close()
            lane.ready.clear()

    def _run(self) -> None:
        while (lane := self._next_lane()) is not None:
            block, error = None, None
            try:
                block = lane.batches.next_block()
            except BaseException as caught:  # noqa: BLE001 the consumer raises it, in its own thread
                error = caught
            self._deliver(lane, block, error)

    def _next_lane(self) -> _Lane | None:
        """Wait for a lane that wants work; None when there will be none."""
        with self._lock:
            while not self._stopped:
                open_lanes = [lane for lane in self._lanes if not (lane.done or lane.error)]
                if not open_lanes:
                    break
                wanting = [lane for lane in open_lanes if not lane.busy and lane.waiting < self._prefetch]
                if wanting:
                    lane = min(wanting, key=lambda lane: lane.waiting)
                    lane.busy = True
                    return lane
                self._work_wanted.wait()
            return None

    def _deliver(self, lane: _Lane, block: list[Any] | None, error: BaseException | None) -> None:
        with self._lock:
            lane.busy = False
            lane.error = error
            if block is not None:
                lane.ready.append(block)
                lane.waiting += len(block)
            elif error is None:
                lane.done = True
            self._block_ready.notify()
            if lane.done or lane.error:
                self._work_wanted.notify_all()


__all__ = ["CallerServer", "ThreadServer"]
