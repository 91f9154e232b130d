"""The consumer's side of every executor: the batches of all lanes, in the order of the plan."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from torch_table_loader.arrow.buffers import LargeArrays
from torch_table_loader.batching.rows import counted
from torch_table_loader.errors import ResumeError, TableError

if TYPE_CHECKING:
    from torch_table_loader.engine.work.lane_work import LaneMetrics, LaneWork
    from torch_table_loader.engine.workers.executor import LaneExecutor
    from torch_table_loader.ranges import FetchStats
    from torch_table_loader.samples import SampleCounts


Made: TypeAlias = "tuple[Any, SampleCounts | None]"
"""A batch and what was counted of it; None where samples are rows."""


@dataclass(slots=True)
class Counts:
    """What lanes and their consumer have done since they began; it goes on counting, and keeps none of them alive.

    Args:
        fetched: what was fetched for the lanes.
        waited: seconds that the consumer waited for a block.
        short: rows missing from the last batch, once it is taken; 0 if rows are counted, since the plan knows then.
        taken: batches taken by the trainer, or by what copies them to a device ahead of it.
        made: what was counted of those batches; None where samples are rows.
    """

    lanes: Sequence[LaneMetrics]
    fetched: FetchStats
    waited: float = 0.0
    short: int = 0
    taken: int = 0
    made: SampleCounts | None = None


class LaneMerger(Iterator[Any]):
    """The batches of a rank, in the order of its plan.

    Leaving it (an exception, `close`, garbage collection) ends the executor's threads and processes.
    """

    def __init__(self, work: LaneWork, executor: LaneExecutor, start: int = 0) -> None:
        """Start without a batch taken.

        Args:
            executor: it begins after `start` steps of the plan or, if rows are not counted, at the first.

        Raises:
            ResumeError: rows are not counted, and the rank has fewer steps.
        """
        self.counts = Counts(executor.metrics, executor.fetched)
        self._short_at_end = 0
        self._num_joined = 0
        self._work = work
        self._executor = executor
        self._ready: list[Iterator[Made]] = [iter(()) for _ in range(work.lanes)]
        self._open = deque(range(work.lanes))
        self._joined: deque[Made] | None = None
        self._left_of_joined: int | None = None
        """Batches that come after the newest one, if that is of the rows left over by all lanes."""
        self._is_closed = False
        self._schedule: Iterator[int] | None = None
        if work.plan.counted:
            self._schedule = work.plan.schedule(start)
        # No generator of ours may hold self: in a cycle it, and the workers, would wait for the garbage collector.
        self._close = weakref.finalize(self, executor.close)
        self._large_arrays = LargeArrays()
        if not work.plan.counted and (found := sum(1 for _ in islice(self, start))) < start:
            raise ResumeError(
                f"the state has taken {start} steps of an epoch in which this rank takes {found}; pass the value of "
                "state_dict() unchanged"
            )
        self.counts.taken, self.counts.made = 0, None

    def __next__(self) -> Any:
        """Return the next batch; a lane's error is raised where its batch would have come, and ends the epoch."""
        if self._schedule is None:
            made = self._rotated()
        elif (lane := next(self._schedule, None)) is None or self._is_closed:
            made = None
        else:
            made = next(self._ready[lane], None) or self._refilled(lane)
        if made is None or self._is_closed:
            self._is_closed = True
            if self._close.detach() is not None:
                self._executor.close(is_over=True)
            self._large_arrays.close()
            raise StopIteration
        batch, more = made
        if self._left_of_joined is not None:
            batch = self._last(batch, self._left_of_joined)
        counts = self.counts
        counts.taken += 1
        if more is not None:
            if counts.made is not None:
                more = counts.made + more
            counts.made = more
        return batch

    def _last(self, batch: Any, left: int) -> Any:
        """Finish a batch of the rows left over by all lanes; `left` batches come after it."""
        try:
            batch = self._work.collated(batch, None, self._num_joined - left - 1)
        except BaseException:
            self.close()
            raise
        if not left:
            self.counts.short = self._short_at_end
        return batch

    def close(self) -> None:
        """Close the executor, and drop what was not taken. Any thread may call it, even while another one takes."""
        self._is_closed = True
        self._close()
        self._large_arrays.close()
        self._ready = [iter(()) for _ in self._ready]

    def _rotated(self) -> Made | None:
        """Take lanes in turn until each is done; then join the rows that they left over."""
        while self._open and not self._is_closed:
            lane = self._open[0]
            made = next(self._ready[lane], None) or self._refilled(lane)
            if made is not None:
                self._open.rotate(-1)
                return made
            self._open.popleft()
        if self._is_closed:
            return None
        if self._joined is None:
            try:
                rests = [rest for lane in range(self._work.lanes) if (rest := self._executor.rest(lane)) is not None]
                batches, self._short_at_end = self._work.last_batches(rests)
                self._joined, self._num_joined = deque(counted(batches)), len(batches)
            except BaseException:
                self.close()
                raise
        if not self._joined:
            return None
        made = self._joined.popleft()
        self._left_of_joined = len(self._joined)
        return made

    def _refilled(self, lane: int) -> Made | None:
        """Wait for a lane's next block, and return its first batch; None if the lane is done, or this was closed.

        A lane whose turn it is in the plan cannot be done.
        """
        began = time.perf_counter()
        try:
            block = self._executor.take(lane)
        except BaseException:
            self.close()
            raise
        self.counts.waited += time.perf_counter() - began
        made = None
        if block is not None:
            self._ready[lane] = counted(block)
            made = next(self._ready[lane], None)
        if made is not None or self._schedule is None or not self._close.alive:
            return made
        self.close()
        raise TableError(
            f"worker {lane} must deliver as many batches as its file metadata and counts promise, but it ended "
            "before; build the loader again, without its plan_cache"
        )
