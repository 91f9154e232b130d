"""Which rows of a file are read in one call, and the walk over them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.arrays import take_rows
from torch_table_loader.cancellation import check_wanted
from torch_table_loader.contracts import releases
from torch_table_loader.errors import TableError
from torch_table_loader.format_contracts import EncodingReader, SharingReader, ThinningFile, limits
from torch_table_loader.read.file_plan import as_bits
from torch_table_loader.read.formats import reader_of
from torch_table_loader.records import Segment
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.contracts import Storage
    from torch_table_loader.format_contracts import OpenFile
    from torch_table_loader.read.conform import Conformer
    from torch_table_loader.read.file_plan import FilePlan
    from torch_table_loader.samples import SampleCounts


class Piece(NamedTuple):
    """Consecutive rows of a file to deliver; `segment` is the place of the first segment in the task."""

    row_start: int
    row_stop: int
    segment: int


class Run(NamedTuple):
    """Consecutive row groups that are read in one go, the pieces to deliver of them, and whether only live rows are."""

    groups: range
    pieces: tuple[Piece, ...]
    thinned: bool = False


def trim_segments(
    segments: Sequence[Segment], skip: int, take: int, *, every_row_lives: bool
) -> tuple[list[Segment], int, int]:
    """Leave out segments, or parts of them, that need no reading.

    If every row lives, segments are cut at any row; else those are left out that are known to have no live row.

    Args:
        skip: live rows to leave out at the start; what remains of it to be done while reading is returned.
        take: live rows to deliver after those, −1 for all; is returned likewise.

    >>> parts = [Segment(0, 0, 10, 10), Segment(1, 10, 20, 10)]
    >>> trim_segments(parts, 12, 3, every_row_lives=True)
    ([Segment(group=1, row_start=12, row_stop=15, live=3)], 0, -1)
    >>> trim_segments(parts, 12, 3, every_row_lives=False)
    ([Segment(group=1, row_start=10, row_stop=20, live=10)], 2, 3)
    """
    if every_row_lives:
        return _cut_at_rows(segments, skip, take), 0, -1
    kept: list[Segment] = []
    found: int | None = 0
    for segment in segments:
        if not kept and 0 <= segment.live <= skip:
            skip -= segment.live
            continue
        if found is not None and 0 <= take <= found - skip:
            break
        if segment.live == 0:
            continue
        kept.append(segment)
        if segment.live < 0:
            found = None
        elif found is not None:
            found += segment.live
    return kept, skip, take


def _cut_at_rows(segments: Sequence[Segment], skip: int, take: int) -> list[Segment]:
    kept: list[Segment] = []
    for segment in segments:
        start = min(segment.row_start + skip, segment.row_stop)
        stop = segment.row_stop
        skip -= start - segment.row_start
        if take >= 0:
            stop = min(stop, start + take)
            take -= stop - start
        if start < stop:
            kept.append(Segment(segment.group, start, stop, stop - start))
    return kept


def fit_segments(
    segments: Sequence[Segment], group_starts: Sequence[int], live_rows: Callable[[Segment], int] | None
) -> tuple[list[Segment], list[int]]:
    """Cut segments of estimated row groups where the file's begin; with each comes the place of the one it is cut from.

    Args:
        group_starts: the first row of each row group, then the rows of the file.
        live_rows: counts the live rows of a segment; None where that takes reading.

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
            if live_rows is not None:
                part = part._replace(live=live_rows(part))
            fitted.append(part)
            owners.append(owner)
            start = stop
    return fitted, owners


