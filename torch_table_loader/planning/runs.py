"""Runs: an ordered list of pieces of splits, cut and joined by row."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Chains(NamedTuple):
    """Pieces of splits that continue each other, of N pieces.

    Args:
        last: int64[N] where the chain ends that a piece begins; −1 where it begins none.
        slot: int64[N] the slot of the piece's chain. Slots are numbered from 0; a chain has one until its last piece.
    """

    last: NDArray[np.int64]
    slot: NDArray[np.int64]


def _slots(last: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the first piece of each chain the lowest slot that is free: int64[N].

    Chains of one piece keep no slot, and may be very many; only the others are looked at one by one.
    """
    slots, place = np.zeros(len(last), dtype=np.int64), np.arange(len(last))
    first = np.flatnonzero(last > place)
    changes = np.sort(np.concatenate((first, last[first])))
    free, ends, lowest = [0], dict[int, int](), [0]
    for piece, end in zip(changes.tolist(), last[changes].tolist(), strict=True):
        if piece in ends:
            heapq.heappush(free, ends.pop(piece))
        else:
            slots[piece] = ends[end] = heapq.heappop(free)
            if not free:
                free.append(len(ends))  # all slots below are taken
        lowest.append(free[0])
    alone = np.flatnonzero(last == place)
    slots[alone] = np.array(lowest)[np.searchsorted(changes, alone)]
    return slots


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """N pieces of splits, in the order in which their rows come.

    Args:
        split: int64[N] the split of each piece.
        start: int64[N] its first row among the split's live rows.
        stop: int64[N] the row after its last row.

    >>> runs = Runs.of([(7, 0, 10), (3, 5, 9)])
    >>> runs.num_rows, list(runs.slice(8, 12))
    (14, [(7, 8, 10), (3, 5, 7)])
    """

    split: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    _ends: NDArray[np.int64] | None = field(default=None, init=False, repr=False)

    @property
    def ends(self) -> NDArray[np.int64]:
        """int64[N]: rows of each piece and all before it."""
        ends = self._ends
        if ends is None:  # added up when it is first asked for, since most runs are only taken apart further
            ends = (self.stop - self.start).cumsum(dtype=np.int64)
            object.__setattr__(self, "_ends", ends)
        return ends

    @classmethod
    def of(cls, pieces: Sequence[tuple[int, int, int]]) -> Runs:
        """Build from ``(split, start, stop)``."""
        table = np.array(pieces, dtype=np.int64).reshape(-1, 3)
        return cls(table[:, 0], table[:, 1], table[:, 2])

    @classmethod
    def concat(cls, parts: Sequence[Runs]) -> Runs:
        """Join runs, one after the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            *(
                np.concatenate([np.empty(0, dtype=np.int64), *(getattr(part, name) for part in parts)])
                for name in ("split", "start", "stop")
            )
        )

    @property
    def num_rows(self) -> int:
        """Rows of all pieces."""
        if len(self.ends):
            return int(self.ends[-1])
        return 0

    def slice(self, start: int, stop: int) -> Runs:
        """Return the rows [start, stop), counted over all pieces; `stop` is clipped."""
        ends, total = self.ends, self.num_rows
        start, stop = max(0, start), min(stop, total)
        if start >= stop:
            return Runs.of([])
        if start == 0 and stop == total:
            return self
        first, last = int(ends.searchsorted(start, side="right")), int(ends.searchsorted(stop, side="left"))
        part = slice(first, last + 1)
        begins, stops = self.start[part].copy(), self.stop[part].copy()
        stops[-1] -= ends[last] - stop
        begins[0] = self.stop[first] - (ends[first] - start)
        return Runs(self.split[part], begins, stops)

    def chains(self) -> Chains:
        """Return what comes of each split without a gap, though pieces of other splits may stand between.

        >>> chains = Runs.of([(0, 0, 4), (1, 0, 2), (0, 4, 6), (1, 3, 5)]).chains()
        >>> chains.last.tolist(), chains.slot.tolist()
        ([2, 1, -1, 3], [0, 1, 0, 0])
        """
        by_split = np.argsort(self.split, kind="stable")
        split, start, stop = self.split[by_split], self.start[by_split], self.stop[by_split]
        begins = np.ones(len(by_split), dtype=np.bool_)
        begins[1:] = (split[1:] != split[:-1]) | (start[1:] != stop[:-1])
        last = np.full(len(by_split), -1, dtype=np.int64)
        ends = np.append(begins[1:], True)[: len(by_split)]
        last[by_split[begins]] = by_split[ends]
        slot = np.zeros(len(by_split), dtype=np.int64)
        if (last < 0).any():
            chain = np.empty(len(by_split), dtype=np.int64)
            chain[by_split] = by_split[begins][np.cumsum(begins) - 1]
            slot = _slots(last)[chain]
        return Chains(last, slot)

    def places(self, first: int, last: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return where rows [start, stop) of a split stand among all rows, of the chain of pieces `first` to `last`.

        >>> Runs.of([(0, 0, 4), (1, 0, 2), (0, 4, 6)]).places(0, 2, 2, 6).tolist()
        [2, 3, 6, 7]
        """
        pieces = first + np.flatnonzero(self.split[first : last + 1] == self.split[first])
        shift = self.ends[pieces] - self.stop[pieces]
        rows = np.minimum(self.stop[pieces], stop) - np.maximum(self.start[pieces], start)
        return np.arange(start, stop) + np.repeat(shift, np.maximum(rows, 0))

    def take(self, index: NDArray[np.int64]) -> Runs:
        """Return some of the pieces (int64[M] positions), whole."""
        return Runs(self.split[index], self.start[index], self.stop[index])

    def every(self, first: int, step: int) -> Runs:
        """Return each `step`-th piece from one on, whole.

        >>> list(Runs.of([(7, 0, 1), (3, 0, 2), (5, 0, 3)]).every(0, 2))
        [(7, 0, 1), (5, 0, 3)]
        """
        return Runs(*(np.ascontiguousarray(each[first::step]) for each in (self.split, self.start, self.stop)))

    def dealt(self, hand_of: NDArray[np.int64], hands: int) -> tuple[Runs, ...]:
        """Return the pieces of each of some hands.

        Args:
            hand_of: int64[N] the hand of each piece.

        >>> [list(hand) for hand in Runs.of([(7, 0, 10), (3, 5, 9)]).dealt(np.array([1, 1]), 2)]
        [[], [(7, 0, 10), (3, 5, 9)]]
        """
        if hands == 1:
            return (self,)
        return tuple(self.take(np.flatnonzero(hand_of == hand)) for hand in range(hands))

    def __len__(self) -> int:
        """Count the pieces."""
        return len(self.split)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield each piece as ``(split, start, stop)``."""
        return zip(self.split.tolist(), self.start.tolist(), self.stop.tolist(), strict=True)
