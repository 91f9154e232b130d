"""Arrow arrays with and without encodings around their values, and their buffers as numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.copied_runs import COPIED_BYTES, copied_runs
from torch_table_loader.arrow.datatypes import ElementType, is_list_view, plain_type

if TYPE_CHECKING:
    from numpy.typing import NDArray


_ENCODED = (
    *(pa.ExtensionArray, pa.DictionaryArray, pa.RunEndEncodedArray, pa.StringViewArray, pa.BinaryViewArray),
    *(pa.ListViewArray, pa.LargeListViewArray),
)
"""Arrays whose type is not their `plain_type`."""


def plain(array: pa.Array) -> pa.Array:
    """Return an array in its `plain_type`.

    >>> plain(pa.array(["a", "b", "a"]).dictionary_encode()).to_pylist()
    ['a', 'b', 'a']
    """
    while isinstance(array, _ENCODED):
        kind = array.type
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif isinstance(array, pa.DictionaryArray):
            array = array.dictionary_decode()
        elif isinstance(array, pa.RunEndEncodedArray):
            array = pc.run_end_decode(array)
        elif is_list_view(kind):
            # pyarrow 26 casts a list view to an array with offsets that do not ascend; `flatten` is right.
            array = relisted(array, array.flatten())
        else:
            array = array.cast(plain_type(kind))
    return array


def encoded(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert an array of the type ``plain_type(kind)`` to `kind`."""
    if array.type == kind:
        return array
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, encoded(array, kind.storage_type))
    if pt.is_dictionary(kind):
        found = encoded(array, kind.value_type).dictionary_encode()
        indices = found.indices.cast(kind.index_type)
        return pa.DictionaryArray.from_arrays(indices, found.dictionary, ordered=kind.ordered)
    if pt.is_run_end_encoded(kind):
        return pc.run_end_encode(encoded(array, kind.value_type), run_end_type=kind.run_end_type)
    if is_list_view(kind):
        return _list_view(array, kind)
    return array.cast(kind)


def selected(batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """Return the named columns of a batch, in this order; the batch itself if it has just these."""
    if batch.schema.names == names:
        return batch
    return batch.select(names)


def take_rows(batch: pa.RecordBatch, places: pa.Array) -> pa.RecordBatch:
    """Return rows of a batch of any types, or without columns, by their places, which are not checked."""
    if not batch.num_columns:
        return pc.take(batch, places, boundscheck=False)
    return pa.RecordBatch.from_arrays([take(each, places) for each in batch.columns], schema=batch.schema)


def take(array: pa.Array, places: pa.Array) -> pa.Array:
    """Return values of an array of any type, by their places, which are not checked.

    >>> take(pa.array(["a", "b"], pa.string_view()), pa.array([1, 1])).to_pylist()
    ['b', 'b']
    """
    if copies_lists(array.type) and _are_long(array):
        return _taken_lists(array, places.to_numpy())
    try:
        return pc.take(array, places, boundscheck=False)
    except pa.ArrowNotImplementedError:  # of views and run-ends, which Arrow casts and joins
        if not pt.is_nested(array.type):
            return encoded(pc.take(plain(array), places, boundscheck=False), array.type)
        return pa.concat_arrays([array.slice(0, 0), *(array.slice(place, 1) for place in places.to_pylist())])


def nulls_of(array: pa.Array) -> pa.BooleanArray | None:
    """Return which values are null; None if none is."""
    if array.null_count:
        return array.is_null()
    return None


def copies_lists(kind: pa.DataType) -> bool:
    """Return whether lists of a type are copied list by list: those with whole bytes for each value.

    pyarrow copies value by value, which takes many times as long.

    >>> copies_lists(pa.list_(pa.int32())), copies_lists(pa.list_(pa.string())), copies_lists(pa.list_(pa.bool_()))
    (True, False, False)
    """
    if not (pt.is_list(kind) or pt.is_large_list(kind)):
        return False
    item = kind.value_type
    return pt.is_primitive(item) and not pt.is_boolean(item)


def stored_values(lists: pa.Array) -> NDArray[Any]:
    """View the bytes of the values of lists that `copies_lists` accepts, as items of their width."""
    num_bytes = lists.type.value_type.bit_width // 8
    item = np.dtype(f"u{num_bytes}" if num_bytes <= 8 else f"V{num_bytes}")
    buffer, values = lists.values.buffers()[1], lists.values
    if buffer is None or not buffer.size:
        return np.empty(0, item)
    return np.frombuffer(buffer, item, len(values), values.offset * num_bytes)


def _are_long(lists: pa.Array) -> bool:
    """Return whether lists are long enough to be copied list by list; lists with a null inside are not."""
    num_bytes = len(lists.values) * lists.type.value_type.bit_width // 8
    return num_bytes > COPIED_BYTES * len(lists) and not lists.values.null_count


def _taken_lists(lists: pa.Array, places: NDArray[np.int64]) -> pa.Array:
    offsets = offsets_of(lists).astype(np.int64)
    begins = offsets.take(places)
    lengths = offsets.take(places + 1) - begins
    nulls = None
    if lists.null_count:
        nulls = null_mask(lists)[places]
        lengths[nulls] = 0
    values = copied_runs([stored_values(lists)], begins, lengths)
    return lists_of(lists.type, lengths, values_from(lists.type.value_type, values), nulls)


def relisted(lists: pa.Array, values: pa.Array) -> pa.Array:
    """Build large lists with the lengths and nulls of `lists`, from the values of all non-null lists, concatenated.

    >>> relisted(pa.array([[1, 2], None, [3]]), pa.array(["a", "b", "c"])).to_pylist()
    [['a', 'b'], None, ['c']]
    """
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
    return pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=nulls_of(lists))