def plan_runs(segments: Sequence[Segment], group_starts: Sequence[int], *, merge: bool) -> list[Run]:
    """Join segments of consecutive row groups into runs, and pieces that touch into one if `merge`.

    >>> plan_runs([Segment(0, 5, 10, 5), Segment(1, 10, 20, 10)], [0, 10, 20], merge=True)
    [Run(groups=range(0, 2), pieces=(Piece(row_start=5, row_stop=20, segment=0),), thinned=False)]
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
    """Return the row group that holds a row; the last one for the row after the end.

    >>> group_at(10, [0, 10, 10, 20])
    2
    """
    return min(bisect_right(group_starts, row) - 1, max(0, len(group_starts) - 2))


def _inside(segment: Segment, group_starts: Sequence[int]) -> bool:
    return (
        0 <= segment.group < len(group_starts) - 1
        and group_starts[segment.group] <= segment.row_start
        and segment.row_start <= segment.row_stop <= group_starts[segment.group + 1]
    )


class Part(NamedTuple):
    """The rows that consecutive rows of a file give, all of one segment of the task.

    Args:
        rows: returns those from one number to another, counted from 0.
        counts: what a stage counts of the samples that it makes of them.
    """

    segment: int
    num_live: int
    rows: Callable[[int, int], pa.RecordBatch]
    counts: SampleCounts | None = None


class FileWalk:
    """Opens a file and reads its runs; `row` is the first row not yet read, also when reading has failed.

    Args:
        max_bytes: the most bytes of a single value; 0: no limit.
        may_thin: whether rows that do not live may be left out while decoding, if the file can do that.
        live_known: whether some row of each piece is known to live.
        shares: whether several threads may decode a row group; local files only: it cannot be cancelled.
        adds: adds columns to consecutive rows, given the first one's place in the file.
        check: called whenever rows are decoded, to see that they are of the file that was listed.
    """

    def __init__(
        self,
        storage: Storage,
        plan: FilePlan,
        max_rows: int,
        max_bytes: int,
        *,
        may_thin: bool,
        live_known: bool,
        verify_checksums: bool,
        shares: bool,
        adds: Callable[[pa.RecordBatch, int], pa.RecordBatch] | None,
        check: Callable[[], None] | None,
    ) -> None:
        # Where a row of a row group passes the filter, all columns are decoded anyway, in fewer calls the usual way.
        self._may_thin = may_thin and plan.thins and (plan.filters is None or not live_known)
        self._live_known = live_known
        self._live = _LivePlaces(plan)
        self.handle: OpenFile | None = None
        self.row = 0
        self._storage = storage
        self._releasing = storage if not storage.is_local and releases(storage) else None
        self._plan = plan
        self._masks = plan.masks
        self._adds = adds
        self._check = check
        self._max_rows = max_rows
        reader = reader_of(plan.file, verify_checksums=verify_checksums)
        if plan.encoded and isinstance(reader, EncodingReader):
            reader = reader.encoding(plan.encoded)
        if max_bytes and limits(reader):
            reader = reader.limited(max_bytes)
        if shares and storage.is_local and isinstance(reader, SharingReader):
            reader = reader.sharing()
        self._reader = reader

    def parts(self, runs: Sequence[Run]) -> Iterator[Part]:
        """Open the file; yield the rows of each piece of some runs, batch by batch, as the table has them."""
        self.handle = handle = self._reader.open(self._storage, self._plan.file, self._plan.meta)
        if not (self._may_thin and isinstance(handle, ThinningFile)):
            return chain.from_iterable(map(partial(self._whole, handle), runs))
        divided = chain.from_iterable(map(partial(self._divided, handle), runs))
        return chain.from_iterable((self._some if run.thinned else self._whole)(handle, run) for run in divided)

    def close(self) -> None:
        """Close the file."""
        if self.handle is not None:
            self.handle.close()

    def _part(self, piece: Piece, row: int, stored: pa.RecordBatch, *, thinned: bool = False) -> Part:
        """Make rows of the file into the table's; `thinned` are those that live, of which `row` is the first."""
        check_wanted()
        if self._check is not None:
            self._check()
        plan = self._plan
        batch = plan.conformer.apply(stored, row)
        mask = None
        if self._masks and not thinned:
            mask = plan.mask(batch, row)
        if batch.num_columns > len(plan.columns):
            batch = batch.select(plan.columns)
        if self._adds is not None:
            batch = self._adds(batch, row)
        live = batch.num_rows
        if mask is not None:
            live = int(np.count_nonzero(mask))
        return Part(piece.segment, live, partial(live_rows, batch, mask))

    def _whole(self, handle: OpenFile, run: Run) -> Iterator[Part]:
        starts, place = self._plan.group_starts, 0
        self.row, end = starts[run.groups.start], starts[run.groups.stop]
        with closing_stream(handle.batches(run.groups, self._plan.conformer.reads, self._max_rows)) as source:
            for batch in source:
                start, stop = self.row, self.row + batch.num_rows
                if stop > end:
                    raise other_rows(run.groups, end, f"at least {stop - end} more")
                self.row = stop
                if self._releasing is not None:
                    self._reach(stop)
                while place < len(run.pieces) and run.pieces[place].row_start < stop:
                    piece = run.pieces[place]
                    low, high = max(piece.row_start, start), min(piece.row_stop, stop)
                    if low < high:
                        whole = high - low == batch.num_rows
                        yield self._part(piece, low, batch if whole else batch.slice(low - start, high - low))
                    if piece.row_stop > stop:
                        break
                    place += 1
                if place == len(run.pieces) and stop < end:
                    return  # what is left of the row group was not asked for
                del batch  # else it stays while the next one is decoded
            if self.row != end:
                raise other_rows(run.groups, end, f"{end - self.row} fewer")

    def _divided(self, thinner: ThinningFile, run: Run) -> Iterator[Run]:
        """Divide a run into row groups that are read without their deleted rows, and runs that are read whole."""
        # Deletes keep pieces apart, so that each lies in one row group.
        by_group = groupby(run.pieces, key=lambda piece: group_at(piece.row_start, self._plan.group_starts))
        single = [Run(range(group, group + 1), tuple(pieces)) for group, pieces in by_group]
        for thins, parts in groupby(single, key=lambda part: self._thins(thinner, part)):
            if thins:
                yield from (part._replace(thinned=True) for part in parts)
                continue
            others = list(parts)
            groups = range(others[0].groups.start, others[-1].groups.stop)
            yield Run(groups, tuple(piece for part in others for piece in part.pieces))

    def _thins(self, thinner: ThinningFile, part: Run) -> bool:
        """Whether a part is a whole row group, which is read in one call, or maybe not at all."""
        if len(part.pieces) > 1:
            return False
        (group,), starts = part.groups, self._plan.group_starts
        if part.pieces[0][:2] != (starts[group], starts[group + 1]):
            return False
        if starts[group + 1] - starts[group] > self._max_rows:
            return self._plan.chooser is not None and not self._live_known
        return thinner.thins(group, self._plan.conformer.reads, self._max_rows)

    def _some(self, thinner: ThinningFile, run: Run) -> Iterator[Part]:
        """Yield the rows of a whole row group that live."""
        (group,), (piece,) = run.groups, run.pieces
        self.row, num_rows, reads = piece.row_start, piece.row_stop - piece.row_start, self._plan.conformer.reads
        chooser, kept = self._plan.chooser, None
        batch: pa.RecordBatch | None = None
        if chooser is None:
            if self._plan.positions_in(piece.row_start, piece.row_stop):
                kept = self._live.among(piece.row_start, piece.row_stop)
            batch = thinner.thinned(group, reads, num_rows, kept)
        elif num_rows > self._max_rows:
            yield from self._in_step(thinner, run, chooser)
            return
        else:  # the columns that choose first: they say which rows of the others are wanted, or that none is
            first = thinner.thinned(group, chooser.reads, num_rows, None)
            mask = self._plan.mask(chooser.apply(first, piece.row_start), piece.row_start)
            kept = self._live.marked(mask)
            if kept is None or len(kept):
                others = thinner.thinned(group, self._others(chooser), num_rows, kept)
                batch = self._joined(first, others, kept)
        self._reach(piece.row_stop)
        if batch is not None:
            yield self._part(piece, piece.row_start, batch, thinned=True)

    def _in_step(self, handle: OpenFile, run: Run, chooser: Conformer) -> Iterator[Part]:
        """Stream the columns that rows are chosen by, and beside them the others, from the first chosen row on."""
        (piece,) = run.pieces
        others = Beside(handle, run.groups, self._others(chooser), self._max_rows, piece.row_start)
        with closing_stream(handle.batches(run.groups, chooser.reads, self._max_rows)) as source, closing(others):
            for first in source:
                start, stop = self.row, self.row + first.num_rows
                if stop > piece.row_stop:
                    raise other_rows(run.groups, piece.row_stop, f"at least {stop - piece.row_stop} more")
                mask = self._plan.mask(chooser.apply(first, start), start)
                if mask is None or mask.any():
                    for row, batch in others.rows(start, stop):
                        places = slice(row - start, row - start + batch.num_rows)
                        chosen = first.slice(places.start, batch.num_rows)
                        kept = self._live.marked(mask, places)
                        if kept is None or len(kept):
                            taken = batch if kept is None else take_rows(batch, kept)
                            yield self._part(piece, row, self._joined(chosen, taken, kept), thinned=True)
                self._reach(stop)
        if self.row != piece.row_stop:
            raise other_rows(run.groups, piece.row_stop, f"{piece.row_stop - self.row} fewer")

    def _reach(self, row: int) -> None:
        """Record that the rows before one are decoded, in all columns."""
        self.row = row
        if self._releasing is not None:
            self._releasing.release(bisect_right(self._plan.group_starts, row) - 1)

    def _others(self, chooser: Conformer) -> list[str]:
        return [name for name in self._plan.conformer.reads if name not in chooser.reads]

    def _joined(self, first: pa.RecordBatch, others: pa.RecordBatch, kept: pa.UInt32Array | None) -> pa.RecordBatch:
        """Join the kept rows of the columns that rows are chosen by with the others, in the conformer's order."""
        if kept is not None:
            first = take_rows(first, kept)
        by_name = {
            field.name: (field, array)
            for batch in (first, others)
            for field, array in zip(batch.schema, batch.columns, strict=True)
        }
        fields, arrays = zip(*(by_name[name] for name in self._plan.conformer.reads), strict=True)
        return pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))


