"""Rows of a store by place, in any order: whole records are taken, then transposed a block at a time.

Of lists that a store keeps flat, such as tokens of documents, parts can be taken without the rest.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.arrow.arrays import (
    copies_lists,
    lists_of,
    null_mask,
    offsets_of,
    refuse_too_many,
    stored_values,
    values_from,
)
from torch_table_loader.arrow.buffers import Arena, aligned, new_array
from torch_table_loader.arrow.copied_runs import COPIED_BYTES, copied_runs
from torch_table_loader.arrow.datatypes import plain_type
from torch_table_loader.arrow.sound import sound_text
from torch_table_loader.errors import OutOfMemoryError, TableError
from torch_table_loader.local_files import open_regular
from torch_table_loader.planning.distinct import distinct
from torch_table_loader.planning.lists import PUT_IN
from torch_table_loader.planning.record_ranges import coalesce, in_windows
from torch_table_loader.sizes import sizes
from torch_table_loader.store.record_layout import IDS, NULLS, RECORDS, REMEDY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from torch_table_loader.planning.lists import ListLengths, PlacedLists
    from torch_table_loader.store.coded_strings import CodedStrings
    from torch_table_loader.store.record_layout import FixedType, Origin, RecordLayout, Slot

    Ints: TypeAlias = NDArray[np.int64]

T = TypeVar("T")

Together: TypeAlias = "Mapping[int, np.dtype[Any]]"
"""Columns of numbers, each with its numpy type, whose values come as one array."""

_NO_BYTES = np.empty(0, dtype=np.uint8)

PAGE = 4096
GAP_PAGES = 4
"""Unneeded pages that are read to avoid a second request: 16 KiB."""
REQUEST_PAGES = 1024

_WIDE = 8
"""From this many values side by side on, copying row by row costs less than column by column."""

_FEW_ROWS = 4096
"""Rows whose columns are copied one by one at a time: caches of a core hold them."""

_FEW_STRETCHES = 8
"""Up to this many stretches, single values are taken stretch by stretch."""

_BLOCK = 1 << 21
"""Bytes of records that are transposed at a time: measured on two threads, which wait for each other at every call."""


class Spans(NamedTuple):
    """Parts of lists, from element `start` to before element `stop` among those of all rows: int64[n] each.

    None crosses the end of a list.
    """

    start: Ints
    stop: Ints


class ListValues:
    """Values of the elements of lists: all elements, or some stretches of them.

    Args:
        starts: int64[stretches] the first element of each stretch, ascending.
        stretches: for each stretch, an array with a record of values for each element.
        placed: where the lists lie among the elements; None: one after another, as their lengths say.
        counts: int64[stretches] the elements of each, where `stretches` is one array with all of them, one after
            another.
    """

    def __init__(
        self,
        starts: Ints,
        stretches: Sequence[NDArray[Any]],
        placed: PlacedLists | None = None,
        *,
        counts: Ints | None = None,
    ) -> None:
        self._array, self._begin = np.arange(len(starts)), np.zeros(len(starts), np.int64)
        """The array of each stretch, and where in it the stretch begins."""
        if counts is None:
            self._sizes = np.array([len(stretch) for stretch in stretches], dtype=np.int64)
        else:
            self._sizes = np.array(counts, dtype=np.int64)
            self._array, self._begin = self._begin, np.cumsum(self._sizes) - self._sizes
        self.placed = placed
        if placed is not None and len(stretches):
            added = np.array(placed.added, stretches[0].dtype[0]).view(stretches[0].dtype)
            starts, self._sizes = np.append(starts, PUT_IN), np.append(self._sizes, len(added))
            self._array, self._begin = np.append(self._array, len(stretches)), np.append(self._begin, 0)
            stretches = [*stretches, added]
        self._starts = starts
        names = stretches[0].dtype.names or () if stretches else ()
        self._values = [[stretch[name] for stretch in stretches] for name in names]
        self._bytes = [_bytes_of(values) for values in self._values]

    @classmethod
    def consecutive(cls, stretches: Sequence[NDArray[Any]], placed: PlacedLists | None = None) -> ListValues:
        """Build from consecutive stretches that together are all elements of a store."""
        some = [stretch for stretch in stretches if len(stretch)]
        ends = np.cumsum([0, *(len(stretch) for stretch in some)], dtype=np.int64)
        return cls(ends[:-1], some, placed)

    def take(self, column: int, at: Ints, length: Ints, kind: Any) -> NDArray[Any]:
        """Return stretches of elements, concatenated, in a numpy type that all values fit in.

        Args:
            column: its number among the flat columns.
            at: int64[n] the first element of each, none crossing the end of a list.
            length: int64[n] its number of elements.
        """
        total = int(length.sum())
        kind = np.dtype(kind)
        out = new_array((total, *kind.shape), kind.base)
        if not total:
            return out
        first = np.searchsorted(self._starts, at, side="right") - 1
        below = at - self._starts[first]
        if below.min() < 0 or length.min() < 0 or (below + length > self._sizes[first]).any():
            raise TableError(f"the lengths of the lists of a row store do not fit their values; {REMEDY}")
        views, first, below = self._values[column], self._array[first], below + self._begin[first]
        if total == len(at) and length.max() == 1 and len(some := distinct(first)) <= _FEW_STRETCHES:
            for number in some.tolist():
                mine = np.flatnonzero(first == number)
                out[mine] = views[number].take(below[mine], axis=0).astype(kind.base, casting="safe", copy=False)
            return out
        # Consecutive parts are taken as one.
        breaks = np.flatnonzero((below[1:] != below[:-1] + length[:-1]) | (first[1:] != first[:-1])) + 1
        heads = np.concatenate(([0], breaks))
        tails = np.append(breaks, len(at)) - 1
        runs = first[heads], below[heads], (below + length)[tails]
        if self._bytes[column] is None or views[0].dtype != out.dtype:
            found = [
                views[number][start:stop] for number, start, stop in zip(*map(np.ndarray.tolist, runs), strict=True)
            ]
            return np.concatenate(found, out=out, casting="safe")
        self._copy(column, *runs, out)
        return out

    def _copy(self, column: int, array: Ints, low: Ints, high: Ints, out: NDArray[Any]) -> None:
        """Copy runs of arrays one after another; what is put in between lists is copied with one call."""
        parts, width = self._bytes[column] or [], out[0].nbytes
        count = high - low
        begin = np.cumsum(count) - count
        if self.placed is not None and (put_in := array == len(parts) - 1).any():
            counts = count[put_in]
            place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            added = self._values[column][-1].take(place + np.repeat(low[put_in], counts))
            out[place + np.repeat(begin[put_in], counts)] = added
            array, low, high, begin, count = (each[~put_in] for each in (array, low, high, begin, count))
        target = out.reshape(-1).view(np.uint8).data
        places = ((each * width).tolist() for each in (low, high, begin, begin + count))
        for number, start, stop, into, end in zip(array.tolist(), *places, strict=True):
            target[into:end] = parts[number][start:stop]


def _bytes_of(values: Sequence[NDArray[Any]]) -> list[memoryview] | None:
    """Return arrays as bytes, of which a run is copied in a third of the time; None if one is not contiguous."""
    if not all(array.flags.c_contiguous for array in values):
        return None
    return [array.reshape(-1).view(np.uint8).data for array in values]


@dataclass(frozen=True, slots=True)
class TextOfFiles:
    """Text of heaps whose checksums were not compared: it is checked when it is gathered.

    `files` has the file of each record batch.
    """

    files: Sequence[str]
    origin: Origin

    def check(self, columns: Sequence[pa.Array], numbers: Ints) -> None:
        """Check gathered columns; `numbers`, int64[rows], says which record batch each row comes from."""
        try:
            sound_text(_batch_of(columns))
        except pa.ArrowInvalid as error:
            for number in np.unique(numbers):
                try:
                    sound_text(_batch_of([column.filter(pa.array(numbers == number)) for column in columns]))
                except pa.ArrowInvalid:
                    raise self.origin.damaged(self.files[number], "has text that is not UTF-8") from error
            raise


def _batch_of(arrays: Sequence[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(arrays), list(map(str, range(len(arrays)))))


class ReadAhead:
    """Asks the system for the pages of a store that are needed next, if the store is larger than memory.

    One page fault at a time leaves a disk idle. So the pages of a window of the order are sorted, neighbors are joined,
    and all are requested at once, while the window before is being read.
    """

    def __init__(self, files: Sequence[tuple[Path, int]], window_bytes: int) -> None:
        """Open files of records, each with the bytes of a record; a window may ask for `window_bytes` of pages."""
        self._files = [(open_regular(path), width) for path, width in files]
        self._window_rows = max(sizes().window_rows, window_bytes // PAGE)

    def windows(self, blocks: Iterator[tuple[Ints, T]], most_blocks: int | None = None) -> Iterator[tuple[Ints, T]]:
        """Pass blocks on (see `StoredRows.windows`); while one window is read, the pages of the next are requested."""
        current: list[tuple[Ints, T]] = []
        for window in in_windows(blocks, sizes().window_rows, self._window_rows, most_blocks):
            self.expect(np.concatenate([places for places, _ in window]))
            yield from current
            current = window
        yield from current

    def expect(self, places: Ints) -> int:
        """Request the pages of some rows; return how many requests that took."""
        requests = 0
        for file, width in self._files:
            begin = places * width
            pages = distinct(np.concatenate((begin // PAGE, (begin + width - 1) // PAGE)))
            if not len(pages):
                continue
            parts = coalesce(pages, GAP_PAGES, REQUEST_PAGES)
            starts, lengths = parts.first * PAGE, (parts.stop - parts.first) * PAGE
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
                os.posix_fadvise(file, start, length, os.POSIX_FADV_WILLNEED)
            requests += len(parts.first)
        return requests

    def __del__(self) -> None:
        """Close the files."""
        for file, _ in self._files:
            os.close(file)


class StoredRows:
    """Rows of a store that are in memory, or mapped into it: all of them, or those of a window."""

    def __init__(
        self,
        layout: RecordLayout,
        num_rows: int,
        files: Mapping[str, NDArray[np.uint8]],
        null_columns: frozenset[int],
        heap: Sequence[pa.RecordBatch],
        *,
        lengths: ListLengths | None = None,
        values: ListValues | None = None,
        strings: CodedStrings | None = None,
        read_ahead: ReadAhead | None = None,
        text: TextOfFiles | None = None,
    ) -> None:
        """View the rows.

        Args:
            files: the bytes of the files that have a record for each row. Without one of row ids, a row's id is its
                place; without one of nulls, there is no null.
            heap: record batches of the columns that records do not hold, in row order.
            lengths: the lengths of all flat lists of the store; None if there are none.
            values: the values of those lists, or at least of the requested parts of them.
            strings: columns that the heap lacks, since they have few distinct strings; None if there are none.
            read_ahead: asks the system for the pages that are needed next, if it cannot hold them all; or None.
            text: checks the text that is gathered from the heap; None if it is known to be right.
        """
        records, nulls, ids = (files.get(name, _NO_BYTES).reshape(-1) for name in (RECORDS, NULLS, IDS))
        self.layout, self.num_rows, self.null_columns = layout, num_rows, null_columns
        self.row_ids = ids.view("<i8") if IDS in files else None
        """int64 [rows], ascending; None if each row's id is its place."""
        self.lengths, self.values, self.text = lengths, values, text
        self._records: NDArray[Any] = records.view(f"V{layout.width}") if layout.width else records
        self._nulls = nulls.reshape(num_rows, layout.null_width) if NULLS in files else None
        self.heap, self.strings, self.read_ahead = heap, strings, read_ahead
        self._heap_starts = np.cumsum([0, *(batch.num_rows for batch in heap)], dtype=np.int64)

    def windows(
        self,
        blocks: Iterator[tuple[Ints, T]],
        most_blocks: int | None = None,
        spans: Callable[[T], Spans] | None = None,  # noqa: ARG002 all is here
    ) -> Iterator[tuple[StoredRows, Ints, T]]:
        """Make the rows of consecutive blocks available; each block is places, and a note of the caller's.

        At most `most_blocks` are made available together. `spans` returns by that note what is wanted of flat lists.

        Yields:
            A store to gather the rows from, the places of the block in it, and the note.
        """
        if self.read_ahead is not None:
            blocks = self.read_ahead.windows(blocks, most_blocks)
        for places, note in blocks:
            yield self, places, note

    def ids(self, places: Ints) -> Ints:
        """Return the row id at each place, as a new array."""
        if self.row_ids is None:
            return places.copy()
        return self.row_ids.take(places)

    def fetch(self, places: Ints, spans: Spans | None = None) -> tuple[StoredRows, Ints]:  # noqa: ARG002 all is here
        """Return a store that has some rows, and their places in it."""
        return self, places

    def gather(self, places: Ints, together: Sequence[Together] = ()) -> list[pa.Array]:
        """Return the rows at some places: one array for each column that is not flat, in new memory.

        Args:
            places: int64[n], each in [0, num_rows).
            together: columns that come as one array of float32, unless one of them has nulls.

        Returns:
            Arrays of the plain types; strings may be dictionary-encoded. An array of columns that come together is one
            of fixed-size lists, and stands at the place of each of them.

        Raises:
            OutOfMemoryError: there is too little memory for the arrays.
        """
        try:
            return self._gathered(places, together)
        except MemoryError as error:
            raise OutOfMemoryError(
                f"there is too little memory for {len(places):,} rows of the row store ({error}); use a smaller "
                "batch_size, fewer workers or fewer columns=[...], or give the process more memory"
            ) from error

    def _gathered(self, places: Ints, together: Sequence[Together]) -> list[pa.Array]:
        columns: list[Any] = [None] * len(self.layout.schema)
        together = [some for some in together if self.null_columns.isdisjoint(some)]
        values, tables = self._from_records(places, together)
        for some, table in zip(together, tables, strict=True):
            numbers = pa.Array.from_buffers(pa.float32(), table.size, [None, pa.py_buffer(table)])
            array = pa.FixedSizeListArray.from_arrays(numbers, len(some))
            for column in some:
                columns[column] = array
        bits = self._null_bits(places) if self.null_columns else None
        for slot, bare in values:
            nulls = None
            if bits is not None and slot.column in self.null_columns:
                nulls = bits[:, slot.bit : slot.bit + slot.kind.null_bits]
            columns[slot.column] = _array(slot, bare, nulls)
        coded: Mapping[int, bool] = {}
        if self.strings is not None:
            coded = self.strings.columns
            for column, array in zip(coded, self.strings.gather(places), strict=True):
                columns[column] = array
        others = [column for column in self.layout.heap if column not in coded]
        if others:
            for column, array in zip(others, self._from_heap(places, others), strict=True):
                columns[column] = array
        return columns[self.layout.flat :]

    def _from_records(
        self, places: Ints, together: Sequence[Together]
    ) -> tuple[list[tuple[Slot, NDArray[Any]]], list[NDArray[np.float32]]]:
        """Return the values of the slots that come alone, each contiguous, and of those that come together."""
        layout, rows = self.layout, len(places)
        groups = layout.groups
        if together:
            groups = tuple(layout.groups_without(frozenset(chain.from_iterable(together))))
        arena = Arena(sum(aligned(group.count * rows * group.dtype.itemsize) for group in groups))
        out = [arena.array((group.count, rows), group.dtype) for group in groups]
        tables = [new_array((rows, len(some)), np.float32) for some in together]
        if layout.width:
            step = max(_BLOCK // layout.width, sizes().record_block_rows)
            buffer = np.empty(min(step, rows), dtype=self._records.dtype)
            flat = buffer.view(np.uint8).reshape(len(buffer), layout.width)
            ends = [group.offset + group.count * group.dtype.itemsize for group in groups]
            views = [flat[:, group.offset : end].view(group.dtype) for group, end in zip(groups, ends, strict=True)]
            runs = [list(_runs(layout, flat, some)) for some in together]
            for start in range(0, rows, step):
                count = min(step, rows - start)
                np.take(self._records, places[start : start + count], out=buffer[:count], mode="clip")
                for into, view in zip(out, views, strict=True):
                    into[:, start : start + count] = view[:count].T
                for table, parts in zip(tables, runs, strict=True):
                    _fill(table[start : start + count], parts)
        values = []
        for group, found in zip(groups, out, strict=True):
            at = 0
            for number in group.slots:
                count = layout.slots[number].kind.count
                part = found[at : at + count]
                bare = part[0] if count == 1 else np.ascontiguousarray(part.T).reshape(-1)
                values.append((layout.slots[number], bare))
                at += count
        return values, tables

    def _null_bits(self, places: Ints) -> NDArray[np.uint8] | None:
        if self._nulls is None:
            return None
        return np.unpackbits(self._nulls.take(places, axis=0, mode="clip"), axis=1, bitorder="little")

    def _from_heap(self, places: Ints, wanted: Sequence[int]) -> list[pa.Array]:
        """Return the rows of the heap's columns, in the requested order."""
        if not len(places):
            return [pa.nulls(0, plain_type(self.layout.schema.types[column])) for column in wanted]
        order = np.argsort(places, kind="stable")
        rising = places[order]
        ends = np.searchsorted(rising, self._heap_starts)
        parts = [
            (self.heap[number], rising[low:high] - self._heap_starts[number], order[low:high])
            for number, (low, high) in enumerate(pairwise(ends.tolist()))
            if low < high
        ]
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        indices = [pa.array(local) for _, local, _ in parts]
        taking = pa.array(back)
        columns = []
        for number in range(len(wanted)):
            arrays = [batch.column(number) for batch, _, _ in parts]
            if copies_lists(kind := arrays[0].type) and not any(array.values.null_count for array in arrays):
                lists = [(array, local, rows) for array, (_, local, rows) in zip(arrays, parts, strict=True)]
                columns.append(take_lists(kind, lists, len(taking)))
            else:
                taken = [array.take(some) for array, some in zip(arrays, indices, strict=True)]
                joined = pa.concat_arrays(taken) if len(taken) > 1 else taken[0]
                del taken  # else memory would hold the rows three times
                columns.append(joined.take(taking))
        if self.text is not None:
            self.text.check(columns, np.searchsorted(self._heap_starts, places, side="right") - 1)
        return columns


def _runs(layout: RecordLayout, records: NDArray[np.uint8], together: Together) -> Iterator[tuple[int, NDArray[Any]]]:
    """View the columns that come together in records, those side by side as one; yield the place of the first too."""
    slots = {slot.column: slot for slot in layout.slots}
    offsets = [slots[column].offset for column in together]
    dtypes = list(together.values())
    first = 0
    for place, dtype in enumerate(dtypes):
        stop = offsets[place] + dtype.itemsize
        if place + 1 < len(dtypes) and dtypes[place + 1] == dtype and offsets[place + 1] == stop:
            continue
        yield first, records[:, offsets[first] : stop].view(dtype)
        first = place + 1


def _fill(table: NDArray[np.float32], parts: Sequence[tuple[int, NDArray[Any]]]) -> None:
    """Copy columns, as `_runs` yields them, from the first records of a block into a table of as many rows."""
    for begin in range(0, len(table), _FEW_ROWS):
        some = table[begin : begin + _FEW_ROWS]
        for first, part in parts:
            values, columns = part[begin : begin + len(some)], part.shape[1]
            if columns >= _WIDE:
                some[:, first : first + columns] = values
                continue
            for place in range(columns):
                some[:, first + place] = values[:, place]


def _array(slot: Slot, values: NDArray[Any], nulls: NDArray[np.uint8] | None) -> pa.Array:
    """Build an Arrow array of the plain type from a column's values."""
    kind = slot.kind
    rows = len(values) // kind.count
    depth_nulls = [None] * (len(kind.sizes) + 1) if nulls is None else _by_depth(kind, rows, nulls)
    item = _flat(kind.item, values, depth_nulls[-1])
    for depth in range(len(kind.sizes) - 1, -1, -1):
        missing = depth_nulls[depth]
        mask = None if missing is None else pa.array(missing.view(np.bool_))
        item = pa.FixedSizeListArray.from_arrays(item, kind.sizes[depth], mask=mask)
    return item


def _by_depth(kind: FixedType, rows: int, nulls: NDArray[np.uint8]) -> list[NDArray[np.uint8] | None]:
    """Split a row's null bits into those of the row, of the lists inside, and of the values; None if there are none."""
    found: list[NDArray[np.uint8] | None] = []
    at, count = 0, 1
    for size in (*kind.sizes, 1):
        part = np.ascontiguousarray(nulls[:, at : at + count]).reshape(rows * count)
        found.append(part if part.any() else None)
        at += count
        count *= size
    return found


def _validity(nulls: NDArray[Any] | None) -> pa.Buffer | None:
    """Return Arrow's bits for values of which some are null; None if none is."""
    if nulls is None:
        return None
    return pa.py_buffer(np.packbits(nulls == 0, bitorder="little"))


def _flat(kind: pa.DataType, values: NDArray[Any], nulls: NDArray[np.uint8] | None) -> pa.Array:
    stored = values
    if pt.is_boolean(kind):
        stored = np.packbits(values, bitorder="little")
    if stored.dtype.kind == "V":
        stored = stored.view(np.uint8)
    return pa.Array.from_buffers(kind, len(values), [_validity(nulls), pa.py_buffer(stored)])


def take_lists(kind: pa.DataType, parts: Sequence[tuple[pa.Array, Ints, Ints]], num_rows: int) -> pa.Array:
    """Return the rows of some arrays in another order, in new memory.

    Args:
        kind: their type, which `copies_lists` accepts; no value inside a list is null.
        parts: an array, which rows of it to take, and their rows in the result, which all parts together fill.

    Raises:
        pa.ArrowInvalid: the values do not fit in one array.
    """
    begins, lengths = np.empty(num_rows, np.int64), np.empty(num_rows, np.int64)
    nulls: NDArray[np.bool_] | None = None
    for array, places, rows in parts:
        offsets = offsets_of(array)
        begins[rows] = first = offsets[places]
        lengths[rows] = offsets[places + 1] - first
        if array.null_count:
            if nulls is None:
                nulls = np.zeros(num_rows, np.bool_)
            nulls[rows] = null_mask(array)[places]
    if nulls is not None:
        lengths[nulls] = 0
    ends = np.cumsum(lengths)
    total = int(lengths.sum())
    refuse_too_many(kind, total)
    stored = [stored_values(array) for array, _, _ in parts]
    if total * stored[0].itemsize > COPIED_BYTES * num_rows:
        before = np.cumsum([0, *map(len, stored[:-1])]).tolist()
        for start, (_, _, rows) in zip(before, parts, strict=True):
            begins[rows] += start
        return lists_of(kind, lengths, values_from(kind.value_type, copied_runs(stored, begins, lengths)), nulls)
    values = new_array((total,), stored[0].dtype)
    for some, (_, _, rows) in zip(stored, parts, strict=True):
        _copy(some, values, begins[rows], (ends - lengths)[rows], lengths[rows])
    return lists_of(kind, lengths, values_from(kind.value_type, values), nulls)


def _copy(stored: NDArray[Any], values: NDArray[Any], sources: Ints, targets: Ints, lengths: Ints) -> None:
    """Copy short runs of values from positions `sources` to positions `targets`."""
    step = max(1, sizes().list_indices * len(lengths) // max(int(lengths.sum()), 1))
    for start in range(0, len(lengths), step):
        some = slice(start, start + step)
        counts = lengths[some]
        before = np.cumsum(counts) - counts
        place = np.arange(int(counts.sum()))
        values[place + np.repeat(targets[some] - before, counts)] = stored.take(
            place + np.repeat(sources[some] - before, counts)
        )
