"""How much of a table's files a rank has read, computed from the plan alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.planning.distinct import distinct
from torch_table_loader.planning.runs import Runs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.lanes import RankPlan, Section
    from torch_table_loader.planning.splits import SegmentTable
    from torch_table_loader.planning.windows import Window


@dataclass(frozen=True, slots=True, eq=False)
class PlannedFiles:
    """The files of a rank's plan, whose rows are counted, with the windows that were open when earlier stages ended."""

    plan: RankPlan
    segments: SegmentTable
    windows: tuple[Window, ...]
    _row_bytes: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        """Compute the stored bytes of a row of each split."""
        object.__setattr__(self, "_row_bytes", _row_bytes(self.segments))

    def taken(self, first: int, last: int) -> tuple[int, list[tuple[int, int]]]:
        """Return what steps [first, last) took: how many files, and of each lane how many and how many stored bytes.

        The bytes are the share of a file, with all its columns, that the rows are; padding is left out. Rows of a
        shuffle window count in the order in which they are read.
        """
        delivered = zip(self.plan.delivered(first), self.plan.delivered(last), strict=True)
        lanes = [self._of_lane(_rows(*before), _rows(*after)) for before, after in delivered]
        every = distinct(np.concatenate([files for files, _ in lanes]))
        return len(every), [(len(files), round(num_bytes)) for files, num_bytes in lanes]

    def _of_lane(self, before: Runs, after: Runs) -> tuple[NDArray[np.int64], float]:
        """Return the numbers of the files of what a lane delivered between two steps, and the bytes of its rows."""
        runs = after.slice(before.num_rows, after.num_rows)
        own = runs.split < len(self.segments.splits)
        numbers = [self.segments.splits.file[runs.split[own]]]
        num_bytes = float(((runs.stop - runs.start)[own] * self._row_bytes[runs.split[own]]).sum())
        for split, start, stop in runs.take(np.flatnonzero(~own)):
            window = self.windows[split - len(self.segments.splits)]
            part = window.runs.slice(start, stop)
            numbers.append(window.segments.splits.file[part.split])
            num_bytes += float(((part.stop - part.start) * _row_bytes(window.segments)[part.split]).sum())
        return distinct(np.concatenate(numbers)), num_bytes


def _rows(body: Section | None, tails: Runs) -> Runs:
    """Return the rows that a lane delivered, in their order, without padding."""
    if body is None:
        return tails
    return Runs.concat([body.runs.slice(0, body.skip), tails])


def _row_bytes(segments: SegmentTable) -> NDArray[np.float64]:
    """float64[S]: the stored bytes of a live row of each split.

    A file's bytes are divided over its row groups in proportion to their sizes before compression.
    """
    layout = segments.splits.layout
    file_of_group = np.repeat(np.arange(len(layout)), np.diff(layout.group_offsets))
    sizes = np.bincount(file_of_group, layout.group_bytes, len(layout))
    weights = np.where(sizes[file_of_group] > 0, layout.group_bytes, layout.group_rows)
    sizes = np.bincount(file_of_group, weights, len(layout))
    group_bytes = layout.file_bytes[file_of_group] * weights / np.maximum(sizes[file_of_group], 1)
    rows = segments.row_stop - segments.row_start
    shares = np.where(segments.live != 0, rows / np.maximum(layout.group_rows[segments.group], 1), 0)
    ends = np.concatenate(([0.0], np.cumsum(shares * group_bytes[segments.group])))
    split_bytes: NDArray[np.float64] = np.diff(ends[segments.offsets]) / np.maximum(segments.live_rows, 1)
    return split_bytes
