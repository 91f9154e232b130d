"""The work of a rank in an epoch, as a value, and one lane of it being done."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from itertools import repeat
from typing import TYPE_CHECKING, Any

from torch_table_loader.batching.rows import Batches, ExactBatches, sized
from torch_table_loader.cached import cached_property
from torch_table_loader.cancellation import Threads
from torch_table_loader.planning.steps import Steps, step_of

if TYPE_CHECKING:
    from torch_table_loader.batching.rows import Rows, RowsCodec, SizedBatches
    from torch_table_loader.planning.taken_files import PlannedFiles
    from torch_table_loader.ranges import Fetcher


_ALL = sys.maxsize

_OF_ANOTHER_FORM = (AttributeError, LookupError, TypeError, ValueError)
"""What a function made for a list of samples raises when it gets one batch."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LaneWork(ABC):
    """All that a thread or process needs to make a rank's batches of an epoch; it pickles.

    A short last batch is dropped by `drop_last` only if rows are not counted; else the plan has dropped it.

    Args:
        longest: steps of the rank that takes most; None if nobody knows.
        servers: threads or processes that serve the lanes.
        marks_padding: whether batches have the column `padding`.
        collate_fn: the caller's, called with each batch where it is made.
        block_batches: batches that cross a process together.
        batches_at_once: the most batches that are finished together in a thread; None: all that a read completes.
        blocks_ahead: blocks of a lane that wait to be taken from a process.
    """

    plan: Steps
    longest: int | None
    rank: int
    lanes: int
    servers: int
    epoch: int
    codec: RowsCodec[Any]
    marks_padding: bool
    collate_fn: Callable[[Any], Any] | None
    drop_last: bool
    block_batches: int
    blocks_ahead: int
    batches_at_once: int | None

    def fetch_ahead(self, begun: Mapping[int, int], *, joins: bool) -> Fetcher | None:  # noqa: ARG002 most has no need
        """Begin to fetch what some lanes read, ahead of them; return None if nothing is remote.

        Args:
            begun: the batches of each of these lanes that were delivered before.
            joins: whether lanes are read to their very end; see `joins_tails`.
        """
        return None

    def planned_files(self) -> PlannedFiles | None:
        """Return the table's files that the plan takes; None where they are not known, or a row store is read."""
        return None

    @abstractmethod
    def rows(self, lane: int, start: int, ahead: Fetcher | None = None) -> Iterator[Rows]:
        """Yield the rows of a lane in delivery order, after the `start` batches that were delivered before."""

    def joins_tails(self, start: int) -> bool:  # noqa: ARG002 most work does not
        """Whether lanes are read to their very end, and the last batches are made of what they all left over."""
        return False

    def rows_to_the_end(self, lane: int, start: int, ahead: Fetcher | None = None) -> Iterator[Rows]:
        """Yield a lane's rows, its tail included; see `joins_tails`."""
        return self.rows(lane, start, ahead)

    def tails(self, rests: Sequence[Rows], ahead: Fetcher | None = None) -> list[Rows]:  # noqa: ARG002 most leave none
        """Join what the lanes left over to the rows of the rank's last batches, one run a batch; see `joins_tails`."""
        return []

    def cutter(self, lane: int, start: int, unit: int | None, *, joins: bool) -> ExactBatches[Any]:  # noqa: ARG002 most cut all alike
        """Return what cuts the rows of a lane after `start` batches; see `LaneBatches`."""
        return ExactBatches(self.codec, (unit or 1) * self.plan.batch_size, copied=unit is not None)

    def begun(self, start: int) -> list[int]:
        """Return the batches of each lane that were delivered in so many steps; 0 where rows are not counted."""
        if self.plan.counted:
            return self.plan.batches_before(start)
        return [0] * self.lanes

    def last_batches(self, rests: Sequence[Rows]) -> tuple[Batches, int]:
        """Cut the rows left over by lanes whose rows are not counted.

        Returns:
            The batches, not collated yet, and how many rows the last one lacks.
        """
        if not rests:
            return Batches(), 0
        size = self.plan.batch_size
        rows = self.codec.concat(rests)
        stop = rows.num_rows // size * size if self.drop_last else rows.num_rows
        return sized(rows.slice(0, stop).batches(size) if stop else []), -stop % size

    def collated(self, batch: Any, lane: int | None, number: int) -> Any:
        """Call the caller's functions with a batch: those of columns, then `collate_fn`.

        Args:
            lane: the lane that made it; None if it joins what all lanes left over.
            number: batches that the lane made before.

        Raises:
            BaseException: what a function raised, with a note of which that was, and of which batch.
            RuntimeError: a function raised StopIteration, which would end the epoch in silence.
        """
        for label, function in self._functions():
            try:
                batch = function(batch)
            except StopIteration as error:
                message = f"{label} raised StopIteration; {self._where(lane, number)}"
                raise RuntimeError(message) from error
            except BaseException as error:
                error.add_note(f"raised by {label}; {self._where(lane, number)}")
                if label == "collate_fn" and isinstance(error, _OF_ANOTHER_FORM):
                    kind = type(batch).__name__
                    error.add_note(f"{label} gets a whole batch, one {kind} of columns, and never a list of rows")
                raise
        return batch

    @property
    def collated_at_once(self) -> int:
        """Batches of a lane with which the caller's functions are called side by side."""
        return 1

    @property
    def calls_functions(self) -> bool:
        """Whether functions of the caller's are called with each batch, where it is made."""
        return self.collate_fn is not None or bool(self.codec.functions)

    def _functions(self) -> Iterator[tuple[str, Callable[[Any], Any]]]:
        for function in self.codec.functions:
            yield function.label, function
        if self.collate_fn is not None:
            yield "collate_fn", self.collate_fn

    def _where(self, lane: int | None, number: int) -> str:
        where = f"rank {self.rank}, epoch {self.epoch}"
        if lane is None:
            return f"{where}, batch {number} of what all workers left over"
        where += f", batch {number} of worker {lane}"
        if self.plan.counted:
            return f"{where}, which is step {step_of(self.plan, lane, number)}"
        return where


