"""Chunks of rows become batches of one size, or windows in which rows are permuted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic

from torch_table_loader.batching.rows import R, RowsCodec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class _Carry(Generic[R]):
    """What is left of a chunk when whole batches or windows were cut off: rows that wait for more, in order."""

    __slots__ = ("_codec", "_parts", "num_rows")

    def __init__(self, codec: RowsCodec[R]) -> None:
        self._codec = codec
        self._parts: list[R] = []
        self.num_rows = 0

    def add(self, rows: R, start: int) -> None:
        """Keep the rows from `start` on.

        A small rest is copied, since a view would keep the whole chunk in memory until the next one is there.
        """
        left = rows.num_rows - start
        if left == 0:
            return
        if start == 0:
            part = rows
        else:
            part = rows.slice(start, rows.num_rows)
            if left <= start:
                part = self._codec.concat([part])
        self._parts.append(part)
        self.num_rows += left

    def take(self, rows: R | None = None, stop: int = 0) -> list[R]:
        """Return all that waits and the rows up to `stop`, as runs in order; nothing waits then."""
        if rows is not None and stop:
            self._parts.append(rows.slice(0, stop))
        parts, self._parts, self.num_rows = self._parts, [], 0
        return parts


class ExactBatches(Generic[R]):
    """Cuts a run of chunks into exact batches; copies only the batches that span chunks."""

    __slots__ = ("_batch_size", "_carry", "_codec")

    def __init__(self, codec: RowsCodec[R], batch_size: int) -> None:
        self._batch_size = batch_size
        self._codec = codec
        self._carry = _Carry(codec)

    def push(self, rows: R) -> list[list[R]]:
        """Add a chunk; return what is ready, each as consecutive runs, together a multiple of `batch_size`.

        Returns:
            No, one or two of these: the batch that spans chunks, then the whole batches of this chunk, which view it.
        """
        size, ready, start = self._batch_size, [], 0
        if self._carry.num_rows:
            start = size - self._carry.num_rows
            if rows.num_rows < start:
                self._carry.add(rows, 0)
                return []
            ready.append(self._carry.take(rows, start))
        stop = rows.num_rows - (rows.num_rows - start) % size
        if stop > start:
            ready.append([rows if stop - start == rows.num_rows else rows.slice(start, stop)])
        if stop < rows.num_rows:
            self._carry.add(rows, stop)
        return ready

    def rest(self) -> R | None:
        """Return what remains as rows, fewer than `batch_size`; None if nothing does."""
        return self._codec.as_one(self._carry.take()) if self._carry.num_rows else None


class PieceBatches(ExactBatches[R]):
    """Cuts a run of chunks into batches that end where its non-empty pieces do; the last of a piece may be short."""

    __slots__ = ("_left", "_pieces")

    def __init__(self, codec: RowsCodec[R], batch_size: int, pieces: Iterator[int]) -> None:
        super().__init__(codec, batch_size)
        self._pieces = pieces
        self._left = next(pieces, 0)

    def push(self, rows: R) -> list[list[R]]:
        """Add a chunk; return what is ready, each as consecutive runs, of which the last batch may be short."""
        ready: list[list[R]] = []
        while self._left and rows.num_rows >= self._left:
            ready += super().push(rows if rows.num_rows == self._left else rows.slice(0, self._left))
            if (rest := self.rest()) is not None:
                ready.append([rest])
            rows = rows.slice(self._left, rows.num_rows)
            self._left = next(self._pieces, 0)
        if rows.num_rows:
            ready += super().push(rows)
            self._left -= rows.num_rows
        return ready


class WindowShuffle(Generic[R]):
    """The shuffle buffer: permutes a run of chunks inside windows of `window` rows; only the last may be shorter.

    Args:
        permutation_of: ``(window_index, length)`` to a permutation of ``range(length)``: row i of the window that
            comes out is row ``permutation[i]`` of what went in.
    """

    __slots__ = ("_carry", "_codec", "_index", "_permutation_of", "_window")

    def __init__(
        self,
        codec: RowsCodec[R],
        window: int,
        permutation_of: Callable[[int, int], NDArray[np.int64]],
        first_window: int = 0,
    ) -> None:
        self._codec = codec
        self._window = window
        self._permutation_of = permutation_of
        self._index = first_window
        self._carry = _Carry(codec)

    def push(self, rows: R) -> list[R]:
        """Add a chunk; return the windows that are full, permuted, each one run of its own memory."""
        ready: list[R] = []
        start = 0
        while rows.num_rows - start >= self._window - self._carry.num_rows:
            stop = start + self._window - self._carry.num_rows
            parts = self._carry.take(rows, stop) if self._carry.num_rows else [rows.slice(start, stop)]
            ready.append(self._permuted(parts))
            start = stop
        self._carry.add(rows, start)
        return ready

    def finish(self) -> list[R]:
        """Return the short last window, permuted, if there is one."""
        return [self._permuted(self._carry.take())] if self._carry.num_rows else []

    def _permuted(self, parts: Sequence[R]) -> R:
        rows = self._codec.as_one(parts)
        order = self._permutation_of(self._index, rows.num_rows)
        self._index += 1
        return rows.take(order)
