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
            return NO_RUNS
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

    def __len__(self) -> int:
        """Count the pieces."""
        return len(self.split)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield each piece as ``(split, start, stop)``."""
        return zip(self.split.tolist(), self.start.tolist(), self.stop.tolist(), strict=True)


def covered(runs: Runs) -> tuple[Runs, NDArray[np.int64]]:
    """Return one piece of each split that has all its rows, and where each row comes in these: int64[rows].

    >>> cover, places = covered(Runs.of([(7, 5, 6), (3, 0, 2), (7, 3, 4)]))
    >>> list(cover), places.tolist()
    ([(3, 0, 2), (7, 3, 6)], [4, 0, 1, 2])
    """
    split, at = np.unique(runs.split, return_inverse=True)
    start, stop = np.full_like(split, np.iinfo(np.int64).max), np.zeros_like(split)
    np.minimum.at(start, at, runs.start)
    np.maximum.at(stop, at, runs.stop)
    cover, lengths = Runs(split, start, stop), runs.stop - runs.start
    first = (cover.ends - cover.stop)[at] + runs.start
    return cover, np.repeat(first - runs.ends + lengths, lengths) + np.arange(runs.num_rows)


NO_RUNS = Runs.of([])
"""No piece of any split."""


@dataclass(frozen=True, slots=True, eq=False)
class Hands:
    """The runs of H hands, one hand after the other, so that one call serves them all.

    Args:
        runs: N pieces.
        borders: int64[H+1]; hand h has the pieces ``borders[h]:borders[h + 1]``.
    """

    runs: Runs
    borders: NDArray[np.int64]

    @classmethod
    def of(cls, hands: Sequence[Runs]) -> Hands:
        """Join the runs of hands."""
        return cls(Runs.concat(hands), _borders(np.array([len(hand) for hand in hands], dtype=np.int64)))

    @classmethod
    def every(cls, runs: Runs, first: NDArray[np.int64], step: int) -> Hands:
        """Deal each `step`-th piece, from some first ones on (int64[H]), which are less than `step`.

        >>> [list(hand) for hand in Hands.every(Runs.of([(7, 0, 1), (3, 0, 2), (5, 0, 3)]), np.array([1, 0]), 2)]
        [[(3, 0, 2)], [(7, 0, 1), (5, 0, 3)]]
        """
        borders = _borders(np.maximum(-((first - len(runs)) // step), 0))
        place = np.arange(borders[-1], dtype=np.int64)
        place *= step
        place += np.repeat(first - borders[:-1] * step, np.diff(borders))
        return cls(runs.take(place), borders)

    @property
    def rows(self) -> NDArray[np.int64]:
        """int64[H]: the rows of each hand."""
        return np.diff(self._before)

    def parts(self, hand: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64]) -> Hands:
        """Return M hands: rows [start, stop) of hands, counted in each; all three are int64[M].

        >>> hands = Hands.every(Runs.of([(7, 0, 10), (3, 5, 9)]), np.array([0]), 1)
        >>> [list(part) for part in hands.parts(*np.array([[0, 0], [8, 3], [12, 3]]))]
        [[(7, 8, 10), (3, 5, 7)], []]
        """
        runs, ends, before = self.runs, self.runs.ends, self._before[hand]
        start, stop = before + start, before + stop
        first, last = np.searchsorted(ends, start, side="right"), np.searchsorted(ends, stop, side="left")
        some = stop > start
        borders = _borders(np.where(some, last - first + 1, 0))
        pieces = np.arange(borders[-1], dtype=np.int64)
        pieces += np.repeat(first - borders[:-1], np.diff(borders))
        part = runs.take(pieces)
        first, last = first[some], last[some]
        part.stop[borders[1:][some] - 1] -= ends[last] - stop[some]
        part.start[borders[:-1][some]] = runs.stop[first] - (ends[first] - start[some])
        return Hands(part, borders)

    def some(self, which: NDArray[np.bool_]) -> Hands:
        """Return some of the pieces (bool[N]) of each hand.

        >>> hands = Hands.of([Runs.of([(7, 0, 10), (3, 5, 9)]), Runs.of([(1, 0, 2)])])
        >>> [list(hand) for hand in hands.some(np.array([False, True, False]))]
        [[(3, 5, 9)], []]
        """
        if which.all():
            return self
        return Hands(self.runs.take(np.flatnonzero(which)), _borders(which)[self.borders])

    def dealt(self, lane_of: NDArray[np.int64], lanes: int) -> Hands:
        """Deal each hand on, to so many others, which come after each other.

        Args:
            lane_of: int64[N] which of these gets a piece.

        >>> hands = Hands.every(Runs.of([(7, 0, 10), (3, 5, 9)]), np.array([0]), 1)
        >>> [list(lane) for lane in hands.dealt(np.array([1, 1]), 2)]
        [[], [(7, 0, 10), (3, 5, 9)]]
        """
        number = np.repeat(np.arange(len(self)) * lanes, np.diff(self.borders)) + lane_of
        count = len(self) * lanes
        return Hands(self.runs.take(by_number(number, count)), _borders(np.bincount(number, minlength=count)))

    def followed_by(self, others: Hands) -> Hands:
        """Append to each hand the pieces of one of as many others.

        >>> hands = Hands.of([Runs.of([(7, 0, 10)]), Runs.of([(1, 0, 2)])])
        >>> [list(hand) for hand in hands.followed_by(hands)]
        [[(7, 0, 10), (7, 0, 10)], [(1, 0, 2), (1, 0, 2)]]
        """
        if not len(self.runs):
            return others
        number = np.concatenate([np.repeat(np.arange(len(self)), np.diff(each.borders)) for each in (self, others)])
        joined = Runs.concat([self.runs, others.runs])
        return Hands(joined.take(by_number(number, len(self))), self.borders + others.borders)

    def __len__(self) -> int:
        """Count the hands."""
        return len(self.borders) - 1

    def __getitem__(self, hand: int) -> Runs:
        """Return the runs of one hand."""
        part = slice(self.borders[hand], self.borders[hand + 1])
        return Runs(self.runs.split[part], self.runs.start[part], self.runs.stop[part])

    def __iter__(self) -> Iterator[Runs]:
        """Yield the runs of each hand."""
        return map(self.__getitem__, range(len(self)))

    @property
    def _before(self) -> NDArray[np.int64]:
        """int64[H+1]: the rows before each hand, and those of all."""
        return np.concatenate(([0], self.runs.ends))[self.borders]


def by_number(numbers: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return places in the order of their numbers, which are below `count`; those of one number stay in order.

    >>> by_number(np.array([1, 0, 1, 0]), 2).tolist()
    [1, 3, 0, 2]
    """
    return np.argsort(numbers.astype(np.min_scalar_type(count)), kind="stable")  # numbers of 16 bits are not compared


def _borders(counts: NDArray[np.int64] | NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return where stretches of so many begin, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