@dataclass(slots=True)
class LaneMetrics:
    """The metrics of one worker, which counts them while it works.

    Args:
        num_bytes: bytes of those rows in the output form.
        seconds_working: time spent reading, decoding, and in the caller's functions.
        seconds_collating: the part of this time in the caller's functions: `decode`, `transforms` and `collate_fn`.
        files: data files of which the trainer took rows that this worker read; None where `Metrics` has none.
        stored_bytes: the share of those files' bytes that the rows are.
    """

    worker: int
    rows: int = 0
    batches: int = 0
    num_bytes: int = 0
    seconds_working: float = 0.0
    seconds_collating: float = 0.0
    files: int | None = None
    stored_bytes: int | None = None

    def __add__(self, other: LaneMetrics) -> LaneMetrics:
        """Add what the worker did at another time; what one of the two does not know is unknown."""
        sums: dict[str, Any] = {}
        for each in fields(self)[1:]:
            own, others = getattr(self, each.name), getattr(other, each.name)
            sums[each.name] = None if own is None or others is None else own + others
        return LaneMetrics(self.worker, **sums)


class LaneBatches:
    """One lane at work: its rows cut into whole batches.

    Not safe for two threads at once; the executors see to that.
    """

    def __init__(
        self,
        work: LaneWork,
        lane: int,
        start: int = 0,
        ahead: Fetcher | None = None,
        *,
        joins: bool = False,
        unit: int | None = None,
    ) -> None:
        """Begin a lane after `start` batches of it.

        Args:
            joins: read to the very end, and leave the tail in `rest`; else the lane makes its own tail batches.
            unit: batches of which runs are cut that are copied into blocks; None where batches are views.
        """
        self.metrics = LaneMetrics(lane)
        self.rest: list[Rows] = []
        """The rows left over when the lane is done, in parts, where they are joined with those of other lanes."""
        self._work = work
        self._calls_functions = work.calls_functions
        self._lane = lane
        self._start = start
        self._keeps_rest = joins or not work.plan.counted
        self._source = work.rows_to_the_end(lane, start, ahead) if joins else work.rows(lane, start, ahead)
        self._cutter = work.cutter(lane, start, unit, joins=joins)
        self._runs: deque[list[Rows]] = deque()
        """Decoded rows of whole batches that are not taken yet; each is one run in one or several parts."""
        self._done = False
        self._ends = ExitStack()

    def next_run(self, most: int | None = None) -> list[Rows] | None:
        """Return the rows of the next whole batches, in consecutive parts; None when the lane is done.

        Args:
            most: the most batches, at least the unit; None for all that are ready together.
        """
        if not self._ready():
            return None
        run = self._runs.popleft()
        stop = run[0].num_rows if most is None else most * self._work.plan.batch_size
        if len(run) == 1 and stop < run[0].num_rows:  # what is left stays rows, which weigh no more than they did
            self._runs.appendleft([run[0].slice(stop, run[0].num_rows)])
            run = [run[0].slice(0, stop)]
        self.metrics.batches += -(-sum(part.num_rows for part in run) // self._work.plan.batch_size)
        return run

    def next_block(self, most: int | None = None) -> SizedBatches | None:
        """Finish the next batches; return None when the lane is done.

        Args:
            most: the most batches; None for `batches_at_once` of `LaneWork`, or 1 under the caller's functions.
        """
        began = time.perf_counter()
        try:
            if not self._ready():
                return None
            if self._calls_functions:
                at_once = self._work.collated_at_once
                return self._collated(self._start + self.metrics.batches, self._finish(min(most or at_once, at_once)))
            if most is not None or self._work.batches_at_once is not None:
                return self._finish(min(most or _ALL, self._work.batches_at_once or _ALL))
            runs = list(self._runs)
            self._runs.clear()
            block = self._work.codec.batches_of(runs, self._work.plan.batch_size)
            self.metrics.batches += len(block)
            return block
        finally:
            self.metrics.seconds_working += time.perf_counter() - began

    def add_tails(self, tails: Sequence[Rows]) -> None:
        """Go on with the rank's last batches that fall to this lane, one run of rows each."""
        self._runs.extend([tail] for tail in tails)

    def close(self) -> None:
        """Close the file that is open."""
        self._done = True
        self._runs.clear()
        with self._ends:
            self._source.close()  # type: ignore[attr-defined]

    def _finish(self, most: int) -> Batches:
        return sized(self._next_rows(most).batches(self._work.plan.batch_size))

    def _next_rows(self, most: int | None = None) -> Rows:
        run = self.next_run(most)
        assert run is not None  # noqa: S101 asked only where one is ready
        rows: Rows = self._work.codec.as_one(run)
        return rows

    def _collated(self, number: int, batches: Batches) -> Batches:
        began = time.perf_counter()
        numbers = range(number, number + len(batches))
        try:
            return Batches(self._calls(self._work.collated, batches, repeat(self._lane), numbers), batches.counts)
        finally:
            self.metrics.seconds_collating += time.perf_counter() - began

    @cached_property
    def _calls(self) -> Callable[..., Iterator[Any]]:
        """What calls a function with each of some batches: `map`, or that of threads, which end with the lane."""
        if self._work.collated_at_once == 1:
            return map
        return self._ends.enter_context(Threads(self._work.collated_at_once, "table-loader-collate", joined=True)).map

    def _ready(self) -> bool:
        """Read on until there is a run of whole batches; return whether there is one."""
        while not self._runs and not self._done:
            rows = next(self._source, None)
            if rows is None:
                self._end()
            else:
                self.metrics.rows += rows.num_samples
                self.metrics.num_bytes += rows.num_bytes
                self._runs.extend(self._cutter.push(rows))
                del rows  # else they stay while the next ones are read
        return bool(self._runs)

    def _end(self) -> None:
        self._done = True
        rest, size = self._cutter.rest(), self._work.plan.batch_size
        num_rows = sum(part.num_rows for part in rest)
        if self._keeps_rest and num_rows < size:
            self.rest = rest
        elif self._keeps_rest and num_rows % size:
            rows, whole = self._work.codec.as_one(rest), num_rows // size * size
            self._runs.append([rows.slice(0, whole)])
            self.rest = [rows.slice(whole, num_rows)]
        elif rest:
            self._runs.append(rest)
