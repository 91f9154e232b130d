"""Rows that are cut into batches of different sizes: a batch counts as one, whatever rows it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
from typing_extensions import override

from torch_table_loader.arrow.buffers import aligned
from torch_table_loader.batching.jagged import offsets_from
from torch_table_loader.batching.rows import Block, PlainCodec, Rows, RowsCodec, new_block, piece_starts, pieces_of

if TYPE_CHECKING:
    import pyarrow as pa
    import torch
    from numpy.typing import NDArray

    from torch_table_loader.batching.rows import Allocate

    Ints = NDArray[np.int64]


class UnevenRows(Rows):
    """A run of whole batches.

    Args:
        rows: those of all batches.
        bounds: int64[batches + 1] where each begins among them, and the end.
    """

    __slots__ = ("_codec", "bounds", "rows")

    def __init__(self, codec: WholeBatchesCodec, rows: Rows, bounds: Ints) -> None:
        self._codec = codec
        self.rows = rows
        self.bounds = bounds

    @property
    def num_rows(self) -> int:
        """How many batches."""
        return len(self.bounds) - 1

    @property
    @override
    def num_samples(self) -> int:
        return self.rows.num_rows

    @property
    def num_bytes(self) -> int:
        """Bytes of their values."""
        return self.rows.num_bytes

    def slice(self, start: int, stop: int) -> Self:
        """View batches `start` to `stop`."""
        bounds = self.bounds[start : stop + 1]
        return type(self)(self._codec, self.rows.slice(int(bounds[0]), int(bounds[-1])), bounds - bounds[0])

    def take(self, indices: NDArray[np.int64]) -> Self:
        """Copy the batches at `indices`."""
        return cast("Self", self._codec.taken([self], indices))

    @override
    def cut(self, bounds: Sequence[int]) -> list[Any]:
        """Cut into final outputs of some batches each."""
        return self.rows.cut(self.bounds[bounds].tolist())


class WholeBatchesCodec(RowsCodec[UnevenRows]):
    """Joins, ships and cuts batches whose rows another codec makes."""

    made: ClassVar[type[UnevenRows]] = UnevenRows

    def __init__(self, codec: RowsCodec[Any]) -> None:
        self._codec = codec
        self.null_sensitive = codec.null_sensitive
        self.functions = codec.functions
        self.views_at_once = codec.views_at_once

    @override
    def concat(self, parts: Sequence[UnevenRows]) -> UnevenRows:
        rows = self._codec.concat([part.rows for part in parts])
        return self.made(self, rows, offsets_from(_sizes_of(parts)))

    @override
    def taken(self, parts: Sequence[UnevenRows], order: Ints) -> UnevenRows:
        begins = offsets_from(_sizes_of(parts))
        bounds = offsets_from(np.diff(begins)[order])
        rows = np.arange(bounds[-1]) + np.repeat(begins[order] - bounds[:-1], np.diff(bounds))
        return self.made(self, self._codec.taken([part.rows for part in parts], rows), bounds)

    @override
    def pack(self, *parts: UnevenRows, out: Allocate | None = None) -> Block:
        """Copy runs into one flat block, the sizes of their batches after their values."""
        sizes = _sizes_of(parts)
        whole: list[torch.Tensor] = []

        def allocate(num_bytes: int) -> torch.Tensor:
            block, _ = new_block([aligned(num_bytes), sizes.nbytes], 0, out)
            whole.append(block.data)
            return block.data[:num_bytes]

        block = self._codec.pack(*(part.rows for part in parts), out=allocate)
        packed = Block(whole[0], block.num_rows, (*block.sizes, sizes.nbytes))
        pieces_of(packed)[-1].view(np.int64)[:] = sizes
        return packed

    @override
    def unpack(self, block: Block) -> UnevenRows:
        _, end = piece_starts(block.sizes[:-1])
        rows = self._codec.unpack(Block(block.data[:end], block.num_rows, block.sizes[:-1]))
        return self.made(self, rows, offsets_from(pieces_of(block)[-1].view(np.int64)))


class UnevenCodec(WholeBatchesCodec, PlainCodec[UnevenRows]):
    """Takes the rows of a batch, or those of several that `of_sizes` then tells apart."""

    _codec: PlainCodec[Any]

    def __init__(self, codec: PlainCodec[Any]) -> None:
        super().__init__(codec)
        self.together = codec.together

    def of_sizes(self, rows: UnevenRows, sizes: Ints) -> UnevenRows:
        """Return rows of one batch as batches of some sizes."""
        return self.made(self, rows.rows, offsets_from(sizes))

    @override
    def decode(self, batch: pa.RecordBatch) -> UnevenRows:
        return self._one(self._codec.decode(batch))

    @override
    def decode_plain(self, columns: Sequence[pa.Array]) -> UnevenRows:
        return self._one(self._codec.decode_plain(columns))

    def _one(self, rows: Rows) -> UnevenRows:
        return self.made(self, rows, np.array([0, rows.num_rows], dtype=np.int64))


def _sizes_of(parts: Sequence[UnevenRows]) -> Ints:
    return np.concatenate([np.diff(part.bounds) for part in parts])
