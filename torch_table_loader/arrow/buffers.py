"""Large arrays in memory that is used again.

glibc gives a freed block of this size back to the kernel, and the pages of a fresh one cost several times what copying
into them does. Arrow's pool, where decoded columns lie as well, keeps pages for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

_POOLED_BYTES = 128 * 1024
"""From here on glibc maps a block by itself, at first."""

_ALIGNMENT = 64

NewArray = Callable[[tuple[int, ...], Any], Any]
"""Allocates an array of a shape and a dtype."""


def new_array(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Allocate an array that nobody else sees, its values undefined.

    Args:
        shape: of the array.
        dtype: of a value.

    >>> new_array((2, 3), "int32").shape
    (2, 3)
    """
    kind = np.dtype(dtype)
    num_bytes = prod(shape) * kind.itemsize
    if num_bytes < _POOLED_BYTES:
        return np.empty(shape, kind)
    return np.frombuffer(pa.allocate_buffer(num_bytes), kind).reshape(shape)


class Arena:
    """One piece of memory for many arrays that live and die together: of wide tables each is too small for the pool."""

    __slots__ = ("_at", "_memory")

    def __init__(self, num_bytes: int) -> None:
        """Allocate.

        Args:
            num_bytes: the sum over the arrays, each rounded up by `aligned`.
        """
        self._memory = new_array((num_bytes,), np.uint8)
        self._at = 0

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return the next array, its values undefined."""
        kind = np.dtype(dtype)
        start, num_bytes = self._at, prod(shape) * kind.itemsize
        self._at += aligned(num_bytes)
        return self._memory[start : start + num_bytes].view(kind).reshape(shape)


def aligned(num_bytes: int) -> int:
    """Round up to a whole number of cache lines.

    >>> aligned(1), aligned(64)
    (64, 64)
    """
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def joined(parts: Sequence[NDArray[Any]], new: NewArray = new_array) -> NDArray[Any]:
    """Copy arrays, which differ in their first dimension alone, into one.

    >>> joined([np.array([1, 2]), np.array([3])]).tolist()
    [1, 2, 3]
    """
    first = parts[0]
    return np.concatenate(parts, out=new((sum(map(len, parts)), *first.shape[1:]), first.dtype))
