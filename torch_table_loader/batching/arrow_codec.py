"""Rows that stay record batches: for outputs of Arrow, and of dicts of Python lists."""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow.arrays import encoded, plain, take_rows
from torch_table_loader.arrow.datatypes import decoded_type
from torch_table_loader.arrow.python_values import python_values
from torch_table_loader.arrow.sound import check_times, holds_times
from torch_table_loader.batching.outputs import ipc_read, ipc_size, ipc_write
from torch_table_loader.batching.rows import PlainCodec, Rows, new_block, pieces_of
from torch_table_loader.errors import TableError
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.batching.rows import Allocate, Block


class ArrowRows(Rows):
    """A run of rows; with `python`, batches come as dicts of Python lists."""

    __slots__ = ("_python", "batch")

    def __init__(self, batch: pa.RecordBatch, *, python: bool) -> None:
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
        return type(self)(take_rows(self.batch, pa.array(indices)), python=self._python)

    @override
    def cut(self, bounds: Sequence[int]) -> list[Any]:
        """Cut into record batches, or dicts of name to Python list."""
        cut = [self.batch.slice(start, stop - start) for start, stop in pairwise(bounds)]
        if not self._python:
            return cut
        names = self.batch.schema.names
        return [dict(zip(names, map(python_values, piece.columns), strict=True)) for piece in cut]


class ArrowCodec(PlainCodec[ArrowRows]):
    """Joins and ships record batches of one schema; with `python`, batches come as dicts of Python lists."""

    def __init__(self, schema: pa.Schema, *, python: bool) -> None:
        self._schema = schema
        self._python = python
        self.views_at_once = 0 if python else max(1, sizes().cut_objects)
        self._times = [entry.name for entry in schema if python and holds_times(entry.type)]

    def decode(self, batch: pa.RecordBatch) -> ArrowRows:
        """Return a record batch with the schema that all batches have."""
        if not batch.schema.equals(self._schema, check_metadata=True):
            check_columns(batch.schema, self._schema)
            if batch.columns:
                batch = pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
        for name in self._times:  # here, where it is known which file they are of
            check_times(name, batch.column(name))
        return ArrowRows(batch, python=self._python)

    def decode_plain(self, columns: Sequence[pa.Array]) -> ArrowRows:
        """Return columns in their plain types as the schema has them."""
        arrays = [encoded(plain(array), entry.type) for array, entry in zip(columns, self._schema, strict=True)]
        for name in self._times:
            check_times(name, arrays[self._schema.get_field_index(name)])
        return ArrowRows(pa.RecordBatch.from_arrays(arrays, schema=self._schema), python=self._python)

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


def check_columns(came: pa.Schema, expected: pa.Schema, encoded: Container[str] = ()) -> None:
    """Refuse a record batch with other columns; nullability and metadata do not matter.

    Columns in `encoded` may come as dictionaries.
    """
    if came.names != expected.names:
        raise TableError(
            f"expected the columns {expected.names}, got {came.names}; if the file was rewritten, make the loader again"
        )
    for entry, wanted in zip(came, expected, strict=True):
        alike = entry.name in encoded and decoded_type(entry.type) == decoded_type(wanted.type)
        if not alike and entry.type != wanted.type:
            raise TableError(
                f"column {wanted.name!r}: expected type {wanted.type}, got {entry.type}; was the file rewritten?"
            )
