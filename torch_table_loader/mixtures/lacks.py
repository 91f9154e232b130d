"""What is due to sources that have shares, and what they lack of it where the shares begin.

Of n turns, n times its share is due to a source. It lacks some, or had too much, if sequences of another length came
before.

A lack is a whole number: tokens, times the sum of the weights. So it is exact however often the length changes. A
source that had too much lacks less than nothing; all together lack nothing.

Shares with lacks hold from the end of the first block on, whatever came before. Within it, turns are due as the shares
say: a turn of a source is late by at most as many turns as other sources had too much when the block began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

MOST_TURNS = 1 << 16
"""Turns in which sources make up for what came before, at most; a source that is further ahead forgets the rest."""


@dataclass(frozen=True, slots=True)
class Dues:
    """What is due to sources: tokens, times the sum of the weights. Of `whole` they get a turn.

    Args:
        weights: non-negative integers; if none is positive, no turns come.
        lacks: what each source lacks when the turns begin; empty if nothing.
        width: tokens of a turn; 1 where there are no lacks.
    """

    weights: tuple[int, ...]
    lacks: tuple[int, ...] = ()
    width: int = 1

    @property
    def whole(self) -> int:
        """What a turn takes of what is due."""
        return sum(self.weights) * self.width

    @property
    def turns_of_all(self) -> int:
        """The turns of which each source with a weight is due one; 1 if none has a weight, since all were dropped."""
        if not any(self.weights):
            return 1
        return -(-sum(self.weights) // min(weight for weight in self.weights if weight))

    @property
    def turns_to_make_up(self) -> int:
        """The turns after which no source has more than its share, but for those that are too far ahead."""
        if not self.lacks:
            return 0
        pairs = zip(self.weights, self.lacks, strict=False)
        return min(MOST_TURNS, max((-(lack // (weight * self.width)) for weight, lack in pairs if weight), default=0))

    def at(self, turns: Ints) -> NDArray[Any]:
        """Return what is due to each source of the first turns (int64[n]): [n, sources], of exact integers.

        >>> Dues((2, 1), (-5, 5), 5).at(np.array([0, 4])).tolist()
        [[-5, 5], [35, 25]]
        """
        most = max(1, int(turns.max(initial=0))) * self.whole
        if self.lacks:
            most += max(map(abs, (*self.lacks, *accumulate(self.lacks))))
        kind: Any = np.int64
        if most >= 1 << 63:
            kind = object
        each = [weight * self.width for weight in self.weights]
        found: NDArray[Any] = np.multiply.outer(turns.astype(kind), np.array(each, dtype=kind))
        if self.lacks:
            found += np.array(self.lacks, dtype=kind)
        return found

    def edges(self, turns: Ints) -> Ints:
        """Return how many of the first turns (int64[n]) the sources before each have: int64[n, sources + 1].

        These are the cumulative shares, rounded down.

        >>> Dues((1, 1)).edges(np.array([0, 3])).tolist()
        [[0, 0, 0], [0, 1, 3]]
        """
        found = np.zeros((len(turns), len(self.weights) + 1), dtype=np.int64)
        found[:, 1:] = self.at(turns).cumsum(axis=1) // self.whole
        found[turns == 0] = 0  # nothing came, whatever is due
        return found

    def turns_until(self, source: int, turn: int) -> int:
        """Return the turns of which a source with a weight is due as many, rounded down."""
        due = turn * self.whole
        if self.lacks:
            due = max(0, due - self.lacks[source])
        return due // (self.weights[source] * self.width)

    def lacks_after(self, had: Sequence[int]) -> tuple[int, ...]:
        """Return what sources lack after some turns of each.

        >>> Dues((2, 1), width=5).lacks_after([3, 1])
        (-5, 5)
        """
        due = self.at(np.array([sum(had)]))[0].tolist()
        return tuple(each - turns * self.whole for each, turns in zip(due, had, strict=True))

    def made_up_in(self, turns: int) -> tuple[int, ...]:
        """Return lacks of which no source is ahead by more than its share of so many turns.

        What one forgets, those that lack most get less.

        >>> Dues((3, 1), (10, -10)).made_up_in(4)
        (4, -4)
        """
        pairs = zip(self.weights, self.lacks, strict=False)
        found = [max(lack, -turns * weight * self.width) for weight, lack in pairs]
        forgotten = sum(found) - sum(self.lacks)
        for source in sorted(range(len(found)), key=lambda each: -found[each]):
            taken = min(forgotten, max(0, found[source]))
            found[source], forgotten = found[source] - taken, forgotten - taken
        return tuple(found)