def values_from(kind: pa.DataType, stored: NDArray[Any]) -> pa.Array:
    """View what `stored_values` returned as values of a type."""
    return pa.Array.from_buffers(kind, len(stored), [None, pa.py_buffer(stored)])


def refuse_too_many(kind: pa.DataType, values: int) -> None:
    """Refuse more values than lists of a type can have in one array, before they are copied.

    Raises:
        pa.ArrowInvalid: there are more.
    """
    if not pt.is_large_list(kind) and values > np.iinfo(np.int32).max:
        raise pa.ArrowInvalid(f"{values:,} values do not fit into one array of type {kind}")


def lists_of(
    kind: pa.DataType, lengths: NDArray[Any], values: pa.Array, nulls: NDArray[np.bool_] | None = None
) -> pa.Array:
    """Build lists of a type from their lengths, the values of all, and which of them are null; None: none is.

    Raises:
        pa.ArrowInvalid: the values do not fit in one array.

    >>> lists_of(pa.list_(pa.int64()), np.array([2, 1]), pa.array([1, 2, 3])).to_pylist()
    [[1, 2], [3]]
    """
    refuse_too_many(kind, int(lengths.sum()))
    offsets = np.zeros(len(lengths) + 1, np.int64 if pt.is_large_list(kind) else np.int32)
    np.cumsum(lengths, dtype=offsets.dtype, out=offsets[1:])
    valid = None
    if nulls is not None:
        valid = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(kind, len(lengths), [valid, pa.py_buffer(offsets)], children=[values])


