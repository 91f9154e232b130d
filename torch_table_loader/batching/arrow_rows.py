"""Rows as a record batch, for the outputs arrow and dict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from torch_table_loader.batching.kinds import ipc_read, ipc_size, ipc_write
from torch_table_loader.batching.rows import new_block, pieces_of
from torch_table_loader.batching.tensors import check_columns
from torch_table_loader.errors import TableError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from torch_table_loader.batching.rows import Allocate, Block


class ArrowRows:
    """A run of rows; see `Rows`.

    Args:
        batch: the rows.
        python: whether batches come as dicts of Python lists.
    """

    __slots__ = ("_python", "batch")

    def __init__(self, batch: pa.RecordBatch, *, python: bool) -> None:
        """Take it as it is."""
        self.batch = batch
        self._python = python

    @property
    def num_rows(self) -> int:
        """How many."""
        return int(self.batch.num_rows)

    @property
    def num_bytes(self) -> int:
        """Bytes of their values."""
        return int(self.batch.nbytes)

    def slice(self, start: int, stop: int) -> Self:
        """View rows `start` to `stop`."""
        return type(self)(self.batch.slice(start, stop - start), python=self._python)

    def take(self, indices: NDArray[np.int64]) -> Self:
        """Copy the rows at `indices`."""
        if not self.batch.num_columns:
            return self.slice(0, len(indices))
        columns = [_take(column, indices) for column in self.batch.columns]
        return type(self)(pa.RecordBatch.from_arrays(columns, schema=self.batch.schema), python=self._python)

    def batches(self, batch_size: int) -> list[Any]:
        """Cut into record batches, or dicts of name to Python list."""
        cut = [self.batch.slice(start, batch_size) for start in range(0, self.num_rows, batch_size)]
        return [_as_python(piece) for piece in cut] if self._python else cut


def _as_python(batch: pa.RecordBatch) -> dict[str, list[Any]]:
    try:
        found: dict[str, list[Any]] = batch.to_pydict()
    except (ValueError, OverflowError) as error:
        raise TableError(
            f"each value must have a Python object for it, which output_format='dict' gives, got {error} in columns "
            f"{_without_objects(batch)}; mend the values, leave the columns out, or take output_format='arrow'"
        ) from error
    return found


def _without_objects(batch: pa.RecordBatch) -> list[str]:
    """Name the columns with a value that Python has no object for, such as a date after the year 9999."""
    names = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.to_pylist()
        except (ValueError, OverflowError):
            names.append(name)
    return names


def _take(column: pa.Array, indices: NDArray[np.int64]) -> pa.Array:
    try:
        return column.take(pa.array(indices))
    except pa.ArrowNotImplementedError:
        # Arrow has no `take` for string views and run-ends, but it joins them.
        rows = [column.slice(index, 1) for index in indices.tolist()]
        return pa.concat_arrays([column.slice(0, 0), *rows])


class ArrowCodec:
    """Joins and ships record batches of one schema; see `RowsCodec`.

    Args:
        schema: what record batches have, and what comes out.
        python: whether batches come as dicts of Python lists.
    """

    def __init__(self, schema: pa.Schema, *, python: bool) -> None:
        """Keep both."""
        self._schema = schema
        self._python = python

    @property
    def null_sensitive(self) -> frozenset[str]:
        """None: every column may hold nulls."""
        return frozenset()

    def decode(self, batch: pa.RecordBatch) -> ArrowRows:
        """Return a record batch the schema that all batches have."""
        if not batch.schema.equals(self._schema, check_metadata=True):
            check_columns(batch.schema, self._schema)
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=self._schema) if batch.columns else batch
        return ArrowRows(batch, python=self._python)

    def concat(self, parts: Sequence[ArrowRows]) -> ArrowRows:
        """Copy runs into one."""
        return ArrowRows(self._join(parts), python=self._python)

    def _join(self, parts: Sequence[ArrowRows]) -> pa.RecordBatch:
        columns = []
        for index, entry in enumerate(self._schema):
            try:
                columns.append(pa.concat_arrays([part.batch.column(index) for part in parts]))
            except pa.ArrowInvalid as error:
                raise TableError(
                    f"column {entry.name!r}: {sum(part.num_rows for part in parts)} rows do not fit into one "
                    f"Arrow array of type {entry.type} ({error}); make batch_size or shuffle_buffer_size smaller"
                ) from error
        if not columns:
            return pa.Table.from_batches([part.batch for part in parts]).combine_chunks().to_batches()[0]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def pack(self, *parts: ArrowRows, out: Allocate | None = None) -> Block:
        """Copy runs into one flat block: an Arrow IPC stream."""
        batch = parts[0].batch if len(parts) == 1 else self._join(parts)
        block, pieces = new_block([ipc_size(batch)], batch.num_rows, out)
        ipc_write(batch, pieces[0])
        return block

    def unpack(self, block: Block) -> ArrowRows:
        """View a block as rows."""
        return ArrowRows(ipc_read(pieces_of(block)[0]), python=self._python)
