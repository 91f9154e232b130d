"""A name for a filter over a schema, the same under every version of pyarrow, in which no value can be read.

What pyarrow prints of an expression may change, and leaves out the middle of long lists. So the key hashes what an
expression pickles as: an Arrow IPC file of one row. Its columns are the expression's literals and the options of its
functions, and its metadata spells the expression in prefix order:

    call: less · field_ref: price · literal: 0 · end: less
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.flatbuffers import schema_pairs

_INNER_TYPES = ("storage_type", "index_type", "run_end_type", "key_type", "item_type", "value_type")


def filter_key(filters: Any, schema: pa.Schema) -> str:
    """Return 64 hexadecimal digits that name a checked filter (None for no filter) over a table's schema."""
    hashed = hashlib.sha256(b"filter 2")
    expression = () if filters is None else _expression(filters)
    for part in (*expression, *(_field(field).encode() for field in schema)):
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return hashed.hexdigest()


def _expression(filters: Any) -> Iterator[bytes]:
    _, (pickled,) = filters.__reduce__()
    row = pa.ipc.open_file(pickled).get_batch(0)
    for key, value in schema_pairs(bytes(pickled)):
        yield key
        if key in (b"literal", b"options"):
            column = row.column(int(value))
            yield _type(column.type).encode()
            yield from _values(column)
        else:
            yield value


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
