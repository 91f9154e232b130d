"""A mixture of sources: which source, and which of its rows, comes at each place, at the cost of one block.

Places are cut into blocks. After n places, source i has had ``floor(n * W_i) - floor(n * W_(i-1))`` of them, where W
are the cumulative shares: always within one of its share ``n * w_i``. Inside a block the places of the sources are
shuffled. A block is so long that each source has at least one place in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from torch_table_loader.errors import ConfigError
from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.permutation import Permutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

StopRule = Literal["first_exhausted", "all_exhausted", "forever"]

BLOCK_ROWS = 256
_MOST_BLOCK_ROWS = 1 << 20


class Place(NamedTuple):
    """What comes at some places of a mixture.

    Args:
        source: int64[n] the source, as a number.
        turn: int64[n] how many rows of that source came before in the epoch.
    """

    source: Ints
    turn: Ints


@dataclass(frozen=True, slots=True)
class Stage:
    """Places from one change of the weights to the next.

    Args:
        start: the first place.
        weights: one a source, in the order of the mixture; 0 leaves a source out.
        before: rows of each source that came before.
    """

    start: int
    weights: tuple[Fraction, ...]
    before: tuple[int, ...]

    @property
    def block(self) -> int:
        """Rows of a block: `BLOCK_ROWS`, or more where a source is rarer than that."""
        total = sum(self.weights)
        rarest = min(weight for weight in self.weights if weight)
        return max(BLOCK_ROWS, ceil(total / rarest))

    def counts(self, blocks: int) -> list[int]:
        """Count the rows of each source in the first blocks of the stage."""
        places, total = blocks * self.block, sum(self.weights)
        ends, sofar = [0], Fraction(0)
        for weight in self.weights:
            sofar += weight
            ends.append(int(places * sofar // total))
        return [high - low for low, high in pairwise(ends)]


@dataclass(frozen=True)
class Mixture:
    """Sources and their shares over an epoch.

    Args:
        names: of the sources; they key the orders.
        stages: at least one, the first from place 0.
        seed: key of the shuffling inside blocks.
        epoch: from 0.

    >>> mixture = Mixture.of({"a": 3, "b": 1}, seed=0, epoch=0)
    >>> np.bincount(mixture.places(0, 256).source).tolist()
    [192, 64]
    """

    names: tuple[str, ...]
    stages: tuple[Stage, ...]
    seed: int
    epoch: int
    _starts: Ints = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Derive where stages begin."""
        object.__setattr__(self, "_starts", np.array([stage.start for stage in self.stages], dtype=np.int64))

    @classmethod
    def of(cls, weights: Mapping[str, float], seed: int, epoch: int) -> Mixture:
        """Mix sources by weights, which need not sum to one.

        Raises:
            ConfigError: no source, or a weight that is negative, not finite or too small beside the others.
        """
        shares = _shares(weights)
        return cls(tuple(weights), (Stage(0, shares, (0,) * len(shares)),), seed, epoch)

    def reweighted(self, place: int, weights: Mapping[str, float]) -> Mixture:
        """Change the weights from a place on; sources may come (from their start) and go.

        Args:
            place: at or behind the start of the newest stage.
            weights: by name.

        Raises:
            ConfigError: the place lies before the newest change, or a weight is wrong.
        """
        if place < self.stages[-1].start:
            raise ConfigError(f"weights were changed at place {self.stages[-1].start}, which is behind {place}")
        names = (*self.names, *(name for name in weights if name not in self.names))
        every = {name: weights.get(name, 0) for name in names}
        had = (*self.rows_before(place), *([0] * (len(names) - len(self.names))))
        more = (Fraction(0),) * (len(names) - len(self.names))
        stages = tuple(
            Stage(old.start, (*old.weights, *more), (*old.before, *([0] * len(more))))
            for old in self.stages
            if old.start < place
        )
        return Mixture(names, (*stages, Stage(place, _shares(every), had)), self.seed, self.epoch)

    def rows_before(self, place: int) -> tuple[int, ...]:
        """Count the rows of each source that come before a place."""
        stage = self.stages[int(np.searchsorted(self._starts, place, side="right")) - 1]
        blocks, rest = divmod(place - stage.start, stage.block)
        counts = [had + count for had, count in zip(stage.before, stage.counts(blocks), strict=True)]
        if rest:
            inside = self.places(place - rest, place).source
            for source, count in enumerate(np.bincount(inside, minlength=len(counts)).tolist()):
                counts[source] += count
        return tuple(counts)

    def places(self, start: int, stop: int) -> Place:
        """Say what comes at the places [start, stop)."""
        return self.take(np.arange(start, stop, dtype=np.int64))

    def take(self, places: Ints) -> Place:
        """Say what comes at each place.

        Args:
            places: int64[n], none negative.
        """
        source, index = np.empty_like(places), np.empty_like(places)
        stages = np.searchsorted(self._starts, places, side="right") - 1
        for number in np.unique(stages).tolist():
            stage = self.stages[number]
            inside = np.flatnonzero(stages == number)
            blocks = (places[inside] - stage.start) // stage.block
            for block in np.unique(blocks).tolist():
                at = inside[blocks == block]
                slots = places[at] - stage.start - block * stage.block
                source[at], index[at] = self._in_block(stage, block, slots)
        return Place(source, index)

    def _in_block(self, stage: Stage, block: int, slots: Ints) -> tuple[Ints, Ints]:
        before, after = stage.counts(block), stage.counts(block + 1)
        counts = tuple(high - low for low, high in zip(before, after, strict=True))
        source, rank = _shuffled(counts, self.seed, self.epoch, f"mixture block {block} from {stage.start}")
        first = np.array(stage.before, dtype=np.int64) + np.array(before, dtype=np.int64)
        return source[slots], rank[slots] + first[source[slots]]

    def length(self, rows: Sequence[int], rule: StopRule) -> int | None:
        """Count the places of the epoch.

        Args:
            rows: of each source.
            rule: "first_exhausted": before any source that has a weight would repeat a row; "all_exhausted": when
                each has delivered all its rows; "forever".

        Returns:
            None for "forever".

        Raises:
            ConfigError: a source with a weight has no row, or the rule is unknown.
        """
        if rule not in get_args(StopRule):
            raise ConfigError(f"stop must be one of {', '.join(map(repr, get_args(StopRule)))}, got {rule!r}")
        weights = self.stages[-1].weights
        if empty := [name for name, n, w in zip(self.names, rows, weights, strict=True) if w and not n]:
            raise ConfigError(f"source {empty[0]!r} has no row; leave it out of the mixture, or give it the weight 0")
        if rule == "forever":
            return None
        wanted = [number for number, weight in enumerate(weights) if weight]

        def over(place: int) -> bool:
            counts = self.rows_before(place)
            if rule == "first_exhausted":
                return any(counts[number] > rows[number] for number in wanted)
            return all(counts[number] >= rows[number] for number in wanted)

        first = _first(over, self.stages[-1].start)
        return first - 1 if rule == "first_exhausted" else first


