"""The files' own schemas become the one schema of the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from torch_table_loader.arrow.datatypes import decoded_type, is_string
from torch_table_loader.errors import TableError

NamedSchema = tuple[str, pa.Schema]
"""A file's name, for messages, and its own schema."""


def resolve_schema(
    schemas: Sequence[NamedSchema],
    *,
    partition: pa.Schema | None = None,
    given: pa.Schema | None = None,
    inferred: bool = False,
) -> pa.Schema:
    """Return the schema that a table is read as.

    Args:
        partition: columns that come from paths; they win over columns of that name in files, and come last.
        given: the caller's ``schema=``; None unifies the files'.
        inferred: the types were guessed from text (CSV, JSON), so an int column may meet a double.

    Raises:
        TableError: types do not unify or cannot become the given ones, or a non-nullable column is missing.
    """
    partition = pa.schema([]) if partition is None else partition
    if given is not None:
        check_given_schema(given, schemas, partition)
        return given
    in_paths = set(partition.names)
    own = [
        (name, pa.schema([field for field in schema if field.name not in in_paths]) if in_paths else schema)
        for name, schema in schemas
    ]
    return pa.schema([*unify_schemas(own, inferred=inferred), *partition])


def unify_schemas(schemas: Sequence[NamedSchema], *, inferred: bool = False) -> pa.Schema:
    """Unify files' schemas by column name: the first file's order, new columns after them.

    Integers widen (unsigned into a signed type that holds them), float becomes double, null becomes anything,
    dictionaries become their values where the other side is plain, string becomes large_string. A column that
    a file lacks, or that is nullable anywhere, is nullable. Nothing else is guessed, except that an int column and a
    double column unify as double if types are `inferred`. The schema has no metadata.

    >>> small, wide = pa.schema([("a", pa.int32())]), pa.schema([("a", pa.int64()), ("b", pa.string())])
    >>> unify_schemas([("x.parquet", small), ("y.parquet", wide)]).types
    [DataType(int64), DataType(string)]
    """
    fields: dict[str, pa.Field] = {}
    origin: dict[str, str] = {}
    distinct = _distinct(schemas)
    for name, schema in distinct:
        for field in schema:
            known = fields.get(field.name)
            if known is None:
                fields[field.name] = pa.field(field.name, field.type, nullable=field.nullable)
                origin[field.name] = name
                continue
            try:
                merged = unify_types(known.type, field.type, inferred=inferred)
            except TypeError as error:
                raise TableError(
                    f"column {field.name!r} must have types that unify in all files, got {known.type} in "
                    f"{origin[field.name]} and {field.type} in {name}; pass schema= with the type to read it as"
                ) from error
            if not merged.equals(known.type):
                origin[field.name] = name
            fields[field.name] = pa.field(field.name, merged, nullable=known.nullable or field.nullable)
    everywhere = set(fields).intersection(*(schema.names for _, schema in distinct)) if distinct else set()
    return pa.schema([field if name in everywhere else field.with_nullable(True) for name, field in fields.items()])


def _distinct(schemas: Sequence[NamedSchema]) -> list[NamedSchema]:
    """Return the first file of each schema; most tables have few."""
    found: list[NamedSchema] = []
    for name, schema in schemas:
        if not any(schema.equals(seen) for _, seen in reversed(found)):
            found.append((name, schema))
    return found


def unify_types(one: pa.DataType, other: pa.DataType, *, inferred: bool = False) -> pa.DataType:
    """Return the narrowest type that holds both, by the rules of `unify_schemas`.

    Raises:
        TypeError: there is none.

    >>> unify_types(pa.uint32(), pa.int8())
    DataType(int64)
    >>> unify_types(pa.list_(pa.float32()), pa.list_(pa.float64()))
    ListType(list<item: double>)
    """
    kinds = pa.types
    if one.equals(other) or kinds.is_null(other):
        return one
    if kinds.is_null(one):
        return other
    if kinds.is_dictionary(one) or kinds.is_dictionary(other):
        return unify_types(decoded_type(one), decoded_type(other), inferred=inferred)
    merge, others = _merge_of(one), _merge_of(other)
    if merge is others:
        return merge(one, other, inferred)
    if inferred and {merge, others} == {_integers, _wider}:
        return pa.float64()
    raise TypeError(f"{one} and {other} do not unify")


