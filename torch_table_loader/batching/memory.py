"""Large arrays in memory that is used again.

glibc gives a freed block of this size back to the kernel, and the pages of a fresh one cost several times what copying
into them does. Arrow's pool, where decoded columns lie as well, keeps pages for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

_POOLED_BYTES = 128 * 1024
"""From here on glibc maps a block by itself, at first."""


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


def joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Copy arrays, which differ in their first dimension alone, into one.

    >>> joined([np.array([1, 2]), np.array([3])]).tolist()
    [1, 2, 3]
    """
    first = parts[0]
    out = new_array((sum(map(len, parts)), *first.shape[1:]), first.dtype)
    return np.concatenate(parts, out=out)


__all__ = ["joined", "new_array"]
