"""Arrow buffers of fixed-width values as numpy arrays: viewed where they may be, copied where they must be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from torch_table_loader.batching.kinds import DenseKind
from torch_table_loader.errors import TableError

if TYPE_CHECKING:
    from numpy.typing import NDArray


_WRAPPERS = (pt.is_dictionary, pt.is_run_end_encoded, pt.is_list_view, pt.is_large_list_view)


def is_wrapped(kind: pa.DataType) -> bool:
    """Return whether `plain` has something to take off: an extension, a dictionary, run-ends, a list view."""
    return isinstance(kind, pa.BaseExtensionType) or any(test(kind) for test in _WRAPPERS)


def _unwrapped_once(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pt.is_list_view(kind) or pt.is_large_list_view(kind):
        return pa.large_list(kind.value_type)
    return kind.value_type


def unwrapped(kind: pa.DataType) -> pa.DataType:
    """Return the type that `plain` leaves.

    >>> unwrapped(pa.dictionary(pa.int8(), pa.string()))
    DataType(string)
    """
    while is_wrapped(kind):
        kind = _unwrapped_once(kind)
    return kind


def plain(array: pa.Array) -> pa.Array:
    """Take off extension types, dictionaries, run-ends and list views.

    >>> plain(pa.array(["a", "b", "a"]).dictionary_encode()).to_pylist()
    ['a', 'b', 'a']
    """
    while is_wrapped(array.type):
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif isinstance(array, pa.DictionaryArray):
            array = array.dictionary_decode()
        elif isinstance(array, pa.RunEndEncodedArray):
            array = pc.run_end_decode(array)
        else:
            # pyarrow 26 casts a list view to an array with offsets that do not rise; `flatten` is right.
            array = relisted(array, array.flatten())
    return array


def relisted(lists: pa.Array, values: pa.Array) -> pa.Array:
    """Make large lists with the lengths and nulls of `lists`.

    Args:
        lists: lists of any kind.
        values: the values of the lists that are not null, one after another.

    >>> relisted(pa.array([[1, 2], None, [3]]), pa.array(["a", "b", "c"])).to_pylist()
    [['a', 'b'], None, ['c']]
    """
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
    mask = lists.is_null() if lists.null_count else None
    return pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=mask)


def bits(buffer: pa.Buffer, offset: int, length: int) -> NDArray[np.bool_]:
    """Unpack `length` bits from bit `offset` on into new bytes."""
    first = offset >> 3
    packed = np.frombuffer(buffer, np.uint8, ((offset + length + 7) >> 3) - first, first)
    skip = offset & 7
    return np.unpackbits(packed, count=skip + length, bitorder="little")[skip:].view(np.bool_)


def null_mask(array: pa.Array) -> NDArray[np.bool_]:
    """Mark the nulls of an array that has some."""
    valid = bits(array.buffers()[0], array.offset, len(array))
    return np.logical_not(valid, out=valid)


def valid_mask(array: pa.Array) -> NDArray[np.bool_]:
    """Mark the values of an array; the result is new."""
    if array.null_count == 0:
        return np.ones(len(array), np.bool_)
    return bits(array.buffers()[0], array.offset, len(array))


def refuse_null(path: str, nulls: NDArray[np.bool_]) -> TableError:
    """Return where the first null is, and what can be done."""
    column, inside, _ = path.partition(".item")
    where = f"value {int(nulls.argmax())} of the lists" if inside else f"row {int(nulls.argmax())}"
    remedy = f"pass nulls={{{path!r}: fill}}" + ("" if inside else ' or nulls="mask"')
    return TableError(
        f"column {column!r} has a null at {where} of this batch, and its type has no value for it; {remedy}"
    )


class Cell(Protocol):
    """Turns an Arrow array of one type into rows of a fixed shape."""

    @property
    def kind(self) -> DenseKind:
        """The form of what comes out."""
        ...

    def values(self, array: pa.Array, seen: set[int], hidden: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        """Return the values, writable, and shared with nobody.

        Args:
            array: of this cell's type.
            seen: addresses of buffers that were handed out already; it grows.
            hidden: rows that the caller overwrites, and where nulls do not matter.

        Raises:
            TableError: a null that nothing was chosen for.
        """
        ...


@dataclass(frozen=True, slots=True)
class FlatCell:
    """Numbers, booleans, points in time, decimals.

    Args:
        path: the column, for messages.
        stored: dtype of the Arrow buffer; bool stands for bits.
        dtype: dtype of the output.
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
        return DenseKind(self.dtype)

    def values(self, array: pa.Array, seen: set[int], hidden: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        """Return the values; see `Cell`."""
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
        if stored.kind == "b":
            return bits(buffer, array.offset, length)
        values = np.frombuffer(buffer, stored, length, array.offset * stored.itemsize)
        if stored is not self.dtype and stored != self.dtype:
            return values.astype(self.dtype)
        # A slice of a mutable buffer is ours alone (the reader decoded it for this call); a second array on the
        # same buffer, a memory map and foreign memory are not.
        address = buffer.address
        if not buffer.is_mutable or address in seen:
            return values.copy()
        seen.add(address)
        return values


@dataclass(frozen=True, slots=True)
class GridCell:
    """Fixed-size lists, also of fixed-size lists.

    Args:
        path: the column, for messages.
        item: the cell of the values.
        size: values in a list.
        fill: what a null list becomes, broadcast to its shape; None refuses it.
    """

    path: str
    item: Cell
    size: int
    fill: Any = None

    @property
    def kind(self) -> DenseKind:
        """One array of a fixed shape a row."""
        return DenseKind(self.item.kind.dtype, (self.size, *self.item.kind.inner))

    def values(self, array: pa.Array, seen: set[int], hidden: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        """Return the values; see `Cell`."""
        length = len(array)
        nulls = null_mask(array) if array.null_count else None
        if nulls is not None and self.fill is None:
            bad = nulls if hidden is None else nulls & ~hidden
            if bad.any():
                raise refuse_null(self.path, bad)
        child = array.values.slice(array.offset * self.size, length * self.size)
        covered = nulls if hidden is None else hidden if nulls is None else nulls | hidden
        inner = None if covered is None or not child.null_count else np.repeat(covered, self.size)
        values = self.item.values(child, seen, inner).reshape((length, *self.kind.inner))
        if nulls is not None and self.fill is not None:
            values[nulls] = self.fill
        return values


@dataclass(frozen=True, slots=True)
class PlainCell:
    """A cell behind an extension type, a dictionary or run-ends.

    Args:
        item: the cell of what is inside.
    """

    item: Cell

    @property
    def kind(self) -> DenseKind:
        """The form of what is inside."""
        return self.item.kind

    def values(self, array: pa.Array, seen: set[int], hidden: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        """Return the values; see `Cell`."""
        return self.item.values(plain(array), seen, hidden)
