"""Rows as bare arrays, for the outputs torch and numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from torch_table_loader.batching.columns import Branch, Column, Leaf, Shape
from torch_table_loader.batching.memory import Arena, aligned
from torch_table_loader.batching.rows import new_block, pieces_of
from torch_table_loader.batching.types import choose, refuses_any_null
from torch_table_loader.errors import TableError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.batching.policy import TypePolicy
    from torch_table_loader.batching.rows import Allocate, Block


class TensorRows:
    """A run of rows; see `Rows`.

    Args:
        codec: knows what `data` is.
        num_rows: how many.
        data: one entry a leaf of the codec.
    """

    __slots__ = ("_codec", "_data", "num_rows")

    def __init__(self, codec: TensorCodec, num_rows: int, data: Sequence[Any]) -> None:
        """Take them as they are."""
        self._codec = codec
        self._data = data
        self.num_rows = num_rows

    @property
    def data(self) -> Sequence[Any]:
        """One entry a leaf of the codec, in its kind's form."""
        return self._data

    @property
    def num_bytes(self) -> int:
        """Bytes of their values."""
        leaves, data = self._codec.leaves, self._data
        varying = sum(leaves[index].kind.num_bytes(data[index]) for index in self._codec.varying)
        return self.num_rows * self._codec.row_bytes + varying

    def slice(self, start: int, stop: int) -> Self:
        """View rows `start` to `stop`."""
        data = [leaf.kind.slice(data, start, stop) for leaf, data in zip(self._codec.leaves, self._data, strict=True)]
        return type(self)(self._codec, stop - start, data)

    def take(self, indices: NDArray[np.int64]) -> Self:
        """Copy the rows at `indices`."""
        data = [leaf.kind.take(data, indices) for leaf, data in zip(self._codec.leaves, self._data, strict=True)]
        return type(self)(self._codec, len(indices), data)

    def batches(self, batch_size: int) -> list[dict[str, Any]]:
        """Cut into dicts of name to tensor or array."""
        num_batches = -(-self.num_rows // batch_size)
        if num_batches == 0:
            return []
        cuts = iter([leaf.cut(data, batch_size) for leaf, data in zip(self._codec.leaves, self._data, strict=True)])
        return _dicts(self._codec.shapes, cuts, num_batches)


def _dicts(shapes: Sequence[Shape], cuts: Any, num_batches: int) -> list[dict[str, Any]]:
    if not shapes:
        return [{} for _ in range(num_batches)]
    columns = [_dicts(shape.nodes, cuts, num_batches) if isinstance(shape, Branch) else next(cuts) for shape in shapes]
    names = [shape.name for shape in shapes]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _leaves(shapes: Sequence[Shape]) -> list[Leaf]:
    found: list[Leaf] = []
    for shape in shapes:
        if isinstance(shape, Branch):
            found += _leaves(shape.nodes)
        else:
            found.append(shape)
    return found


class TensorCodec:
    """Makes, joins and ships rows of one schema; see `RowsCodec`.

    Args:
        schema: what record batches have.
        policy: how types come out.

    Raises:
        ConfigError: a column that has no tensor form.
    """

    def __init__(self, schema: pa.Schema, policy: TypePolicy) -> None:
        """Choose the node of each column."""
        self._schema = schema
        self._columns: list[Column]
        self._columns, self._null_sensitive = choose(schema, policy)
        self.shapes = [shape for column in self._columns for shape in column.shapes()]
        self.leaves = _leaves(self.shapes)
        self.row_bytes = sum(leaf.kind.row_bytes for leaf in self.leaves)
        self.varying = [index for index, leaf in enumerate(self.leaves) if not leaf.kind.row_bytes]

    @property
    def null_sensitive(self) -> frozenset[str]:
        """The plain columns in which a null is an error."""
        return self._null_sensitive

    @property
    def refusing_nulls(self) -> frozenset[str]:
        """The columns in which a null, at whatever depth, is an error."""
        columns = zip(self._schema.names, self._columns, strict=True)
        return frozenset(name for name, column in columns if refuses_any_null(column))

    def decode(self, batch: pa.RecordBatch) -> TensorRows:
        """View a record batch as rows."""
        if batch.schema is not self._schema and not batch.schema.equals(self._schema):
            check_columns(batch.schema, self._schema)
        data: list[Any] = []
        seen: set[int] = set()
        for column, array in zip(self._columns, batch.columns, strict=True):
            column.into(array, data, seen)
        return TensorRows(self, batch.num_rows, data)

    def concat(self, parts: Sequence[TensorRows]) -> TensorRows:
        """Copy runs into one."""
        num_rows = sum(part.num_rows for part in parts)
        arena = Arena(sum(aligned(num_rows * leaf.kind.row_bytes) for leaf in self.leaves))
        columns = zip(*(part.data for part in parts), strict=True)
        data = [leaf.kind.join(runs, arena.array) for leaf, runs in zip(self.leaves, columns, strict=True)]
        return TensorRows(self, num_rows, data)

    def pack(self, *parts: TensorRows, out: Allocate | None = None) -> Block:
        """Copy runs into one flat block."""
        prepared = [leaf.kind.prepare([part.data[index] for part in parts]) for index, leaf in enumerate(self.leaves)]
        sizes = [size for _, leaf_sizes in prepared for size in leaf_sizes]
        block, pieces = new_block(sizes, sum(part.num_rows for part in parts), out)
        start = 0
        for leaf, (form, leaf_sizes) in zip(self.leaves, prepared, strict=True):
            leaf.kind.write(form, pieces[start : start + len(leaf_sizes)])
            start += len(leaf_sizes)
        return block

    def unpack(self, block: Block) -> TensorRows:
        """View a block as rows."""
        pieces = pieces_of(block)
        data = []
        start = 0
        for leaf in self.leaves:
            stop = start + leaf.kind.num_pieces
            data.append(leaf.kind.read(pieces[start:stop], block.num_rows))
            start = stop
        return TensorRows(self, block.num_rows, data)


def check_columns(came: pa.Schema, expected: pa.Schema) -> None:
    """Refuse a record batch with other columns; nullability and metadata do not matter.

    Raises:
        TableError: names the first column that differs.
    """
    if came.names != expected.names:
        raise TableError(f"expected the columns {expected.names}, got {came.names}; was the file rewritten?")
    for entry, wanted in zip(came, expected, strict=True):
        if entry.type != wanted.type:
            raise TableError(
                f"column {wanted.name!r}: expected type {wanted.type}, got {entry.type}; was the file rewritten?"
            )
