"""A Delta Lake schema, as its JSON says it, becomes columns with ids and an Arrow schema."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from torch_table_loader.errors import TableError
from torch_table_loader.table_formats import (
    Column,
    NamedIds,
    TableColumns,
    Types,
    UnreadableTypeError,
    arrow_schema,
)

_ID = "delta.columnMapping.id"
_NAME = "delta.columnMapping.physicalName"
_TYPES = Types(
    {
        "boolean": pa.bool_(),
        "byte": pa.int8(),
        "short": pa.int16(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
        "string": pa.string(),
        "binary": pa.binary(),
        "void": pa.null(),
    }
)
_Names = dict[str, tuple[int | None, NamedIds]]


@dataclass(frozen=True, slots=True, eq=False)
class DeltaColumns:
    """The columns of a table at one version.

    Args:
        table: those that can be read; partition columns have ids that no file holds, as their values are in the log.
        physical: what the log and data files call each top-level column.
        unreadable: the types of those that cannot be read, by name.
    """

    table: TableColumns
    physical: Mapping[str, str]
    unreadable: Mapping[str, str]

    @property
    def schema(self) -> pa.Schema:
        """The columns that can be read, as Arrow has them."""
        return arrow_schema(self.table.current)

    def with_added(self, columns: Sequence[Column]) -> DeltaColumns:
        """Return these columns and others, which no file has."""
        return replace(self, table=replace(self.table, current=(*self.table.current, *columns)))


def read_delta_schema(fields: Sequence[Mapping[str, Any]], partition: Sequence[str], mode: str) -> DeltaColumns:
    """Read the top level of a schema; the mode of column mapping is "none", "name" or "id".

    >>> found = read_delta_schema([{"name": "a", "type": "long", "nullable": True, "metadata": {}}], [], "none")
    >>> found.schema.types, found.table.names.ids["a"][0]
    ([DataType(int64)], -1)
    """
    reader = _SchemaReader(mode, itertools.count(-1, -1))
    physical = {field["name"]: reader.physical(field) for field in fields}
    readers = {field["name"]: partial(reader.column, field, in_log=field["name"] in partition) for field in fields}
    found, unreadable = _TYPES.readable(readers)
    columns = tuple(column for column, _ in found)
    names = {physical[each.name]: (each.field_id, inner) for each, inner in found if each.name not in partition}
    if mode == "id":
        return DeltaColumns(TableColumns(columns), physical, unreadable)
    return DeltaColumns(TableColumns(columns, {}, NamedIds(names), by_name=True), physical, unreadable)


@dataclass(frozen=True, slots=True)
class _SchemaReader:
    """Reads fields; those that files do not know by an id get one that no file has."""

    mode: str
    ids: Iterator[int]

    def physical(self, field: Mapping[str, Any]) -> str:
        """Return what files call a field."""
        if self.mode == "none":
            return str(field["name"])
        return str(self._mapped(field, _NAME))

    def column(self, field: Mapping[str, Any], *, in_log: bool = False) -> tuple[Column, NamedIds]:
        """Read a field, and the names inside it."""
        by_id = self.mode == "id" and not in_log
        own = int(self._mapped(field, _ID)) if by_id else next(self.ids)
        return self._typed(own, field["name"], field["type"], required=not field["nullable"])

    def _mapped(self, field: Mapping[str, Any], key: str) -> Any:
        value = (field.get("metadata") or {}).get(key)
        if value is None:
            raise TableError(
                f"the column {field['name']!r} must have {key} in a table whose columns are mapped by {self.mode}, and "
                "has none; fix the table's schema"
            )
        return value

    def _typed(self, field_id: int, name: str, kind: Any, *, required: bool) -> tuple[Column, NamedIds]:
        if not isinstance(kind, Mapping):
            return Column(field_id, name, _TYPES.primitive(kind), required), NamedIds({})
        names: _Names = {}
        parts: list[Column] = []
        for called, (column, inner) in self._children(kind):
            parts.append(column)
            names[called] = (column.field_id, inner)
        return Column(field_id, name, _TYPES.nested(kind["type"], parts), required, None, tuple(parts)), NamedIds(names)

    def _children(self, kind: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Column, NamedIds]]]:
        if kind["type"] == "struct":
            for field in kind["fields"]:
                yield self.physical(field), self.column(field)
        elif kind["type"] == "array":
            yield "element", self._inner("element", kind["elementType"], required=not kind["containsNull"])
        elif kind["type"] == "map":
            yield "key", self._inner("key", kind["keyType"], required=True)
            yield "value", self._inner("value", kind["valueType"], required=not kind["valueContainsNull"])
        else:
            raise UnreadableTypeError(str(kind["type"]))

    def _inner(self, name: str, kind: Any, *, required: bool) -> tuple[Column, NamedIds]:
        return self._typed(next(self.ids), name, kind, required=required)
