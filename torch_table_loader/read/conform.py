"""The files' own schemas become the one schema of the table, and their batches batches of that schema."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.datatypes import (
    ElementType,
    children_of,
    decoded_type,
    is_string,
    opened_type,
    plain_type,
)
from torch_table_loader.errors import TableError
from torch_table_loader.messages import first_line
from torch_table_loader.read.guessed_types import WHOLE

Convert = Callable[[pa.Array], pa.Array]
"""Makes a file's array into the table's."""

_MOST_SHARED = 64

_REMEDIES = ("as schema= says", "make the field nullable, or fix the file", "pass schema= with a type that holds it")


class Source(NamedTuple):
    """Where the values of a column of the table come from: the file, a constant, counting, or several of these.

    Args:
        place: of the column among those that are read; −1 where the file does not have it.
        stored: its type in the file's schema.
        convert: None where the file has the table's type.
        constant: the value where the file has none; None for null.
        counted_from: the value for the file's first row, where values are counted.
    """

    place: int = -1
    stored: pa.DataType | None = None
    convert: Convert | None = None
    constant: pa.Scalar | None = None
    counted_from: int | None = None
    refuse_nulls: bool = False


@dataclass(frozen=True, slots=True)
class Conformer:
    """Makes the batches of one file into the table's; made by `conform_plan` and `by_id.plan_by_id`.

    Args:
        as_they_are: whether batches that have the schema need no change.
        remedies: for messages: who says that there are no nulls, what helps against one, and what against other types.
    """

    name: str
    reads: tuple[str, ...]
    schema: pa.Schema
    sources: tuple[Source, ...]
    as_they_are: bool
    remedies: tuple[str, str, str]

    @classmethod
    def of(
        cls,
        file_schema: pa.Schema,
        schema: pa.Schema,
        sources: Sequence[Source],
        reads: Sequence[str],
        name: str,
        remedies: tuple[str, str, str] = _REMEDIES,
    ) -> Conformer:
        """Build a conformer, which knows whether batches need any change."""
        own = schema_of(file_schema, reads)
        kinds = zip(sources, own.types, strict=False)
        plain = len(sources) == len(own) and all(
            source == Source(place, kind) for place, (source, kind) in enumerate(kinds)
        )
        as_they_are = plain and schema.equals(own)
        return cls(name, tuple(reads), schema, tuple(sources), as_they_are, remedies)

    @property
    def counts_rows(self) -> bool:
        """Whether a column says where in the file its row is, so that `apply` must see all rows."""
        return not self.as_they_are and any(source.counted_from is not None for source in self.sources)

    def source_of(self, column: str) -> str | None:
        """Return the column of the file that becomes one of the table's without a change; None if there is none."""
        source = self.sources[self.schema.get_field_index(column)]
        unchanged = source.place >= 0 and source.convert is None and source.constant is None
        return self.reads[source.place] if unchanged else None

    def apply(self, batch: pa.RecordBatch, row: int = 0) -> pa.RecordBatch:
        """Convert, fill and order the columns of a batch, whose first row is the file's `row`.

        Columns that need no conversion are never copied.

        Raises:
            TableError: a value does not fit the table's type, or a null is where none may be; names the column.
        """
        if self.as_they_are and batch.schema.equals(self.schema):
            if batch.schema.metadata is None:
                return batch
            return batch.replace_schema_metadata(None)
        arrays = [self._made(*pair, batch, row) for pair in zip(self.sources, self.schema, strict=True)]
        if arrays:
            return batch_of(arrays, self.schema)
        return batch.select([])

    def _made(self, source: Source, field: pa.Field, batch: pa.RecordBatch, row: int) -> pa.Array:
        array = None
        if source.place >= 0:
            array = self._converted(source, field, batch.column(source.place))
        if source.counted_from is not None:
            start = source.counted_from + row
            filled = pa.array(np.arange(start, start + batch.num_rows, dtype=np.int64))
        elif source.constant is not None and source.constant.is_valid:
            filled = pa.repeat(source.constant, batch.num_rows)
        else:
            if array is None:
                return pa.nulls(batch.num_rows, field.type)
            return array
        if array is None:
            return filled
        return pc.coalesce(array, filled)

    def _converted(self, source: Source, field: pa.Field, array: pa.Array) -> pa.Array:
        if isinstance(array.type, pa.BaseExtensionType) and not isinstance(source.stored, pa.BaseExtensionType):
            array = array.storage  # pyarrow adds the type only when it reads: that of UUIDs in Parquet
        said_by, nullable, fitting = self.remedies
        if source.refuse_nulls and array.null_count:
            raise TableError(
                f"column {field.name!r} must hold no null, {said_by}, got {array.null_count} among "
                f"{len(array)} rows of {self.name}; {nullable}"
            )
        if source.convert is None:
            return array
        try:
            return source.convert(array)
        except pa.ArrowException as error:
            raise TableError(
                f"column {field.name!r} must be read as {field.type}, but {self.name} holds it as {array.type} with "
                f"a value that does not fit ({first_line(error)}); {fitting}"
            ) from error