class _LivePlaces:
    """The places of the rows that live, for a reader that asks row group by row group."""

    def __init__(self, plan: FilePlan) -> None:
        self._plan = plan
        self._start = self._stop = 0
        # `pa.array` would import pandas, which takes longer than the first batch.
        self._bits: pa.BooleanArray = pa.nulls(0, pa.bool_())
        self._ascending: pa.UInt32Array = pa.nulls(0, pa.uint32())

    def among(self, start: int, stop: int) -> pa.UInt32Array:
        """Return which of the rows `start` to `stop` of the file no position deletes, counted from `start`."""
        if not self._start <= start <= stop <= self._stop:
            ahead = start + sizes().live_rows_ahead
            self._start, self._stop = start, max(stop, min(ahead, self._plan.group_starts[-1]))
            self._bits = self._plan.live_bits(self._start, self._stop)
        return self._of(self._bits.slice(start - self._start, stop - start))

    def marked(self, mask: NDArray[np.bool_] | None, rows: slice = slice(None)) -> pa.UInt32Array | None:
        """Return the places that a mask marks among some rows, or among all; None if it marks each of them."""
        if mask is None or mask[rows].all():
            return None
        return self._of(as_bits(mask[rows]))

    def _of(self, bits: pa.BooleanArray) -> pa.UInt32Array:
        if len(self._ascending) < len(bits):
            counted = np.arange(len(bits), dtype=np.uint32)
            self._ascending = pa.Array.from_buffers(pa.uint32(), len(counted), [None, pa.py_buffer(counted)])
        return pc.filter(self._ascending.slice(0, len(bits)), bits)


