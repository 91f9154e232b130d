"""The consumer's side of every engine: batches are taken from the lanes in turn."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch_table_loader.batching.rows import Rows
    from torch_table_loader.engine.work import EpochWork, LaneClock


class LaneServer(Protocol):
    """Where the blocks of lanes come from: threads, processes, or the caller's own thread."""

    @property
    def clocks(self) -> Sequence[LaneClock]:
        """What each lane has done so far."""
        ...

    def take(self, lane: int) -> list[Any] | None:
        """Give a lane's next block of batches; None when the lane is done. Raises what the lane raised."""
        ...

    def rest(self, lane: int) -> Rows | None:
        """Give the rows that a lane which is done left over; only where rows are not counted."""
        ...

    def close(self) -> None:
        """End every thread and process and close every file. May be called more than once."""
        ...


class BatchesInTurn(Iterator[Any]):
    """The batches of a rank, in the order of its plan.

    Leaving it (an exception, `close`, garbage collection) ends the server's threads and processes.
    """

    def __init__(self, work: EpochWork, server: LaneServer, start: int = 0) -> None:
        """Begin to take.

        Args:
            work: the rank's.
            server: which has begun where the plan stands after `start` steps; where rows are not counted, at 0.
            start: steps taken before.
        """
        self.waited = 0.0
        self._work = work
        self._server = server
        self._ready: list[deque[Any]] = [deque() for _ in range(work.lanes)]
        self._close = weakref.finalize(self, server.close)
        self._turns = self._scheduled() if work.plan.counted else self._rotating()
        for _ in range(start):
            if work.plan.counted:
                next(self._turns)
            else:
                next(self)

    @property
    def clocks(self) -> Sequence[LaneClock]:
        """What each lane has done so far."""
        return self._server.clocks

    def __next__(self) -> Any:
        """Give the next batch; an error of a lane comes where its batch would have."""
        for lane in self._turns:
            ready = self._ready[lane]
            if ready or self._refill(lane):
                return ready.popleft()
        self.close()
        raise StopIteration

    def close(self) -> None:
        """End the server; what was not taken is gone."""
        self._close()

    def _scheduled(self) -> Iterator[int]:
        return self._work.plan.schedule()

    def _rotating(self) -> Iterator[int]:
        """Take lanes in turn until each is done; then join what they left over."""
        open_lanes = list(range(self._work.lanes))
        while open_lanes:
            for lane in list(open_lanes):
                if self._ready[lane] or self._refill(lane):
                    yield lane
                else:
                    open_lanes.remove(lane)
        self._ready[0].extend(self._joined_rests())
        while self._ready[0]:
            yield 0

    def _joined_rests(self) -> list[Any]:
        rests = [rest for lane in range(self._work.lanes) if (rest := self._server.rest(lane)) is not None]
        if not rests:
            return []
        size = self._work.plan.batch_size
        rows = self._work.codec.concat(rests)
        stop = rows.num_rows // size * size if self._work.drop_last else rows.num_rows
        return self._work.finish(rows.slice(0, stop).batches(size)) if stop else []

    def _refill(self, lane: int) -> bool:
        began = time.perf_counter()
        try:
            block = self._server.take(lane)
        except BaseException:
            self.close()
            raise
        self.waited += time.perf_counter() - began
        if block is None:
            return False
        self._ready[lane].extend(block)
        return True


__all__ = ["BatchesInTurn", "LaneServer"]
