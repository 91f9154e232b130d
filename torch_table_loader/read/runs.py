"""Plans which rows of a file are read, and walks them. Pure but for the walking."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch_table_loader.errors import TableError
from torch_table_loader.records import Segment

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_table_loader.contracts import OpenFile


class Piece(NamedTuple):
    """Consecutive rows of a file to deliver; `segment` is the place of the first segment in the task."""

    row_start: int
    row_stop: int
    segment: int


class Run(NamedTuple):
    """Consecutive row groups that are read in one go, and the pieces to deliver of them."""

    groups: range
    pieces: tuple[Piece, ...]


def trim_segments(
    segments: Sequence[Segment], skip: int, take: int, *, every_row_lives: bool
) -> tuple[list[Segment], int, int]:
    """Leave out what needs no reading.

    Args:
        segments: a task's.
        skip: live rows to leave out at the start.
        take: live rows to deliver after those; −1 for all.
        every_row_lives: no filter is in force, so that segments may be cut at any row.

    Returns:
        The segments to read, and what remains of `skip` and `take` to be done while reading.

    >>> parts = [Segment(0, 0, 10, 10), Segment(1, 10, 20, 10)]
    >>> trim_segments(parts, 12, 3, every_row_lives=True)
    ([Segment(group=1, row_start=12, row_stop=15, live=3)], 0, -1)
    >>> trim_segments(parts, 12, 3, every_row_lives=False)
    ([Segment(group=1, row_start=10, row_stop=20, live=10)], 2, 3)
    """
    kept: list[Segment] = []
    if every_row_lives:
        for segment in segments:
            start = min(segment.row_start + skip, segment.row_stop)
            stop = segment.row_stop if take < 0 else min(segment.row_stop, start + take)
            skip -= start - segment.row_start
            take = take if take < 0 else take - (stop - start)
            if start < stop:
                kept.append(Segment(segment.group, start, stop, stop - start))
        return kept, 0, -1
    found: int | None = 0
    for segment in segments:
        if not kept and 0 <= segment.live <= skip:
            skip -= segment.live
            continue
        if found is not None and 0 <= take <= found - skip:
            break
        kept.append(segment)
        found = None if found is None or segment.live < 0 else found + segment.live
    return kept, skip, take


def fit_segments(
    segments: Sequence[Segment], group_starts: Sequence[int], live_rows: Callable[[Segment], int] | None
) -> tuple[list[Segment], list[int]]:
    """Cut segments of estimated row groups where the file's row groups begin.

    Args:
        segments: runs of rows, whatever groups they name.
        group_starts: the first row of each row group, then the rows of the file.
        live_rows: counts the live rows of a segment; None where that takes reading.

    Returns:
        Segments that each lie in one row group, and for each the place of the one it is cut from.

    >>> fitted, owners = fit_segments([Segment(0, 5, 15, 10)], [0, 10, 20], None)
    >>> [(part.group, part.row_start, part.row_stop) for part in fitted], owners
    ([(0, 5, 10), (1, 10, 15)], [0, 0])
    """
    fitted: list[Segment] = []
    owners: list[int] = []
    for owner, segment in enumerate(segments):
        start = segment.row_start
        while start < segment.row_stop:
            group = group_at(start, group_starts)
            stop = min(segment.row_stop, group_starts[group + 1])
            if stop <= start:
                raise TableError(
                    f"the file ends at row {group_starts[-1]}, and rows up to {segment.row_stop} were planned"
                )
            part = Segment(group, start, stop, -1)
            fitted.append(part if live_rows is None else part._replace(live=live_rows(part)))
            owners.append(owner)
            start = stop
    return fitted, owners


def plan_runs(segments: Sequence[Segment], group_starts: Sequence[int], *, merge: bool) -> list[Run]:
    """Join segments of consecutive row groups into runs.

    Args:
        segments: in file order.
        group_starts: the first row of each row group, then the rows of the file.
        merge: join pieces that touch; else each segment stays a piece of its own.

    >>> plan_runs([Segment(0, 5, 10, 5), Segment(1, 10, 20, 10)], [0, 10, 20], merge=True)
    [Run(groups=range(0, 2), pieces=(Piece(row_start=5, row_stop=20, segment=0),))]
    """
    runs: list[tuple[int, int, list[Piece]]] = []
    for index, segment in enumerate(segments):
        if not _inside(segment, group_starts):
            raise TableError(
                f"a segment must lie inside its row group, got rows {segment.row_start} to {segment.row_stop} of row "
                f"group {segment.group} in a file with row groups at {list(group_starts)[:10]}; plan the table again"
            )
        if segment.row_start == segment.row_stop:
            continue
        piece = Piece(segment.row_start, segment.row_stop, index)
        if not runs or segment.group > runs[-1][1] + 1:
            runs.append((segment.group, segment.group, [piece]))
            continue
        first, _, pieces = runs[-1]
        if merge and pieces[-1].row_stop == piece.row_start:
            pieces[-1] = Piece(pieces[-1].row_start, piece.row_stop, pieces[-1].segment)
        else:
            pieces.append(piece)
        runs[-1] = (first, segment.group, pieces)
    return [Run(range(first, last + 1), tuple(pieces)) for first, last, pieces in runs]


def group_at(row: int, group_starts: Sequence[int]) -> int:
    """Find the row group that holds a row; the last one for the row after the end.

    >>> group_at(10, [0, 10, 10, 20])
    2
    """
    return min(bisect_right(group_starts, row) - 1, max(0, len(group_starts) - 2))


class Walk:
    """Walks a run of an open file; `row` is the first row not yet read, wherever the walk stands or fails."""

    def __init__(self, run: Run, group_starts: Sequence[int]) -> None:
        """Stand before the first row of the run."""
        self._run = run
        self._stop = group_starts[run.groups.stop]
        self.row = group_starts[run.groups.start]

    def batches(
        self, handle: OpenFile, columns: Sequence[str], max_rows: int
    ) -> Iterator[tuple[Piece, int, pa.RecordBatch]]:
        """Yield each piece's rows, in batches, with the piece and the first row's place in the file.

        Args:
            handle: the open file.
            columns: names as the file spells them.
            max_rows: no batch has more rows.

        Raises:
            TableError: there are more or fewer rows than the row groups were said to have.
        """
        source = handle.batches(self._run.groups, columns, max_rows)
        try:
            yield from self._cut(source)
        finally:
            close: Callable[[], None] | None = getattr(source, "close", None)
            if close is not None:
                close()

    def _cut(self, source: Iterator[pa.RecordBatch]) -> Iterator[tuple[Piece, int, pa.RecordBatch]]:
        pieces = self._run.pieces
        place = 0
        for batch in source:
            start, stop = self.row, self.row + batch.num_rows
            if stop > self._stop:
                raise self._other_rows(f"at least {stop - self._stop} more")
            self.row = stop
            while place < len(pieces) and pieces[place].row_start < stop:
                piece = pieces[place]
                low, high = max(piece.row_start, start), min(piece.row_stop, stop)
                if low < high:
                    whole = high - low == batch.num_rows
                    yield piece, low, batch if whole else batch.slice(low - start, high - low)
                if piece.row_stop > stop:
                    break
                place += 1
            if place == len(pieces) and stop < self._stop:
                return  # what is left of the row group was not asked for
        if self.row != self._stop:
            raise self._other_rows(f"{self._stop - self.row} fewer")

    def _other_rows(self, difference: str) -> TableError:
        return TableError(
            f"row groups {self._run.groups.start} to {self._run.groups.stop - 1} must end at row {self._stop} of the "
            f"file, got {difference}; the file is not what it was when it was planned: build the loader again"
        )


def _inside(segment: Segment, group_starts: Sequence[int]) -> bool:
    return (
        0 <= segment.group < len(group_starts) - 1
        and group_starts[segment.group] <= segment.row_start
        and segment.row_start <= segment.row_stop <= group_starts[segment.group + 1]
    )
