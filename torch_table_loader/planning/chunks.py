"""Which row groups go into which chunk of a row store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.planning.distinct import distinct
from torch_table_loader.planning.splits import SegmentTable, SplitTable
from torch_table_loader.records import ReadTask, Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.layout import TableLayout


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """The live rows of a table, in canonical order, cut between row groups.

    Args:
        segments: of whole files; every live row is known.
        kept: int64[T] the segments that have live rows.
        offsets: int64[C+1]; chunk c has the segments ``kept[offsets[c]:offsets[c + 1]]``.
    """

    segments: SegmentTable
    kept: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, segments: SegmentTable, target_rows: int) -> Chunks:
        """Cut.

        Args:
            segments: of whole files, in canonical order; every live row is known.
            target_rows: live rows that a chunk aims at; a row group is never cut.
        """
        kept = np.flatnonzero(segments.live > 0)
        live = segments.live[kept]
        before = np.cumsum(live) - live
        firsts = np.flatnonzero(np.diff(before // target_rows, prepend=-1))
        return cls(segments, kept, np.append(firsts, len(kept)) if len(kept) else np.zeros(1, dtype=np.int64))

    @property
    def rows(self) -> tuple[int, ...]:
        """Live rows of each chunk."""
        ends = np.concatenate(([0], np.cumsum(self.segments.live[self.kept])))
        return tuple(np.diff(ends[self.offsets]).tolist())

    def tasks(self, chunk: int) -> list[ReadTask]:
        """Return what is to be read for a chunk: one task a file."""
        table, layout = self.segments, self.segments.splits.layout
        part = self.kept[int(self.offsets[chunk]) : int(self.offsets[chunk + 1])]
        file = np.searchsorted(layout.group_offsets, table.group[part], side="right") - 1
        tasks = []
        for number in distinct(file).tolist():
            inside = part[file == number]
            columns = (
                table.group[inside] - int(layout.group_offsets[number]),
                table.row_start[inside],
                table.row_stop[inside],
                table.live[inside],
            )
            rows = zip(*(column.tolist() for column in columns), strict=True)
            tasks.append(ReadTask(number, tuple(Segment(*row) for row in rows)))
        return tasks


def whole_files(layout: TableLayout, *, filtered: bool) -> SegmentTable:
    """Take each file as one split.

    Args:
        layout: the table.
        filtered: whether live rows depend on a row filter, and are not known yet.
    """
    files = np.arange(len(layout), dtype=np.int64)
    splits = SplitTable(layout, files, np.zeros_like(files), layout.file_rows)
    return SegmentTable.of(splits, filtered=filtered)
