"""Rows of a column of lists, copied list by list: pyarrow copies value by value, which takes many times as long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.arrow.arrays import null_mask, offsets_of
from torch_table_loader.arrow.buffers import new_array
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

_LONG = 48
"""From this many values a list on, copying each list costs less than computing the index of each value."""


def copies_lists(kind: pa.DataType) -> bool:
    """Return whether lists of a type are copied here: those with whole bytes for each value.

    >>> copies_lists(pa.list_(pa.int32())), copies_lists(pa.list_(pa.string())), copies_lists(pa.list_(pa.bool_()))
    (True, False, False)
    """
    if not (pt.is_list(kind) or pt.is_large_list(kind)):
        return False
    item = kind.value_type
    return pt.is_primitive(item) and not pt.is_boolean(item)


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
            nulls = np.zeros(num_rows, np.bool_) if nulls is None else nulls
            nulls[rows] = null_mask(array)[places]
    if nulls is not None:
        lengths[nulls] = 0
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if num_rows else 0
    width = np.int64 if pt.is_large_list(kind) else np.int32
    if total > np.iinfo(width).max:
        raise pa.ArrowInvalid(f"{total:,} values do not fit into one array of type {kind}")
    num_bytes = kind.value_type.bit_width // 8
    item = np.dtype(f"u{num_bytes}" if num_bytes <= 8 else f"V{num_bytes}")
    values = new_array((total,), item)
    for array, _, rows in parts:
        buffer = array.values.buffers()[1]
        if buffer is not None and buffer.size:
            stored = np.frombuffer(buffer, item, offset=array.values.offset * num_bytes)
            _copy(stored, values, begins[rows], (ends - lengths)[rows], lengths[rows])
    offsets = np.zeros(num_rows + 1, width)
    offsets[1:] = ends
    valid = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    inner = pa.Array.from_buffers(kind.value_type, total, [None, pa.py_buffer(values)])
    form = pa.LargeListArray if pt.is_large_list(kind) else pa.ListArray
    return form.from_buffers(kind, num_rows, [valid, pa.py_buffer(offsets)], children=[inner])


def _copy(stored: NDArray[Any], values: NDArray[Any], sources: Ints, targets: Ints, lengths: Ints) -> None:
    """Copy runs of values from positions `sources` to positions `targets`."""
    total = int(lengths.sum())
    if total >= _LONG * len(lengths):
        for source, target, length in zip(sources.tolist(), targets.tolist(), lengths.tolist(), strict=True):
            values[target : target + length] = stored[source : source + length]
        return
    step = max(1, sizes().list_indices * len(lengths) // max(total, 1))
    for start in range(0, len(lengths), step):
        some = slice(start, start + step)
        counts = lengths[some]
        before = np.cumsum(counts) - counts
        place = np.arange(int(counts.sum()))
        values[place + np.repeat(targets[some] - before, counts)] = stored.take(
            place + np.repeat(sources[some] - before, counts)
        )
