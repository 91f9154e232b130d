"""The work of a rank in an epoch, as a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from torch_table_loader.batching.window import WindowShuffle
from torch_table_loader.errors import TableError
from torch_table_loader.planning.parts import divide
from torch_table_loader.planning.runs import Runs
from torch_table_loader.planning.windows import Stretch, permuted, stretches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.batching.rows import Rows, RowsCodec
    from torch_table_loader.planning.lanes import RankPlan
    from torch_table_loader.planning.splits import SegmentTable
    from torch_table_loader.planning.windows import Window
    from torch_table_loader.read.tasks import TaskReader
    from torch_table_loader.records import ReadTask

PADDING_COLUMN = "padding"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a lane that can be read apart from what is before it.

    Args:
        task: what to read.
        name: the file's.
        unpadded: how many of its rows come before the padding; None where batches do not mark it.
        bounded: whether it is one read at most, so that it may be held until its turn comes.
    """

    task: ReadTask
    name: str
    unpadded: int | None
    bounded: bool


Fetch = Callable[[Iterable[Part]], Iterator["Rows"]]
"""Yields the rows of parts in order."""


@dataclass(frozen=True, slots=True, eq=False)
class EpochWork:
    """All that a thread or process needs to read its lanes; it pickles.

    Args:
        plan: what the rank delivers.
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
        part_rows: rows of a part that is worth a read of its own; None where only whole tasks are.
    """

    plan: RankPlan
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
    part_rows: int | None = None

    @property
    def lanes(self) -> int:
        """Lanes of the rank."""
        return len(self.plan.lanes)

    def finish(self, batches: list[Any]) -> list[Any]:
        """Run the caller's `collate_fn`, if there is one, over finished batches."""
        return batches if self.collate_fn is None else list(map(self.collate_fn, batches))

    def rows(self, lane: int, start: int, fetch: Fetch | None = None) -> Iterator[Rows]:
        """Read a lane's rows in the order in which they are delivered.

        Args:
            lane: which.
            start: batches of the lane that were delivered before.
            fetch: reads its parts; None reads one after another.
        """
        fetch = fetch or self._in_turn
        for section in self.plan.sections(lane, start):
            for stretch in stretches(section, self.segments, self.window):
                padded_from = section.padded_from - stretch.at
                if stretch.unit is not None:
                    yield self._unit(stretch, padded_from)
                elif stretch.size is not None:
                    yield from self._windowed(stretch, stretch.size, padded_from, fetch)
                else:
                    yield from self._plain(stretch, stretch.start, padded_from, fetch)

    def joins_tails(self, start: int) -> bool:
        """Whether whoever holds what all lanes left over can make the tail batches without reading rows again.

        Args:
            start: steps taken before.
        """
        plan = self.plan
        return plan.counted and not self.windows and start <= sum(plan.body_batches) < plan.steps

    def rows_to_the_end(self, lane: int, start: int, fetch: Fetch | None = None) -> Iterator[Rows]:
        """Read a lane's rows, its tail included, so that a row group is decoded once.

        Args:
            lane: which.
            start: full batches of the lane that were delivered before.
            fetch: see `rows`.
        """
        fetch = fetch or self._in_turn
        whole = self.plan.whole(lane, start)
        full_rows = self.plan.body_batches[lane] * self.plan.batch_size
        for stretch in stretches(whole, self.segments, self.window):
            if stretch.size is None:
                yield from self._plain(stretch, stretch.start, stretch.runs.num_rows, fetch)
            else:
                body = replace(stretch, runs=stretch.runs.slice(0, full_rows))
                first = stretch.start // stretch.size * stretch.size
                source = self._plain(stretch, first, stretch.runs.num_rows, fetch)
                yield from self._permuted(body, stretch.size, source)

    def tail_batches(self, rests: Sequence[Rows]) -> list[Any]:
        """Make the rank's last batches of what its lanes left over and the padding.

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
        batches: list[Any] = []
        for number in range(plan.steps - sum(plan.body_batches)):
            tail = rows.slice(number * size, min((number + 1) * size, rows.num_rows))
            batches += self._tail(number, tail).batches(size)
        return self.finish(batches)

    def _tail(self, number: int, rows: Rows) -> Rows:
        if self.window is None:
            return rows
        stretch = Stretch(self.plan.tail_name(number), 0, Runs.of([]), 0, self.segments, self.window, None)
        shuffle = WindowShuffle(self.codec, self.window, partial(self._order, stretch))
        return cast("Rows", self.codec.concat([*shuffle.push(rows), *shuffle.finish()]))

    def _plain(self, stretch: Stretch, start: int, padded_from: int, fetch: Fetch) -> Iterator[Rows]:
        """Read a stretch from a row on; where rows are not counted, all rows of its splits."""
        runs = stretch.runs.slice(start, stretch.runs.num_rows) if self.plan.counted else stretch.runs
        return fetch(self._parts(stretch.segments, runs, padded_from - start if self.marks_padding else None))

    def _windowed(self, stretch: Stretch, size: int, padded_from: int, fetch: Fetch) -> Iterator[Rows]:
        """Permute inside windows; reading begins where the open window begins, no earlier."""
        return self._permuted(stretch, size, self._plain(stretch, stretch.start // size * size, padded_from, fetch))

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

    def _parts(self, segments: SegmentTable, runs: Runs, unpadded: int | None) -> Iterator[Part]:
        """Divide pieces into parts, in order."""
        for split, begin, end in runs:
            task = segments.task(split, begin, end if self.plan.counted else -1)
            name = segments.splits.layout.files[task.file_index].name
            divided = [task] if self.part_rows is None else divide(task, self.part_rows)
            for part in divided:
                physical = sum(segment.row_stop - segment.row_start for segment in part.segments)
                bounded = self.part_rows is not None and physical <= self.part_rows
                yield Part(part, name, unpadded, bounded)
                if unpadded is not None:
                    unpadded -= (
                        sum(segment.live for segment in part.segments) - part.skip if part.take < 0 else part.take
                    )

    def _in_turn(self, parts: Iterable[Part]) -> Iterator[Rows]:
        return chain.from_iterable(map(self.read_part, parts))

    def read_part(self, part: Part) -> Iterator[Rows]:
        """Read a part and decode it."""
        at = 0
        for batch in self.reader.read(part.task):
            padding = None if part.unpadded is None else np.arange(at, at + batch.num_rows) >= part.unpadded
            yield self._decode(batch, part.name, padding)
            at += batch.num_rows

    def _read(self, segments: SegmentTable, runs: Runs) -> Iterator[tuple[pa.RecordBatch, str]]:
        """Read pieces in order; says of each batch which file it is of."""
        for part in self._parts(segments, runs, None):
            for batch in self.reader.read(part.task):
                yield batch, part.name

    def _decode(self, batch: pa.RecordBatch, name: str, padding: NDArray[np.bool_] | None) -> Rows:
        if padding is not None and self.marks_padding:
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


__all__ = ["PADDING_COLUMN", "EpochWork", "Fetch", "Part"]
