"""The work of a rank that reads splits as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.batching.rows import ExactBatches, Part, PieceBatches, WindowDeal, WindowShuffle
from torch_table_loader.engine.sizing import BLOCKS_AHEAD, FIRST_BATCHES
from torch_table_loader.engine.work.lane_work import LaneWork
from torch_table_loader.engine.work.split_reads import SplitReads
from torch_table_loader.errors import TableError
from torch_table_loader.planning.rows_of import runs_of_section
from torch_table_loader.planning.runs import NO_RUNS, Runs, covered
from torch_table_loader.planning.taken_files import PlannedFiles
from torch_table_loader.planning.windows import Dealing, Stretch, order_of, order_of_runs, stretches
from torch_table_loader.ranges import PlannedRead, fetch_ahead, in_order
from torch_table_loader.records import PADDING_COLUMN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.batching.rows import Rows
    from torch_table_loader.planning.lanes import RankPlan, Section
    from torch_table_loader.planning.splits import SegmentTable
    from torch_table_loader.planning.window_sizes import WindowSizes
    from torch_table_loader.planning.windows import Window
    from torch_table_loader.ranges import Fetcher, FetchSettings
    from torch_table_loader.read.tasks import TaskReader
    from torch_table_loader.records import FileNeeds, ReadTask

    Read = Callable[[ReadTask, int], Iterator[pa.RecordBatch]]
    IsPadding = Callable[[NDArray[np.int64]], NDArray[np.bool_]]

_PADDING = pa.field(PADDING_COLUMN, pa.bool_(), nullable=False)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StreamWork(LaneWork):
    """Everything that a thread or process needs to read its lanes; it pickles.

    Args:
        windows: windows that were open when earlier stages of the epoch ended.
        readers: threads of a lane that read splits side by side, where they are mixed; with 0, the lane reads them.
        read_rows: that are decoded at once.
        whose: what messages say before the name of a file.
    """

    plan: RankPlan
    segments: SegmentTable
    reader: TaskReader
    windows: tuple[Window, ...]
    seed: int
    fetching: FetchSettings
    readers: int = 0
    read_rows: int = 1
    whose: str = ""

    @override
    def fetch_ahead(self, begun: Mapping[int, int], *, joins: bool) -> Fetcher | None:
        return fetch_ahead(self.reader.storage, in_order(self._plans(begun, joins=joins)), self.fetching)

    def decode(self, batch: pa.RecordBatch) -> Rows:
        """View what was read as rows."""
        return cast("Rows", self.codec.decode(batch))

    @property
    @override
    def collated_at_once(self) -> int:
        return max(1, self.readers)  # the lane is the rank's only one, where splits are mixed

    def planned_files(self) -> PlannedFiles | None:
        """Return the table's files that the plan takes; None where rows are not counted."""
        if self.plan.counted:
            return PlannedFiles(self.plan, self.segments, self.windows)
        return None

    def needs(self) -> Iterator[FileNeeds]:
        """Return which bytes the lanes take, read by read."""
        for reads in self._plans(dict.fromkeys(range(self.lanes), 0), joins=self.joins_tails(0)):
            for read in reads:
                if (found := read.find()) is not None:
                    yield found

    @override
    def rows(self, lane: int, start: int, ahead: Fetcher | None = None) -> Iterator[Rows]:
        for section in self.plan.sections(lane, start):
            yield from self.rows_of_section(section, lane, ahead)

    def rows_of_section(self, section: Section, lane: int, ahead: Fetcher | None = None) -> Iterator[Rows]:
        """Yield the rows that a section of a lane still has to deliver."""
        read = self._lane_reader(lane, ahead)
        for stretch in stretches(section, self.segments):
            padded_from = section.padded_from - stretch.at
            if stretch.unit is not None:
                yield self._unit(stretch, padded_from, read)
            elif stretch.sizes is not None:
                yield from self._permuted(stretch, stretch.sizes, self._plain(stretch, padded_from, read))
            else:
                yield from _views(self._plain(stretch, padded_from, read))

    def rows_picked(self, section: Section, lane: int) -> Iterator[Rows]:
        """Yield the same of a few rows: of shuffle windows, only the splits are read that have these rows.

        Where rows of a window come in an order that reading decides, it is read whole.
        """
        if self.codec.runs is not None:
            yield from self.rows_of_section(section, lane)
            return
        stop = section.runs.num_rows if section.stop is None else section.stop
        read = self._lane_reader(lane, None)
        for segments, runs in runs_of_section(section, stop, self.segments, self.windows, (self.seed, self.epoch)):
            cover, places = covered(runs)
            rows = self.codec.concat(list(_views(self._read(segments, cover, read, _none))))
            yield cast("Rows", rows.take(places))

    @override
    def cutter(self, lane: int, start: int, unit: int | None, *, joins: bool) -> ExactBatches[Any]:
        if joins:  # else only whole batches come, but for the very last
            left = self.plan.lanes[lane].num_rows - start * self.plan.batch_size
            return ExactBatches(self.codec, self.plan.batch_size, rows=left)
        if not self.plan.by_file:
            return LaneWork.cutter(self, lane, start, unit, joins=joins)
        return PieceBatches(self.codec, (unit or 1) * self.plan.batch_size, self.plan.piece_rows(lane, start))

    def joins_tails(self, start: int) -> bool:
        """Whether every row is read once and the tail batches are joined; not where the resumed stage is in them."""
        plan = self.plan
        joins = plan.counted and not plan.by_file and not self.windows
        return joins and start <= sum(plan.body_batches) < plan.steps

    def rows_to_the_end(self, lane: int, start: int, ahead: Fetcher | None = None) -> Iterator[Rows]:
        """Read a lane's rows, its tail included, so that a row group is decoded once."""
        read = self._lane_reader(lane, ahead)
        whole = self.plan.whole(lane, start)
        full_rows = self.plan.body_batches[lane] * self.plan.batch_size
        for stretch in stretches(whole, self.segments):
            source = self._plain(stretch, stretch.runs.num_rows, read)
            if stretch.sizes is None:
                yield from _views(source)
            else:
                body = replace(stretch, runs=stretch.runs.slice(0, full_rows))
                yield from self._permuted(body, stretch.sizes, source)

    def tails(self, rests: Sequence[Rows], ahead: Fetcher | None = None) -> list[Rows]:
        """Join what the lanes left over, and the padding, to the rows of the rank's last batches, one run a batch."""
        size, plan = self.plan.batch_size, self.plan
        parts = list(rests)
        read = self._lane_reader(self.lanes, ahead)
        parts += _views(self._read(self.segments, plan.padding, read, lambda places: np.ones(len(places), np.bool_)))
        if not parts:
            return []
        rows = self.codec.concat(parts)
        return [
            self._tail(number, rows.slice(number * size, min((number + 1) * size, rows.num_rows)))
            for number in range(plan.steps - sum(plan.body_batches))
        ]

    def _tail(self, number: int, rows: Rows) -> Rows:
        sizes = self.plan.windows
        if sizes is None:
            return rows
        dealt = self.plan.batch_size if self.plan.deals else 0
        stretch = Stretch(self.plan.tail_name(number), 0, NO_RUNS, 0, self.segments, sizes, None, dealt)
        shuffle = self._shuffle(stretch, sizes, rows.num_rows)
        return cast("Rows", self.codec.concat([*shuffle.push(Part(rows, 0, rows.num_rows)), *shuffle.finish()]))

    def _plans(self, begun: Mapping[int, int], *, joins: bool) -> Iterator[Iterator[PlannedRead]]:
        """Yield what each lane reads; where tails are joined, the padding is read like a lane after all others."""
        for lane, start in begun.items():
            yield self._planned_reads(lane, start, joins=joins)
        if joins:
            before = max((rows.num_rows for rows in self.plan.lanes), default=0)
            yield self._reads(self.lanes, before, self.segments, self.plan.padding)

    def _planned_reads(self, lane: int, start: int, *, joins: bool) -> Iterator[PlannedRead]:
        """Return what a lane reads: one read a task, in the order of `_read`."""
        return self.reads_of(lane, [self.plan.whole(lane, start)] if joins else self.plan.sections(lane, start))

    def reads_of(self, lane: int, sections: Iterable[Section]) -> Iterator[PlannedRead]:
        """Yield what is read of some sections of a lane, in the order of `rows_of_section`."""
        before = 0
        for section in sections:
            for stretch in stretches(section, self.segments):
                segments, runs = self._rows_read(stretch)
                yield from self._reads(lane, before, segments, runs)
                before += runs.num_rows

    def _reads(self, lane: int, before: int, segments: SegmentTable, runs: Runs) -> Iterator[PlannedRead]:
        """Return a read for each task of some rows, and how many rows the lane delivers before it."""
        last, slot = runs.chains()
        for number in np.flatnonzero(last >= 0).tolist():
            task, end = self._task_of(segments, runs, number, last[number]), int(runs.ends[last[number]])
            first = int(runs.ends[number] - runs.stop[number] + runs.start[number])
            of_lane = self._lane_of(lane, int(slot[number]))
            find, file = partial(self.reader.needs, task), partial(self.reader.files.__getitem__, task.file_index)
            yield PlannedRead(before + first, of_lane, end - first, find, file=file)

    def _lane_reader(self, lane: int, ahead: Fetcher | None) -> Read:
        """Return what reads a lane's tasks, those of a slot one after the other: fetched ahead, if anything is."""
        if ahead is None:
            return lambda task, _: self.reader.read(task)
        return lambda task, slot: self.reader.read(task, ahead.next_read(self._lane_of(lane, slot)))

    def _lane_of(self, lane: int, slot: int) -> int:
        """Return what the fetcher calls a lane's splits of a slot, which are read one after the other."""
        return lane + slot * (self.lanes + 1)

    def _rows_read(self, stretch: Stretch) -> tuple[SegmentTable, Runs]:
        """Return the rows that are read for a stretch: those of an older window whole, else from its open window on."""
        if stretch.unit is not None:
            window = _older_window(stretch, self.windows)
            return window.segments, window.runs
        if not self.plan.counted:
            return stretch.segments, stretch.runs
        start = stretch.start if stretch.sizes is None else stretch.sizes.at(stretch.start)[1]
        return stretch.segments, stretch.runs.slice(start, stretch.runs.num_rows)

    def _plain(self, stretch: Stretch, padded_from: int, read: Read) -> Iterator[Part[Rows]]:
        """Read what is left of a stretch; where rows are not counted, all rows of its splits."""
        segments, runs = self._rows_read(stretch)
        at = stretch.runs.num_rows - runs.num_rows
        return self._read(segments, runs, read, lambda places: places >= padded_from - at)

    def _permuted(self, stretch: Stretch, sizes: WindowSizes, source: Iterator[Part[Rows]]) -> Iterator[Rows]:
        """Permute what was read of a stretch, less what was delivered; rows beyond it come as they are."""
        first, at = sizes.at(stretch.start)
        left = stretch.runs.num_rows - at if self.plan.counted else None
        shuffle = self._shuffle(stretch, sizes, left or 0, first)
        for rows in _through(shuffle, source, left):
            wanted = _between(rows, stretch.start - at, None if stretch.stop is None else stretch.stop - at)
            at += rows.num_rows
            if wanted.num_rows:
                yield from self._in_runs(wanted) if stretch.dealt else (wanted,)

    def _in_runs(self, window: Rows) -> Iterator[Rows]:
        """View a window that was dealt as runs: `BLOCKS_AHEAD` short ones, which may wait, and the rest.

        A lane therefore begins the next window once the trainer has taken the first batches of this one, and has
        released the window before it: two windows are held.
        """
        few = FIRST_BATCHES * self.plan.batch_size
        start = min(BLOCKS_AHEAD * few, (window.num_rows - 1) // few * few)
        for begin in range(0, start, few):
            yield window.slice(begin, begin + few)
        yield window.slice(start, window.num_rows)

    def _shuffle(
        self, stretch: Stretch, sizes: WindowSizes, length: int, first: int = 0
    ) -> WindowShuffle[Any] | WindowDeal[Any]:
        """Return what shuffles the rows of a stretch; only where they are dealt it matters how many these are."""
        if stretch.dealt and self.codec.runs is None:
            return WindowDeal(self.codec, sizes, length, partial(self._dealing, stretch), first)
        return WindowShuffle(self.codec, sizes, partial(self._permute, stretch), first)

    def _permute(self, stretch: Stretch, number: int, parts: Sequence[Rows]) -> Rows:
        length = sum(part.num_rows for part in parts)
        about = length, stretch.dealt, self.seed, self.epoch, stretch.window_name(number)
        if (kept := self.codec.runs) is not None:
            return cast("Rows", kept.permuted_runs(parts, order_of_runs(*about)))
        return cast("Rows", self.codec.taken(parts, order_of(*about)))

    def _dealing(self, stretch: Stretch, number: int, length: int) -> Dealing:
        return Dealing.of(length, stretch.dealt, self.seed, self.epoch, stretch.window_name(number))

    def _unit(self, stretch: Stretch, padded_from: int, read: Read) -> Rows:
        """Read an older window whole, and deliver the part of its order that this lane was given."""
        [(_, start, stop)] = stretch.runs
        window = _older_window(stretch, self.windows)
        if (kept := self.codec.runs) is not None:
            parts = list(_views(self._read(window.segments, window.runs, read, _none)))
            about = sum(part.num_rows for part in parts), window.dealt, self.seed, self.epoch, window.name
            rows = kept.permuted_runs(parts, order_of_runs(*about))
            left = np.arange(stretch.start, stop - start) >= padded_from
            return cast("Rows", kept.padded(rows.slice(start + stretch.start, stop), left))
        places = window.order(self.seed, self.epoch)[start + stretch.start : stop]
        padding = np.zeros(window.runs.num_rows, dtype=np.bool_)
        padding[places] = np.arange(stretch.start, stop - start) >= padded_from
        parts = list(_views(self._read(window.segments, window.runs, read, padding.take)))
        return cast("Rows", self.codec.concat(parts).take(places))

    def _read(self, segments: SegmentTable, runs: Runs, read: Read, is_padding: IsPadding) -> Iterator[Part[Rows]]:
        """Read and decode pieces in order; the function says which rows at some places among them are padding."""
        chains = runs.chains()

        def begin(number: int, slot: int) -> Iterator[Rows]:
            split, last, at = int(runs.split[number]), int(chains.last[number]), int(runs.start[number])

            def decoded(batch: pa.RecordBatch) -> Rows:
                nonlocal at
                start, at = at, at + batch.num_rows
                if self.marks_padding:
                    marks = is_padding(runs.places(number, last, start, at))
                    batch = batch.append_column(_PADDING, pa.array(marks))
                return self._decoded(batch, segments, split)

            with closing(read(self._task_of(segments, runs, number, last), slot)) as batches:  # type: ignore[type-var]
                yield from map(decoded, batches)  # a variable would keep a batch until the next one is read

        reads = SplitReads(runs, chains, begin, counted=self.plan.counted)
        mixes = self.plan.deals and self.readers
        pieces = reads.side_by_side(self.readers, self.read_rows) if mixes else reads.in_turn()
        with closing(pieces):
            for piece in pieces:
                yield from piece

    def _decoded(self, batch: pa.RecordBatch, segments: SegmentTable, split: int) -> Rows:
        try:
            return self.decode(batch)
        except TableError as error:
            name = segments.splits.layout.files[int(segments.splits.file[split])].name
            raise TableError(f"{self.whose}{name}: {error}") from error

    def _task_of(self, segments: SegmentTable, runs: Runs, first: int, last: int) -> ReadTask:
        """Return the task that reads a chain of pieces."""
        stop = int(runs.stop[last]) if self.plan.counted else -1
        return segments.task(int(runs.split[first]), int(runs.start[first]), stop)


def _older_window(stretch: Stretch, windows: Sequence[Window]) -> Window:
    [(number, _, _)] = stretch.runs
    return windows[number - len(stretch.segments.splits)]


def _none(places: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.zeros(len(places), dtype=np.bool_)


def _between(rows: Rows, start: int, stop: int | None) -> Rows:
    """View the rows from one to another, where there are so many; None: to the end."""
    start = min(max(start, 0), rows.num_rows)
    stop = rows.num_rows if stop is None else min(max(stop, start), rows.num_rows)
    if (start, stop) == (0, rows.num_rows):
        return rows
    return rows.slice(start, stop)


def _views(parts: Iterator[Part[Rows]]) -> Iterator[Rows]:
    return (part.rows for part in parts)


def _through(
    shuffle: WindowShuffle[Any] | WindowDeal[Any], source: Iterator[Part[Rows]], left: int | None
) -> Iterator[Rows]:
    """Shuffle the first `left` rows (None: all); the others follow as they are."""
    for part in source:
        if left is None or part.num_rows <= left:
            yield from shuffle.push(part)
            left = None if left is None else left - part.num_rows
        else:
            border = part.start + left
            yield from shuffle.push(part._replace(stop=border))
            yield from shuffle.finish()
            yield part._replace(start=border).rows
            left = 0
        del part  # else its chunk stays while the next one is read
    yield from shuffle.finish()
