"""Memory that is handed out, and taken back when nothing refers to it any more.

A batch is some hundred kilobytes that live for a moment. From threads, the C library gives such memory back to the
system each time, and faulting it in again costs more than filling it.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KEPT = 8
"""Free buffers that are kept, all of one size."""

_SMALLEST = 1 << 16
"""Bytes below which the C library does better."""


class BufferPool:
    """Buffers of one size, the newest that was asked for; threads may share it."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._size = 0
        self._free: deque[NDArray[np.uint8]] = deque()

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return memory that is written to by nobody else until no view of it is left.

        Args:
            num_bytes: how much.

        Returns:
            uint8[num_bytes], its content undefined.
        """
        if num_bytes < _SMALLEST:
            return np.empty(num_bytes, dtype=np.uint8)
        memory: NDArray[np.uint8] | None = None
        # No lock anywhere: the collector may give memory back at any moment, in any thread. A deque is safe without.
        if num_bytes != self._size:
            self._size = num_bytes
            self._free.clear()
        with suppress(IndexError):
            memory = self._free.pop()
        if memory is None or memory.nbytes != num_bytes:  # one of another size may have come back meanwhile
            memory = np.empty(num_bytes, dtype=np.uint8)
        return np.asarray(_Lent(self, memory))

    def give_back(self, memory: NDArray[np.uint8]) -> None:
        """Take memory back to which nothing refers."""
        if memory.nbytes == self._size and len(self._free) < _KEPT:
            self._free.append(memory)

    def __reduce__(self) -> tuple[type[BufferPool], tuple[()]]:
        """Pickle as an empty pool."""
        return BufferPool, ()


class _Lent:
    """What views of lent memory refer to; it goes when the last of them goes."""

    __slots__ = ("__array_interface__", "_memory", "_pool")

    def __init__(self, pool: BufferPool, memory: NDArray[np.uint8]) -> None:
        self._pool = pool
        self._memory = memory
        self.__array_interface__: dict[str, Any] = memory.__array_interface__

    def __del__(self) -> None:
        self._pool.give_back(self._memory)
