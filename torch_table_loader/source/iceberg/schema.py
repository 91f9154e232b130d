"""An Iceberg schema, from its JSON, as columns with ids and an Arrow schema."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from torch_table_loader.arrow.reserved import (
    CHANGE_ORDINAL_FIELD,
    CHANGE_TYPE_FIELD,
    COMMIT_SNAPSHOT_FIELD,
    LAST_UPDATED_FIELD,
    ROW_ID_FIELD,
)
from torch_table_loader.records import Column, NamedIds
from torch_table_loader.source.iceberg.checked import flag, many, mapping, modelled, text, unfit, unlike, whole
from torch_table_loader.source.snapshot_files import UnreadableTypeError, nested_type, primitive_type, readable

NAME_MAPPING = "schema.name-mapping.default"

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
_FIXED = re.compile(r"fixed\[\s*(\d{1,9})\s*\]")
_MOST_FIXED = 1 << 30
_MOST_DEPTH = 64
_INNER = {"struct": (), "list": ("element",), "map": ("key", "value")}
"""What types contain beside fields."""

_ZONE = re.compile(r"(?:Z|[+-]\d\d:\d\d)$")


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """A schema of a table.

    Args:
        columns: the top-level columns that can be read.
        unreadable: the types of those that cannot, by name.
        fields: all of them, as the metadata's JSON has them.
    """

    id: int
    columns: Sequence[Column]
    unreadable: Mapping[str, str]
    fields: Sequence[Mapping[str, Any]]


def read_schema(struct: Any, place: str = "schema") -> Schema:
    """Check and read a schema that stands at a place in the table's metadata.

    Raises:
        ValueError: it lacks the format's structure; the message says where.

    >>> read_schema({"fields": [{"id": 1, "name": "a", "required": True, "type": "long"}]}).columns[0].type
    DataType(int64)
    """
    known = mapping(struct, place)
    fields = many(known.get("fields"), f"{place}.fields")
    names = [text(mapping(each, f"{place}.fields").get("name"), f"{place}.fields: name") for each in fields]
    unlike(names, f"{place}.fields: name")
    reader = _SchemaReader()
    readers = {
        name: partial(reader.field, field, f"{place}.fields[{at}]", 0)
        for at, (name, field) in enumerate(zip(names, fields, strict=True))
    }
    columns, unreadable = readable(readers)
    unlike(reader.ids, f"{place}: id of a column")
    schema_id = known.get("schema-id")
    return Schema(0 if schema_id is None else whole(schema_id, f"{place}.schema-id"), columns, unreadable, fields)


class _SchemaReader:
    """Reads the columns of one schema, however nested."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def field(self, value: Any, place: str, depth: int) -> Column:
        """Read a field of a struct."""
        field = mapping(value, place)
        name, required = text(field.get("name"), f"{place}.name"), flag(field.get("required"), f"{place}.required")
        column = self._column(field.get("id"), name, field.get("type"), required, place, depth)
        return replace(column, default=_default(name, field.get("initial-default"), column.type))

    def _column(self, field_id: Any, name: str, kind: Any, required: bool, place: str, depth: int) -> Column:
        self.ids.append(known := whole(field_id, f"{place}: id"))
        if not isinstance(kind, dict):
            return Column(known, name, _primitive(text(kind, f"{place}.type")), required)
        if depth >= _MOST_DEPTH:
            raise ValueError(f"{place[:80]}… must be a type at most {_MOST_DEPTH} deep, got a deeper one")
        children = tuple(self._children(kind, f"{place}.type", depth + 1))
        return Column(known, name, nested_type(kind["type"], children), required, None, children)

    def _children(self, kind: Mapping[str, Any], place: str, depth: int) -> Iterator[Column]:
        name = text(kind.get("type"), f"{place}.type")
        if name not in _INNER:
            raise UnreadableTypeError(name)
        if name == "struct":
            fields = many(kind.get("fields"), f"{place}.fields")
            columns = [self.field(each, f"{place}.fields[{at}]", depth) for at, each in enumerate(fields)]
            unlike((column.name for column in columns), f"{place}.fields: name")
            yield from columns
        for inner in _INNER[name]:
            required = inner == "key" or flag(kind.get(f"{inner}-required"), f"{place}.{inner}-required")
            yield self._column(kind.get(f"{inner}-id"), inner, kind.get(inner), required, f"{place}.{inner}", depth)


