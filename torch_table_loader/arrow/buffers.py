"""Large arrays in memory that is reused.

glibc returns a freed block of this size to the kernel, and the pages of a fresh one cost several times as much as
copying into them. Arrow's pool, which also holds decoded columns, keeps pages for a while, but not those of the largest
blocks. These are kept here while an epoch runs.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from torch_table_loader.forks import OfProcess

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

_POOLED_BYTES = 128 * 1024
"""From this size on, glibc at first maps each block separately."""

_KEPT_BYTES = 1 << 18
"""From this size on, arrays are in reused blocks while an epoch runs."""

CACHE_LINE = 64

ROUNDED_PARTS = 16
"""A new block is larger than was asked for by at most one of so many parts."""

_KEPT_BLOCKS = 4
"""Unused blocks of one size that are kept for reuse: about one for each thread that decodes."""

NewArray = Callable[[tuple[int, ...], Any], Any]
"""Allocates an array of a given shape and dtype."""


def new_array(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Allocate an array that nothing else refers to, with undefined values.

    >>> new_array((2, 3), "int32").shape
    (2, 3)
    """
    kind = np.dtype(dtype)
    count = prod(shape)
    num_bytes = count * kind.itemsize
    if num_bytes < _POOLED_BYTES:
        return np.empty(shape, kind)
    blocks = LargeArrays.blocks if num_bytes >= _KEPT_BYTES else None
    memory = pa.allocate_buffer(num_bytes) if blocks is None else blocks.new(num_bytes)
    return np.frombuffer(memory, kind, count).reshape(shape)


class Arena:
    """A single block of memory for many short-lived arrays: those of wide tables are each too small for the pool."""

    __slots__ = ("_at", "_memory")

    def __init__(self, num_bytes: int) -> None:
        """Allocate the block: the sum over the arrays, each rounded up by `aligned`."""
        self._memory = new_array((num_bytes,), np.uint8)
        self._at = 0

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return the next array, with undefined values."""
        found: NDArray[Any] = np.ndarray(shape, dtype, self._memory, self._at)
        self._at += -(-found.nbytes // CACHE_LINE) * CACHE_LINE
        return found


class ReusedBlocks:
    """Memory for temporary bytes: a block is reused once nothing refers to its content.

    New memory costs several times as much as reading a cached file into it. Threads may share it.
    """

    def __init__(self) -> None:
        self._free: defaultdict[int, deque[NDArray[Any]]] = defaultdict(lambda: deque(maxlen=_KEPT_BLOCKS))
        """Blocks by the power of two that they fit into; those beyond the maximum number are returned to the system."""
        self._lent: dict[int, tuple[weakref.ref[Any], NDArray[Any]]] = {}
        """The blocks in use, by the identity of what refers to their content; `weakref.finalize` takes more steps."""
        self._closed = False

    def new(self, num_bytes: int) -> memoryview:
        """Return a block of at least one byte, with undefined content.

        >>> blocks = ReusedBlocks()
        >>> one = blocks.new(1000)
        >>> other = blocks.new(1000)
        >>> place = np.frombuffer(one, np.uint8).ctypes.data
        >>> del one
        >>> np.frombuffer(blocks.new(900), np.uint8).ctypes.data == place
        True
        """
        capacity = _rounded(num_bytes)
        block = self._unused(num_bytes, capacity)
        if block is None:
            pooled = capacity >= _POOLED_BYTES
            block = np.frombuffer(pa.allocate_buffer(capacity), np.uint8) if pooled else np.empty(capacity, np.uint8)
        # A reference to a part of a buffer keeps the object that it was taken from alive; views of arrays may not.
        lent: Any = np.frombuffer(block, np.uint8, num_bytes)
        reference = weakref.ref(lent, self._take_back)
        self._lent[id(reference)] = reference, block
        return memoryview(lent)

    def close(self) -> None:
        """Release the unused blocks now, and those in use once they are no longer used."""
        self._closed = True
        self._free.clear()

    def _unused(self, num_bytes: int, capacity: int) -> NDArray[Any] | None:
        """Return an unused block that is large enough, and at most twice as large; None if there is none."""
        free = self._free[(capacity - 1).bit_length()]
        with suppress(IndexError):  # another thread took the last one
            for _ in range(len(free)):
                block = free.pop()
                if block.size >= num_bytes:
                    return block
                free.appendleft(block)
        return None

    def _take_back(self, reference: weakref.ref[Any]) -> None:
        _, block = self._lent.pop(id(reference))
        if not self._closed:
            self._free[(block.size - 1).bit_length()].append(block)


@lru_cache(maxsize=256)
def _rounded(num_bytes: int) -> int:
    """Round up by at most 1 / `ROUNDED_PARTS`, so that blocks of about the same size serve each other.

    >>> _rounded(1000), _rounded(1024), _rounded(1100), _rounded(1)
    (1024, 1024, 1152, 1)
    """
    step = max(1, (1 << (num_bytes - 1).bit_length()) // (2 * ROUNDED_PARTS))
    return -(-num_bytes // step) * step


class LargeArrays:
    """Keeps the memory of large arrays that nothing refers to, so that `new_array` reuses it, until it is closed.

    Several may be open at a time, and share the memory. Lanes allocate what the consumer releases.
    """

    blocks: ReusedBlocks | None = None
    """Those of this process; None while none is open."""
    _open = 0
    _lock = OfProcess(threading.RLock)  # the garbage collector may call `_end` wherever it runs

    def __init__(self) -> None:
        with LargeArrays._lock.own:
            LargeArrays._open += 1
            LargeArrays.blocks = LargeArrays.blocks or ReusedBlocks()
        self.close = weakref.finalize(self, LargeArrays._end)
        """Release the unused memory, unless another one is open. It may be called more than once."""
        self.close.atexit = False

    @staticmethod
    def _end() -> None:
        with LargeArrays._lock.own:
            LargeArrays._open -= 1
            if not LargeArrays._open and LargeArrays.blocks is not None:
                LargeArrays.blocks.close()
                LargeArrays.blocks = None


def aligned(num_bytes: int) -> int:
    """Round up to a whole number of cache lines.

    >>> aligned(1), aligned(64)
    (64, 64)
    """
    return -(-num_bytes // CACHE_LINE) * CACHE_LINE


def joined(parts: Sequence[NDArray[Any]], new: NewArray = new_array) -> NDArray[Any]:
    """Concatenate arrays that differ in their first dimension only into a new array.

    >>> joined([np.array([1, 2]), np.array([3])]).tolist()
    [1, 2, 3]
    """
    first = parts[0]
    return np.concatenate(parts, out=new((sum(map(len, parts)), *first.shape[1:]), first.dtype))
