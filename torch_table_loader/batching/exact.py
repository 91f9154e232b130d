"""Batches of exactly `batch_size` rows, whatever the chunks that come."""

from __future__ import annotations

from typing import Generic

from torch_table_loader.batching.carry import Carry
from torch_table_loader.batching.rows import R, RowsCodec


class ExactBatches(Generic[R]):
    """Cuts a run of chunks into exact batches; copies only the batches that span chunks.

    Args:
        codec: joins rows.
        batch_size: rows of a batch.
    """

    __slots__ = ("_batch_size", "_carry", "_codec")

    def __init__(self, codec: RowsCodec[R], batch_size: int) -> None:
        """Hold nothing."""
        self._batch_size = batch_size
        self._codec = codec
        self._carry = Carry(codec)

    def push_parts(self, rows: R) -> list[list[R]]:
        """Take a chunk; return what is ready, each as consecutive runs, together a multiple of `batch_size`.

        Args:
            rows: the next chunk.

        Returns:
            No, one or two of these: the batch that spans chunks, then the whole batches of this chunk, which view it.
        """
        size, ready, start = self._batch_size, [], 0
        if self._carry.num_rows:
            start = size - self._carry.num_rows
            if rows.num_rows < start:
                self._carry.add(rows, 0)
                return []
            ready.append(self._carry.parts(rows, start))
        stop = rows.num_rows - (rows.num_rows - start) % size
        if stop > start:
            ready.append([rows if stop - start == rows.num_rows else rows.slice(start, stop)])
        self._carry.add(rows, stop)
        return ready

    def push(self, rows: R) -> list[R]:
        """Take a chunk; return the rows of the full batches that are ready, as no, one or two runs of whole batches."""
        return [parts[0] if len(parts) == 1 else self._codec.concat(parts) for parts in self.push_parts(rows)]

    def rest(self) -> R | None:
        """Return what remains as rows, fewer than `batch_size`; None if nothing does."""
        return self._carry.empty() if self._carry.num_rows else None
