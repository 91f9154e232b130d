"""Types that are guessed from text: those of whole numbers, and what a table makes of the guesses of its files.

A field's metadata says what its type does not. It stays in the schemas of files, and the table's has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from torch_table_loader.arrow import compute as pc
from torch_table_loader.records import FileMeta

WHOLE = pa.decimal128(38, 0)
"""The type of whole numbers that neither int64 nor uint64 holds."""

_KIND = b"whole numbers are"
NEGATIVE = {_KIND: b"negative"}
"""Marks an int64 field of which a value is."""

CODES = {_KIND: b"text"}
"""Marks a text field that holds whole numbers which no number keeps: with zeros before them, or too many digits."""

_INT64, _UINT64 = range(-(1 << 63), 1 << 63), range(1 << 64)


@dataclass(slots=True)
class Bounds:
    """The least and the greatest of whole numbers, zero among them."""

    low: int = 0
    high: int = 0

    def add(self, *values: int) -> None:
        """Take more values."""
        self.low, self.high = min(self.low, *values), max(self.high, *values)

    @property
    def type(self) -> pa.DataType | None:
        """The narrowest type that holds them; None if they have more digits than one."""
        if self.low in _INT64 and self.high in _INT64:
            return pa.int64()
        if self.low in _UINT64 and self.high in _UINT64:
            return pa.uint64()
        if max(-self.low, self.high) < 10**WHOLE.precision:
            return WHOLE
        return None


def is_whole(kind: pa.DataType) -> bool:
    """Return whether a guessed type is one of whole numbers."""
    return bool(pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0))


def signed(own: pa.Field, values: pa.ChunkedArray) -> pa.Field:
    """Return the field of a column, with a mark if it is of int64 and a value is negative."""
    if own.type != pa.int64() or values.type != pa.int64() or (pc.min(values).as_py() or 0) >= 0:
        return own
    return own.with_metadata({**(own.metadata or {}), **NEGATIVE})


def is_marked(field: pa.Field, mark: dict[bytes, bytes]) -> bool:
    """Return whether a field has a mark."""
    return mark.items() <= (field.metadata or {}).items()


def settled_numbers(fields: Sequence[pa.Field], text: pa.DataType | None) -> list[pa.Field]:
    """Return the fields of one column in all files, with whole numbers as one type wherever nothing is lost.

    Args:
        text: as what a number can be read where other files have codes; None where it cannot.
    """
    kinds = [field.type for field in fields if not pa.types.is_null(field.type)]
    codes = [field for field in fields if is_marked(field, CODES)]
    if codes and text is not None and len(codes) + sum(map(is_whole, kinds)) == len(kinds):
        return [pa.field(field.name, text, metadata=CODES) if is_whole(field.type) else field for field in fields]
    unsigned = pa.uint64() in kinds and all(kind in (pa.int64(), pa.uint64()) for kind in kinds)
    if unsigned and not any(is_marked(field, NEGATIVE) for field in fields):
        return [field.with_type(pa.uint64()) if is_whole(field.type) else field for field in fields]
    return list(fields)


def by_column(metas: Sequence[FileMeta]) -> dict[str, list[pa.Field]]:
    """Return the fields of each column, in the order of the files that have it."""
    found: dict[str, list[pa.Field]] = {}
    for field in (field for meta in metas for field in meta.schema):
        found.setdefault(field.name, []).append(field)
    return found


def with_columns(metas: Sequence[FileMeta], columns: dict[str, list[pa.Field]]) -> list[FileMeta]:
    """Return metadata of files with the fields that `by_column` found, or others in their places."""
    fields = {name: iter(own) for name, own in columns.items()}
    return [replace(meta, schema=pa.schema([next(fields[field.name]) for field in meta.schema])) for meta in metas]
