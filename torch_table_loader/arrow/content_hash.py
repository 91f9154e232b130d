"""A hash of the rows of a table in memory: equal for equal rows, regardless of chunks and buffers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import xxhash

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.arrays import offsets_of, plain
from torch_table_loader.arrow.datatypes import is_text, plain_type

_DOMAIN = b"torch-table-loader rows 1\n"

_ROWS = 1 << 16
"""Rows that are processed together: this bounds temporary memory, such as decoded dictionaries."""


def content_hash(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> str:
    """Hash names, types and values; every value is read once, and few are copied.

    A dictionary counts as its values, and values under a null do not count.

    Returns:
        64 hexadecimal digits.

    >>> rows = pa.record_batch({"a": ["x", None, "y"]})
    >>> content_hash(rows.schema, [rows]) == content_hash(rows.schema, [rows.slice(0, 1), rows.slice(1)])
    True
    """
    hashes: dict[str, _Stream] = {}
    num_rows = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS):
            for place, column in enumerate(batch.slice(start, _ROWS).columns):
                _feed(column, str(place), hashes)
        num_rows += batch.num_rows
    digest = hashlib.sha256(_DOMAIN)
    digest.update(repr((num_rows, [(field.name, str(plain_type(field.type))) for field in schema])).encode())
    for name in sorted(hashes):
        digest.update(name.encode() + hashes[name].digest())
    return digest.hexdigest()


class _Stream:
    """The values of one column, or of one nested inside it, in sequence."""

    def __init__(self) -> None:
        self.values, self.lengths, self.nulls = xxhash.xxh3_128(), xxhash.xxh3_128(), xxhash.xxh3_128()
        self.count = 0

    def digest(self) -> bytes:
        """Return the hash of everything that was fed."""
        parts = (each.digest() for each in (self.values, self.lengths, self.nulls))
        return self.count.to_bytes(8, "little") + b"".join(parts)


def _feed(array: pa.Array, name: str, hashes: dict[str, _Stream]) -> None:
    """Add values to the hashes of their column and of the columns nested inside."""
    stream = hashes.setdefault(name, _Stream())
    array = plain(array)
    if array.null_count:
        nulls = np.flatnonzero(np.asarray(array.is_null()))
        stream.nulls.update((nulls + stream.count).astype(np.int64).data)
    stream.count += len(array)
    if pt.is_null(array.type):
        return
    array = array.drop_null() if array.null_count else array
    for place, inner in enumerate(_inside(array, stream.lengths.update)):
        _feed(inner, f"{name}.{place}", hashes)
    if not pt.is_nested(array.type):
        _feed_values(array, stream)


def _inside(array: pa.Array, feed_lengths: Callable[[Any], None]) -> list[pa.Array]:
    """Return the arrays nested inside an array without nulls."""
    kind = array.type
    if pt.is_struct(kind):
        return list(array.flatten())
    if pt.is_fixed_size_list(kind):
        return [array.flatten()]
    if pt.is_map(kind):
        offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)
        feed_lengths(np.diff(offsets.astype(np.int64)).data)
        first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
        return [array.keys.slice(first, count), array.items.slice(first, count)] if len(array) else []
    if pt.is_union(kind):
        buffers = array.buffers()  # `array.type_codes` forgets where a slice begins
        codes, places = np.frombuffer(buffers[1], np.int8, len(array), array.offset), np.arange(len(array))
        if kind.mode == "dense":
            places = np.frombuffer(buffers[2], np.int32, len(array), 4 * array.offset)
        feed_lengths(codes.data)
        return [array.field(child).take(pa.array(places[codes == code])) for child, code in enumerate(kind.type_codes)]
    if pt.is_list(kind) or pt.is_large_list(kind):
        feed_lengths(np.diff(offsets_of(array).astype(np.int64)).data)
        return [array.flatten()]
    return []


def _feed_values(array: pa.Array, stream: _Stream) -> None:
    """Add values that have no nulls and contain no other values."""
    kind, count = array.type, len(array)
    if not count:
        return
    if is_text(kind) and not pt.is_fixed_size_binary(kind):
        offsets = offsets_of(array)
        stream.lengths.update(np.diff(offsets.astype(np.int64)).data)
        data = array.buffers()[2]
        if data is not None:
            stream.values.update(memoryview(data)[int(offsets[0]) : int(offsets[-1])])
        return
    if pt.is_boolean(kind):
        stream.values.update(np.asarray(pc.cast(array, pa.uint8())).data)
        return
    width = kind.bit_width // 8
    start = array.offset * width
    stream.values.update(memoryview(array.buffers()[1])[start : start + count * width])
