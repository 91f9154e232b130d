"""A file's batches become batches of the table's schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow import compute as pc
from torch_table_loader.errors import TableError
from torch_table_loader.messages import first_line

Convert = Callable[[pa.Array], pa.Array]
"""Makes a file's array into the table's."""

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
        own = pa.schema([file_schema.field(read) for read in reads])
        plain = list(sources) == [Source(place, field.type) for place, field in enumerate(own)]
        as_they_are = plain and schema.equals(own)
        return cls(name, tuple(reads), schema, tuple(sources), as_they_are, remedies)

    @property
    def counts_rows(self) -> bool:
        """Whether a column says where in the file its row is, so that `apply` must see all rows."""
        return any(source.counted_from is not None for source in self.sources)

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
            return batch if batch.schema.metadata is None else batch.replace_schema_metadata(None)
        arrays = [self._made(*pair, batch, row) for pair in zip(self.sources, self.schema, strict=True)]
        return batch_of(arrays, self.schema) if arrays else batch.select([])

    def _made(self, source: Source, field: pa.Field, batch: pa.RecordBatch, row: int) -> pa.Array:
        array = None if source.place < 0 else self._converted(source, field, batch.column(source.place))
        if source.counted_from is not None:
            start = source.counted_from + row
            filled = pa.array(np.arange(start, start + batch.num_rows, dtype=np.int64))
        elif source.constant is not None and source.constant.is_valid:
            filled = pa.repeat(source.constant, batch.num_rows)
        else:
            return pa.nulls(batch.num_rows, field.type) if array is None else array
        return filled if array is None else pc.coalesce(array, filled)

    def _converted(self, source: Source, field: pa.Field, array: pa.Array) -> pa.Array:
        if isinstance(array.type, pa.BaseExtensionType) and not isinstance(source.stored, pa.BaseExtensionType):
            array = array.storage  # pyarrow adds the type only when it reads: that of UUIDs in Parquet
        told, nullable, fitting = self.remedies
        if source.refuse_nulls and array.null_count:
            raise TableError(
                f"column {field.name!r} must hold no null, {told}, got {array.null_count} among "
                f"{len(array)} rows of {self.name}; {nullable}"
            )
        try:
            return array if source.convert is None else source.convert(array)
        except pa.ArrowException as error:
            raise TableError(
                f"column {field.name!r} must be read as {field.type}, but {self.name} holds it as {array.type} with "
                f"a value that does not fit ({first_line(error)}); {fitting}"
            ) from error


def batch_of(arrays: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Return columns as a batch of a schema; dictionary arrays stay dictionary arrays.

    >>> batch_of([pa.array(["a"]).dictionary_encode()], pa.schema([("x", pa.string())])).schema.types
    [DictionaryType(dictionary<values=string, indices=int32, ordered=0>)]
    """
    if any(isinstance(array, pa.DictionaryArray) for array in arrays):
        schema = pa.schema([field.with_type(array.type) for field, array in zip(schema, arrays, strict=True)])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


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
    names = table_schema.names if columns is None else list(columns)
    schema = pa.schema([table_schema.field(column) for column in names])
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
