"""What sources lack of their shares where these begin, since sequences of another length came before.

A lack is a whole number: tokens, times the sum of the weights. So it is exact however often the length changes. A
source that had too much lacks less than nothing; all together lack nothing.

Shares with lacks hold from the end of the first block on, whatever came before. Within it, turns are due as the shares
say: a turn of a source is late by at most as many turns as other sources had too much when the block began.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

MOST_TURNS = 1 << 16
"""Turns in which sources make up for what came before, at most; a source that is further ahead forgets the rest."""


def lacks_after(weights: Sequence[int], had: Sequence[int], width: int, lacks: Sequence[int] = ()) -> tuple[int, ...]:
    """Return what sources lack after some turns of each, of so many tokens.

    >>> lacks_after((2, 1), [3, 1], 5)
    (-5, 5)
    """
    whole, turns = sum(weights), sum(had)
    before = lacks or (0,) * len(weights)
    return tuple(
        lack + (turns * weight - own * whole) * width for lack, weight, own in zip(before, weights, had, strict=True)
    )


def turns_to_make_up(weights: Sequence[int], lacks: Sequence[int], width: int) -> int:
    """Return the turns after which no source has more than its share, but for those that are too far ahead."""
    pairs = zip(weights, lacks, strict=False)
    return min(MOST_TURNS, max((-(lack // (weight * width)) for weight, lack in pairs if weight), default=0))


def made_up_in(turns: int, weights: Sequence[int], lacks: Sequence[int], width: int) -> tuple[int, ...]:
    """Return lacks of which no source is ahead by more than its share of so many turns.

    What one forgets, those that lack most get less.

    >>> made_up_in(4, (3, 1), (10, -10), 1)
    (4, -4)
    """
    found = [max(lack, -turns * weight * width) for weight, lack in zip(weights, lacks, strict=False)]
    forgotten = sum(found) - sum(lacks)
    for source in sorted(range(len(found)), key=lambda each: -found[each]):
        taken = min(forgotten, max(0, found[source]))
        found[source], forgotten = found[source] - taken, forgotten - taken
    return tuple(found)


def cumulative(turns: Ints, weights: Sequence[int], lacks: Sequence[int] = (), width: int = 1) -> Ints:
    """Return how many of the first turns (int64[n]) the sources before each have: int64[n, sources + 1].

    These are the cumulative shares, rounded down.

    >>> cumulative(np.array([0, 3]), (1, 1)).tolist()
    [[0, 0, 0], [0, 1, 3]]
    """
    edges = [share * width for share in accumulate(weights, initial=0)]
    offsets = list(accumulate(lacks or (0,) * len(weights), initial=0))
    most = max(1, int(turns.max(initial=0))) * edges[-1] + max(map(abs, offsets))
    kind: Any = np.int64
    if most >= 1 << 63:
        kind = object
    ends: Any = (turns.astype(kind)[:, None] * np.array(edges, dtype=kind) + np.array(offsets, dtype=kind)) // edges[-1]
    found: Ints = ends.astype(np.int64)
    found[turns == 0] = 0  # nothing came, whatever is due
    return found
