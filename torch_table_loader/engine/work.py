"""The work of a rank in an epoch, as a value, and how one lane of it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from torch_table_loader.batching.exact import ExactBatches
from torch_table_loader.batching.window import WindowShuffle
from torch_table_loader.planning.epoch import window_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.batching.rows import Rows, RowsCodec
    from torch_table_loader.planning.lanes import RankPlan, Section
    from torch_table_loader.planning.splits import SegmentTable
    from torch_table_loader.read.tasks import TaskReader

PADDING_COLUMN = "padding"


@dataclass(frozen=True, slots=True, eq=False)
class EpochWork:
    """All that a thread or process needs to read its lanes; it pickles.

    Args:
        plan: what the rank delivers.
        segments: what the splits consist of.
        reader: opens and decodes.
        codec: turns record batches into rows of the output form.
        rank: this rank.
        seed: key of shuffle windows.
        epoch: the epoch.
        window: rows of a shuffle window, or None.
        marks_padding: whether batches have the column `padding`.
        collate_fn: the caller's, called with each batch where it is made.
        drop_last: whether a short last batch is dropped; used only where rows are not counted.
    """

    plan: RankPlan
    segments: SegmentTable
    reader: TaskReader
    codec: RowsCodec[Any]
    rank: int
    seed: int
    epoch: int
    window: int | None
    marks_padding: bool
    collate_fn: Callable[[Any], Any] | None
    drop_last: bool

    @property
    def lanes(self) -> int:
        """Lanes of the rank."""
        return len(self.plan.lanes)

    def finish(self, batches: list[Any]) -> list[Any]:
        """Run the caller's `collate_fn`, if there is one, over finished batches."""
        return batches if self.collate_fn is None else list(map(self.collate_fn, batches))

    def rows(self, lane: int, start: int) -> Iterator[Rows]:
        """Read a lane's rows in order.

        Args:
            lane: which.
            start: batches of the lane that were delivered before.
        """
        for section in self.plan.sections(lane, start):
            if self.window is None:
                yield from self._plain(section, section.skip)
            else:
                yield from self._windowed(section, self.window)

    def _plain(self, section: Section, skip: int) -> Iterator[Rows]:
        """Decode a section's rows from `skip` on; where rows are not counted, all of them."""
        at = skip
        runs = section.runs.slice(skip, section.runs.num_rows) if self.plan.counted else section.runs
        for split, begin, end in runs:
            task = self.segments.task(split, begin, end if self.plan.counted else -1)
            for batch in self.reader.read(task):
                marked = self._mark(batch, at, section) if self.marks_padding else batch
                at += batch.num_rows
                yield self.codec.decode(marked)

    def _windowed(self, section: Section, window: int) -> Iterator[Rows]:
        """Permute inside windows; reading begins where the open window begins, no earlier."""
        first = section.skip // window
        order = partial(self._window_order, section.name)
        shuffle = WindowShuffle(self.codec, window, order, first_window=first)
        unwanted = section.skip - first * window
        for rows in self._through(shuffle, self._plain(section, first * window)):
            wanted = rows.slice(min(unwanted, rows.num_rows), rows.num_rows)
            unwanted -= rows.num_rows - wanted.num_rows
            if wanted.num_rows:
                yield wanted

    @staticmethod
    def _through(shuffle: WindowShuffle[Any], source: Iterator[Rows]) -> Iterator[Rows]:
        for rows in source:
            yield from shuffle.push(rows)
        yield from shuffle.finish()

    def _window_order(self, section: str, window: int, length: int) -> NDArray[np.int64]:
        return window_order(self.seed, self.epoch, self.rank, section, window, length)

    def _mark(self, batch: pa.RecordBatch, at: int, section: Section) -> pa.RecordBatch:
        flags = np.arange(at, at + batch.num_rows) >= section.padded_from
        return batch.append_column(pa.field(PADDING_COLUMN, pa.bool_(), nullable=False), pa.array(flags))


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
    """One lane at work: an iterator over blocks, each the batches that one decoded run of rows completes.

    Not safe for two threads at once; the engine sees to that.
    """

    def __init__(self, work: EpochWork, lane: int, start: int = 0) -> None:
        """Begin a lane.

        Args:
            work: the rank's.
            lane: which.
            start: batches of the lane that were delivered before.
        """
        self.clock = LaneClock()
        self.rest: Rows | None = None
        self._work = work
        self._source = work.rows(lane, start)
        self._cutter = ExactBatches(work.codec, work.plan.batch_size)
        self._done = False

    def next_block(self) -> list[Any] | None:
        """Make the next batches; None when the lane is done (what is left over is then in `rest`)."""
        began = time.perf_counter()
        try:
            while not self._done:
                rows = next(self._source, None)
                if rows is None:
                    self._done = True
                    batches = self._last()
                else:
                    self.clock.rows += rows.num_rows
                    self.clock.num_bytes += rows.num_bytes
                    batches = self._cutter.push(rows)
                if batches:
                    self.clock.batches += len(batches)
                    return self._work.finish(batches)
            return None
        finally:
            self.clock.working += time.perf_counter() - began

    def _last(self) -> list[Any]:
        if self._work.plan.counted:
            return self._cutter.finish()
        self.rest = self._cutter.rest()
        return []

    def close(self) -> None:
        """Close the file that is open."""
        self._done = True
        self._source.close()  # type: ignore[attr-defined]


__all__ = ["PADDING_COLUMN", "EpochWork", "LaneBatches", "LaneClock"]
