"""One decoder a column: it turns an Arrow array into the data of one or more leaves.

Values of fixed width go through a cell, which views Arrow's memory where it may, and copies it where it must.

A leaf is what one key of a batch holds: a kind, and the function that cuts it into batches.
Strings become integers by a coder: places in a vocabulary, or buckets of a hash.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from typing_extensions import override
from xxhash import xxh3_64_intdigest

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.arrays import bits, null_mask, offsets_of, plain, relisted, valid_mask
from torch_table_loader.arrow.buffers import new_array
from torch_table_loader.arrow.sound import check_times
from torch_table_loader.batching.jagged import Lists, offsets_from
from torch_table_loader.batching.outputs import DenseKind, Kind, ListsKind, TextKind, dense_kind
from torch_table_loader.errors import TableError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Cut = Callable[[Any, Sequence[int]], Sequence[Any]]

_STACKED_ROWS = 4096


MASK_SUFFIX = "_valid"
"""What the key of a mask is called after the name of its column."""


class RowError(TableError):
    """A fault in one row of a record batch; whoever knows which row of the table that is raises another in its place.

    Args:
        message: names the column and the row of the batch.
        row: number of the row in the batch; None if only a column is known.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


def refuse_null(path: str, nulls: NDArray[np.bool_]) -> RowError:
    """Return where the first null is, and what can be done."""
    column, inside, _ = path.partition(".item")
    row: int | None = int(nulls.argmax())
    where, remedy = f"row {row}", f"pass nulls={{{path!r}: fill}}"
    if inside:
        where, row = f"value {row} of the lists", None
    else:
        remedy += ' or nulls="mask"'
    return RowError(
        f"column {column!r} has a null at {where} of this batch, but its type cannot hold one; {remedy}", row
    )


def refuse_long_lists(path: str, offsets: NDArray[Any], most: int) -> None:
    """Refuse lists that are longer than padded rows."""
    lengths = np.diff(offsets)
    if lengths.max(initial=0) <= most:
        return
    row = int((lengths > most).argmax())
    raise RowError(
        f"column {path!r} has a list of {lengths[row]} values at row {row} of this batch, and Pad(length={most}) is "
        f'shorter; pass truncate="right" (or "left") to cut it, a greater length, or filter such rows out',
        row,
    )