def all_columns(columns: Sequence[Column]) -> Iterator[Column]:
    """Yield columns and everything nested inside them."""
    for column in columns:
        yield column
        yield from all_columns(column.children)


class _NamedField(BaseModel):
    """A field of the property ``schema.name-mapping.default``."""

    model_config = ConfigDict(strict=True)

    names: Annotated[list[str], Field(fail_fast=True)]
    field_id: int | None = Field(None, alias="field-id", ge=-(1 << 63), lt=1 << 63)
    fields: Annotated[list[_NamedField], Field(fail_fast=True)] | None = None


def read_name_mapping(text: str) -> NamedIds:
    """Parse the property ``schema.name-mapping.default``.

    Raises:
        ValueError: it lacks the format's structure; the message says where.

    >>> read_name_mapping('[{"field-id": 1, "names": ["a", "b"]}]').ids["b"][0]
    1
    """
    entries = many(json.loads(text), NAME_MAPPING)
    return _named_ids([modelled(_NamedField, each, f"{NAME_MAPPING}[{at}]") for at, each in enumerate(entries)])


def contradicts(names: NamedIds, parents: Mapping[int, int], parent: int = 0) -> bool:
    """Return whether a name mapping places an id differently from the table's schemas.

    Some migrations wrote mappings with ids of their own numbering. `parents` is as `parents_of` returns it.
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


def _named_ids(entries: Sequence[_NamedField]) -> NamedIds:
    ids: dict[str, tuple[int | None, NamedIds]] = {}
    for entry in entries:
        inner = _named_ids(entry.fields or ())
        ids |= dict.fromkeys(entry.names, (entry.field_id, inner))
    return NamedIds(ids)


def _default(name: str, value: Any, kind: pa.DataType) -> Any:
    try:
        return read_value(value, kind)
    except (ValueError, TypeError, AttributeError, ArithmeticError, pa.ArrowException) as error:
        raise unfit(f"the initial-default of the column {name!r}", f"a value of the type {kind}", value) from error


def _primitive(kind: str) -> pa.DataType:
    if (match := _FIXED.fullmatch(kind)) and 0 < int(match[1]) <= _MOST_FIXED:
        return pa.binary(int(match[1]))
    return primitive_type(kind, _PRIMITIVES)


def read_value(value: Any, kind: pa.DataType) -> Any:
    r"""Convert a value of the metadata's JSON (see "single-value serialization" in the spec) to what pyarrow takes.

    >>> read_value("0f", pa.binary()), read_value("2020-01-01", pa.date32())
    (b'\x0f', datetime.date(2020, 1, 1))
    >>> read_value("1970-01-01T00:00:01.5+00:00", pa.timestamp("us", "UTC"))
    1500000
    """
    if value is None:
        return None
    types = pa.types
    if types.is_struct(kind):
        # The spec keys a struct's default by field id, and allows only an empty default or null.
        return {field.name: value.get(field.name) for field in kind}
    if not isinstance(value, str):
        return decimal.Decimal(str(value)) if types.is_decimal(kind) else value
    if types.is_binary(kind) or types.is_fixed_size_binary(kind):
        return uuid.UUID(value).bytes if "-" in value else bytes.fromhex(value)
    if types.is_time(kind):
        return dt.time.fromisoformat(value)
    is_time = types.is_timestamp(kind)
    zoned = is_time and _ZONE.search(value) is not None
    scalar = pa.scalar(value).cast(pa.timestamp(kind.unit, "UTC" if zoned else None) if is_time else kind)
    return scalar.value if is_time else scalar.as_py()
