"""Columns of tables that have a schema of their own, as Arrow types; the same for Iceberg and Delta Lake."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from torch_table_loader.records import Column

T = TypeVar("T")

_DECIMAL = re.compile(r"decimal\(\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\)")
_MOST_DIGITS = 38


class UnreadableTypeError(Exception):
    """A column has a type that this library does not read; the message is the type's name."""


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of columns, in their order."""
    return pa.schema([_arrow_field(column) for column in columns])


def readable(fields: Mapping[str, Callable[[], T]]) -> tuple[list[T], dict[str, str]]:
    """Read the top level of a schema, given a function that reads each field.

    Returns:
        What can be read, and the types of the fields that cannot, by name.
    """
    found: list[T] = []
    unreadable: dict[str, str] = {}
    for name, read in fields.items():
        try:
            found.append(read())
        except UnreadableTypeError as error:
            unreadable[name] = str(error)
    return found, unreadable


def primitive_type(kind: str, known: Mapping[str, pa.DataType]) -> pa.DataType:
    """Return the Arrow type of a primitive type: one of the format's types without parameters, or a decimal.

    Raises:
        UnreadableTypeError: it is neither.

    >>> primitive_type("decimal(9, 2)", {})
    Decimal128Type(decimal128(9, 2))
    """
    if kind in known:
        return known[kind]
    if (match := _DECIMAL.fullmatch(kind)) and 0 < int(match[1]) <= _MOST_DIGITS and int(match[2]) <= int(match[1]):
        return pa.decimal128(int(match[1]), int(match[2]))
    raise UnreadableTypeError(kind)


def nested_type(kind: str, children: Sequence[Column]) -> pa.DataType:
    """Return the Arrow type of a "struct" or "map", or of a list, whatever the format calls it."""
    fields = [_arrow_field(child) for child in children]
    if kind == "struct":
        return pa.struct(fields)
    return pa.map_(*fields) if kind == "map" else pa.list_(fields[0])


def _arrow_field(column: Column) -> pa.Field:
    return pa.field(column.name, column.type, nullable=not column.required)