def source_order(rows: int, seed: int, name: str, epoch: int, wrap: int) -> Permutation:
    """Give the order in which a source's rows come between two wraps.

    Args:
        rows: of the source.
        seed: the mixture's.
        name: the source's.
        epoch: from 0.
        wrap: how often the source has been through.
    """
    return Permutation(rows, derive_key(seed, epoch, f"mixture source {wrap} {name}"))


def source_rows(turn: Ints, rows: int, seed: int, name: str, epoch: int) -> Ints:
    """Turn how many rows of a source came before into the row that comes; it repeats none until it wraps.

    Args:
        turn: int64[n], none negative.
        rows: of the source, at least one.
        seed: the mixture's.
        name: the source's.
        epoch: from 0.
    """
    wraps = turn // rows
    taken = np.empty_like(turn)
    for wrap in np.unique(wraps).tolist():
        inside = wraps == wrap
        taken[inside] = source_order(rows, seed, name, epoch, wrap).take(turn[inside] % rows)
    return taken


def _first(over: Callable[[int], bool], low: int) -> int:
    """Find the first place at which something holds that then holds for ever."""
    high = max(1, low)
    while not over(high):
        high *= 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if over(middle) else (middle + 1, high)
    return low


@lru_cache(maxsize=64)
def _shuffled(counts: tuple[int, ...], seed: int, epoch: int, purpose: str) -> tuple[Ints, Ints]:
    """Shuffle a block: the source of each slot, and how many of the block's slots before it have the same source."""
    size = sum(counts)
    order = Permutation(size, derive_key(seed, epoch, purpose)).slice(0, size)
    source = np.searchsorted(np.cumsum(counts), order, side="right")
    rank = np.empty_like(source)
    starts = np.cumsum(counts) - np.array(counts, dtype=np.int64)
    rank[np.argsort(source, kind="stable")] = np.arange(size) - np.repeat(starts, counts)
    return source, rank


def _shares(weights: Mapping[str, float]) -> tuple[Fraction, ...]:
    try:
        shares = tuple(Fraction(weight) for weight in weights.values())
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"weights must be numbers by source name, got {dict(weights)!r}") from error
    if not any(shares) or min(shares) < 0:
        raise ConfigError(f"weights must be at least 0, and one of them above it, got {dict(weights)!r}")
    rarest = min(share for share in shares if share)
    if sum(shares) / rarest > _MOST_BLOCK_ROWS:
        raise ConfigError(
            f"the smallest weight must be at least 1/{_MOST_BLOCK_ROWS} of their sum, got {dict(weights)!r}; "
            "leave that source out"
        )
    return shares


__all__ = ["BLOCK_ROWS", "Mixture", "Place", "Stage", "StopRule", "source_order", "source_rows"]
