"""The consumer's side of every executor: the batches of all lanes, in the order of the plan."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from torch_table_loader.arrow.buffers import LargeArrays
from torch_table_loader.batching.rows import counted
from torch_table_loader.errors import ResumeError, TableError

if TYPE_CHECKING:
    from torch_table_loader.engine.work.lane_work import LaneMetrics, LaneWork
    from torch_table_loader.engine.workers.executor import LaneExecutor
    from torch_table_loader.ranges import FetchStats
    from torch_table_loader.samples import SampleCounts


@dataclass(slots=True)
class Counts:
    """What lanes and their consumer have done since they began; it goes on counting, and keeps none of them alive.

    Args:
        fetched: what was fetched for the lanes.
        waited: seconds that the consumer waited for a block.
        short: rows missing from the last batch, once it is taken; 0 if rows are counted, since the plan knows then.
        taken: batches taken by the trainer, or by what copies them to a device ahead of it; 0 if rows are counted.
        made: what was counted of those batches; None where samples are rows.
    """

    lanes: Sequence[LaneMetrics]
    fetched: FetchStats
    waited: float = 0.0
    short: int = 0
    taken: int = 0
    made: SampleCounts | None = None

    def count(self, made: SampleCounts) -> None:
        """Count one more batch."""
        if self.made is not None:
            made = self.made + made
        self.made = made


class LaneMerger:
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
        # Nothing that it holds may hold self: in a cycle it, and the workers, would wait for the garbage collector.
        self._close = weakref.finalize(self, executor.close)
        self._large_arrays = LargeArrays()
        self._lanes = lanes = _Lanes(work, executor, self.counts, self._close)
        batches: Iterator[Any] = _InTurn(lanes)
        if work.plan.counted:
            batches = lanes.by_plan(start)
        self.batches = chain(batches, _ending(self._close, executor, self._large_arrays))
        """The batches; a lane's error is raised where its batch would have come. The consumer then closes this merger,
        and otherwise keeps it until all batches are taken."""
        if not work.plan.counted:
            self._go_to(start)

    def _go_to(self, start: int) -> None:
        """Take batches that were taken before."""
        try:
            found = sum(1 for _ in islice(self.batches, start))
        except BaseException:
            self.close()
            raise
        if found < start:
            raise ResumeError(
                f"the state has taken {start} steps of an epoch in which this rank takes {found}; pass the value of "
                "state_dict() unchanged"
            )
        self.counts.taken, self.counts.made = 0, None

    def close(self) -> None:
        """Close the executor, and drop what was not taken. Any thread may call it, even while another one takes."""
        self._close()
        self._lanes.drop()
        self._large_arrays.close()


def _ending(close: weakref.finalize[Any, Any], executor: LaneExecutor, large_arrays: LargeArrays) -> Iterator[Any]:
    """Yield nothing, but keep threads for the next epoch, if this one is over and was not closed."""
    if close.detach() is not None:
        executor.close(is_over=True)
    large_arrays.close()
    yield from ()


class _Lanes:
    """The batches of lanes, as they are taken of an executor.

    Args:
        ready: of each lane, which waits for its next block where nothing is ready.
        close: closes the executor; it is not alive once it was called, and then no more blocks are taken.
    """

    def __init__(
        self, work: LaneWork, executor: LaneExecutor, counts: Counts, close: weakref.finalize[Any, Any]
    ) -> None:
        self.work = work
        self.executor = executor
        self.counts = counts
        self.close = close
        blocks = [_blocks(lane, executor, counts, close, work.plan.counted) for lane in range(work.lanes)]
        self.ready: list[Iterator[Any]] = list(map(chain.from_iterable, blocks))

    def by_plan(self, start: int) -> Iterator[Any]:
        """Return the batches as the plan says, which knows how many there are, without a step in Python for each."""
        return map(next, map(self.ready.__getitem__, self.work.plan.schedule(start)))

    def drop(self) -> None:
        """Let go what was not taken."""
        self.ready[:] = [iter(()) for _ in self.ready]


def _blocks(
    lane: int, executor: LaneExecutor, counts: Counts, close: weakref.finalize[Any, Any], is_counted: bool
) -> Iterator[Iterator[Any]]:
    """Wait for the blocks of a lane, one after the other. One whose turn it is in the plan cannot be done."""
    while True:
        began = time.perf_counter()
        block = executor.take(lane)
        counts.waited += time.perf_counter() - began
        if block is None or not close.alive:
            break
        batches = block.taken()
        if block.counts:
            batches = map(partial(_counted, counts), batches, block.counts)
        del block  # it goes with its last batch
        yield batches
    if is_counted and close.alive:
        raise TableError(
            f"worker {lane} must deliver as many batches as its file metadata and counts promise, but it ended "
            "before; build the loader again, without its plan_cache"
        )


def _counted(counts: Counts, batch: Any, made: SampleCounts) -> Any:
    counts.count(made)
    return batch


class _InTurn(Iterator[Any]):
    """The batches of lanes in turn, where rows are not counted, until each is done; then the rows that they left over.

    No generator, which would keep a batch until the next one is asked for.
    """

    def __init__(self, lanes: _Lanes) -> None:
        self._lanes = lanes
        self._left = deque(range(lanes.work.lanes))
        self._joined: deque[tuple[Any, SampleCounts | None]] | None = None
        self._short_at_end = 0
        self._finished = 0

    def __next__(self) -> Any:
        while self._left:
            try:
                batch = next(self._lanes.ready[self._left[0]])
            except StopIteration:
                self._left.popleft()
                continue
            self._left.rotate(-1)
            self._lanes.counts.taken += 1
            return batch
        if not self._lanes.close.alive:
            raise StopIteration
        if self._joined is None:
            work, executor = self._lanes.work, self._lanes.executor
            rests = [part for lane in range(work.lanes) for part in executor.rest(lane)]
            batches, self._short_at_end = work.last_batches(rests)
            self._joined = deque(counted(batches))
        if not self._joined:
            raise StopIteration
        return self._last(*self._joined.popleft(), left=len(self._joined))

    def _last(self, batch: Any, made: SampleCounts | None, *, left: int) -> Any:
        """Finish a batch of the rows left over by all lanes; `left` batches come after it."""
        counts = self._lanes.counts
        batch = self._lanes.work.collated(batch, None, self._finished)
        self._finished += 1
        counts.taken += 1
        if made is not None:
            counts.count(made)
        if not left:
            counts.short = self._short_at_end
        return batch
