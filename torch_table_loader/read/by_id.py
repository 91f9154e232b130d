"""A file's batches become batches of a table whose columns are found by id.

Field ids are in the file, or the table gives them by names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.arrays import nulls_of
from torch_table_loader.arrow.datatypes import children_of, whole_type
from torch_table_loader.errors import TableError
from torch_table_loader.read.conform import Conformer, Source, cast_to
from torch_table_loader.records import FIELD_ID_KEY

if TYPE_CHECKING:
    from torch_table_loader.read.conform import Convert
    from torch_table_loader.records import Column, FileColumns, NamedIds

_REMEDIES = ("as the table's schema says", "fix the file", "fix the file")
_ID_KEYS = (FIELD_ID_KEY.encode(), b"iceberg.id")


def own_ids(file_schema: pa.Schema) -> dict[int, str]:
    """Return the names of a file's top-level columns, by the field ids in the file itself."""
    return {field_id: file_schema.field(place).name for field_id, place in _places(file_schema, None).items()}


def found_by_name(file_schema: pa.Schema, columns: FileColumns, names: AbstractSet[str]) -> bool:
    """Return whether a file has columns under the table's names, so that its statistics can be asked by name.

    A column that the file lacks must be null in all its rows.
    """
    at = _places(file_schema, _names_in(file_schema, columns))
    by_id = {field_id: file_schema.field(place).name for field_id, place in at.items()}
    for column in columns.table.current:
        if column.name not in names:
            continue
        own = by_id.get(column.field_id)
        counted = column.lineage is not None
        if own is None and (file_schema.get_field_index(column.name) >= 0 or column.default is not None or counted):
            return False
        if own is not None and own != column.name:
            return False
    return True


def places_of(schema: pa.Schema, columns: FileColumns, name: str) -> Mapping[int, int]:
    """Return the places of the top-level columns of a file, by field id.

    Raises:
        TableError: the file has no field ids, and the table gives none by name.
    """
    names = _names_in(schema, columns)
    if names is not None or _has_ids(schema):
        return _places(schema, names)
    if not len(schema) or not columns.table.current:
        return {}
    raise TableError(
        f"{name} was written without field ids, and the table has no property schema.name-mapping.default that says "
        "which column is which; set it on an Iceberg table, or write the file again with ids"
    )


def _names_in(schema: pa.Schema, columns: FileColumns) -> NamedIds | None:
    """Return the names by which the columns of a file are found; None for the ids that it holds itself."""
    table = columns.table
    if table.by_name or not _has_ids(schema):
        return table.names
    return None


def _places(fields: Sequence[pa.Field], names: NamedIds | None) -> Mapping[int, int]:
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


def _has_ids(fields: Iterable[pa.Field]) -> bool:
    return any(_id_of(field) is not None or _has_ids(children_of(field.type)) for field in fields)


def _inside_of(names: NamedIds | None, name: str) -> NamedIds | None:
    """Return the names inside a column, where names are given."""
    if names is None or name not in names.ids:
        return None
    return names.ids[name][1]


def plan_by_id(
    file_schema: pa.Schema, columns: FileColumns, wanted: Sequence[tuple[str, Column]], *, name: str
) -> Conformer:
    """Plan how a file's batches become batches of the `wanted` columns, in this order and with these names.

    A column that the file has is read; else comes the partition's value, else the column's default, else null.
    """
    found = places_of(file_schema, columns, name)
    names = _names_in(file_schema, columns)
    reads: list[str] = []
    sources: list[Source] = []
    for _, column in wanted:
        place = found.get(column.field_id)
        source = Source()
        if place is None or column.lineage:
            source = _absent(column, columns, name)
        if place is not None:
            field = file_schema.field(place)
            convert = _converter(field, column, _inside_of(names, field.name), f"{name}, column {column.name!r}")
            nulls = field.nullable and column.required
            source = source._replace(place=len(reads), stored=field.type, convert=convert, refuse_nulls=nulls)
            reads.append(field.name)
        sources.append(source)
    schema = pa.schema([pa.field(called, column.type, nullable=not column.required) for called, column in wanted])
    return Conformer.of(file_schema, schema, sources, reads, name, _REMEDIES)


def lineage_of(columns: FileColumns, wanted: Sequence[tuple[str, Column]]) -> tuple[int | None, ...]:
    """Return what decides the values of columns of row lineage; empty if none of them is wanted."""
    lineage = any(column.lineage for _, column in wanted)
    if lineage:
        return (columns.first_row_id, columns.sequence_number)
    return ()


