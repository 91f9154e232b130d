"""The consumer's side of every engine: batches are taken from the lanes in turn."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch_table_loader.engine.collating import collated
from torch_table_loader.errors import TableError

if TYPE_CHECKING:
    from torch_table_loader.batching.rows import Rows
    from torch_table_loader.engine.roles import LaneWork
    from torch_table_loader.engine.work import LaneClock


class LaneServer(Protocol):
    """Where the blocks of lanes come from: threads, processes, or the caller's own thread."""

    @property
    def clocks(self) -> Sequence[LaneClock]:
        """What each lane has done so far."""
        ...

    def take(self, lane: int) -> list[Any] | None:
        """Return a lane's next block of batches; None when the lane is done. Raises what the lane raised."""
        ...

    def rest(self, lane: int) -> Rows | None:
        """Return the rows that a lane which is done left over; only where rows are not counted."""
        ...

    def close(self, *, is_over: bool = False) -> None:
        """End every thread and process and close every file. May be called more than once.

        Args:
            is_over: nothing is left to take, so that threads may wait for the next epoch.
        """
        ...


@dataclass(slots=True)
class Tally:
    """What the consumer noted.

    Args:
        waited: seconds that it waited for a block.
        short: rows that the last batch lacks, once it is taken; where rows are counted the plan knows, and this is 0.
        taken: batches, by the trainer or by what carries them ahead to a device.
    """

    waited: float = 0.0
    short: int = 0
    taken: int = 0


class BatchesInTurn(Iterator[Any]):
    """The batches of a rank, in the order of its plan.

    Leaving it (an exception, `close`, garbage collection) ends the server's threads and processes.
    """

    def __init__(self, work: LaneWork, server: LaneServer, start: int = 0) -> None:
        """Begin to take.

        Args:
            work: the rank's.
            server: which has begun where the plan stands after `start` steps; where rows are not counted, at 0.
            start: steps taken before.
        """
        self.tally = Tally()
        self._short_at_end = 0
        self._num_joined = 0
        self._work = work
        self._server = server
        self._ready: list[deque[Any]] = [deque() for _ in range(work.lanes)]
        self._open = deque(range(work.lanes))
        self._joined: deque[Any] | None = None
        self._schedule = work.plan.schedule(start) if work.plan.counted else None
        # No generator of ours may hold self: in a cycle it would wait for the collector, and so would the workers.
        self._close = weakref.finalize(self, server.close)
        for _ in range(0 if work.plan.counted else start):
            next(self, None)
        self.tally.taken = 0

    @property
    def clocks(self) -> Sequence[LaneClock]:
        """What each lane has done so far."""
        return self._server.clocks

    def __next__(self) -> Any:
        """Return the next batch; an error of a lane comes where its batch would have, and ends the epoch."""
        if not self._close.alive:
            raise StopIteration
        ready = self._rotated() if self._schedule is None else self._ready_of(next(self._schedule, None))
        if ready is None or not self._close.alive:
            if self._close.detach() is not None:
                self._server.close(is_over=True)
            raise StopIteration
        batch = ready.popleft()
        if ready is self._joined:
            batch = self._last(batch, len(ready))
        self.tally.taken += 1
        return batch

    def _last(self, batch: Any, left: int) -> Any:
        """Finish a batch of what all lanes left over; `left` come after it."""
        try:
            batch = collated(self._work, batch, None, self._num_joined - left - 1)
        except BaseException:
            self.close()
            raise
        if not left:
            self.tally.short = self._short_at_end
        return batch

    def close(self) -> None:
        """End the server; what was not taken is gone. Any thread may, while another one takes."""
        self._close()
        self._ready = [deque() for _ in self._ready]

    def _ready_of(self, lane: int | None) -> deque[Any] | None:
        """Find the batches of the lane whose turn it is; None at the plan's end."""
        if lane is None:
            return None
        ready = self._ready[lane]
        if not (ready or self._refill(lane) or not self._close.alive):
            self.close()
            raise TableError(
                f"worker {lane} must deliver as many batches as its file metadata and counts promise, but it ended "
                "before; build the loader again, without its plan_cache"
            )
        return ready

    def _rotated(self) -> deque[Any] | None:
        """Take lanes in turn until each is done; then join what they left over."""
        while self._open:
            lane = self._open[0]
            if self._ready[lane] or self._refill(lane):
                self._open.rotate(-1)
                return self._ready[lane]
            self._open.popleft()
        if self._joined is None:
            try:
                self._joined = deque(self._joined_rests())
                self._num_joined = len(self._joined)
            except BaseException:
                self.close()
                raise
        return self._joined or None

    def _joined_rests(self) -> list[Any]:
        rests = [rest for lane in range(self._work.lanes) if (rest := self._server.rest(lane)) is not None]
        if not rests:
            return []
        size = self._work.plan.batch_size
        rows = self._work.codec.concat(rests)
        stop = rows.num_rows // size * size if self._work.drop_last else rows.num_rows
        self._short_at_end = -stop % size
        return rows.slice(0, stop).batches(size) if stop else []

    def _refill(self, lane: int) -> bool:
        began = time.perf_counter()
        try:
            block = self._server.take(lane)
        except BaseException:
            self.close()
            raise
        self.tally.waited += time.perf_counter() - began
        if block is None:
            return False
        self._ready[lane].extend(block)
        return True
