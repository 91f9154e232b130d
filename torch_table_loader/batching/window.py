"""The shuffle buffer: rows permuted inside consecutive windows, as a pure function of position."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic

from torch_table_loader.batching.carry import Carry
from torch_table_loader.batching.rows import R, RowsCodec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class WindowShuffle(Generic[R]):
    """Permutes a run of chunks inside windows of `window` rows; only the last window may be shorter.

    Args:
        codec: joins rows.
        window: rows of a window.
        permutation_of: ``(window_index, length)`` to a permutation of ``range(length)``: row i of the window that
            comes out is row ``permutation[i]`` of what went in.
        first_window: the index of the first window.
    """

    __slots__ = ("_carry", "_index", "_permutation_of", "_window")

    def __init__(
        self,
        codec: RowsCodec[R],
        window: int,
        permutation_of: Callable[[int, int], NDArray[np.int64]],
        first_window: int = 0,
    ) -> None:
        """Hold nothing."""
        self._window = window
        self._permutation_of = permutation_of
        self._index = first_window
        self._carry = Carry(codec)

    def push(self, rows: R) -> list[R]:
        """Take a chunk; return the windows that are full, permuted, each one run of its own memory."""
        ready: list[R] = []
        start = 0
        while rows.num_rows - start >= self._window - self._carry.num_rows:
            stop = start + self._window - self._carry.num_rows
            if self._carry.num_rows:
                ready.append(self._permuted(self._carry.fill(rows, stop)))
            else:
                ready.append(self._permuted(rows.slice(start, stop)))
            start = stop
        self._carry.add(rows, start)
        return ready

    def finish(self) -> list[R]:
        """Return the short last window, permuted, if there is one."""
        return [self._permuted(self._carry.empty())] if self._carry.num_rows else []

    def _permuted(self, rows: R) -> R:
        order = self._permutation_of(self._index, rows.num_rows)
        self._index += 1
        return rows.take(order)