def _absent(column: Column, columns: FileColumns, name: str) -> Source:
    """Return where the values of a column come from that the file does not have."""
    if column.lineage == "row":
        return Source(counted_from=columns.first_row_id)
    if column.lineage == "commit":
        known = columns.sequence_number if columns.first_row_id is not None else None
        return Source(constant=pa.scalar(known, pa.int64()))
    in_partition = column.field_id in columns.constants
    value = columns.constants.get(column.field_id, column.default)
    if value is None and column.required:
        raise TableError(
            f"{name} lacks the column {column.name!r}, which the table's schema says is never null and for which it "
            "has no default; fix the table"
        )
    try:
        return Source(constant=_scalar(value, column.type))
    except (pa.ArrowException, TypeError, ValueError, ArithmeticError) as error:
        raise TableError(
            f"column {column.name!r} must be {column.type}, but {'the partition' if in_partition else 'the default'} "
            f"of {name} says {value!r}; fix the table"
        ) from error


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    if isinstance(value, int) and pa.types.is_temporal(kind):
        return pa.scalar(value, whole_type(kind)).cast(kind)
    if isinstance(value, float) and pa.types.is_float32(kind):
        return pa.scalar(value, pa.float64()).cast(kind)
    if pa.types.is_decimal(kind) and value is not None:
        return pa.scalar(value).cast(kind)
    return pa.scalar(value, kind)


def _converter(field: pa.Field, column: Column, names: NamedIds | None, where: str) -> Convert | None:
    """Return what makes a file's array into the table's; None where they are the same."""
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType):
        stored = _converter(field.with_type(kind.storage_type), column, names, where)
        if stored is None:
            return attrgetter("storage")
        return lambda array: stored(array.storage)
    shape = _shape(kind)
    if shape != _shape(column.type):
        raise TableError(f"{where}: expected {column.type}, got {kind}, which cannot be promoted to it; fix the file")
    if shape == "struct":
        return _struct(kind, column, names, where)
    if shape != "value":
        return _repeated(kind, column, names, where)
    return _value_converter(kind, column)


def _value_converter(kind: pa.DataType, column: Column) -> Convert | None:
    if kind.equals(column.type):
        return None
    if pa.types.is_timestamp(kind) and kind.unit == "ns" and pa.types.is_timestamp(column.type):
        return lambda array: pc.floor_temporal(array, unit="microsecond").cast(column.type)
    if pa.types.is_null(column.type):
        return lambda array: pa.nulls(len(array))
    return cast_to(column.type)


def _shape(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_struct(kind):
        return "struct"
    if types.is_map(kind):
        return "map"
    if types.is_list(kind) or types.is_large_list(kind):
        return "list"
    return "value"


def _struct(kind: pa.StructType, column: Column, names: NamedIds | None, where: str) -> Convert | None:
    fields = children_of(kind)
    found = _places(fields, names)
    parts: list[tuple[int, Convert | None, pa.Scalar | None]] = []
    for child in column.children:
        place = found.get(child.field_id)
        if place is None:
            parts.append((-1, None, None if child.default is None else _scalar(child.default, child.type)))
            continue
        inner = _inside_of(names, fields[place].name)
        parts.append((place, _converter(fields[place], child, inner, where), None))
    as_it_is = [place for place, _, _ in parts] == list(range(len(fields))) and all(part[1] is None for part in parts)
    if as_it_is and kind.equals(column.type):
        return None

    def convert(array: pa.StructArray) -> pa.StructArray:
        children = [_part(array, part, child) for part, child in zip(parts, column.children, strict=True)]
        if not children:
            return pa.array([None if null else {} for null in array.is_null().to_pylist()], column.type)
        return pa.StructArray.from_arrays(children, fields=children_of(column.type), mask=nulls_of(array))

    return convert


def _part(array: pa.StructArray, part: tuple[int, Convert | None, pa.Scalar | None], child: Column) -> pa.Array:
    place, convert, default = part
    if place >= 0:
        values = array.field(place)
        if convert is None:
            return values
        return convert(values)
    if default is None:
        return pa.nulls(len(array), child.type)
    return pa.repeat(default, len(array))


def _repeated(kind: pa.DataType, column: Column, names: NamedIds | None, where: str) -> Convert | None:
    """Convert the elements of a list, or keys and values of a map; offsets and nulls stay where they are."""
    called = ("key", "value") if pa.types.is_map(kind) else ("element",)
    converts: list[Convert | None] = []
    for field, child, name in zip(children_of(kind), column.children, called, strict=True):
        # A name mapping says "element", "key" and "value", whatever the writer called them.
        converts.append(_converter(field, child, _inside_of(names, name), where))
    if all(convert is None for convert in converts) and kind.equals(column.type):
        return None

    def convert(array: pa.Array) -> pa.Array:
        if pa.types.is_large_list(array.type):
            array = array.cast(pa.list_(array.type.value_field))
        values = [array.keys, array.items] if len(called) == 2 else [array.values]
        made = [value if each is None else each(value) for value, each in zip(values, converts, strict=True)]
        if len(called) == 2:
            made = [pa.StructArray.from_arrays(made, fields=[column.type.key_field, column.type.item_field])]
        buffers = array.buffers()[:2]
        return pa.Array.from_buffers(
            column.type, len(array), buffers, null_count=array.null_count, offset=array.offset, children=made
        )

    return convert
