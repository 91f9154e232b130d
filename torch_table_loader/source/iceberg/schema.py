"""An Iceberg schema, from its JSON, as columns with ids and an Arrow schema."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from torch_table_loader.arrow.reserved import (
    CHANGE_ORDINAL_FIELD,
    CHANGE_TYPE_FIELD,
    COMMIT_SNAPSHOT_FIELD,
    LAST_UPDATED_FIELD,
    ROW_ID_FIELD,
)
from torch_table_loader.errors import TableError
from torch_table_loader.records import Column, NamedIds
from torch_table_loader.source.iceberg.checked import shown

ROW_ID = Column(ROW_ID_FIELD, "_row_id", pa.int64())
LAST_UPDATED = Column(LAST_UPDATED_FIELD, "_last_updated_sequence_number", pa.int64())
LINEAGE = (ROW_ID, LAST_UPDATED)
"""Row lineage (v3): reserved columns, which are only read on request."""

CHANGES = (
    Column(CHANGE_TYPE_FIELD, "_change_type", pa.string(), required=True),
    Column(CHANGE_ORDINAL_FIELD, "_change_ordinal", pa.int32(), required=True),
    Column(COMMIT_SNAPSHOT_FIELD, "_commit_snapshot_id", pa.int64(), required=True),
)
"""Columns of a changelog about its rows, under Spark's names."""

_PRIMITIVES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", "UTC"),
    "string": pa.string(),
    "uuid": pa.binary(16),
    "binary": pa.binary(),
    "unknown": pa.null(),
}
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\)")
_FIXED = re.compile(r"fixed\[\s*(\d{1,9})\s*\]")
_MOST_DIGITS = 38
_MOST_FIXED = 1 << 30
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class UnreadableTypeError(TableError):
    """A column has a type that this library does not read."""


def read_columns(struct: Mapping[str, Any]) -> tuple[list[Column], dict[str, str]]:
    """Read the top level of a schema.

    Args:
        struct: a schema or struct type of the table's metadata.

    Returns:
        The columns that can be read, and the types of those that cannot, by name.

    >>> read_columns({"fields": [{"id": 1, "name": "a", "required": True, "type": "long"}]})[0][0].type
    DataType(int64)
    """
    columns: list[Column] = []
    unreadable: dict[str, str] = {}
    for field in struct["fields"]:
        try:
            columns.append(_column(field["id"], field["name"], field["type"], field["required"], field))
        except UnreadableTypeError as error:
            unreadable[field["name"]] = str(error)
    return columns, unreadable