def live_rows(batch: pa.RecordBatch, mask: NDArray[np.bool_] | None, start: int, stop: int) -> pa.RecordBatch:
    """Return the live rows `start` to `stop` of a batch."""
    if mask is None or stop - start == batch.num_rows:
        if stop - start == batch.num_rows:
            return batch
        return batch.slice(start, stop - start)
    # Filtering by the mask would cost more: a filter asks at each row, these indices were checked when made.
    indices = np.flatnonzero(mask)[start:stop].astype(np.uint32)
    return take_rows(batch, pa.array(indices))


@contextmanager
def closing_stream(source: Iterator[pa.RecordBatch]) -> Iterator[Iterator[pa.RecordBatch]]:
    """Close a stream of batches after the block, if it can be closed."""
    try:
        yield source
    finally:
        close: Callable[[], None] | None = getattr(source, "close", None)
        if close is not None:
            close()


class Beside:
    """Streams columns beside others; none is decoded before the first rows are asked for.

    The first row of the groups is the file's `row`.
    """

    def __init__(self, handle: OpenFile, groups: range, names: list[str], max_rows: int, row: int) -> None:
        self._groups = groups
        self._stack = ExitStack()
        self._open = partial(handle.batches, groups, names, max_rows)
        self._source: Iterator[pa.RecordBatch] | None = None
        self._start = row
        self._batch: pa.RecordBatch | None = None

    def rows(self, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows `start` to `stop` of the file piece by piece, each with the place of its first row.

        `start` must not be before the `stop` of the last call.
        """
        if self._source is None:
            self._source = self._stack.enter_context(closing_stream(self._open()))
        row = start
        while row < stop:
            batch = self._batch
            if batch is None or self._start + batch.num_rows <= row:
                if batch is not None:
                    self._start += batch.num_rows
                self._batch = next(self._source, None)
                if self._batch is None:
                    raise other_rows(self._groups, stop, f"{stop - self._start} fewer")
                continue
            low = row - self._start
            high = min(batch.num_rows, stop - self._start)
            yield row, batch.slice(low, high - low)
            row += high - low

    def close(self) -> None:
        """Close the stream."""
        self._stack.close()


def other_rows(groups: range, end: int, difference: str) -> TableError:
    """Return the error of row groups that have more or fewer rows than was planned."""
    return TableError(
        f"row groups {groups.start} to {groups.stop - 1} must end at row {end} of the "
        f"file, got {difference}; the file has changed since it was planned: build the loader again"
    )
