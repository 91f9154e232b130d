"""Runs of values, copied together: lists in another order, documents in sequences."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


COPIED_BYTES = 32
"""Runs with at least so many bytes on average are copied whole; shorter ones are faster value by value."""


def runs_of(chunks: Sequence[NDArray[Any]], at: Ints, length: Ints) -> NDArray[Any]:
    """Return runs of values, concatenated, as `copied_runs` does; not copied if they are contiguous already."""
    if length.any() and (at[1:] == at[:-1] + length[:-1]).all():
        starts = _starts_of(chunks)
        chunk = int(starts.searchsorted(at[0], side="right")) - 1
        begin, end = at[0] - starts[chunk], at[-1] + length[-1] - starts[chunk]
        if end <= len(chunks[chunk]):
            return chunks[chunk][begin:end]
    return copied_runs(chunks, at, length)


def copied_runs(chunks: Sequence[NDArray[Any]], at: Ints, length: Ints) -> NDArray[Any]:
    """Return runs of values, concatenated, in new memory.

    Arrow copies them all in one call without Python's lock, which a copy of each run would acquire and release in turn.
    It takes them as views of strings of bytes, which may lie in many buffers.

    Args:
        chunks: at least one array; they follow one another.
        at: int64[n], the first value of each run.
        length: int64[n], its values, all in one chunk; runs may overlap.

    >>> copied_runs([np.array([1, 2, 3, 4])], np.array([2, 0]), np.array([2, 3])).tolist()
    [3, 4, 1, 2, 3]
    >>> copied_runs([np.array([1, 2]), np.array([3, 4])], np.array([3, 0]), np.array([1, 2])).tolist()
    [4, 1, 2]
    """
    first = chunks[0]
    if not length.any():
        return first[:0].copy()
    width, starts = first.itemsize * prod(first.shape[1:]), _starts_of(chunks)
    at, length = _short_runs(at, length, _VIEWED_BYTES // width)
    number = starts.searchsorted(at, side="right") - 1
    flat = [np.ascontiguousarray(values).reshape(-1).view(np.uint8) for values in chunks]
    copied = _viewed(flat, number, (at - starts[number]) * width, length * width).cast(pa.large_binary())
    return np.frombuffer(copied.buffers()[2], first.dtype).reshape(-1, *first.shape[1:])


def _starts_of(chunks: Sequence[NDArray[Any]]) -> Ints:
    return np.cumsum([0, *map(len, chunks[:-1])])


_VIEWED_BYTES = 1 << 30
"""Of a run, and of the place where it begins in its buffer, at most: both are int32."""

_INSIDE_BYTES = 12
"""Up to here the bytes of a view are in the view itself."""


def _short_runs(at: Ints, length: Ints, most: int) -> tuple[Ints, Ints]:
    """Return runs of at most so many values, which are the same together."""
    if length.max() <= most:
        return at, length
    count = -(-length // most)
    before = (np.arange(count.sum()) - (count.cumsum() - count).repeat(count)) * most
    return at.repeat(count) + before, np.minimum(length.repeat(count) - before, most)


def _viewed(flat: Sequence[NDArray[np.uint8]], number: Ints, begin: Ints, size: Ints) -> pa.Array:
    """View some bytes of arrays as strings.

    Args:
        number: int64[n], the array of each string.
        begin: int64[n], the place of its first byte there.
        size: int64[n], its bytes.
    """
    begins = [range(0, max(1, len(values)), _VIEWED_BYTES) for values in flat]
    buffers = [values[start:] for values, starts in zip(flat, begins, strict=True) for start in starts]
    block, offset = np.divmod(begin, _VIEWED_BYTES)
    block += np.cumsum([0, *map(len, begins[:-1])])[number]
    views = np.zeros((len(size), 4), dtype=np.int32)
    views[:, 0], views[:, 2], views[:, 3] = size, block, offset
    if size.min() <= _INSIDE_BYTES:
        _write_inside(views, buffers, block, offset)
    memory = [pa.py_buffer(each) for each in (views, *buffers)]
    return pa.Array.from_buffers(pa.binary_view(), len(views), [None, *memory], null_count=0)


def _write_inside(views: NDArray[np.int32], buffers: Sequence[NDArray[np.uint8]], block: Ints, offset: Ints) -> None:
    """Write the bytes of short strings into their views."""
    short = np.flatnonzero((views[:, 0] > 0) & (views[:, 0] <= _INSIDE_BYTES))
    short = short[np.argsort(block[short], kind="stable")]
    for some in np.split(short, np.flatnonzero(np.diff(block[short])) + 1):
        if len(some):
            places = np.add.outer(offset[some], np.arange(_INSIDE_BYTES))
            views.view(np.uint8)[some, 4:] = buffers[block[some[0]]].take(places, mode="clip")
