"""How many bytes the values of a Parquet file come to once they are decoded, which may be stored as few."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from torch_table_loader.arrow.datatypes import PLAIN, is_variable, width_of
from torch_table_loader.read.parquet_footer import leaf_paths, prefixes, statistics_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
_REPEATING = frozenset(("PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BYTE_ARRAY"))
"""Encodings in which a few bytes may be a text of any length."""

_OFFSET_BYTES = 4

_VALUES_OF_A_PAGE, _PAGE_BYTES = 1024, 1 << 20
"""A page has at least so many values, if there are as many, or so many bytes: the defaults of writers."""

_LEVELS_BYTES = 4
"""Of a value in a list: its levels while it is decoded."""


class Decoded(NamedTuple):
    """Bytes that some rows decode to, at the least and at the most; they are as many if the footer says it."""

    least: int
    most: int
    rows: int


LEVEL_BYTES = 2
"""Of each value: whether it is null, while it is decoded."""


def variable_leaves(parsed: pq.FileMetaData, schema: pa.Schema, columns: Sequence[str]) -> tuple[int, list[int]]:
    """Return the decoded bytes of a row's columns of fixed width, and the leaves of the others."""
    fixed, variable = 0, set[str]()
    for name in dict.fromkeys(columns):
        if (place := schema.get_field_index(name)) < 0:
            continue
        kind = schema.field(place).type
        if (width := _PLAIN.get(kind.id)) is not None:
            fixed += width
        elif is_variable(kind):
            variable.add(name)
        else:
            fixed += _stored_width(kind)
    if not variable:
        return fixed, []
    return fixed, leaves_of(parsed, variable)


def converted_bytes(schema: pa.Schema, columns: Sequence[str]) -> int:
    """Return the bytes that a row's values take in memory of Arrow's reader before they are converted; levels too."""
    types = [schema.field(name).type for name in columns if schema.get_field_index(name) >= 0]
    return sum(_stored_width(kind) + LEVEL_BYTES for kind in types if _is_converted(kind))


def _is_converted(kind: pa.DataType) -> bool:
    small: bool = pa.types.is_integer(kind) and kind.bit_width < 32
    return any((small, pa.types.is_boolean(kind), pa.types.is_decimal(kind), pa.types.is_float16(kind)))


def leaves_of(parsed: pq.FileMetaData, columns: Iterable[str]) -> list[int]:
    """Return the leaves of some columns."""
    names = frozenset(columns)
    return [place for place, path in enumerate(leaf_paths(parsed)) if not names.isdisjoint(prefixes(path))]


def _stored_width(kind: pa.DataType) -> int:
    """Return the bytes of a value while it is decoded: Parquet has no integers of 8 and 16 bits."""
    if pa.types.is_integer(kind):
        return max(width_of(kind), 4)
    return width_of(kind)


_PLAIN = {kind.id: _stored_width(kind) for kind in PLAIN}


def decoded_size(footer: bytes, parsed: pq.FileMetaData, group: int, leaves: Sequence[int]) -> Decoded:
    """Return what leaves of a row group decode to: exactly if their writer said it, else between two bounds."""
    row_group, least, most = parsed.row_group(group), 0, 0
    for leaf in leaves:
        chunk = row_group.column(leaf)
        values, stored = chunk.num_values, chunk.total_uncompressed_size
        if parsed.schema.column(leaf).max_repetition_level:
            offsets = _OFFSET_BYTES * row_group.num_rows
            least, most = least + offsets, most + offsets
        if chunk.physical_type != "BYTE_ARRAY":
            size = values * _width_of(parsed, leaf)
            least, most = least + size, most + size
            continue
        low = high = stored + _OFFSET_BYTES * values
        if not _REPEATING.isdisjoint(chunk.encodings):
            said = _said(footer, group, leaf)
            if said is None:
                high = stored * values
            else:
                low = high = said + _OFFSET_BYTES * values
        least, most = least + low, most + max(low, high)
    return Decoded(least, most, row_group.num_rows)


def _width_of(parsed: pq.FileMetaData, leaf: int) -> int:
    """Return the bytes of a decoded value of a leaf; 0 if they vary."""
    column = parsed.schema.column(leaf)
    width: int = _WIDTHS.get(column.physical_type, max(0, column.length))
    if column.precision > 0:
        return max(width, 16)
    return width


@lru_cache(maxsize=64)
def seen_rows(footer: bytes) -> dict[tuple[str, ...], Decoded]:  # noqa: ARG001 the key
    """Return what rows of a file came to, by the columns that were read; who reads some adds them.

    What is read at once depends on it, and no batch.
    """
    return {}


def levels_size(parsed: pq.FileMetaData, group: int, leaves: Sequence[int]) -> int:
    """Return what the levels of leaves of a row group take while they are decoded."""
    nested = [leaf for leaf in leaves if parsed.schema.column(leaf).max_repetition_level]
    return sum(_LEVELS_BYTES * int(parsed.row_group(group).column(leaf).num_values) for leaf in nested)


def large_pages_size(parsed: pq.FileMetaData, group: int, leaves: Sequence[int]) -> int:
    """Return what pages of leaves come to, before and after decompression, beyond those of usual size.

    Writers end a page after some number of values, whatever these weigh.
    """
    chunks = [parsed.row_group(group).column(leaf) for leaf in leaves]
    pages = [_VALUES_OF_A_PAGE * each.total_uncompressed_size // max(1, each.num_values) for each in chunks]
    return sum(2 * page for page in pages if page > _PAGE_BYTES)


def _said(footer: bytes, group: int, leaf: int) -> int | None:
    """Return the decoded bytes of a chunk of texts or binaries; None if the writer did not say."""
    try:
        chunk = statistics_of(footer)[group][leaf]
    except (ValueError, IndexError):
        return None
    if chunk.unencoded is None or chunk.unencoded < 0:
        return None
    return chunk.unencoded