class Cell(ABC):
    """Turns an Arrow array of one type into rows of a fixed shape."""

    __slots__ = ()

    @property
    @abstractmethod
    def kind(self) -> DenseKind:
        """The form of what comes out."""

    @property
    @abstractmethod
    def refuses_null(self) -> bool:
        """Whether a null, at whatever depth, is an error."""

    @abstractmethod
    def values(self, array: pa.Array, seen: set[int], hidden: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        """Return the values, writable, and shared with nobody.

        Args:
            seen: addresses of buffers that were handed out already; it grows.
            hidden: rows that the caller overwrites, and where nulls do not matter.

        Raises:
            TableError: a null that nothing was chosen for.
        """


@dataclass(frozen=True, slots=True)
class FlatCell(Cell):
    """Numbers, booleans, points in time, decimals.

    Args:
        stored: dtype of the Arrow buffer; bool means bits.
        fill: what a null becomes; None refuses nulls.
        cast: cast to doubles first, for decimals.
    """

    path: str
    stored: np.dtype[Any]
    dtype: np.dtype[Any]
    fill: Any = None
    cast: bool = False

    @property
    def kind(self) -> DenseKind:
        """One value a row."""
        return dense_kind(self.dtype)

    @property
    def refuses_null(self) -> bool:
        """Whether nothing was chosen for nulls."""
        return self.fill is None

    @property
    def views(self) -> bool:
        """Whether values are Arrow's own, but for nulls."""
        return not self.cast and self.stored == self.dtype != np.bool_

    @override
    def values(self, array: pa.Array, seen: set[int], hidden: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        if self.cast:
            array = array.cast(pa.float64())
        values = self._view(array, seen)
        if array.null_count:
            nulls = null_mask(array)
            if hidden is not None:
                nulls &= ~hidden
            if self.fill is not None:
                np.putmask(values, nulls, self.fill)
            elif nulls.any():
                raise refuse_null(self.path, nulls)
        return values

    def _view(self, array: pa.Array, seen: set[int]) -> NDArray[Any]:
        length = len(array)
        buffer = array.buffers()[1]
        if buffer is None or length == 0:
            return np.empty(length, self.dtype)
        stored = self.stored
        if stored == np.bool_:
            return bits(buffer, array.offset, length)
        values = np.frombuffer(buffer, stored, length, array.offset * stored.itemsize)
        if stored is not self.dtype and stored != self.dtype:
            return values.astype(self.dtype)
        # A slice of a mutable buffer is ours alone (the reader decoded it for this call); a second array on the
        # same buffer, a memory map and foreign memory are not.
        if not buffer.is_mutable or (address := buffer.address) in seen:
            return values.copy()
        seen.add(address)
        return values


@dataclass(frozen=True, slots=True)
class GridCell(Cell):
    """Fixed-size lists, also of fixed-size lists.

    Args:
        fill: what a null list becomes, broadcast to its shape; None refuses it.
    """

    path: str
    item: Cell
    size: int
    fill: Any = None

    @property
    def kind(self) -> DenseKind:
        """One array of a fixed shape a row."""
        return dense_kind(self.dtype, (self.size, *self.item.kind.inner))

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the numbers in it."""
        return self.item.kind.dtype

    @property
    def refuses_null(self) -> bool:
        """Whether nothing was chosen for null lists, or for nulls inside them."""
        return self.fill is None or self.item.refuses_null

    @override
    def values(self, array: pa.Array, seen: set[int], hidden: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        length = len(array)
        nulls = null_mask(array) if array.null_count else None
        if nulls is not None and self.fill is None:
            bad = nulls if hidden is None else nulls & ~hidden
            if bad.any():
                raise refuse_null(self.path, bad)
        child = plain(array.values.slice(array.offset * self.size, length * self.size))
        covered = nulls if hidden is None else hidden if nulls is None else nulls | hidden
        inner = None if covered is None or not child.null_count else np.repeat(covered, self.size)
        values = self.item.values(child, seen, inner).reshape((length, *self.kind.inner))
        if nulls is not None and self.fill is not None:
            values[nulls] = self.fill
        return values


class Leaf(NamedTuple):
    """One key of a batch."""

    name: str
    kind: Kind
    cut: Cut


class Branch(NamedTuple):
    """A nested dict of a batch; `nodes` are its keys, in order."""

    name: str
    nodes: tuple[Any, ...]


Shape = Leaf | Branch


class Decoder(ABC):
    """Decodes one column of a record batch, or one child of a struct."""

    __slots__ = ()

    name: str
    takes_encoded: ClassVar[bool] = False
    """Whether it takes dictionaries as they are; all else comes in its plain type."""

    @abstractmethod
    def shapes(self) -> list[Shape]:
        """Return the keys that it adds to a batch, in order."""

    @abstractmethod
    def into(self, array: pa.Array, sink: list[Any], seen: set[int]) -> None:
        """Append the data of each leaf, in the order of `shapes`.

        Args:
            sink: grows by one entry for each leaf.
            seen: addresses of buffers that were handed out already; it grows.

        Raises:
            TableError: a null that nothing was chosen for.
        """

    @property
    def refuses_null(self) -> bool:
        """Whether a null, at whatever depth, is an error."""
        return False


def _mask_leaf(name: str, cut: Cut) -> Leaf:
    return Leaf(f"{name}{MASK_SUFFIX}", dense_kind(np.dtype(np.bool_)), cut)


@dataclass(frozen=True, slots=True)
class FixedDecoder(Decoder):
    """One value, or one array of a fixed shape, a row."""

    name: str
    cell: Cell
    cut: Cut
    masked: bool

    def shapes(self) -> list[Shape]:
        """The values, and the mask if any."""
        values = Leaf(self.name, self.cell.kind, self.cut)
        if self.masked:
            return [values, _mask_leaf(self.name, self.cut)]
        return [values]

    @property
    def refuses_null(self) -> bool:
        """Whether a null, at whatever depth, is an error of its cell."""
        return self.cell.refuses_null

    @override
    def into(self, array: pa.Array, sink: list[Any], seen: set[int]) -> None:
        sink.append(self.cell.values(array, seen))
        if self.masked:
            sink.append(valid_mask(array))


@dataclass(frozen=True, slots=True)
class Stack:
    """Several columns of single numbers, which become one float32 array [rows, columns]."""

    name: str
    members: tuple[FixedDecoder, ...]
    cut: Cut

    def shapes(self) -> list[Shape]:
        """Return the one key."""
        return [Leaf(self.name, dense_kind(np.dtype(np.float32), (len(self.members),)), self.cut)]

    def together(self, places: Sequence[int]) -> dict[int, np.dtype[Any]] | None:
        """Return the stored types of the columns at some places; None where values are more than casts of those."""
        cells = [member.cell for member in self.members]
        types = [cell.stored for cell in cells if isinstance(cell, FlatCell) and not cell.cast]
        if types != [cell.kind.dtype for cell in cells] or any(dtype.kind not in "iuf" for dtype in types):
            return None
        return dict(zip(places, types, strict=True))

    def into(self, arrays: Sequence[pa.Array], sink: list[Any], seen: set[int]) -> None:
        """Append the values of all columns; see `Decoder.into`.

        Columns that come together are one array of lists, given for each of them.
        """
        if pt.is_fixed_size_list(arrays[0].type):
            single = np.dtype(np.float32)
            sink.append(GridCell(self.name, FlatCell(self.name, single, single), len(arrays)).values(arrays[0], seen))
            return
        columns: list[Any] = []
        for member, array in zip(self.members, arrays, strict=True):
            member.into(array, columns, seen)
        rows = len(arrays[0])
        found = new_array((rows, len(columns)), np.dtype(np.float32))
        for first in range(0, rows, _STACKED_ROWS):  # a few rows at a time, which a core's cache holds
            part = found[first : first + _STACKED_ROWS]
            for number, values in enumerate(columns):
                part[:, number] = values[first : first + _STACKED_ROWS]
        sink.append(found)


@dataclass(frozen=True, slots=True)
class ListsDecoder(Decoder):
    """A list of fixed-width values a row, or of strings as integers.

    Args:
        fill: the list that a null becomes, as an array; None refuses nulls.
        most: values of the longest list that is taken; None takes any.
        coder: says which integer a string is; None if there are no strings.
        text: the wide Arrow type that strings are brought to.
    """

    name: str
    path: str
    item: Cell
    cut: Cut
    cut_mask: Cut
    masked: bool
    fill: NDArray[Any] | None
    most: int | None = None
    coder: Coder | None = None
    text: pa.DataType | None = None

    @property
    def refuses_null(self) -> bool:
        """Whether nothing was chosen for nulls; a null among strings has a code."""
        return self.fill is None or (self.coder is None and self.item.refuses_null)

    def shapes(self) -> list[Shape]:
        """The lists, and the mask if any."""
        lists = Leaf(self.name, ListsKind(self.item.kind), self.cut)
        if self.masked:
            return [lists, _mask_leaf(self.name, self.cut_mask)]
        return [lists]

    @override
    def into(self, array: pa.Array, sink: list[Any], seen: set[int]) -> None:
        if self.coder is not None:
            wide = array.cast(pa.large_list(self.text))
            array = relisted(wide, pa.array(self.coder.codes(wide.flatten())))
        offsets = offsets_of(array)
        if array.null_count:
            lists = self._without_nulls(array, offsets, seen)
        else:
            start, stop = int(offsets[0]), int(offsets[-1])
            values = self.item.values(plain(array.values.slice(start, stop - start)), seen)
            if start:
                offsets = offsets - start
            lists = Lists(offsets, values)
        if self.most is not None:
            refuse_long_lists(self.path, lists.offsets, self.most)
        sink.append(lists)
        if self.masked:
            sink.append(valid_mask(array))

    def _without_nulls(self, array: pa.Array, offsets: NDArray[Any], seen: set[int]) -> Lists:
        nulls = null_mask(array)
        if self.fill is None:
            raise refuse_null(self.path, nulls)
        # `flatten` leaves out what lies under a null list; `values` would not.
        present = self.item.values(plain(array.flatten()), seen)
        lengths = np.diff(offsets).astype(np.int64)
        lengths[nulls] = len(self.fill)
        new_offsets = offsets_from(lengths)
        if len(self.fill) == 0:
            return Lists(new_offsets, present)
        filled = np.repeat(nulls, lengths)
        values = np.empty((len(filled), *present.shape[1:]), present.dtype)
        values[~filled] = present
        values[filled] = np.concatenate([self.fill] * int(nulls.sum()))
        return Lists(new_offsets, values)


@dataclass(frozen=True, slots=True)
class ArrowDecoder(Decoder):
    """Strings or bytes, lists of them, or values of any type, kept as Arrow until they are cut.

    Args:
        type: the type to which all values are brought; of strings the wide one.
        fill: what a null becomes; None keeps it.
        checks_times: whether times must be such that Python has objects for them.
    """

    name: str
    type: pa.DataType
    cut: Cut
    fill: str | bytes | None = None
    checks_times: bool = False

    def shapes(self) -> list[Shape]:
        """The one leaf."""
        return [Leaf(self.name, TextKind(self.type), self.cut)]

    @override
    def into(self, array: pa.Array, sink: list[Any], seen: set[int]) -> None:
        array = plain(array)
        if self.checks_times:
            check_times(self.name, array)
        if array.type != self.type:
            array = array.cast(self.type)
        if self.fill is not None:
            array = array.fill_null(self.fill)
        sink.append(array)


class _LastDictionary:
    """The codes of the dictionary that was looked up last, since all rows of a row store share one."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[pa.Array, Any, pa.Array] | None = None

    def __reduce__(self) -> tuple[type[_LastDictionary], tuple[()]]:
        return _LastDictionary, ()

    def codes(self, dictionary: pa.Array, look_up: Callable[[], pa.Array]) -> pa.Array:
        """Return the codes of a dictionary, looked up if it is not the last one."""
        # The one that is kept lives, so that nothing else can be in its place.
        buffers = [None if buffer is None else buffer.address for buffer in dictionary.buffers()]
        place = (dictionary.type, dictionary.offset, len(dictionary), buffers)
        last = self._last
        if last is not None and last[1] == place:
            return last[2]
        codes = look_up()
        self._last = (dictionary, place, codes)
        return codes


@dataclass(frozen=True, slots=True)
class CodesDecoder(Decoder):
    """Strings as integers; each distinct string is looked up once if they come in a dictionary.

    Args:
        type: the wide Arrow type that strings are brought to.
        fill: what a null becomes before that.
    """

    name: str
    type: pa.DataType
    cut: Cut
    coder: Coder
    fill: str | bytes | None = None
    takes_encoded: ClassVar[bool] = True
    _last: _LastDictionary = field(default_factory=_LastDictionary, init=False, repr=False, compare=False)

    def shapes(self) -> list[Shape]:
        """The one leaf."""
        return [Leaf(self.name, dense_kind(np.dtype(np.int64)), self.cut)]

    @override
    def into(self, array: pa.Array, sink: list[Any], seen: set[int]) -> None:
        if isinstance(array, pa.DictionaryArray) and len(array.dictionary) < len(array):
            words = array.dictionary
            codes = self._last.codes(words, lambda: self._codes_of(words))
            indices = array.indices
            if array.null_count:
                indices = indices.fill_null(len(codes) - 1)
            found = pc.take(codes, indices)  # five times as fast as numpy's
            sink.append(np.frombuffer(found.buffers()[1], np.int64, len(found)))
            return
        wide = plain(array).cast(self.type)
        if self.fill is not None:
            wide = wide.fill_null(self.fill)
        sink.append(self.coder.codes(wide))

    def _codes_of(self, words: pa.Array) -> pa.Array:
        """Return the code of each string, then that of null."""
        null = pa.array([self.fill], self.type)
        return pa.array(self.coder.codes(pa.concat_arrays([words.cast(self.type), null])))


@dataclass(frozen=True, slots=True)
class StructDecoder(Decoder):
    """A nested dict."""

    name: str
    children: Sequence[Decoder]

    def shapes(self) -> list[Shape]:
        """The one branch."""
        return [Branch(self.name, tuple(shape for child in self.children for shape in child.shapes()))]

    @property
    def refuses_null(self) -> bool:
        """Whether a null, at whatever depth, is an error of a child."""
        return any(child.refuses_null for child in self.children)

    def into(self, array: pa.Array, sink: list[Any], seen: set[int]) -> None:
        """Decode; a null struct makes its children null."""
        for child, values in zip(self.children, array.flatten(), strict=True):
            child.into(values if child.takes_encoded else plain(values), sink, seen)


class Coder(ABC):
    """Turns strings into integers."""

    __slots__ = ()

    @abstractmethod
    def codes(self, array: pa.Array) -> NDArray[np.int64]:
        """Return one integer for each value of an array of wide strings or bytes, nulls included; the result is new."""


@dataclass(frozen=True, slots=True)
class VocabularyCoder(Coder):
    """The place of each string in a vocabulary (an Arrow array of the wide type); unknown and null are −1."""

    values: pa.Array

    @override
    def codes(self, array: pa.Array) -> NDArray[np.int64]:
        if len(self.values) <= len(array):
            found = pc.index_in(array, value_set=self.values, skip_nulls=True)
            every: NDArray[np.int64] = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            return every
        # Hashing the vocabulary would cost more than hashing the column: look up the column's own values in it.
        wanted = array.unique()
        known = pc.index_in(self.values, value_set=wanted, skip_nulls=True)
        places = np.flatnonzero(known.is_valid().to_numpy(zero_copy_only=False))
        codes_of = np.full(len(wanted) + 1, -1, np.int64)
        codes_of[known.drop_null().to_numpy(zero_copy_only=False)] = places
        indices = pc.index_in(array, value_set=wanted, skip_nulls=True).fill_null(len(wanted))
        codes: NDArray[np.int64] = codes_of[indices.to_numpy(zero_copy_only=False)]
        return codes


@dataclass(frozen=True, slots=True)
class HashCoder(Coder):
    """The bucket of each string; see `option_values.Hash`. Each distinct string of an array is hashed once.

    Null is in bucket 0, and no string is.
    """

    buckets: int

    @override
    def codes(self, array: pa.Array) -> NDArray[np.int64]:
        encoded = array.dictionary_encode()
        values = encoded.dictionary.cast(pa.large_binary()).to_pylist()
        hashes = np.fromiter(map(xxh3_64_intdigest, values), dtype=np.uint64, count=len(values))
        codes_of = np.zeros(len(values) + 1, np.int64)
        codes_of[:-1] = 1 + (hashes % np.uint64(self.buckets - 1)).astype(np.int64)
        indices = encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
        found: NDArray[np.int64] = codes_of[indices]
        return found
