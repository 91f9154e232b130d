"""Turns of several sources such that every prefix has each source's share, to within one turn.

After n turns, source i of weight ``w_i`` (the weights sum to one) has had ``floor(n * w_i)`` of them, or one more if
that is not whole. So its j-th turn has a window: it comes after the first ``floor((j - 1) / w_i)`` turns of all, and
among the first ``ceil(j / w_i)``. Turns that fit all windows exist for any weights (Tijdeman 1980; in real-time
scheduling these are the Pfair windows of Baruah et al. 1996), and earliest deadline first finds them.

To find turns far from the start without computing those before, turns are cut into blocks, none shorter than a window,
and the turns before each border of blocks are computed independently. Of the turns whose windows lie across a border,
some wait. For any distance ahead, enough of them must not wait if the others are to meet their deadlines. That is a
chain of bounds on nested sets, so the sets that may wait are the independent sets of a matroid. Turns whose windows
begin last are chosen first, which leaves the best-fitting turns for the time before the border. The bounds are those
that a fluid would obey, which gives each source exactly its share, and so are those of the time before the border.
Both are chains, so the system is totally unimodular: the fluid is a solution, hence there is one in whole turns, and
the greedy choice is one.

Inside a block, turns are ordered by the middles of their windows, or by earliest deadline if that does not fit. They
are then exchanged at random as far as the windows allow.

R. Tijdeman, The chairman assignment problem, Discrete Mathematics 32, 1980.
S. Baruah et al., Proportionate progress: a notion of fairness in resource allocation, Algorithmica 15, 1996.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from torch_table_loader.mixtures.lacks import Dues
from torch_table_loader.planning.keys import Key, hashes_of, u64

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

_LEAST_BLOCK = 256
_BITS = 22
"""Bits for a slot of a block, in a turn as one integer: its source, then its first and its last slot."""
_LOW = (1 << _BITS) - 1
_PAIRS_AT_ONCE = 1 << 20


class _Border(NamedTuple):
    """What comes before some blocks.

    Args:
        had: int64[n, sources] turns of each source.
        early: int64[n, sources] 1 if the turn across the border is among them.
        rest: [n, sources] the source's share beyond a whole number of turns, times the sum of weights.
    """

    had: Ints
    early: Ints
    rest: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Quotas(Dues):
    """The turns of sources with weights, none of which is below 1 / 2**21 of their sum; a block makes up the lacks.

    >>> Quotas((3, 1)).had(np.array([0, 1, 2])).tolist()
    [[0, 0], [192, 64], [384, 128]]
    """

    @property
    def block_turns(self) -> int:
        """Turns of a block: a power of two, and at least as many as a window has slots."""
        longest = sum(self.weights) // min(weight for weight in self.weights if weight) + 2
        longest = max(longest, self.turns_to_make_up)
        return max(_LEAST_BLOCK, 1 << (longest - 1).bit_length())

    def had(self, blocks: Ints) -> Ints:
        """Count the turns of each source before some blocks (int64[n]): int64[n, sources]."""
        counts = np.zeros((len(blocks), len(self.weights)), dtype=np.int64)
        counts[:, self._wanted] = self._border(blocks).had
        return counts

    def arranged(self, blocks: Ints, key: Key) -> NDArray[np.int16]:
        """Return the source of each turn of some blocks, by number: int16[n, block_turns]."""
        turns = _exchanged(self._fitted(blocks), blocks, key)
        sources: NDArray[np.int16] = np.array(self._wanted, dtype=np.int16)[turns >> 2 * _BITS]
        return sources

    @property
    def _wanted(self) -> list[int]:
        return [number for number, weight in enumerate(self.weights) if weight]

    def _scaled(self, blocks: Ints) -> tuple[NDArray[Any], int]:
        """Return the positive weights and their sum, as 64-bit integers if every computation fits them."""
        above = [weight * self.width for weight in self.weights if weight]
        total, turns = self.whole, self.block_turns
        most = max((int(blocks.max(initial=0)) + 2) * turns * max(above), len(above) * (turns + 4) * total)
        most += max(map(abs, self.lacks), default=0)
        return np.array(above, dtype=np.int64 if most < 1 << 62 else object), total

    def _border(self, blocks: Ints) -> _Border:
        weights, total = self._scaled(blocks)
        due = self.at(blocks * self.block_turns)[:, self._wanted].astype(weights.dtype)
        had, rest = due // total, due % total
        early = np.empty(rest.shape, dtype=np.int64)
        step = max(1, _PAIRS_AT_ONCE // len(weights) ** 2)
        for first in range(0, len(blocks), step):
            part = slice(first, first + step)
            early[part] = _early(rest[part], weights, total)
        if self.lacks:
            early[blocks == 0] = -had[blocks == 0]  # nothing came, whatever is due
        return _Border((had + early).astype(np.int64), early, rest)

    def _fitted(self, blocks: Ints) -> Ints:
        """Return turns that fit their windows, each as one integer; int64[n, block_turns]."""
        weights, total = self._scaled(blocks)
        size = self.block_turns
        (had, early, rest), after = self._border(blocks), self._border(blocks + 1).had
        counts = (after - had).reshape(-1)
        ends = np.cumsum(counts)
        number = np.arange(len(blocks) * size) - np.repeat(ends - counts, counts) + 1
        source = np.repeat(np.tile(np.arange(len(weights)), len(blocks)), counts)
        at = (np.repeat(early.reshape(-1), counts) + number).astype(weights.dtype) * total
        at -= np.repeat(rest.reshape(-1), counts)
        last = np.clip(-(-at // weights[source]), 1, size).astype(np.int64)
        first = np.maximum((at - total) // weights[source] + 1, 1).astype(np.int64)
        turns = (source << 2 * _BITS | first << _BITS | last).reshape(-1, size)
        middles = (first + last).reshape(-1, size) << _BITS | np.arange(size)
        fitted = np.take_along_axis(turns, np.sort(middles, axis=1) & _LOW, axis=1)
        for wrong in np.flatnonzero(~_fit(fitted)).tolist():
            fitted[wrong] = list(_earliest_deadline(turns[wrong]))
        return fitted


def _early(rest: NDArray[Any], weights: NDArray[Any], total: int) -> Ints:
    """Choose the turns across borders that come before them (1 for each, int64[n, sources]); weights are positive."""
    across = rest > 0
    early = rest.sum(axis=1) // total
    due = -(-(total - rest) // weights)
    open_after = due[:, None] > due[:, :, None]  # [n, at whose deadline, which source]
    fluid = np.where(open_after, rest[:, None] + due[:, :, None] * weights, 0).sum(axis=2)
    needed = -((fluid - early[:, None] * total) // total)
    room = ((across[:, None] & ~open_after).sum(axis=2) - needed).astype(np.int64)
    wait = across.sum(axis=1) - early.astype(np.int64)
    due = due.astype(np.int64)
    age = np.where(across, -(-rest // weights), 1 << 61).astype(np.int64)
    waits, rows = np.zeros(rest.shape, dtype=np.bool_), np.arange(len(rest))
    for turn in np.lexsort((-due, age), axis=1).T:
        bounds = due >= due[rows, turn][:, None]
        fits: NDArray[np.bool_] = ((room > 0) | ~bounds).all(axis=1)
        takes = across[rows, turn] & (wait > 0) & fits
        waits[rows, turn] = takes
        wait -= takes
        room -= bounds & takes[:, None]
    return (across & ~waits).astype(np.int64)


def _fit(turns: Ints) -> NDArray[np.bool_]:
    """Return for each block whether all its turns lie in their windows."""
    slots = np.arange(1, turns.shape[1] + 1)
    outside = (turns >> _BITS & _LOW > slots) | (slots > turns & _LOW)
    return np.asarray(np.count_nonzero(outside, axis=1) == 0)


def _earliest_deadline(turns: Ints) -> Iterator[int]:
    """Yield the turns of a block so that all fit: among those allowed, always the one that is due first."""
    coming = sorted(turns.tolist(), key=lambda turn: -(turn >> _BITS & _LOW))
    ready: list[tuple[int, int]] = []
    for slot in range(1, len(turns) + 1):
        while coming and coming[-1] >> _BITS & _LOW <= slot:
            turn = coming.pop()
            heapq.heappush(ready, (turn & _LOW, turn))
        yield heapq.heappop(ready)[1]


def _exchanged(turns: Ints, blocks: Ints, key: Key) -> Ints:
    """Exchange pairs of turns that fit either way, with even odds: at each distance, in both ways to pair slots."""
    size = turns.shape[1]
    coins = hashes_of((blocks[:, None] * size + np.arange(size)).astype(np.uint64), key)
    distances = [1 << bit for bit in reversed(range(size.bit_length() - 1))]
    for bit, (distance, way) in enumerate((distance, way) for distance in distances for way in (0, 1)):
        part = slice(way * distance, size - way * distance)
        inside = size - 2 * way * distance
        if not inside:
            continue
        pairs = turns[:, part].reshape(len(turns), -1, 2, distance)
        one, two = pairs[:, :, 0], pairs[:, :, 1]
        slots = np.arange(way * distance + 1, size - way * distance + 1).reshape(-1, 2, distance)
        coin = coins[:, part].reshape(pairs.shape)[:, :, 0] >> u64(bit) & u64(1)
        may = (one & _LOW >= slots[:, 1]) & (two >> _BITS & _LOW <= slots[:, 0]) & (coin > 0)
        turns[:, part] = np.stack((np.where(may, two, one), np.where(may, one, two)), axis=2).reshape(-1, inside)
    return turns
