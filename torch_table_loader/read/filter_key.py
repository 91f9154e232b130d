"""A name for a filter over a schema, the same under every version of pyarrow, in which no value can be read.

What pyarrow prints of an expression may change, and leaves out the middle of long lists. So the key hashes what an
expression pickles as: an Arrow IPC file of one row. Its columns are the expression's literals and the options of its
functions, and its metadata spells the expression in prefix order:

    call: less · field_ref: price · literal: 0 · end: less
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow import compute as pc

_FOOTER_END = struct.Struct("<i6s")
"""The end of an Arrow IPC file: the length of its footer, and ``ARROW1``."""

_FOOTER_SCHEMA, _SCHEMA_METADATA, _KEY, _VALUE = 1, 2, 0, 1
"""Numbers of fields in the flatbuffers of a footer, of a schema and of an entry of its metadata."""

_INNER_TYPES = ("storage_type", "index_type", "run_end_type", "key_type", "item_type", "value_type")


def filter_key(filters: Any, schema: pa.Schema) -> str:
    """Return 64 hexadecimal digits that name a filter over a schema.

    Args:
        filters: an expression that `check_filter` accepts over the schema; None for no filter.
        schema: the table's unified schema, partition columns included.
    """
    hashed = hashlib.sha256(b"filter 2")
    expression = () if filters is None else _expression(filters)
    for part in (*expression, *(_field(field).encode() for field in schema)):
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return hashed.hexdigest()


def printed_filter_key(filters: Any, schema: pa.Schema) -> str:
    """Return the key that stands in states of older releases: a hash of what this version of pyarrow prints."""
    return hashlib.sha256(f"{filters}\n{schema.to_string(show_schema_metadata=False)}".encode()).hexdigest()


def _expression(filters: Any) -> Iterator[bytes]:
    _, (pickled,) = filters.__reduce__()
    row = pa.ipc.open_file(pickled).get_batch(0)
    for key, value in _metadata(bytes(pickled)):
        yield key
        if key in (b"literal", b"options"):
            column = row.column(int(value))
            yield _type(column.type).encode()
            yield from _values(column)
        else:
            yield value


def _metadata(file: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Read the metadata of an IPC file's schema, of which pyarrow gives each key once."""
    size, _ = _FOOTER_END.unpack_from(file, len(file) - _FOOTER_END.size)
    footer = file[-_FOOTER_END.size - size : -_FOOTER_END.size]
    schema = _target(footer, _member(footer, _target(footer, 0), _FOOTER_SCHEMA))
    entries = _target(footer, _member(footer, schema, _SCHEMA_METADATA))
    for number in range(_number(footer, entries)):
        entry = _target(footer, entries + 4 + 4 * number)
        yield _text(footer, _member(footer, entry, _KEY)), _text(footer, _member(footer, entry, _VALUE))


def _number(buffer: bytes, place: int) -> int:
    return int.from_bytes(buffer[place : place + 4], "little")


def _target(buffer: bytes, place: int) -> int:
    """Return where a flatbuffer's offset leads to."""
    return place + _number(buffer, place)


def _member(buffer: bytes, table: int, field: int) -> int:
    """Return where a field of a flatbuffer's table lies."""
    slot = table - int.from_bytes(buffer[table : table + 4], "little", signed=True) + 4 + 2 * field
    return table + int.from_bytes(buffer[slot : slot + 2], "little")


def _text(buffer: bytes, place: int) -> bytes:
    start = _target(buffer, place)
    return buffer[start + 4 : start + 4 + _number(buffer, start)]


def _field(field: pa.Field) -> str:
    return f"{len(field.name)} {field.name}{'' if field.nullable else ' not null'} {_type(field.type)}"


def _type(kind: pa.DataType) -> str:
    """Write a type; names inside lists and maps, which mean nothing and which versions choose, are left out.

    >>> _type(pa.list_(pa.field("element", pa.struct([("a", pa.int8())]))))
    'ListType<struct<1 a int8>>'
    """
    if inner := [_type(getattr(kind, name)) for name in _INNER_TYPES if hasattr(kind, name)]:
        name = getattr(kind, "extension_name", type(kind).__name__)
        return f"{name}{getattr(kind, 'list_size', '')}<{', '.join(inner)}>"
    if kind.num_fields:
        return f"struct<{', '.join(_field(kind.field(number)) for number in range(kind.num_fields))}>"
    return str(kind)


def _values(array: pa.Array) -> Iterator[bytes]:
    """Yield what an array holds: its length, which of its values are null, and those that are not."""
    if isinstance(array.type, pa.BaseExtensionType):
        yield from _values(array.storage)
        return
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    elif pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    yield len(array).to_bytes(8, "little")
    yield np.packbits(array.is_valid().to_numpy(zero_copy_only=False)).tobytes()
    array = array.drop_null()
    if pa.types.is_struct(array.type):
        for child in array.flatten():
            yield from _values(child)
    elif _is_list(array.type):
        yield pc.list_value_length(array).cast(pa.int64()).to_numpy().tobytes()
        yield from _values(array.flatten())
    elif width := _byte_width(array.type):
        yield array.buffers()[1][array.offset * width : (array.offset + len(array)) * width].to_pybytes()
    else:
        yield ascii(array.to_pylist()).encode()


def _is_list(kind: pa.DataType) -> bool:
    listed = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)
    return isinstance(kind, listed)


def _byte_width(kind: pa.DataType) -> int:
    """Return the bytes of a value; 0 of bits, and where values differ in width."""
    try:
        return int(kind.bit_width) // 8
    except ValueError:
        return 0
