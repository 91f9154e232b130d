"""Which column of a file is which: field ids, in the file or given by names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import pyarrow as pa

from torch_table_loader.arrow.datatypes import children_of
from torch_table_loader.arrow.reserved import FIELD_ID_KEY, LAST_UPDATED_FIELD, ROW_ID_FIELD
from torch_table_loader.errors import TableError

if TYPE_CHECKING:
    from torch_table_loader.records import FileColumns, NamedIds

_ID_KEYS = (FIELD_ID_KEY.encode(), b"iceberg.id")

Places = Mapping[int, int]
"""The place of a child, by field id."""


def own_ids(file_schema: pa.Schema) -> dict[int, str]:
    """Return the names of a file's top-level columns, by the field ids in the file itself."""
    return {field_id: file_schema.field(place).name for field_id, place in places(file_schema, None).items()}


def found_by_name(file_schema: pa.Schema, columns: FileColumns, names: AbstractSet[str]) -> bool:
    """Return whether a file has columns under the table's names, so that its statistics can be asked by name.

    A column that the file lacks must be null in all its rows.
    """
    at = places(file_schema, names_in(file_schema, columns))
    by_id = {field_id: file_schema.field(place).name for field_id, place in at.items()}
    for column in columns.table.current:
        if column.name not in names:
            continue
        own = by_id.get(column.field_id)
        counted = column.field_id in (ROW_ID_FIELD, LAST_UPDATED_FIELD)
        if own is None and (column.name in file_schema.names or column.default is not None or counted):
            return False
        if own is not None and own != column.name:
            return False
    return True


def places_of(schema: pa.Schema, columns: FileColumns, name: str) -> Places:
    """Return the places of the top-level columns of a file.

    Raises:
        TableError: the file has no field ids, and the table gives none by name.
    """
    names = names_in(schema, columns)
    if names is not None or has_ids(schema):
        return places(schema, names)
    if not len(schema) or not columns.table.current:
        return {}
    raise TableError(
        f"{name} was written without field ids, and the table has no property schema.name-mapping.default that says "
        "which column is which; set it on an Iceberg table, or write the file again with ids"
    )


def names_in(schema: pa.Schema, columns: FileColumns) -> NamedIds | None:
    """Return the names by which the columns of a file are found; None for the ids that it holds itself."""
    table = columns.table
    return table.names if table.by_name or not has_ids(schema) else None


def places(fields: Sequence[pa.Field], names: NamedIds | None) -> Places:
    """Return the places of fields by their own ids, or, where names are given, by those."""
    found: dict[int, int] = {}
    for place, field in enumerate(fields):
        field_id = _id_of(field) if names is None else names.ids.get(field.name, (None, None))[0]
        if field_id is not None:
            found.setdefault(field_id, place)
    return found


def _id_of(field: pa.Field) -> int | None:
    for key in _ID_KEYS:
        if field.metadata and key in field.metadata:
            return int(field.metadata[key])
    return None


def has_ids(schema: pa.Schema) -> bool:
    """Return whether a file was written with field ids."""
    return any(_id_of(field) is not None for field in _walk(schema))


def _walk(fields: Sequence[pa.Field]) -> Iterator[pa.Field]:
    for field in fields:
        yield field
        yield from _walk(children_of(field.type))


def inside_of(names: NamedIds, name: str) -> NamedIds | None:
    """Return the names inside a column."""
    entry = names.ids.get(name)
    return None if entry is None else entry[1]