class SharedConformers:
    """Conformers by the schema of their files: making one takes microseconds a column. It pickles as an empty one."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[int, Hashable], tuple[pa.Schema, Conformer]] = {}

    def __reduce__(self) -> tuple[type[SharedConformers], tuple[()]]:
        """Leave the conformers out."""
        return SharedConformers, ()

    def of(self, file_schema: pa.Schema, asked: Hashable, name: str, make: Callable[[], Conformer]) -> Conformer:
        """Return the conformer of a file, made for it or for another one that has the very same schema object.

        Args:
            asked: all else that decides what `make` returns, but for the file's name.
        """
        key = id(file_schema), asked
        schema, found = self._known.get(key, (None, None))
        if found is None or schema is not file_schema:
            found = make()
            if any(source.convert is not None for source in found.sources):  # it may name the file
                return found
            if len(self._known) >= _MOST_SHARED:
                self._known.clear()
            self._known[key] = file_schema, found
        return replace(found, name=name)


def batch_of(arrays: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Return columns as a batch of a schema; dictionary arrays stay dictionary arrays.

    >>> batch_of([pa.array(["a"]).dictionary_encode()], pa.schema([("x", pa.string())])).schema.types
    [DictionaryType(dictionary<values=string, indices=int32, ordered=0>)]
    """
    if any(isinstance(array, pa.DictionaryArray) for array in arrays):
        schema = pa.schema([field.with_type(array.type) for field, array in zip(schema, arrays, strict=True)])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def schema_of(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return a schema of some columns; it has the metadata of the schema if they are all of them."""
    if list(names) == schema.names:
        return schema
    return pa.schema([schema.field(name) for name in names])


def conform_plan(
    file_schema: pa.Schema,
    table_schema: pa.Schema,
    partition: Sequence[tuple[str, Any]] = (),
    columns: Sequence[str] | None = None,
    *,
    name: str = "the file",
) -> Conformer:
    """Plan how a file's batches become the table's, whose columns are found by their names.

    Columns that neither file nor partition has are null.

    Args:
        partition: column and value pairs that hold for all rows; they win over columns of the file.
        columns: names to deliver, in this order; None for all of the table's.

    >>> file, table = pa.schema([("a", pa.int32())]), pa.schema([("a", pa.int64()), ("day", pa.int32())])
    >>> plan = conform_plan(file, table, [("day", 3)])
    >>> plan.apply(pa.record_batch({"a": pa.array([1, 2], pa.int32())})).to_pydict()
    {'a': [1, 2], 'day': [3, 3]}
    """
    names = table_schema.names
    if columns is not None:
        names = list(columns)
    schema = schema_of(table_schema, names)
    constants = dict(partition)
    reads: list[str] = []
    sources: list[Source] = []
    in_file = frozenset(file_schema.names)
    for field in schema:
        if field.name in constants or field.name not in in_file:
            sources.append(Source(constant=_constant(constants.get(field.name), field, name)))
            continue
        own = file_schema.field(field.name)
        convert = None if own.type.equals(field.type) else cast_to(field.type)
        refuse_nulls = own.nullable and not field.nullable
        sources.append(Source(len(reads), own.type, convert, refuse_nulls=refuse_nulls))
        reads.append(field.name)
    return Conformer.of(file_schema, schema, sources, reads, name)


def cast_to(kind: pa.DataType) -> Convert:
    """Return a function that casts arrays to a type."""
    return lambda array: array.cast(kind)


def _constant(value: Any, field: pa.Field, name: str) -> pa.Scalar:
    try:
        return pa.scalar(value, field.type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise TableError(
            f"partition column {field.name!r} must be read as {field.type}, but the path of {name} says {value!r}; "
            "pass schema= with a type that holds it"
        ) from error


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
    if partition is None:
        partition = pa.schema([])
    if given is not None:
        check_given_schema(given, schemas, partition)
        return given
    in_paths = set(partition.names)
    if in_paths:
        schemas = [
            (name, pa.schema([field for field in schema if field.name not in in_paths])) for name, schema in schemas
        ]
    return pa.schema([*unify_schemas(schemas, inferred=inferred), *partition])


def unify_schemas(schemas: Sequence[NamedSchema], *, inferred: bool = False) -> pa.Schema:
    """Unify files' schemas by column name: the first file's order, new columns after them.

    Integers widen (unsigned into a signed type that holds them), float becomes double, null becomes anything,
    dictionaries become their values where the other side is plain, string becomes large_string, and structs have the
    fields of all. A column, or field, that a file lacks, or that is nullable anywhere, is nullable. If types are
    `inferred`, an int column and a double column unify as double, whole numbers as decimals that hold both, dates and
    times as times, and times as the finer unit. Nothing else is guessed. The schema has no metadata.

    >>> small, wide = pa.schema([("a", pa.int32())]), pa.schema([("a", pa.int64()), ("b", pa.string())])
    >>> unify_schemas([("x.parquet", small), ("y.parquet", wide)]).types
    [DataType(int64), DataType(string)]
    """
    fields: dict[str, pa.Field] = {}
    origin: dict[str, str] = {}
    distinct = _distinct_schemas(schemas)
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
    everywhere = set(fields).intersection(*(schema.names for _, schema in distinct))
    return pa.schema([field if name in everywhere else field.with_nullable(True) for name, field in fields.items()])


def _distinct_schemas(schemas: Sequence[NamedSchema]) -> list[NamedSchema]:
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
    if inferred and (guessed := _unify_guessed(one, other)) is not None:
        return guessed
    merge, others = _merge_of(one), _merge_of(other)
    if merge is others:
        return merge(one, other, inferred)
    raise TypeError(f"{one} and {other} do not unify")


def _unify_guessed(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that would have been guessed if the files were one, where each value is kept by a cast."""
    kinds = pa.types
    if kinds.is_timestamp(one) and kinds.is_timestamp(other) and one.tz == other.tz:
        return max(one, other, key=lambda kind: _UNITS.index(kind.unit))
    first, last = sorted((one, other), key=_guessed_later)
    if kinds.is_date32(first) and kinds.is_timestamp(last) and last.tz is None:
        return last
    if kinds.is_integer(first) and kinds.is_floating(last):
        return pa.float64()
    if kinds.is_integer(first) and kinds.is_decimal(last) and last.scale == 0:
        return last
    if {one, other} == {pa.int64(), pa.uint64()}:
        return WHOLE
    return None


_UNITS = ("s", "ms", "us", "ns")


def _guessed_later(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def check_given_schema(given: pa.Schema, schemas: Sequence[NamedSchema], partition: pa.Schema) -> None:
    """Refuse a caller's ``schema=`` as which a file cannot be read."""
    for name, schema in _distinct_schemas(schemas):
        for field in given:
            if partition.get_field_index(field.name) >= 0:
                _refuse_uncastable(field, partition.field(field.name).type, name)
            elif schema.get_field_index(field.name) >= 0:
                _refuse_uncastable(field, schema.field(field.name).type, name)
            elif not field.nullable:
                raise TableError(
                    f"schema= says that column {field.name!r} is never null, but {name} does not have it; "
                    "make the field nullable, or leave that file out"
                )


def _refuse_uncastable(field: pa.Field, file_type: pa.DataType, name: str) -> None:
    if file_type.equals(field.type):
        return
    if not _keeps_elements(file_type, field.type):
        raise TableError(
            f"schema= says that column {field.name!r} is {field.type}, but in {name} it is {file_type}, and Arrow "
            "would take numbers for the bits of others; change the field's type"
        )
    try:
        pa.nulls(0, file_type).cast(field.type)
    except pa.ArrowException as error:
        raise TableError(
            f"schema= says that column {field.name!r} is {field.type}, but in {name} it is {file_type}, which does "
            "not cast to that; change the field's type"
        ) from error


def _keeps_elements(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether a cast leaves numbers that Arrow lacks as they are, or turns them into their bits or back."""
    one, other = opened_type(one), opened_type(other)
    if isinstance(one, ElementType) and isinstance(other, ElementType):
        return bool(one.equals(other))
    if isinstance(one, ElementType) or isinstance(other, ElementType):
        return bool(plain_type(one).equals(plain_type(other)) or pa.types.is_null(one))
    pairs = list(zip(children_of(one), children_of(other), strict=False))
    if pa.types.is_struct(one) and pa.types.is_struct(other):  # whose fields are cast by name
        pairs = [(mine, other.field(mine.name)) for mine in one if other.get_field_index(mine.name) >= 0]
    return all(_keeps_elements(mine.type, wanted.type) for mine, wanted in pairs)


def _merge_of(kind: pa.DataType) -> _Merge:
    return next((merge for tests, merge in _FAMILIES if any(test(kind) for test in tests)), _refuse)


def _wider(one: pa.DataType, other: pa.DataType, inferred: bool) -> pa.DataType:  # noqa: ARG001
    return max(one, other, key=lambda kind: kind.bit_width)


def _integers(one: pa.DataType, other: pa.DataType, inferred: bool) -> pa.DataType:
    kinds = pa.types
    if kinds.is_signed_integer(one) == kinds.is_signed_integer(other):
        return _wider(one, other, inferred)
    signed, unsigned = sorted((one, other), key=kinds.is_unsigned_integer)
    width = max(signed.bit_width, 2 * unsigned.bit_width)
    if width > 64:
        raise TypeError(f"no integer holds {one} and {other}")
    return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[width]


def _decimals(one: pa.DataType, other: pa.DataType, inferred: bool) -> pa.DataType:  # noqa: ARG001
    if one.scale != other.scale:
        raise TypeError(f"{one} and {other} differ in scale")
    return max(one, other, key=lambda kind: (kind.bit_width, kind.precision))


def _lists(one: pa.DataType, other: pa.DataType, inferred: bool) -> pa.DataType:
    value = _merged(one.value_field, other.value_field, inferred)
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(value)
    return pa.large_list(value)


def _fixed_lists(one: pa.DataType, other: pa.DataType, inferred: bool) -> pa.DataType:
    if one.list_size != other.list_size:
        raise TypeError(f"{one} and {other} differ in length")
    return pa.list_(_merged(one.value_field, other.value_field, inferred), one.list_size)


def _structs(one: pa.DataType, other: pa.DataType, inferred: bool) -> pa.DataType:
    """Return the fields of both by name: those of the first in their order, then others; what one lacks is nullable."""
    mine, theirs = ({field.name: field for field in kind} for kind in (one, other))
    if (len(mine), len(theirs)) != (one.num_fields, other.num_fields):
        raise TypeError(f"{one} and {other} have fields of one name")
    fields = []
    for name in {**mine, **theirs}:
        if name in mine and name in theirs:
            fields.append(_merged(mine[name], theirs[name], inferred))
        else:
            fields.append({**mine, **theirs}[name].with_nullable(True))
    return pa.struct(fields)


def _maps(one: pa.DataType, other: pa.DataType, inferred: bool) -> pa.DataType:
    return pa.map_(
        _merged(one.key_field, other.key_field, inferred), _merged(one.item_field, other.item_field, inferred)
    )


def _refuse(one: pa.DataType, other: pa.DataType, inferred: bool) -> pa.DataType:  # noqa: ARG001
    raise TypeError(f"{one} and {other} do not unify")


def _merged(one: pa.Field, other: pa.Field, inferred: bool) -> pa.Field:
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
