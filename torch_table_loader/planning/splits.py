"""Splits, their segments, and the chunks of a row store, as columns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from torch_table_loader.cached import cached_property
from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.planning.distinct import distinct
from torch_table_loader.planning.keys import as_int
from torch_table_loader.records import ReadTask, RowRange, Segment, Split

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.layout import TableLayout

PLACES_OF_A_FILE = 1 << 38
"""Places between the first rows of two files: more than the rows, or tokens, of any file."""

_SHOWN = 60
_MOST_FILES = (1 << 62) // PLACES_OF_A_FILE


@dataclass(frozen=True, slots=True, eq=False)
class SplitTable(Sequence[Split]):
    """S runs of rows of single files; reads as a sequence of `Split`.

    Args:
        file: int64[S] the file of each split.
        row_start: int64[S] its first row, from the start of the file.
        row_stop: int64[S] the row after its last.
        loose: whether rows may be left out, or belong to several splits.
    """

    layout: TableLayout
    file: NDArray[np.int64]
    row_start: NDArray[np.int64]
    row_stop: NDArray[np.int64]
    loose: bool = field(default=False, kw_only=True)

    @classmethod
    def of(cls, layout: TableLayout, splits: Iterable[Split], who: str) -> SplitTable:
        """Build from the splits that a strategy returned for a table; the message names the strategy (`who`).

        Args:
            splits: anything with ``file.path`` and ``row_range`` (None, or ``offset`` and ``length``).

        Raises:
            ConfigError: a split names an unknown file, or rows that the file does not have.
        """
        if isinstance(splits, SplitTable) and splits.layout is layout:
            return splits
        index = {file.name: number for number, file in enumerate(layout.files)}
        rows = layout.file_rows
        table = np.empty((3, len(splits := list(splits))), dtype=np.int64)
        for at, split in enumerate(splits):
            if not _is_split(split):
                raise ConfigTypeError(
                    f"{who} must return splits, got {type(split).__name__} {shown(split)}; a split has file.path, and "
                    "row_range, which is None or has offset and length"
                )
            number = index.get(split.file.path)
            if number is None:
                raise ConfigError(f"{who} returned a split of {split.file.path!r}, which is not a file of the table")
            part = split.row_range
            start, length = (0, int(rows[number])) if part is None else (_row(part.offset, who), _row(part.length, who))
            stop = start + length
            if not 0 <= start <= stop <= rows[number]:
                raise ConfigError(
                    f"{who} returned rows [{start}, {stop}) of {split.file.path!r}, which has {rows[number]} rows"
                )
            table[:, at] = number, start, stop
        return cls(layout, table[0], table[1], table[2])

    def digest(self) -> str:
        """Hash the bounds of the splits: 32 hexadecimal digits."""
        hashed = hashlib.blake2b(digest_size=16)
        for column in (self.file, self.row_start, self.row_stop):
            hashed.update(np.ascontiguousarray(column, dtype="<i8").data)
        return hashed.hexdigest()

    @property
    def num_rows(self) -> NDArray[np.int64]:
        """int64[S] rows of each split, before deletes and filters."""
        return self.row_stop - self.row_start

    def joined(self) -> SplitTable:
        """Return a table with one split for each file that must not be cut, at the place of its first split."""
        whole = self.layout.whole[self.file]
        if not whole.any():
            return self
        first = np.zeros(len(self), dtype=np.bool_)
        first[np.unique(self.file, return_index=True)[1]] = True
        keep = ~whole | first
        start = np.where(whole, 0, self.row_start)
        stop = np.where(whole, self.layout.file_rows[self.file], self.row_stop)
        return SplitTable(self.layout, self.file[keep], start[keep], stop[keep])

    def within(self, layout: TableLayout, files: NDArray[np.int64]) -> SplitTable:
        """Return the same splits as those of a larger table, in which this table's files have the numbers int64[P]."""
        return replace(self, layout=layout, file=files[self.file])

    def cover(self, files: NDArray[np.int64]) -> SplitTable:
        """Return splits that cover each row of some files once, cut where one of the table's splits begins or ends."""
        layout = self.layout
        base, of_files = layout.file_starts, np.isin(self.file, files)
        file, start, stop = self.file[of_files], self.row_start[of_files], self.row_stop[of_files]
        cuts = np.unique(np.concatenate([base[files], base[files + 1], base[file] + start, base[file] + stop]))
        begin, end = cuts[:-1], cuts[1:]
        own = np.searchsorted(base, begin, side="right") - 1
        inside = np.isin(own, files)
        own, begin, end = own[inside], begin[inside], end[inside]
        return SplitTable(layout, own, begin - base[own], end - base[own])

    def canonical_order(self) -> NDArray[np.int64]:
        """Sort the splits by file, first row and last row: int64[S]. Most strategies return them so."""
        follows = self.row_stop[1:] >= self.row_stop[:-1]
        for column in (self.row_start, self.file):
            before, after = column[:-1], column[1:]
            follows &= after == before
            follows |= after > before
        if follows.all():
            return np.arange(len(self), dtype=np.int64)
        return np.lexsort((self.row_stop, self.row_start, self.file))

    def check_coverage(self, who: str) -> None:
        """Refuse splits that leave out a row or hold one twice.

        Raises:
            ConfigError: names the strategy, the file and the rows.
        """
        order = self.canonical_order()
        starts = self.layout.file_starts
        begin = starts[self.file[order]] + self.row_start[order]
        end = starts[self.file[order]] + self.row_stop[order]
        begin, end = begin[begin < end], end[begin < end]
        expected = np.concatenate(([0], end))
        found = np.concatenate((begin, [self.layout.num_rows]))
        wrong = np.flatnonzero(expected != found)
        if not len(wrong):
            return
        want, got = int(expected[wrong[0]]), int(found[wrong[0]])
        file = int(np.searchsorted(starts, min(want, got), side="right")) - 1
        first = int(starts[file])
        if got > want:
            fault, low, high = "leaves out", want - first, min(got, int(starts[file + 1])) - first
        else:
            fault, low, high = "holds more than once", got - first, min(want, int(end[wrong[0]])) - first
        raise ConfigError(
            f"{who} must cover each row once, but {fault} rows [{low}, {high}) of {self.layout.files[file].name!r}"
        )

    def __len__(self) -> int:
        """Count the splits."""
        return len(self.file)

    @overload
    def __getitem__(self, index: int) -> Split: ...
    @overload
    def __getitem__(self, index: slice) -> list[Split]: ...
    def __getitem__(self, index: int | slice) -> Split | list[Split]:
        """Return one split, or several."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        start, stop = int(self.row_start[index]), int(self.row_stop[index])
        return Split(self.layout[int(self.file[index])], RowRange(start, stop - start))


@dataclass(frozen=True, eq=False)
class SegmentTable:
    """The parts of row groups that each split consists of.

    What its columns say of splits is computed once, for all stages of an epoch, and stays in this process.

    Args:
        offsets: int64[S+1]; split s has the segments ``offsets[s]:offsets[s + 1]``.
        group: int64[T] the row group, counted over the whole table.
        row_start: int64[T] first row, from the start of the file.
        row_stop: int64[T] the row after the last.
        kept: bool[T]; False where statistics prove that no row passes.
        live: int64[T] rows left after deletes and filters; −1 if not counted.
    """

    splits: SplitTable
    offsets: NDArray[np.int64]
    group: NDArray[np.int64]
    row_start: NDArray[np.int64]
    row_stop: NDArray[np.int64]
    kept: NDArray[np.bool_]
    live: NDArray[np.int64]

    def __reduce__(self) -> tuple[type[SegmentTable], tuple[Any, ...]]:
        """Pickle the columns alone."""
        return SegmentTable, tuple(getattr(self, each.name) for each in fields(self))

    @classmethod
    def of(cls, splits: SplitTable, *, filtered: bool) -> SegmentTable:
        """Divide splits at the borders of row groups.

        Args:
            filtered: whether a row filter must still be counted; the live rows of kept segments are then unknown.

        Under deletes, the live rows of a *part* of a row group are unknown.
        """
        layout = splits.layout
        base = layout.file_starts[splits.file]
        first = np.searchsorted(layout.group_starts, base + splits.row_start, side="right") - 1
        last = np.searchsorted(layout.group_starts, base + splits.row_stop, side="left")
        count = np.where(splits.num_rows > 0, last - first, 0)
        offsets = np.zeros(len(splits) + 1, dtype=np.int64)
        np.cumsum(count, out=offsets[1:])
        group = np.arange(offsets[-1], dtype=np.int64) + np.repeat(first - offsets[:-1], count)
        base = np.repeat(base, count)
        row_start = np.maximum(layout.group_starts[group] - base, np.repeat(splits.row_start, count))
        row_stop = np.minimum(layout.group_starts[group + 1] - base, np.repeat(splits.row_stop, count))
        kept = layout.group_kept[group]
        rows = row_stop - row_start
        group_live, group_rows = layout.group_live[group], layout.group_rows[group]
        known = np.where((rows == group_rows) | (group_live == group_rows), np.minimum(rows, group_live), -1)
        live = np.where(kept & (rows > 0) & (group_live != 0), -1 if filtered else known, 0)
        return cls(splits, offsets, group, row_start, row_stop, kept, live)

    @classmethod
    def concat(cls, tables: Sequence[SegmentTable]) -> SegmentTable:
        """Join the splits of several tables of one layout, in order; none of them loose."""
        splits = [table.splits for table in tables]
        columns = (
            np.concatenate([getattr(part, name) for part in splits]) for name in ("file", "row_start", "row_stop")
        )
        sizes = np.concatenate([np.zeros(1, dtype=np.int64), *(np.diff(table.offsets) for table in tables)])
        return cls(
            SplitTable(splits[0].layout, *columns),
            np.cumsum(sizes),
            *(
                np.concatenate([getattr(table, name) for table in tables])
                for name in ("group", "row_start", "row_stop", "kept", "live")
            ),
        )

    def counted(self, live: NDArray[np.int64]) -> SegmentTable:
        """Return the same segments with other live rows, int64[T]."""
        return replace(self, live=live)

    def counted_by(self, cover: SegmentTable) -> SegmentTable:
        """Return the same segments with the live rows of a counted cover of some files; see `SplitTable.cover`."""
        starts = self.splits.layout.file_starts
        own = starts[np.repeat(self.splits.file, np.diff(self.offsets))]
        others = starts[np.repeat(cover.splits.file, np.diff(cover.offsets))]
        ends = np.concatenate(([0], np.cumsum(cover.live)))
        first = np.searchsorted(others + cover.row_start, own + self.row_start, side="left")
        last = np.searchsorted(others + cover.row_start, own + self.row_stop, side="left")
        known = np.isin(self.group, cover.group)
        live = self.live.copy()
        live[known] = (ends[last] - ends[first])[known]
        return self.counted(live)

    @cached_property
    def metadata_rows(self) -> NDArray[np.int64]:
        """int64[S] rows of each split in row groups that statistics keep: known without reading."""
        return self._sums(np.where(self.kept, self.row_stop - self.row_start, 0))

    @cached_property
    def live_rows(self) -> NDArray[np.int64]:
        """int64[S] live rows of each split; −1 where a segment is not counted."""
        rows, unknown = self._sums(self.live), self.live < 0
        if unknown.any():
            rows[self._sums(unknown.astype(np.int64)) > 0] = -1
        return rows

    @cached_property
    def bases(self) -> NDArray[np.int64]:
        """int64[S]: the place of each split's first live row; see `planning.consumption`.

        All live rows must be known. A row of loose splits is placed by its split and its ordinal there; other splits
        must cover their files.
        """
        if self.splits.loose:
            return self._bases_by_split()
        order = self.splits.canonical_order()
        file, live = self.splits.file[order], self.live_rows[order]
        place = np.cumsum(live) - live
        firsts = np.flatnonzero(np.diff(file, prepend=-1))
        files, before = file[firsts], place[firsts]
        in_file = np.diff(before, append=live.sum())
        if int(in_file.max(initial=0)) > PLACES_OF_A_FILE or int(files.max(initial=0)) >= _MOST_FILES:
            raise ConfigError(
                f"a job that changes within an epoch places at most {PLACES_OF_A_FILE:,} rows of a file, and "
                f"{_MOST_FILES:,} files; start a new epoch"
            )
        bases = np.empty_like(live)
        place += np.repeat(files * PLACES_OF_A_FILE - before, np.diff(firsts, append=len(file)))
        bases[order] = place
        return bases

    def _bases_by_split(self) -> NDArray[np.int64]:
        if int(self.live_rows.max(initial=0)) > PLACES_OF_A_FILE or len(self.splits) > _MOST_FILES:
            raise ConfigError(
                f"a job that changes within an epoch places at most {PLACES_OF_A_FILE:,} rows of a split, and "
                f"{_MOST_FILES:,} splits; start a new epoch"
            )
        return np.arange(len(self.splits), dtype=np.int64) * PLACES_OF_A_FILE

    def task(self, split: int, start: int, stop: int) -> ReadTask:
        """Return what to read for the live rows [start, stop) of a split; stop −1: all that follow."""
        part = slice(int(self.offsets[split]), int(self.offsets[split + 1]))
        file = int(self.splits.file[split])
        first_group = int(self.splits.layout.group_offsets[file])
        columns = (self.group[part] - first_group, self.row_start[part], self.row_stop[part], self.live[part])
        segments = tuple(Segment(*row) for row in zip(*(c.tolist() for c in columns), strict=True) if row[3])
        return ReadTask(file, segments, skip=start, take=-1 if stop < 0 else stop - start)

    def _sums(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        total = np.zeros(len(values) + 1, dtype=np.int64)
        np.cumsum(values, out=total[1:])
        return np.diff(total[self.offsets])


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
        """Cut whole files, counted and in canonical order, between row groups, into chunks of some `target_rows`."""
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
        """Return what to read for a chunk: one task for each file."""
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
    """Return a table in which each file is one split."""
    files = np.arange(len(layout), dtype=np.int64)
    splits = SplitTable(layout, files, np.zeros_like(files), layout.file_rows)
    return SegmentTable.of(splits, filtered=filtered)


def _is_split(value: object) -> bool:
    """Return whether a value has what is read of a split, which may be of another library."""
    if not isinstance(getattr(getattr(value, "file", None), "path", None), str) or not hasattr(value, "row_range"):
        return False
    return value.row_range is None or (hasattr(value.row_range, "offset") and hasattr(value.row_range, "length"))


def shown(value: object) -> str:
    """Format what a strategy returned for a message, truncated if it is long.

    >>> shown([0] * 99)
    '[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,…'
    """
    text = repr(value)
    if len(text) <= _SHOWN:
        return text
    return text[:_SHOWN] + "…"


def _row(value: object, who: str) -> int:
    """Return a strategy's row number as an int; a float is refused, not truncated."""
    return as_int(f"the offset or length of a row range of {who}", value)