def check_given_schema(given: pa.Schema, schemas: Sequence[NamedSchema], partition: pa.Schema) -> None:
    """Refuse a caller's ``schema=`` as which a file cannot be read."""
    for name, schema in _distinct(schemas):
        for field in given:
            if field.name in partition.names:
                _refuse_uncastable(field, partition.field(field.name).type, name)
            elif field.name in schema.names:
                _refuse_uncastable(field, schema.field(field.name).type, name)
            elif not field.nullable:
                raise TableError(
                    f"schema= says that column {field.name!r} is never null, but {name} does not have it; "
                    "make the field nullable, or leave that file out"
                )


def _refuse_uncastable(field: pa.Field, file_type: pa.DataType, name: str) -> None:
    if file_type.equals(field.type):
        return
    try:
        pa.nulls(0, file_type).cast(field.type)
    except pa.ArrowException as error:
        raise TableError(
            f"schema= says that column {field.name!r} is {field.type}, but in {name} it is {file_type}, which does "
            "not cast to that; change the field's type"
        ) from error


def _merge_of(kind: pa.DataType) -> _Merge:
    return next((merge for tests, merge in _FAMILIES if any(test(kind) for test in tests)), _refuse)


def _wider(one: pa.DataType, other: pa.DataType, inferred: bool) -> pa.DataType:  # noqa: ARG001
    return max(one, other, key=lambda kind: kind.bit_width)


def _integers(one: pa.DataType, other: pa.DataType, inferred: bool) -> pa.DataType:
    kinds = pa.types
    if kinds.is_signed_integer(one) == kinds.is_signed_integer(other):
        return _wider(one, other, inferred)
    signed, unsigned = (one, other) if kinds.is_signed_integer(one) else (other, one)
    width = max(signed.bit_width, 2 * unsigned.bit_width)
    if width > 64:
        raise TypeError(f"no integer holds {one} and {other}")
    return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[width]


def _decimals(one: pa.DataType, other: pa.DataType, inferred: bool) -> pa.DataType:  # noqa: ARG001
    if one.scale != other.scale:
        raise TypeError(f"{one} and {other} differ in scale")
    return max(one, other, key=lambda kind: (kind.bit_width, kind.precision))


def _lists(one: pa.DataType, other: pa.DataType, inferred: bool) -> pa.DataType:
    value = _fields(one.value_field, other.value_field, inferred)
    return pa.list_(value) if pa.types.is_list(one) and pa.types.is_list(other) else pa.large_list(value)


def _fixed_lists(one: pa.DataType, other: pa.DataType, inferred: bool) -> pa.DataType:
    if one.list_size != other.list_size:
        raise TypeError(f"{one} and {other} differ in length")
    return pa.list_(_fields(one.value_field, other.value_field, inferred), one.list_size)


def _structs(one: pa.DataType, other: pa.DataType, inferred: bool) -> pa.DataType:
    if [field.name for field in one] != [field.name for field in other]:
        raise TypeError(f"{one} and {other} have other fields")
    return pa.struct([_fields(*pair, inferred) for pair in zip(one, other, strict=True)])


def _maps(one: pa.DataType, other: pa.DataType, inferred: bool) -> pa.DataType:
    return pa.map_(
        _fields(one.key_field, other.key_field, inferred), _fields(one.item_field, other.item_field, inferred)
    )


def _refuse(one: pa.DataType, other: pa.DataType, inferred: bool) -> pa.DataType:  # noqa: ARG001
    raise TypeError(f"{one} and {other} do not unify")


def _fields(one: pa.Field, other: pa.Field, inferred: bool) -> pa.Field:
    merged = unify_types(one.type, other.type, inferred=inferred)
    return pa.field(one.name, merged, nullable=one.nullable or other.nullable)


_Test = Callable[[pa.DataType], bool]
_Merge = Callable[[pa.DataType, pa.DataType, bool], pa.DataType]

_FAMILIES: Sequence[tuple[Sequence[_Test], _Merge]] = (
    ((pa.types.is_integer,), _integers),
    ((pa.types.is_floating,), _wider),
    ((is_string,), lambda _one, _other, _inferred: pa.large_string()),
    (
        (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
        lambda _one, _other, _inferred: pa.large_binary(),
    ),
    ((pa.types.is_decimal,), _decimals),
    ((pa.types.is_list, pa.types.is_large_list), _lists),
    ((pa.types.is_fixed_size_list,), _fixed_lists),
    ((pa.types.is_struct,), _structs),
    ((pa.types.is_map,), _maps),
)
"""Types that unify with each other, and how; no others do."""
