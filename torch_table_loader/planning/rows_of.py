"""Which rows a batch delivered, computed from the plan alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torch_table_loader.errors import ConfigError
from torch_table_loader.planning.runs import Runs
from torch_table_loader.planning.windows import stretches

if TYPE_CHECKING:
    from torch_table_loader.planning.lanes import RankPlan, Section
    from torch_table_loader.planning.splits import SegmentTable
    from torch_table_loader.planning.windows import Stretch, Window


class RowSpan(NamedTuple):
    """Rows [row_start, row_stop) of a file, counted from its start."""

    file: str
    row_start: int
    row_stop: int


class LiveSpan(NamedTuple):
    """Rows of a row group whose place among its rows a filter decides: first and last, among its live rows."""

    file: str
    row_group: int
    first: int
    last: int


def spans_of_batch(
    plan: RankPlan,
    segments: SegmentTable,
    windows: tuple[Window, ...],
    window_size: int | None,
    seed: int,
    epoch: int,
    step: int,
) -> list[RowSpan | LiveSpan]:
    """Say which rows a batch holds.

    Args:
        plan: the rank's.
        segments: what the splits consist of.
        windows: those that were open when earlier stages ended.
        window_size: rows of a shuffle window, or None.
        seed: the loader's.
        epoch: from 0.
        step: the batch, from 0.

    Returns:
        Spans in delivery order, padding left out: runs of rows, single rows under a shuffle window, and live rows of
        a row group where a filter decides which those are.

    Raises:
        ConfigError: there is no such step, or rows are not counted.
    """
    if not plan.counted:
        raise ConfigError("rows_of needs the counting pass, and count_filtered=False gave it up; leave it True")
    if not 0 <= step < plan.steps:
        raise ConfigError(f"step must be in [0, {plan.steps}), got {step}")
    before, after = plan.batches_before(step), plan.batches_before(step + 1)
    lane = next(number for number, taken in enumerate(after) if taken > before[number])
    section = plan.sections(lane, before[lane])[0]
    stop = min(section.skip + plan.batch_size, section.padded_from)
    spans: list[RowSpan | LiveSpan] = []
    for table, runs in _pieces(section, stop, segments, windows, window_size, seed, epoch):
        for split, start, end in runs:
            spans += _spans(table, split, start, end)
    return spans


def _pieces(
    section: Section,
    stop: int,
    segments: SegmentTable,
    windows: tuple[Window, ...],
    window_size: int | None,
    seed: int,
    epoch: int,
) -> Iterator[tuple[SegmentTable, Runs]]:
    """Give the rows [skip, stop) of a section in delivery order."""
    for stretch in stretches(section, segments, window_size):
        end = min(stop - stretch.at, stretch.runs.num_rows)
        if end <= stretch.start:
            return
        if stretch.unit is not None:
            [(_, start, _)] = stretch.runs
            window = windows[stretch.unit]
            yield window.segments, _permuted(window, start + stretch.start, start + end, seed, epoch)
        elif stretch.size is None:
            yield stretch.segments, stretch.runs.slice(stretch.start, end)
        else:
            for window, first, last in _windows(stretch, stretch.size, end):
                yield window.segments, _permuted(window, first, last, seed, epoch)


def _windows(stretch: Stretch, size: int, end: int) -> Iterator[tuple[Window, int, int]]:
    for number in range(stretch.start // size, -(-end // size)):
        begin = number * size
        yield stretch.window(number), max(stretch.start - begin, 0), min(end - begin, size)


def _permuted(window: Window, start: int, stop: int, seed: int, epoch: int) -> Runs:
    """Give the places [start, stop) of a window's order, row by row."""
    places = window.order(seed, epoch)[start:stop]
    piece = np.searchsorted(window.runs.ends, places, side="right")
    row = window.runs.stop[piece] - (window.runs.ends[piece] - places)
    return Runs(window.runs.split[piece], row, row + 1)


def _spans(segments: SegmentTable, split: int, start: int, stop: int) -> Iterator[RowSpan | LiveSpan]:
    """Turn live rows of a split into rows of its file, where all rows of a segment live; else name live rows."""
    layout = segments.splits.layout
    file = int(segments.splits.file[split])
    name = layout.files[file].name
    at = 0
    for segment in segments.task(split, 0, -1).segments:
        first, last = max(start - at, 0), min(stop - at, segment.live)
        if first < last:
            if segment.live == segment.row_stop - segment.row_start:
                yield RowSpan(name, segment.row_start + first, segment.row_start + last)
            else:
                yield LiveSpan(name, segment.group, first, last - 1)
        at += segment.live


__all__ = ["LiveSpan", "RowSpan", "spans_of_batch"]
