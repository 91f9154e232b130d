"""Which rows a batch delivered, computed from the plan alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torch_table_loader.errors import ConfigError
from torch_table_loader.planning.file_batches import row_after
from torch_table_loader.planning.runs import Runs
from torch_table_loader.planning.steps import step_of
from torch_table_loader.planning.windows import stretches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.lanes import RankPlan, Section
    from torch_table_loader.planning.layout import TableLayout
    from torch_table_loader.planning.splits import SegmentTable
    from torch_table_loader.planning.windows import Window


class RowSpan(NamedTuple):
    """Rows [row_start, row_stop) of a file, counted from its start."""

    file: str
    row_start: int
    row_stop: int


class LiveSpan(NamedTuple):
    """Rows `first` to `last` of a row group, both included, counted among those left after deletes and the filter."""

    file: str
    row_group: int
    first: int
    last: int


class SourceRow(NamedTuple):
    """A row of a mixture: the name of its source, and its id there, as the column ``row_id`` gives it."""

    source: str
    row_id: int


def spans_of_batch(
    plan: RankPlan,
    segments: SegmentTable,
    windows: tuple[Window, ...],
    keys: tuple[int, int],
    live_before: Callable[[int, int], int],
    step: int,
    most: int | None = None,
) -> list[RowSpan | LiveSpan]:
    """Return the rows of a batch, or the first `most` of them, as spans in delivery order, without padding.

    Spans are runs of rows, single rows under a shuffle window, and live rows of a row group if a filter
    decides which those are.

    Args:
        windows: windows that were open when earlier stages ended.
        keys: the loader's seed, and the epoch.
        live_before: counts the live rows of a row group (counted over the table) before a row of its file.

    Raises:
        ConfigError: there is no such step, or rows are not counted.
    """
    return [
        span
        for table, runs in runs_of_batch(plan, segments, windows, keys, step, most)
        for split, start, stop in runs
        for span in _spans(table, split, start, stop, live_before)
    ]


def runs_of_batch(
    plan: RankPlan,
    segments: SegmentTable,
    windows: tuple[Window, ...],
    keys: tuple[int, int],
    step: int,
    most: int | None = None,
) -> Iterator[tuple[SegmentTable, Runs]]:
    """Return what a batch holds of splits, and what these consist of; see `spans_of_batch`."""
    section = _section_of(plan, step)
    stop = section.skip + plan.batch_size
    if plan.by_file:
        stop = row_after(section.runs, plan.batch_size, section.skip)
    if most is not None:
        stop = min(stop, section.skip + most)
    return runs_of_section(section, stop, segments, windows, keys)


def spans_of_ids(layout: TableLayout, ids: NDArray[np.int64]) -> list[RowSpan]:
    """Return the file and the row of each row id."""
    file = np.searchsorted(layout.file_starts, ids, side="right") - 1
    row = ids - layout.file_starts[file]
    return [
        RowSpan(layout.files[number].name, first, first + 1)
        for number, first in zip(file.tolist(), row.tolist(), strict=True)
    ]


def file_of_batch(plan: RankPlan, segments: SegmentTable, windows: tuple[Window, ...], step: int) -> str:
    """Return the file name of a batch, including padding; for a plan whose batches end with pieces."""
    section = _section_of(plan, step)
    split = int(section.runs.split[np.searchsorted(section.runs.ends, section.skip, side="right")])
    if split >= len(segments.splits):
        window = windows[split - len(segments.splits)]
        segments, split = window.segments, int(window.runs.split[0])
    return segments.splits.layout.files[int(segments.splits.file[split])].name


def first_step_of(plan: RankPlan, segments: SegmentTable, file: int) -> int | None:
    """Return the first step in which a rank delivers rows of a file, or None, in a plan whose batches end with pieces.

    The plan is the rank's from the start of an epoch.
    """
    steps = []
    for lane, runs in enumerate(plan.lanes):
        pieces = np.flatnonzero(segments.splits.file[runs.split] == file)
        if len(pieces):
            steps.append(step_of(plan, lane, plan.first_batch_of(lane, int(pieces[0]))))
    return min((step for step in steps if step < plan.steps), default=None)


def lane_of(plan: RankPlan, step: int) -> tuple[int, int]:
    """Return the lane of a batch, and how many batches the lane has delivered before it.

    Raises:
        ConfigError: there is no such step, or rows are not counted.
    """
    if not plan.counted:
        raise ConfigError("rows_of needs the counting pass, and count_filtered=False gave it up; leave it True")
    if not 0 <= step < plan.steps:
        raise ConfigError(f"step must be in [0, {plan.steps}), got {step}")
    before, after = plan.batches_before(step), plan.batches_before(step + 1)
    lane = next(number for number, taken in enumerate(after) if taken > before[number])
    return lane, before[lane]


def _section_of(plan: RankPlan, step: int) -> Section:
    """Return the section of a batch, with the rows before it as `skip`."""
    lane, before = lane_of(plan, step)
    return plan.sections(lane, before)[0]


def runs_of_section(
    section: Section, stop: int, segments: SegmentTable, windows: tuple[Window, ...], keys: tuple[int, int]
) -> Iterator[tuple[SegmentTable, Runs]]:
    """Yield the rows [skip, stop) of a section in delivery order, without its padding."""
    seed, epoch = keys
    for stretch in stretches(section, segments):
        end = min(stop - stretch.at, stretch.runs.num_rows)
        own = section.padded_from - stretch.at
        if end <= stretch.start:
            return
        if stretch.unit is not None:
            [(_, start, _)] = stretch.runs
            window = windows[stretch.unit]
            places = window.order(seed, epoch)[start + stretch.start : start + max(min(end, own), stretch.start)]
            yield window.segments, _rows(window, places)
        elif stretch.sizes is None:
            yield stretch.segments, stretch.runs.slice(stretch.start, min(end, own))
        else:
            first, last = stretch.sizes.at(stretch.start)[0], stretch.sizes.at(end - 1)[0]
            for number in range(first, last + 1):
                begin, window = stretch.sizes.begin(number), stretch.window(number)
                places = window.order(seed, epoch)[max(stretch.start - begin, 0) : end - begin]
                yield window.segments, _rows(window, places[begin + places < own])


def _rows(window: Window, places: NDArray[np.int64]) -> Runs:
    """Return some rows of a window one by one."""
    piece = np.searchsorted(window.runs.ends, places, side="right")
    row = window.runs.stop[piece] - (window.runs.ends[piece] - places)
    return Runs(window.runs.split[piece], row, row + 1)


def _spans(
    segments: SegmentTable, split: int, start: int, stop: int, live_before: Callable[[int, int], int]
) -> Iterator[RowSpan | LiveSpan]:
    """Yield live rows of a split: as rows of its file if all rows of a segment live, else as live rows."""
    layout = segments.splits.layout
    file = int(segments.splits.file[split])
    name, first_group = layout.files[file].name, int(layout.group_offsets[file])
    at = 0
    for segment in segments.task(split, 0, -1).segments:
        first, last = max(start - at, 0), min(stop - at, segment.live)
        if first < last:
            if segment.live == segment.row_stop - segment.row_start:
                yield RowSpan(name, segment.row_start + first, segment.row_start + last)
            else:
                base = live_before(first_group + segment.group, segment.row_start)
                yield LiveSpan(name, segment.group, base + first, base + last - 1)
        at += segment.live
