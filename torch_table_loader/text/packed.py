"""Packed rows: tokens in one flat array, and which parts of documents they are; cut into batches of sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow.arrays import number_type, numbers_of
from torch_table_loader.arrow.buffers import joined, new_array
from torch_table_loader.arrow.copied_runs import runs_of
from torch_table_loader.arrow.datatypes import ElementType, innermost
from torch_table_loader.batching.codec import TensorCodec
from torch_table_loader.batching.outputs import ipc_read, ipc_size, ipc_write
from torch_table_loader.batching.rows import Batches, Block, PlainCodec, Rows, new_block, pieces_of
from torch_table_loader.batching.types import element_dtype
from torch_table_loader.records import PADDING_COLUMN
from torch_table_loader.samples import ONE_BY_ONE
from torch_table_loader.text.pack import IGNORED
from torch_table_loader.text.packed_outputs import Documents, Layout, Sequences
from torch_table_loader.text.token_rows import (
    DOCUMENTS,
    Parts,
    columns_of_parts,
    parts_of_sequences,
    parts_of_tokens,
    sequences_of,
    tokens_are_rows,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.batching.policy import ColumnFunction, TypePolicy
    from torch_table_loader.batching.rows import Allocate
    from torch_table_loader.text.pack import Pack, PackedSamples

    Ints = NDArray[np.int64]


class PackedRows(Rows):
    """A run of rows, each of `width` tokens: one, or those of a sequence.

    Args:
        tokens: one flat array a column that is cut; what no part covers is padding, and may hold anything.
        parts: which parts of documents the tokens are.
    """

    __slots__ = ("_codec", "num_rows", "parts", "tokens")

    num_rows: int

    def __init__(self, codec: PackedCodec, num_rows: int, tokens: Sequence[NDArray[Any]], parts: Parts) -> None:
        self._codec = codec
        self.num_rows = num_rows
        self.tokens = tokens
        self.parts = parts

    @property
    def num_bytes(self) -> int:
        """Bytes of their values."""
        return sum(column.nbytes for column in self.tokens) + self.parts.columns_bytes

    def slice(self, start: int, stop: int) -> Self:
        """View rows `start` to `stop`; a part that is cut knows the token after it."""
        width = self._codec.width
        parts = self._codec.cut(self.tokens, self.parts, start * width, stop * width)
        return type(self)(
            self._codec, stop - start, [values[start * width : stop * width] for values in self.tokens], parts
        )

    def take(self, indices: NDArray[np.int64]) -> Self:
        """Copy the rows at `indices`."""
        width = self._codec.width
        tokens = [values.reshape(-1, width, *values.shape[1:])[indices] for values in self.tokens]
        parts = self._codec.parts_of_rows(self.tokens, self.parts, indices)
        flat = [values.reshape(-1, *values.shape[2:]) for values in tokens]
        return type(self)(self._codec, len(indices), flat, parts)

    def batches(self, batch_size: int) -> Batches:
        """Cut into dicts of tensors or arrays; the last may have fewer sequences, and its last sequence padding."""
        return self._codec.batches_of([[self]], batch_size)


def codec_of(schema: pa.Schema, policy: TypePolicy) -> PackedCodec:
    """Choose how record batches of tokens or sequences become outputs, and the columns of their documents."""
    pack = cast("PackedSamples", policy.samples).pack
    columns = [field for field in columns_of_parts(schema) if field.name not in pack.spans]
    documents = TensorCodec(pa.schema(columns), replace(policy, samples=ONE_BY_ONE))
    return PackedCodec(
        schema,
        pack,
        documents.output if columns else None,
        functions=documents.functions,
        numpy=policy.output_format == "numpy",
    )


class PackedCodec(PlainCodec[PackedRows]):
    """Makes, joins and ships packed rows; see `RowsCodec`.

    Args:
        schema: of one of the two forms of `arrow.token_rows`; a column `padding` may follow.
        documents: makes tensors of the other columns of documents, by name; None if there are none.
        functions: the caller's functions over these.
    """

    def __init__(
        self,
        schema: pa.Schema,
        pack: Pack,
        documents: Documents | None,
        *,
        functions: Sequence[ColumnFunction],
        numpy: bool,
    ) -> None:
        self.functions = tuple(replace(each, keys=("documents", *each.keys)) for each in functions)
        self._schema = schema
        self._names = [name for name in schema.names if name not in (DOCUMENTS, PADDING_COLUMN)]
        for name in self._names:
            if isinstance(kind := innermost(schema.field(name).type), ElementType):
                element_dtype(name, kind.element, numpy=numpy)
        self._tokens_are_rows = tokens_are_rows(schema)
        self._loss = self._names.index(pack.loss_mask) if pack.loss_mask is not None else None
        self._columns = pa.struct(columns_of_parts(schema)) if columns_of_parts(schema) else None
        self.width = 1 if self._tokens_are_rows else pack.width
        self.outputs = Sequences(pack, tuple(self._names), documents, numpy=numpy)

    def decode(self, batch: pa.RecordBatch) -> PackedRows:
        """View tokens or sequences that are rows."""
        cut = batch.columns[: len(self._names)]
        if self._tokens_are_rows:
            tokens = [numbers_of(column) for column in cut]
            parts = parts_of_tokens(batch.column(DOCUMENTS))
        else:
            tokens = [_padded(column, self.width) for column in cut]
            parts = parts_of_sequences(batch.column(DOCUMENTS), self.width)
        rows = PackedRows(self, batch.num_rows, tokens, parts)
        if PADDING_COLUMN not in batch.schema.names:
            return rows
        return self.padded(rows, batch.column(PADDING_COLUMN).to_numpy(zero_copy_only=False))

    def decode_plain(self, columns: Sequence[pa.Array]) -> PackedRows:
        """View columns of the schema as rows."""
        return self.decode(pa.RecordBatch.from_arrays(list(columns), schema=self._schema))

    def cut(self, tokens: Sequence[NDArray[Any]], parts: Parts, start: int, stop: int) -> Parts:
        """Return the parts of some of the tokens, with places from the first of these."""
        first = int(parts.at.searchsorted(start, side="right"))
        if first and parts.at[first - 1] + parts.length[first - 1] > start:
            first -= 1
        last = max(first, int(parts.at.searchsorted(stop)))
        at, length, begun, behind = (field[first:last].copy() for field in parts[:4])
        if last > first and (before := start - at[0]) > 0:
            at[0], length[0], begun[0] = start, length[0] - before, begun[0] + before
        if last > first and (beyond := at[-1] + length[-1] - stop) > 0:
            length[-1], behind[-1] = length[-1] - beyond, self.target(tokens, stop)
        return Parts(at - start, length, begun, behind, parts.columns_of(slice(first, last)))

    def parts_of_rows(self, tokens: Sequence[NDArray[Any]], parts: Parts, rows: Ints) -> Parts:
        """Return the parts of some rows, of which one may be asked for twice; a part that is cut is one in each."""
        layout = Layout(parts, self.width, len(tokens[0]))
        behind = parts.next[layout.owner]
        cut = np.flatnonzero(layout.ends < (parts.at + parts.length)[layout.owner])
        behind[cut] = self._targets(tokens, layout.ends[cut])
        bounds = layout.at.searchsorted(np.arange(len(tokens[0]) // self.width + 1) * self.width)
        first, count = bounds[:-1][rows], np.diff(bounds)[rows]
        number = np.arange(count.sum()) + (first - count.cumsum() + count).repeat(count)
        at = layout.at[number] % self.width + np.arange(len(rows)).repeat(count) * self.width
        columns = parts.columns_of(layout.owner[number])
        return Parts(at, layout.length[number], layout.start[number], behind[number], columns)

    @property
    @override
    def runs(self) -> PackedCodec | None:
        """Documents, where tokens are rows; sequences are permuted each by itself."""
        if self._tokens_are_rows:
            return self
        return None

    def permuted_runs(self, parts: Sequence[PackedRows], order_of: Callable[[int], Ints]) -> PackedRows:
        """Copy tokens document by document; padding comes last."""
        num_rows, found = sum(rows.num_rows for rows in parts), self._joined_parts(parts)
        order = order_of(len(found.at))
        at, length = found.at[order], found.length[order]
        tokens = [runs_of(chunks, at, length) for chunks in zip(*(rows.tokens for rows in parts), strict=True)]
        if missing := num_rows - int(length.sum()):
            tokens = [_lengthened(values, missing) for values in tokens]
        columns = found.columns_of(order)
        found = Parts(length.cumsum() - length, length, found.start[order], found.next[order], columns)
        return PackedRows(self, num_rows, tokens, found)

    def padded(self, rows: PackedRows, padding: NDArray[np.bool_]) -> PackedRows:
        """View rows of which some, wherever they stand, only fill up the rank's last batch: no part covers these."""
        if not padding.any():
            return rows
        edges = [0, *(np.flatnonzero(padding[1:] != padding[:-1]) + 1).tolist(), rows.num_rows]
        runs = [rows.slice(start, stop) for start, stop in pairwise(edges)]
        for run, start in zip(runs, edges, strict=False):
            if padding[start]:
                run.parts = self.cut(run.tokens, run.parts, 0, 0)
        return PackedRows(self, rows.num_rows, rows.tokens, self._joined_parts(runs))

    def target(self, tokens: Sequence[NDArray[Any]], place: int) -> int:
        """Return the token at a place as a label."""
        if self._loss is not None and not tokens[self._loss][place]:
            return IGNORED
        return int(tokens[0][place])

    def _targets(self, tokens: Sequence[NDArray[Any]], places: Ints) -> Ints:
        """Return the tokens at some places as labels."""
        found: Ints = tokens[0][places].astype(np.int64)
        if self._loss is not None:
            found[tokens[self._loss][places] == 0] = IGNORED
        return found

    def of_tokens(self, rows: PackedRows) -> PackedRows:
        """View tokens that are rows as sequences; what the last one lacks is padding."""
        missing = -rows.num_rows % self.width
        tokens = rows.tokens
        if missing:
            tokens = [_lengthened(values, missing) for values in tokens]
        return PackedRows(self, (rows.num_rows + missing) // self.width, tokens, rows.parts)

    @override
    def batches_of(self, runs: Sequence[Sequence[PackedRows]], batch_size: int) -> Batches:
        parts = [rows for run in runs for rows in run if rows.num_rows]
        if not parts:
            return Batches()
        columns = list(zip(*(rows.tokens for rows in parts), strict=True))
        return self.outputs.batches(columns, self._joined_parts(parts), batch_size * self.width)

    def concat(self, parts: Sequence[PackedRows]) -> PackedRows:
        """Copy runs into one."""
        columns = zip(*(rows.tokens for rows in parts), strict=True)
        tokens = [joined(list(runs), new_array) for runs in columns]
        return PackedRows(self, sum(rows.num_rows for rows in parts), tokens, self._joined_parts(parts))

    def _joined_parts(self, runs: Sequence[PackedRows]) -> Parts:
        if len(runs) == 1:
            return runs[0].parts
        before = np.cumsum([0, *(rows.num_rows * self.width for rows in runs)])[:-1].tolist()
        at = np.concatenate([rows.parts.at + start for rows, start in zip(runs, before, strict=True)])
        length, start, behind = (np.concatenate([rows.parts[field] for rows in runs]) for field in (1, 2, 3))
        columns = None
        if self._columns is not None:
            arrays = [rows.parts.columns for rows in runs if rows.parts.columns is not None]
            columns = pa.concat_arrays(arrays) if arrays else pa.array([], self._columns)
        return Parts(at, length, start, behind, columns)

    def pack(self, *parts: PackedRows, out: Allocate | None = None) -> Block:
        """Copy runs into one flat block."""
        joined_parts = self._joined_parts(parts)
        numbers = np.stack(joined_parts[:4]) if len(joined_parts.at) else np.empty((4, 0), dtype=np.int64)
        runs = list(zip(*(rows.tokens for rows in parts), strict=True))
        sizes = [numbers.nbytes, *(sum(run.nbytes for run in column) for column in runs)]
        shipped = None
        if joined_parts.columns is not None:
            shipped = pa.record_batch([joined_parts.columns], names=[""])
            sizes.append(ipc_size(shipped))
        block, pieces = new_block(sizes, sum(rows.num_rows for rows in parts), out)
        pieces[0].view(np.int64)[:] = numbers.reshape(-1)
        for column, piece in zip(runs, pieces[1:], strict=False):
            np.concatenate(column, out=piece.view(column[0].dtype).reshape(-1, *column[0].shape[1:]))
        if shipped is not None:
            ipc_write(shipped, pieces[-1])
        return block

    def unpack(self, block: Block) -> PackedRows:
        """View a block as rows."""
        pieces = pieces_of(block)
        numbers = pieces[0].view(np.int64).reshape(4, -1)
        kinds = map(self._dtype, self._names)
        tokens = [
            piece.view(kind.base).reshape(-1, *kind.shape) for piece, kind in zip(pieces[1:], kinds, strict=False)
        ]
        columns = None if self._columns is None else ipc_read(pieces[-1]).column(0)
        return PackedRows(self, block.num_rows, tokens, Parts(numbers[0], numbers[1], numbers[2], numbers[3], columns))

    def _dtype(self, name: str) -> np.dtype[Any]:
        kind = self._schema.field(name).type
        return number_type(kind if self._tokens_are_rows else kind.value_type)


def _lengthened(values: NDArray[Any], more: int) -> NDArray[Any]:
    """Return values with so many zeros after them."""
    return np.concatenate([values, np.zeros((more, *values.shape[1:]), dtype=values.dtype)])


def _padded(lists: pa.LargeListArray, width: int) -> NDArray[Any]:
    """Return lists as one flat array, each from a multiple of `width` on."""
    offsets = lists.offsets.to_numpy()
    values = numbers_of(lists.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])))
    if len(values) == len(lists) * width:
        return values
    return sequences_of(values, offsets[:-1] - offsets[0], np.diff(offsets), np.arange(len(offsets)), width)