def arrow_field(column: Column) -> pa.Field:
    """Return the Arrow field of a column."""
    return pa.field(column.name, column.type, nullable=not column.required)


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of columns, in their order."""
    return pa.schema([arrow_field(column) for column in columns])


def all_columns(columns: Sequence[Column]) -> Iterator[Column]:
    """Yield columns and everything nested inside them."""
    for column in columns:
        yield column
        yield from all_columns(column.children)


def read_name_mapping(text: str) -> NamedIds:
    """Parse the property ``schema.name-mapping.default``, which `shape.check_metadata` has checked.

    >>> read_name_mapping('[{"field-id": 1, "names": ["a", "b"]}]').ids["b"][0]
    1
    """
    return _named_ids(json.loads(text))


def contradicts(names: NamedIds, parents: Mapping[int, int], parent: int = 0) -> bool:
    """Return whether a name mapping places an id differently from the table's schemas.

    Some migrations wrote mappings with ids of their own numbering.

    Args:
        parents: the id of the column around each id, 0 for top-level ones.
    """
    for field_id, inner in names.ids.values():
        if field_id is not None:
            if parents.get(field_id, parent) != parent:
                return True
            if contradicts(inner, parents, field_id):
                return True
    return False


def parents_of(columns: Sequence[Column], parent: int = 0) -> dict[int, int]:
    """Return the id of the column around each column; 0 for top-level ones."""
    found = {column.field_id: parent for column in columns}
    for column in columns:
        found |= parents_of(column.children, column.field_id)
    return found


def names_of(columns: Sequence[Column]) -> NamedIds:
    """Return the name mapping that a schema implies."""
    return NamedIds({column.name: (column.field_id, names_of(column.children)) for column in columns})


def _named_ids(entries: Sequence[Mapping[str, Any]]) -> NamedIds:
    ids: dict[str, tuple[int | None, NamedIds]] = {}
    for entry in entries:
        inner = _named_ids(entry.get("fields") or [])
        for name in entry["names"]:
            ids[name] = (entry.get("field-id"), inner)
    return NamedIds(ids)


def _column(field_id: int, name: str, kind: Any, required: bool, field: Mapping[str, Any]) -> Column:
    children = _children(kind)
    arrow = _nested(kind, children) if isinstance(kind, Mapping) else primitive(kind)
    return Column(field_id, name, arrow, required, _default(name, field.get("initial-default"), arrow), children)


def _default(name: str, value: Any, kind: pa.DataType) -> Any:
    try:
        return read_value(value, kind)
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise TableError(
            f"the initial-default of the column {name!r} must be a value of the type {kind}, got {shown(value)}; fix "
            "the table's schema"
        ) from error


def _children(kind: Any) -> tuple[Column, ...]:
    if not isinstance(kind, Mapping):
        return ()
    if kind["type"] == "struct":
        return tuple(_column(f["id"], f["name"], f["type"], f["required"], f) for f in kind["fields"])
    if kind["type"] == "list":
        return (_column(kind["element-id"], "element", kind["element"], kind["element-required"], {}),)
    if kind["type"] == "map":
        key = _column(kind["key-id"], "key", kind["key"], True, {})
        return key, _column(kind["value-id"], "value", kind["value"], kind["value-required"], {})
    raise UnreadableTypeError(str(kind["type"]))


def _nested(kind: Mapping[str, Any], children: Sequence[Column]) -> pa.DataType:
    fields = [arrow_field(child) for child in children]
    if kind["type"] == "struct":
        return pa.struct(fields)
    return pa.list_(fields[0]) if kind["type"] == "list" else pa.map_(fields[0], fields[1])


def primitive(kind: str) -> pa.DataType:
    """Return the Arrow type of a primitive Iceberg type.

    Raises:
        UnreadableTypeError: its message is the type's name.

    >>> primitive("decimal(9, 2)"), primitive("fixed[16]")
    (Decimal128Type(decimal128(9, 2)), FixedSizeBinaryType(fixed_size_binary[16]))
    """
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    if (match := _DECIMAL.fullmatch(kind)) and 0 < int(match[1]) <= _MOST_DIGITS and int(match[2]) <= int(match[1]):
        return pa.decimal128(int(match[1]), int(match[2]))
    if (match := _FIXED.fullmatch(kind)) and 0 < int(match[1]) <= _MOST_FIXED:
        return pa.binary(int(match[1]))
    raise UnreadableTypeError(kind)


def read_value(value: Any, kind: pa.DataType) -> Any:
    r"""Convert a value of the metadata's JSON to the form that pyarrow takes for a type.

    Args:
        value: in the form of the spec's appendix "single-value serialization".

    >>> read_value("0f", pa.binary()), read_value("2020-01-01", pa.date32())
    (b'\x0f', datetime.date(2020, 1, 1))
    """
    if value is None:
        return None
    types = pa.types
    if types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        # The spec keys a struct's default by field id, and allows only an empty default or null.
        return {field.name: value.get(field.name) for field in fields}
    if isinstance(value, str):
        return _from_text(value, kind)
    if types.is_decimal(kind):
        return decimal.Decimal(str(value))
    return value


def _from_text(value: str, kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_timestamp(kind):
        return _timestamp(value, 9 if kind.unit == "ns" else 6)
    if types.is_binary(kind) or types.is_fixed_size_binary(kind):
        return uuid.UUID(value).bytes if "-" in value else bytes.fromhex(value)
    parsers: dict[int, Callable[[str], Any]] = {
        pa.decimal128(1).id: decimal.Decimal,
        pa.date32().id: dt.date.fromisoformat,
        pa.time64("us").id: dt.time.fromisoformat,
        pa.float32().id: float,
        pa.float64().id: float,
    }
    return parsers.get(kind.id, str)(value)


def _timestamp(value: str, places: int) -> int:
    """Return the time since the epoch in units of so many decimal places of a second."""
    moment, _, rest = value.replace("Z", "+00:00").partition(".")
    fraction: str = re.match(r"\d*", rest)[0]  # type: ignore[index]
    whole = dt.datetime.fromisoformat(moment + rest[len(fraction) :])
    aware = whole if whole.tzinfo else whole.replace(tzinfo=dt.UTC)
    second: int = 10**places
    return int((aware - _EPOCH).total_seconds()) * second + int(fraction.ljust(places, "0")[:places])
