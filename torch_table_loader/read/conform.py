"""A file's batches become batches of the table's schema."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from torch_table_loader.errors import TableError
from torch_table_loader.messages import first_line


@dataclass(frozen=True, slots=True)
class FileConformer(ABC):
    """Makes the batches of one file into the table's.

    Args:
        reads: the columns to read from the file, in this order.
    """

    name: str
    reads: tuple[str, ...]
    schema: pa.Schema

    @property
    def counts_rows(self) -> bool:
        """Whether a column says where in the file its row is, so that `apply` must see all rows."""
        return False

    @abstractmethod
    def source_of(self, column: str) -> str | None:
        """Return which column of the file comes as one of the table's without a change; None if none does."""

    @abstractmethod
    def apply(self, batch: pa.RecordBatch, row: int = 0) -> pa.RecordBatch:
        """Convert, fill and order a batch.

        Args:
            row: the place of its first row in the file.

        Raises:
            TableError: a value does not fit the table's type, or a null is where none may be; names the column.
        """


class _Step(NamedTuple):
    """How one column of the table is made: from the file's column `source`, or from a constant."""

    source: int
    constant: pa.Scalar | None
    cast: bool
    refuse_nulls: bool


@dataclass(frozen=True, slots=True)
class Conformer(FileConformer):
    """Finds columns by their names; made by `conform_plan`.

    Args:
        steps: how each column is made; None where batches pass as they are.
        drop_metadata: whether the file's own schema metadata must go.
    """

    steps: tuple[_Step, ...] | None
    drop_metadata: bool

    def source_of(self, column: str) -> str | None:
        """Return the column of that name: see `FileConformer.source_of`."""
        if self.steps is None:
            return column if column in self.reads else None
        step = self.steps[self.schema.get_field_index(column)]
        return None if step.source < 0 or step.cast else self.reads[step.source]

    def apply(self, batch: pa.RecordBatch, row: int = 0) -> pa.RecordBatch:  # noqa: ARG002 as the base's
        """Cast, fill and order a batch: see `FileConformer.apply`.

        Returns:
            The batch itself where nothing is to be done; columns that need no cast are never copied.
        """
        if self.steps is None:
            return batch.replace_schema_metadata(None) if self.drop_metadata else batch
        arrays = [self._made(step, field, batch) for step, field in zip(self.steps, self.schema, strict=True)]
        return batch_of(arrays, self.schema)

    def _made(self, step: _Step, field: pa.Field, batch: pa.RecordBatch) -> pa.Array:
        if step.constant is not None:
            if not step.constant.is_valid:
                return pa.nulls(batch.num_rows, field.type)
            return pa.repeat(step.constant, batch.num_rows)
        array = batch.column(step.source)
        if step.refuse_nulls and array.null_count:
            raise TableError(
                f"column {field.name!r} must hold no null, as schema= says, got {array.null_count} among "
                f"{len(array)} rows of {self.name}; make the field nullable, or fix the file"
            )
        if not step.cast:
            return array
        try:
            return array.cast(field.type)
        except pa.ArrowException as error:
            raise TableError(
                f"column {field.name!r} must be read as {field.type}, but {self.name} holds it as {array.type} with "
                f"a value that does not fit ({first_line(error)}); pass schema= with a type that holds it"
            ) from error


def batch_of(arrays: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Return columns as a batch of a schema; those that were left encoded keep their dictionaries.

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
    """Plan how a file's batches become the table's.

    Args:
        partition: column and value pairs that hold for all rows; they win over columns of the file.
        columns: names to deliver, in this order; None for all of the table's.

    Returns:
        The plan; columns that neither file nor partition has are null.

    >>> file, table = pa.schema([("a", pa.int32())]), pa.schema([("a", pa.int64()), ("day", pa.int32())])
    >>> plan = conform_plan(file, table, [("day", 3)])
    >>> plan.apply(pa.record_batch({"a": pa.array([1, 2], pa.int32())})).to_pydict()
    {'a': [1, 2], 'day': [3, 3]}
    """
    names = table_schema.names if columns is None else list(columns)
    schema = pa.schema([table_schema.field(column) for column in names])
    constants = dict(partition)
    reads: list[str] = []
    steps: list[_Step] = []
    as_they_are = True
    in_file = frozenset(file_schema.names)
    for field in schema:
        physical = field.name in in_file and field.name not in constants
        if not physical:
            steps.append(_Step(-1, _constant(constants.get(field.name), field, name), cast=False, refuse_nulls=False))
            as_they_are = False
            continue
        own = file_schema.field(field.name)
        cast = not own.type.equals(field.type)
        steps.append(_Step(len(reads), None, cast, refuse_nulls=own.nullable and not field.nullable))
        reads.append(field.name)
        as_they_are = as_they_are and not cast and own.nullable == field.nullable
    return Conformer(
        name, tuple(reads), schema, None if as_they_are else tuple(steps), file_schema.metadata is not None
    )


def _constant(value: Any, field: pa.Field, name: str) -> pa.Scalar:
    try:
        return pa.scalar(value, field.type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise TableError(
            f"partition column {field.name!r} must be read as {field.type}, but the path of {name} says {value!r}; "
            "pass schema= with a type that holds it"
        ) from error
