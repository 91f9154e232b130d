"""The work of a rank in an epoch, as a value, and how one lane of it is done."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow.reserved import PADDING_COLUMN
from torch_table_loader.batching.rebatching import ExactBatches, WindowShuffle
from torch_table_loader.engine.collating import collated
from torch_table_loader.errors import TableError
from torch_table_loader.planning.runs import Runs
from torch_table_loader.planning.windows import Stretch, permuted, stretches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.batching.rows import Rows, RowsCodec
    from torch_table_loader.engine.roles import JoiningWork, LaneWork
    from torch_table_loader.planning.lanes import RankPlan
    from torch_table_loader.planning.splits import SegmentTable
    from torch_table_loader.planning.windows import Window
    from torch_table_loader.read.tasks import TaskReader

_NO_PADDING = np.empty(0, dtype=np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class EpochWork:
    """All that a thread or process needs to read its lanes; it pickles.

    Args:
        plan: what the rank delivers.
        rank: which rank that is.
        segments: what the splits consist of.
        reader: opens and decodes.
        codec: turns record batches into rows of the output form.
        windows: those that were open when earlier stages of the epoch ended.
        seed: key of shuffle windows.
        epoch: the epoch.
        window: rows of a shuffle window, or None.
        marks_padding: whether batches have the column `padding`.
        collate_fn: the caller's, called with each batch where it is made.
        drop_last: whether a short last batch is dropped; used only where rows are not counted.
        block_batches: batches that cross a process together.
        blocks_ahead: blocks of a lane that wait to be taken from a process.
    """

    plan: RankPlan
    rank: int
    segments: SegmentTable
    reader: TaskReader
    codec: RowsCodec[Any]
    windows: tuple[Window, ...]
    seed: int
    epoch: int
    window: int | None
    marks_padding: bool
    collate_fn: Callable[[Any], Any] | None
    drop_last: bool
    block_batches: int
    blocks_ahead: int

    @property
    def lanes(self) -> int:
        """Lanes of the rank."""
        return len(self.plan.lanes)

    def rows(self, lane: int, start: int) -> Iterator[Rows]:
        """Read a lane's rows in the order in which they are delivered.

        Args:
            lane: which.
            start: batches of the lane that were delivered before.
        """
        for section in self.plan.sections(lane, start):
            for stretch in stretches(section, self.segments, self.window):
                padded_from = section.padded_from - stretch.at
                if stretch.unit is not None:
                    yield self._unit(stretch, padded_from)
                elif stretch.size is not None:
                    yield from self._windowed(stretch, stretch.size, padded_from)
                else:
                    yield from self._plain(stretch, stretch.start, padded_from)

    def joining(self, start: int) -> EpochWork | None:
        """Give this, where whoever holds what all lanes left over makes the tail batches without reading rows again.

        Args:
            start: steps taken before.
        """
        plan = self.plan
        joins = plan.counted and not self.windows and start <= sum(plan.body_batches) < plan.steps
        return self if joins else None

    def rows_to_the_end(self, lane: int, start: int) -> Iterator[Rows]:
        """Read a lane's rows, its tail included, so that a row group is decoded once.

        Args:
            lane: which.
            start: full batches of the lane that were delivered before.
        """
        whole = self.plan.whole(lane, start)
        full_rows = self.plan.body_batches[lane] * self.plan.batch_size
        for stretch in stretches(whole, self.segments, self.window):
            if stretch.size is None:
                yield from self._plain(stretch, stretch.start, stretch.runs.num_rows)
            else:
                body = replace(stretch, runs=stretch.runs.slice(0, full_rows))
                source = self._plain(stretch, stretch.start // stretch.size * stretch.size, stretch.runs.num_rows)
                yield from self._permuted(body, stretch.size, source)

    def tails(self, rests: Sequence[Rows]) -> list[Rows]:
        """Join what the lanes left over, and the padding, to the rows of the rank's last batches, one run a batch.

        Args:
            rests: the tails, in lane order.
        """
        size, plan = self.plan.batch_size, self.plan
        parts = list(rests)
        for batch, name in self._read(self.segments, plan.padding):
            parts.append(self._decode(batch, name, np.ones(batch.num_rows, dtype=np.bool_)))
        if not parts:
            return []
        rows = self.codec.concat(parts)
        return [
            self._tail(number, rows.slice(number * size, min((number + 1) * size, rows.num_rows)))
            for number in range(plan.steps - sum(plan.body_batches))
        ]

    def _tail(self, number: int, rows: Rows) -> Rows:
        if self.window is None:
            return rows
        stretch = Stretch(self.plan.tail_name(number), 0, Runs.of([]), 0, self.segments, self.window, None)
        shuffle = WindowShuffle(self.codec, self.window, partial(self._order, stretch))
        return cast("Rows", self.codec.concat([*shuffle.push(rows), *shuffle.finish()]))

    def _plain(self, stretch: Stretch, start: int, padded_from: int) -> Iterator[Rows]:
        """Read a stretch from a row on; where rows are not counted, all rows of its splits."""
        at = start
        runs = stretch.runs.slice(start, stretch.runs.num_rows) if self.plan.counted else stretch.runs
        for batch, name in self._read(stretch.segments, runs):
            padding = np.arange(at, at + batch.num_rows) >= padded_from if self.marks_padding else _NO_PADDING
            yield self._decode(batch, name, padding)
            at += batch.num_rows

    def _windowed(self, stretch: Stretch, size: int, padded_from: int) -> Iterator[Rows]:
        """Permute inside windows; reading begins where the open window begins, no earlier."""
        return self._permuted(stretch, size, self._plain(stretch, stretch.start // size * size, padded_from))

    def _permuted(self, stretch: Stretch, size: int, source: Iterator[Rows]) -> Iterator[Rows]:
        """Permute what was read of a stretch, less what was delivered; rows beyond it come as they are."""
        first = stretch.start // size
        shuffle = WindowShuffle(self.codec, size, partial(self._order, stretch), first_window=first)
        unwanted = stretch.start - first * size
        left = stretch.runs.num_rows - first * size if self.plan.counted else None
        for rows in _through(shuffle, source, left):
            wanted = rows.slice(min(unwanted, rows.num_rows), rows.num_rows) if unwanted else rows
            unwanted -= rows.num_rows - wanted.num_rows
            if wanted.num_rows:
                yield wanted

    def _order(self, stretch: Stretch, number: int, length: int) -> NDArray[np.int64]:
        return permuted(length, self.seed, self.epoch, stretch.window_name(number))

    def _unit(self, stretch: Stretch, padded_from: int) -> Rows:
        """Read an older window whole, and deliver the part of its order that this lane was given."""
        [(number, start, stop)] = stretch.runs
        window = self.windows[number - len(stretch.segments.splits)]
        places = window.order(self.seed, self.epoch)[start + stretch.start : stop]
        padding = np.zeros(window.runs.num_rows, dtype=np.bool_)
        padding[places] = np.arange(stretch.start, stop - start) >= padded_from
        at, parts = 0, []
        for batch, name in self._read(window.segments, window.runs):
            parts.append(self._decode(batch, name, padding[at : at + batch.num_rows]))
            at += batch.num_rows
        return cast("Rows", self.codec.concat(parts).take(places))

    def _read(self, segments: SegmentTable, runs: Runs) -> Iterator[tuple[pa.RecordBatch, str]]:
        """Read pieces in order; says of each batch which file it is of."""
        for split, begin, end in runs:
            task = segments.task(split, begin, end if self.plan.counted else -1)
            name = segments.splits.layout.files[task.file_index].name
            for batch in self.reader.read(task):
                yield batch, name

    def _decode(self, batch: pa.RecordBatch, name: str, padding: NDArray[np.bool_]) -> Rows:
        if self.marks_padding:
            batch = batch.append_column(pa.field(PADDING_COLUMN, pa.bool_(), nullable=False), pa.array(padding))
        try:
            return cast("Rows", self.codec.decode(batch))
        except TableError as error:
            raise TableError(f"{name}: {error}") from error


def _through(shuffle: WindowShuffle[Any], source: Iterator[Rows], left: int | None) -> Iterator[Rows]:
    """Shuffle the first `left` rows (None: all); the others follow as they are."""
    for rows in source:
        if left is None or rows.num_rows <= left:
            yield from shuffle.push(rows)
            left = None if left is None else left - rows.num_rows
            continue
        if left:
            yield from shuffle.push(rows.slice(0, left))
        yield from shuffle.finish()
        yield rows.slice(left, rows.num_rows)
        left = 0
    yield from shuffle.finish()


@dataclass(slots=True)
class LaneClock:
    """What a lane has done, for `metrics()`.

    Args:
        rows: delivered to the engine.
        batches: made.
        num_bytes: of the output form.
        working: seconds spent reading and decoding.
    """

    rows: int = 0
    batches: int = 0
    num_bytes: int = 0
    working: float = 0.0


class LaneBatches:
    """One lane at work: an iterator over blocks of finished batches.

    Not safe for two threads at once; the engine sees to that.
    """

    def __init__(self, work: LaneWork, lane: int, start: int = 0, joining: JoiningWork | None = None) -> None:
        """Begin a lane.

        Args:
            work: the rank's.
            lane: which.
            start: batches of the lane that were delivered before.
            joining: leaves the lane's tail in `rest`; None: the lane makes the tail batches that fall to it.
        """
        self.clock = LaneClock()
        self.rest: Rows | None = None
        self._work = work
        self._lane = lane
        self._start = start
        self._keeps_rest = joining is not None or not work.plan.counted
        self._source = work.rows(lane, start) if joining is None else joining.rows_to_the_end(lane, start)
        self._cutter = ExactBatches(work.codec, work.plan.batch_size)
        self._runs: deque[Rows] = deque()
        """Decoded rows of whole batches that are not finished yet."""
        self._done = False

    def next_block(self, most: int | None = None) -> list[Any] | None:
        """Finish the next batches; None when the lane is done (what is left over is then in `rest`).

        Args:
            most: batches to finish at most; None for all that one decoded run of rows completes. Where there is a
                `collate_fn`, it is one in any case.
        """
        began = time.perf_counter()
        try:
            while not self._runs:
                if self._done:
                    return None
                self._read_on()
            collate_fn = self._work.collate_fn
            batches = self._cut(most if collate_fn is None else 1)
            if collate_fn is not None:
                number = self._start + self.clock.batches
                batches = [collated(self._work, batch, self._lane, number) for batch in batches]
            self.clock.batches += len(batches)
            return batches
        finally:
            self.clock.working += time.perf_counter() - began

    def add_tails(self, tails: Sequence[Rows]) -> None:
        """Go on with the rank's last batches that fall to this lane, one run of rows each."""
        self._runs += tails

    def _read_on(self) -> None:
        rows = next(self._source, None)
        if rows is not None:
            self.clock.rows += rows.num_rows
            self.clock.num_bytes += rows.num_bytes
            self._runs += self._cutter.push(rows)
            return
        self._done = True
        rest = self._cutter.rest()
        if self._keeps_rest:
            self.rest = rest
        elif rest is not None:
            self._runs.append(rest)

    def _cut(self, most: int | None) -> list[Any]:
        """Cut batches off the decoded rows; the others stay rows, which weigh no more than they did."""
        size = self._work.plan.batch_size
        if most is None:
            batches = [batch for run in self._runs for batch in run.batches(size)]
            self._runs.clear()
            return batches
        run = self._runs.popleft()
        stop = most * size
        if stop < run.num_rows:
            self._runs.appendleft(run.slice(stop, run.num_rows))
            run = run.slice(0, stop)
        return run.batches(size)

    def close(self) -> None:
        """Close the file that is open."""
        self._done = True
        self._runs.clear()
        self._source.close()  # type: ignore[attr-defined]