def _list_view(lists: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert large lists to list views."""
    index, make = pa.int32(), pa.ListViewArray
    if pt.is_large_list_view(kind):
        index, make = pa.int64(), pa.LargeListViewArray
    lengths = lists.value_lengths().fill_null(0).cast(index)
    offsets, mask = lists.offsets.slice(0, len(lists)).cast(index), nulls_of(lists)
    return make.from_arrays(offsets, lengths, lists.values, type=kind, mask=mask)


def marked_dtype(element: str) -> np.dtype[Any]:
    """Return the dtype in which arrays hold numbers of a name among `datatypes.ELEMENTS`.

    numpy has complex numbers. For the others it is a record of one field, named after the element, so that bits are
    moved unchanged and nothing can be computed with them by mistake.

    >>> marked_dtype("complex64"), marked_dtype("bfloat16").names
    (dtype('complex64'), ('bfloat16',))
    """
    if element.startswith("complex"):
        return np.dtype(element)
    return np.dtype([(element, f"u{ElementType(element).storage_type.bit_width // 8}")])


_NUMPY_TYPES: dict[pa.DataType, np.dtype[Any]] = {
    pa.from_numpy_dtype(np.dtype(code)): np.dtype(code) for code in ("?", *"bhilBHILefd")
}
"""By type: `to_pandas_dtype` needs pandas in pyarrow before 26."""


def number_type(kind: pa.DataType) -> np.dtype[Any]:
    """Return the numpy type of numbers, or of vectors of one size; see `marked_dtype` for those that Arrow lacks.

    >>> number_type(pa.list_(pa.float32(), 3))
    dtype(('<f4', (3,)))
    """
    if isinstance(kind, ElementType):
        return marked_dtype(kind.element)
    if pt.is_fixed_size_list(kind):
        return np.dtype((number_type(kind.value_type), (kind.list_size,)))
    return _NUMPY_TYPES[kind]


def numbers_of(array: pa.Array) -> NDArray[Any]:
    """Return numbers without nulls, [len], or vectors of them, [len, size]; a view of the array's memory if possible.

    >>> numbers_of(pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2))).tolist()
    [[1, 2], [3, 4]]
    """
    if pt.is_fixed_size_list(array.type):
        return numbers_of(array.flatten()).reshape(-1, array.type.list_size)
    if isinstance(array.type, ElementType):
        dtype, stored = number_type(array.type), array.storage
        return np.frombuffer(stored.buffers()[1] or b"", dtype, len(stored), stored.offset * dtype.itemsize)
    found: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found


def array_of(numbers: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return what `numbers_of` returned as an array of a type.

    >>> array_of(np.array([[1, 2], [3, 4]]), pa.list_(pa.int64(), 2)).to_pylist()
    [[1, 2], [3, 4]]
    """
    if pt.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(array_of(numbers.reshape(-1), kind.value_type), type=kind)
    if isinstance(kind, ElementType):
        values = pa.py_buffer(np.ascontiguousarray(numbers).view(np.uint8))
        return pa.ExtensionArray.from_storage(
            kind, pa.Array.from_buffers(kind.storage_type, len(numbers), [None, values])
        )
    return pa.array(numbers, kind)


def bits(buffer: pa.Buffer, offset: int, length: int) -> NDArray[np.bool_]:
    """Unpack `length` bits from bit `offset` on into new bytes."""
    first = offset >> 3
    packed = np.frombuffer(buffer, np.uint8, ((offset + length + 7) >> 3) - first, first)
    skip = offset & 7
    return np.unpackbits(packed, count=skip + length, bitorder="little")[skip:].view(np.bool_)


def null_mask(array: pa.Array) -> NDArray[np.bool_]:
    """Return a new mask of the nulls of an array that has some."""
    valid = bits(array.buffers()[0], array.offset, len(array))
    return np.logical_not(valid, out=valid)


def valid_mask(array: pa.Array) -> NDArray[np.bool_]:
    """Return a new mask of the non-null values of an array."""
    if array.null_count == 0:
        return np.ones(len(array), np.bool_)
    return bits(array.buffers()[0], array.offset, len(array))


def offsets_of(array: pa.Array) -> NDArray[Any]:
    """Return where each value of a list, string or binary array begins, and where the last one ends.

    It is a read-only view, int32 or int64 [len + 1], which may start at any number.
    """
    buffer, kind = array.buffers()[1], array.type
    if buffer is None or len(array) == 0:
        return np.zeros(1, np.int64)
    wide = pt.is_large_list(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind)
    dtype = np.dtype(np.int64 if wide else np.int32)
    return np.frombuffer(buffer, dtype, len(array) + 1, array.offset * dtype.itemsize)


def ascending(start: int, length: int) -> pa.Array:
    """Return so many consecutive integers, in memory of Arrow's pool.

    >>> ascending(5, 3).to_pylist()
    [5, 6, 7]
    """
    buffer = pa.allocate_buffer(8 * length)
    np.frombuffer(buffer, dtype=np.int64)[:] = np.arange(start, start + length, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), length, [None, buffer])
