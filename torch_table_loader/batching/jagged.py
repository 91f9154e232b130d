"""Lists of fixed-width values as offsets and values, and the room in which runs of them become one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from typing_extensions import override

from torch_table_loader.arrow.buffers import new_array

if TYPE_CHECKING:
    from numpy.typing import NDArray


_SPARE = 9 / 8
"""Room is made for so many times the values that are likely to come."""

_FAR_ABOVE = 16
"""A list more than so many times as long as usual does not raise the estimate of those to come."""

_GROWTH = 4
"""Room that is too small grows by at least one part in so many."""


class Lists(NamedTuple):
    """Lists of fixed-width values: row i is ``values[offsets[i]:offsets[i + 1]]``.

    Offsets are int32 or int64, only read, and need not begin at 0.
    """

    offsets: NDArray[Any]
    values: NDArray[Any]


def used_values(data: Lists) -> NDArray[Any]:
    """View the values of the rows alone."""
    return data.values[data.offsets[0] : data.offsets[-1]]


def joined_offsets(parts: Sequence[Lists]) -> NDArray[np.int64]:
    """Return the offsets of runs as one, from 0."""
    return offsets_from(np.concatenate([np.diff(part.offsets) for part in parts]))


def offsets_from(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Return where each list begins and the last ends, from 0, for some lengths.

    >>> offsets_from(np.array([2, 0, 3]))
    array([0, 2, 2, 5])
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


class Room(ABC):
    """Joins runs of one column that come one after the other."""

    __slots__ = ()

    @abstractmethod
    def add(self, part: Any, to_come: int) -> None:
        """Add a run, after which those of so many rows are to come."""

    @abstractmethod
    def taken(self) -> Any:
        """Return all runs as one."""


class KeptUntilJoined(Room):
    """Keeps runs until all have come."""

    __slots__ = ("_join", "_parts")

    def __init__(self, join: Callable[[Sequence[Any]], Any], parts: Sequence[Any]) -> None:
        self._join = join
        self._parts = [*parts]

    @override
    def add(self, part: Any, to_come: int) -> None:
        self._parts.append(part)

    @override
    def taken(self) -> Any:
        return self._join(self._parts)


class ListsRoom(Room):
    """Copies runs of lists into room for all values; the lengths so far say how many these will be, about."""

    __slots__ = ("_end", "_lengths", "_values")

    def __init__(self, parts: Sequence[Lists], to_come: int) -> None:
        self._lengths = [np.diff(part.offsets) for part in parts]
        used = [used_values(part) for part in parts]
        self._end = sum(map(len, used))
        self._values = self._new(self._end + self._likely(to_come), used[0])
        np.concatenate(used, out=self._values[: self._end])

    @override
    def add(self, part: Lists, to_come: int) -> None:
        used = used_values(part)
        self._lengths.append(np.diff(part.offsets))
        begin, self._end = self._end, self._end + len(used)
        if self._end > len(self._values):
            more = max(self._likely(to_come), self._end // _GROWTH) if to_come else 0
            before, self._values = self._values, self._new(self._end + more, used)
            self._values[:begin] = before[:begin]
        self._values[begin : self._end] = used

    @override
    def taken(self) -> Lists:
        return Lists(offsets_from(np.concatenate(self._lengths)), self._values[: self._end])

    def _likely(self, to_come: int) -> int:
        """Return the values for which so many rows that are to come need room."""
        return int(_SPARE * to_come * _usual_length(np.concatenate(self._lengths)))

    def _new(self, length: int, like: NDArray[Any]) -> NDArray[Any]:
        return new_array((length, *like.shape[1:]), like.dtype)


def _usual_length(lengths: NDArray[Any]) -> float:
    """Return the mean of some lengths; those far above the median of the means of their parts count less.

    >>> _usual_length(np.array([3, 5] * 40)), _usual_length(np.array([3, 5] * 40 + [10**9]))
    (4.0, 4.74...)
    """
    if not len(lengths):
        return 0.0
    starts = np.arange(0, len(lengths), max(1, len(lengths) // 8))
    means = np.add.reduceat(lengths, starts, dtype=np.int64) / np.diff(starts, append=len(lengths))
    return float(np.minimum(lengths, _FAR_ABOVE * np.median(means)).mean())
