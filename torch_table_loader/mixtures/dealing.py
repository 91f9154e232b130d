"""A mixture of streams: which source comes at each place, and how many rows of each source every lane takes.

A stream is read in long runs, so each lane of each rank (a channel) must know in advance how many rows of each source
it takes. It then reads that many consecutive rows. Places are therefore cut into blocks of whole steps. A block has
``floor((n + K) * W) - floor(n * W)`` rows of source i, less the same number for source i − 1, where W is the cumulative
share up to source i, n is the number of places before the block, and K is the number of its places. So each source has
its share after every block, to within one row. A block is one step if that gives each source a row, else it has
enough steps to do so.

A stage may end anywhere in a block, as an epoch of so many samples does. Shorter than a block, the floors may take back
a row of a source, which cannot be. Its last places then make up what each source lacks of its share at the end. If they
suffice for that, each source ends within one row of its share, and always within two: a source lacks, and has too much,
less than a row when the block begins. What each lacks, rounded down, is at most one more than its share of the places,
so that there are places enough when each source that lacks a row gets one row less.

Inside a block all places have an order, the same in every block of a stage. The first source has the first places
of that order, and so on. The borders between sources in it move by at most one place from block to block, and how often
each border moved in every L-th block is a sum of floors that Euclid's algorithm finds. So the rows that each channel
takes up to any block are known without looking at the blocks before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from math import gcd
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from torch_table_loader.mixtures.lacks import Dues
from torch_table_loader.mixtures.mixture import refuse_no_end
from torch_table_loader.mixtures.stop import StopRule, as_stop
from torch_table_loader.planning.global_batches import ENDLESS
from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.permutation import Permutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.ranks import Topology

    Ints: TypeAlias = NDArray[np.int64]

_GOLDEN = 0.6180339887498949
"""Steps of a block in multiples of this share of it are spread as evenly as possible."""

_MOST_PLACES = 1 << 60
"""The number of places of an endless order, up to which they are counted."""


class Portion(NamedTuple):
    """How the rows of a source's round are dealt to the channels of a stage, each of which takes a run of them.

    Args:
        before: int64[R, L] rows of the source that each channel takes earlier in the stage.
        first: int64[R, L] the first row of its run, among the rows of the round that are left when the stage begins.
        rows: int64[R, L] rows of its run.
        is_last: whether the stage ends within the round, or together with it.
    """

    before: Ints
    first: Ints
    rows: Ints
    is_last: bool


@dataclass(frozen=True, slots=True)
class Deal:
    """The order of several sources in a stage, over places counted from the stage's start.

    Args:
        weights: weight of each source, as integers; 0 leaves a source out.
        topology: the topology of the job. Place p is in step ``p // (R * B)``, which lane ``step mod L`` of each rank
            delivers, and belongs to rank ``p mod R`` (except in a last step that is padded).
        natural: whether the weights are what was left of the sources, so that every remaining row comes once.
        until: places, whole steps, after which other sources come, since some are dropped; 0: none do.
        given: the weights that were asked for, if those of the stage are others, since some sources are dropped.
        width: rows of a source that are an item: 1, or the tokens of a sequence. Places and shares count items.
        lacks: what each source lacks of its share when the stage begins; see `mixtures/lacks.py`.

    >>> from torch_table_loader.planning.ranks import Topology
    >>> deal = Deal(("a", "b"), (3, 1), Topology(2, 1, 4), seed=0, epoch=0)
    >>> deal.dealt(8)[:, :, 0].tolist()
    [[3, 3], [1, 1]]
    """

    names: tuple[str, ...]
    weights: tuple[int, ...]
    topology: Topology
    seed: int
    epoch: int
    number: int = 0
    total: int = ENDLESS
    natural: bool = False
    until: int = 0
    given: tuple[int, ...] = ()
    width: int = 1
    lacks: tuple[int, ...] = ()
    block_steps: int = field(init=False, compare=False, repr=False)
    """Steps after which each source has its share, to within one row."""

    def __post_init__(self) -> None:
        """Compute the steps of a block."""
        dues = self.dues
        steps = -(-max(dues.turns_of_all, dues.turns_to_make_up) // self.step_rows)
        if self.until:
            steps = min(steps, self.until // self.step_rows)
        object.__setattr__(self, "block_steps", steps)

    @property
    def by_name(self) -> dict[str, int]:
        """Weights by name, as they were asked for."""
        return dict(zip(self.names, self.given or self.weights, strict=True))

    @property
    def end(self) -> int:
        """Places of the stage: fewer than `total` if other sources come after them."""
        return min(self.until or self.total, self.total)

    @property
    def step_rows(self) -> int:
        """Places of a step, over all ranks."""
        return self.topology.num_ranks * self.topology.batch_size

    @property
    def optimizer_rows(self) -> int:
        """Places of a step of the optimizer."""
        return self.step_rows * self.topology.micro_batches

    @property
    def dues(self) -> Dues:
        """What is due to the sources."""
        return Dues(self.weights, self.lacks, self.width)

    @property
    def block_rows(self) -> int:
        """Places of those steps."""
        return self.block_steps * self.step_rows

    def shares(self, places: Ints | int) -> Ints:
        """Count the rows of each source before given places: int64[sources] for each.

        Args:
            places: int64[n] or a single place; each is where a block begins or the stage may end.
        """
        counts: Ints = np.diff(self.dues.edges(np.atleast_1d(np.asarray(places, dtype=np.int64))), axis=1)
        return counts

    def lacks_at(self, places: int) -> tuple[int, ...]:
        """Return what each source lacks of its share after the first places."""
        return self.dues.lacks_after(self.rows_before(places).tolist())

    def sources(self, places: Ints) -> NDArray[np.int16]:
        """Return the source of each place (int64[n], each below `end`), as its number among the names."""
        found = np.empty(len(places), dtype=np.int16)
        for block, inside, slots in self._by_block(places):
            found[inside] = _sources(self, block)[slots]
        return found

    def dealt(self, place: int) -> Ints:
        """Count the rows of each source that each channel has before a place: int64[sources, R, L]."""
        blocks, rest = divmod(place, self.block_rows)
        counts = self._dealt_blocks(blocks)
        if rest:
            source, channels = _sources(self, blocks)[:rest], self._channels(blocks)[:rest]
            size = self.topology.num_ranks * self.topology.lanes
            found = np.bincount(source.astype(np.int64) * size + channels, minlength=counts.size)
            counts += found.reshape(counts.shape)
        return counts

    def rows_before(self, place: int) -> Ints:
        """Count the rows of each source before a place: int64[sources]."""
        blocks, rest = divmod(place, self.block_rows)
        counts: Ints = self.shares(blocks * self.block_rows)[0].copy()
        if rest:
            counts += np.bincount(_sources(self, blocks)[:rest], minlength=len(counts))
        return counts

    def place_of(self, source: int, turn: int) -> int:
        """Return the place of a source's row, counted from the stage's start; `end` if it has fewer rows."""
        if not self.weights[source]:
            return self.end
        near = min(self.dues.turns_until(source, turn), self.end) // self.block_rows
        stop = min(near + 2, -(-self.end // self.block_rows))  # a block after the last would count rows of that one
        blocks = np.arange(max(0, near - 1), stop, dtype=np.int64)  # counts are less than one off the shares
        if not len(blocks):
            return self.end
        counts = self.shares(blocks * self.block_rows)[:, source]
        found = int(np.searchsorted(counts, turn, side="right")) - 1
        low, left = int(blocks[found]), turn - int(counts[found])
        slots = np.flatnonzero(_sources(self, low) == source)
        if left < len(slots):
            return low * self.block_rows + int(slots[left])
        return self.end

    def portion(self, source: int, left: int, rows: int, number: int) -> Portion:
        """Deal a round of a source: a part of the stage in which each of its rows comes once.

        Args:
            left: rows left of the round that is open when the stage begins; at least one.
        """
        return _portion(self, source, left, rows, number)

    def takes(self, source: int, channel: tuple[int, int]) -> bool:
        """Return whether a channel takes any row of a source; in an endless stage, the pattern of blocks repeats."""
        # The first block may be another one than those that repeat.
        blocks = min(self.topology.lanes * sum(self.weights) + bool(self.lacks), _MOST_PLACES // self.block_rows)
        end = blocks * self.block_rows if self.end == ENDLESS else self.end
        return bool(self.dealt(end)[source][channel])

    def ordinals(self, places: Ints) -> tuple[NDArray[np.int16], Ints, Ints]:
        """Return for each place its source, its channel (``rank * L + lane``), and the channel's earlier rows of it."""
        channel, ordinal = np.empty_like(places), np.empty_like(places)
        for block, inside, slots in self._by_block(places):
            source, channels = _sources(self, block), self._channels(block)
            key = source.astype(np.int64) * (self.topology.num_ranks * self.topology.lanes) + channels[: len(source)]
            order = np.argsort(key, kind="stable")
            ordered = key[order]
            ordinals = np.empty_like(key)
            ordinals[order] = np.arange(len(key)) - np.searchsorted(ordered, ordered, side="left")
            ordinals += self._dealt_blocks(block).reshape(-1)[key]
            channel[inside], ordinal[inside] = channels[slots], ordinals[slots]
        return self.sources(places), channel, ordinal

    def ending(self, left: Mapping[str, int], rule: StopRule, coming: Collection[str] = ()) -> Deal:
        """Return the same deal, ending at the place where the epoch ends.

        Args:
            left: rows of each source, by name, that may still come before the epoch ends; see `Stop.limits`.
            rule: "first_exhausted": the last place before which no source with a weight repeats a row and each has its
                share; "all_exhausted": the first place before which each source has delivered all its rows and has its
                share; "forever"; or as "first_exhausted", for the sources that it names.
            coming: sources that have a weight in a later stage; see `Mixture.length`.

        Raises:
            ConfigError: no source that ends the epoch has a weight.
        """
        stop = as_stop(rule)
        wanted = {name for name, weight in zip(self.names, self.weights, strict=True) if weight}
        refuse_no_end(stop, {*wanted, *coming})
        waits = stop.at == "all_exhausted" and any(left.get(name, 0) for name in coming if name not in wanted)
        if stop.at == "forever" or waits or wanted.isdisjoint(left):
            return replace(self, total=ENDLESS)
        return replace(self, total=self._place_of(left, first=stop.at != "all_exhausted"))

    def dropping(self, left: Mapping[str, int], last: tuple[Deal, int] | None = None) -> Deal:
        """Return the same deal without sources of which nothing is left, up to the step in which another one ends.

        That step is a stage of its own, in which each source that ends delivers just what is left of it.

        Args:
            left: rows of some sources, by name, after which the others go on without them.
            last: the deal before this one and the places that it had; shares go on if their weights stay.
        """
        own = {number: left[name] for number, name in enumerate(self.names) if name in left and self.weights[number]}
        kept = tuple(0 if own.get(number, 1) <= 0 else weight for number, weight in enumerate(self.weights))
        if not any(kept):
            return replace(self, total=0)
        deal = self._with(kept)._going_on(last)
        if not (ends := {number: rows for number, rows in own.items() if kept[number]}):
            return deal
        by_name = {self.names[number]: rows for number, rows in ends.items()}
        if until := deal._place_of(by_name, first=True, every=self.step_rows):
            if until < deal.dues.turns_to_make_up:
                return self.dropping(left)
            return replace(deal, until=until)
        return deal._last_step(ends)

    def _going_on(self, last: tuple[Deal, int] | None) -> Deal:
        """Return the same deal, of sources that lack what they lacked after another one, if the weights are its own."""
        if last is None or self.natural or (self.names, self.weights) != (last[0].names, last[0].weights):
            return self
        before, places = last
        deal = replace(self, lacks=before.lacks_at(places))
        lacks = deal.dues.made_up_in(deal.block_rows)
        if not any(lacks):
            lacks = ()
        return replace(deal, lacks=lacks)

    def _with(self, weights: tuple[int, ...]) -> Deal:
        """Return the same deal with other weights than those that were asked for."""
        common, asked = gcd(*weights), self.given or self.weights
        found = tuple(each // common for each in weights)
        return replace(self, weights=found, given=() if found == asked else asked, lacks=())

    def _last_step(self, ends: Mapping[int, int]) -> Deal:
        """Return the step in which sources end; `ends` are the rows left of these, and of any that may end in it."""
        exact: dict[int, int] = {}
        while True:
            others = [0 if number in exact else weight for number, weight in enumerate(self.weights)]
            rest, whole = self.step_rows - sum(exact.values()), sum(others)
            if not whole:
                found = self._with(tuple(exact.get(number, 0) for number in range(len(self.weights))))
                return replace(found, total=sum(exact.values()))
            mixed = [
                exact[number] * whole if number in exact else rest * weight for number, weight in enumerate(others)
            ]
            found = replace(self._with(tuple(mixed)), until=self.step_rows)
            had = found.shares(self.step_rows)[0]
            over = {number: rows for number, rows in ends.items() if number not in exact and had[number] > rows}
            if not over:
                return found
            exact |= over

    def _place_of(self, left: Mapping[str, int], *, first: bool, every: int = 1) -> int:
        """Return the last place before which no source has more rows than are left, and each has its share.

        Args:
            first: False: the first place before which each has as many, instead.
            every: the place is a multiple of it.
        """
        wanted = np.array([weight > 0 and name in left for name, weight in zip(self.names, self.weights, strict=True)])
        limit = np.array([left.get(name, 0) for name in self.names])[wanted]

        def over(blocks: int) -> bool:
            had = self.shares(blocks * self.block_rows)[0, wanted]
            return bool((had > limit).any() if first else (had >= limit).all())

        low, high = -1, 1
        while not over(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if over(middle) else (middle, high)
        begin = max(0, high - 1) * self.block_rows
        places = np.arange(begin, high * self.block_rows + 1 if high else 1, every, dtype=np.int64)
        had = self.shares(places)
        fits = (had >= had[0]).all(axis=1)  # between borders of blocks, a floor may take back a row
        fits &= (had[:, wanted] <= limit).all(axis=1) if first else (had[:, wanted] >= limit).all(axis=1)
        return int(places[np.flatnonzero(fits)[-1 if first else 0]])

    def _by_block(self, places: Ints) -> Iterator[tuple[int, slice, Ints]]:
        """Yield runs of places that share a block: the block, the position of the run, and its slots."""
        blocks, slots = np.divmod(places, self.block_rows)
        borders = [*np.flatnonzero(np.diff(blocks, prepend=-1)).tolist(), len(places)]
        for first, stop in pairwise(borders):
            yield int(blocks[first]), slice(first, stop), slots[first:stop]

    def _channels(self, block: int) -> Ints:
        """Return the channel of each slot of a block."""
        topology = self.topology
        step, slot = np.divmod(np.arange(self.block_rows, dtype=np.int64), self.step_rows)
        lane = (block * self.block_steps + step) % topology.lanes
        channels: Ints = slot % topology.num_ranks * topology.lanes + lane
        return channels

    def _dealt_blocks(self, blocks: int) -> Ints:
        """Count the rows of each source that each channel has in the first blocks: int64[sources, R, L]."""
        ranks, lanes = self.topology.num_ranks, self.topology.lanes
        counts = np.zeros((len(self.weights), ranks, lanes), dtype=np.int64)
        size, total = self.block_rows * self.width, self.dues.whole
        below, hits = _classes(self)
        begun, offsets = 0, [0] * len(self.weights)
        if self.lacks and blocks:  # what is due at once moves the borders of the first block further
            begun, offsets = 1, [lack % total for lack in accumulate(self.lacks)]
            np.add.at(counts.reshape(len(self.weights), -1), (_sources(self, 0), self._channels(0)), 1)
        # The blocks first, first + lanes, ...: in these, lanes are the same.
        for first in range(begun, begun + min(lanes, blocks - begun)):
            number = -(-(blocks - first) // lanes)
            moved = np.zeros(len(self.weights) + 1, dtype=np.int64)
            for edge, (weight, offset) in enumerate(zip(accumulate(self.weights[:-1]), offsets, strict=False), 1):
                ends = floor_sum(number, total, lanes * size * weight, (first + 1) * size * weight + offset)
                begins = floor_sum(number, total, lanes * size * weight, first * size * weight + offset)
                moved[edge] = ends - begins - number * (size * weight // total)
            up_to = number * below + moved[:, None, None] * hits
            lane = (first * self.block_steps + np.arange(lanes)) % lanes
            counts[:, :, lane] += np.diff(up_to, axis=0)
        return counts


def deal_of(
    weights: Mapping[str, int], topology: Topology, key: tuple[int, int, int], *, natural: bool = False, width: int = 1
) -> Deal:
    """Deal sources by weights, without an end; the key is the seed, the epoch and the number of the stage."""
    names = tuple(sorted(weights))
    return Deal(names, tuple(weights[name] for name in names), topology, *key, natural=natural, width=width)


def floor_sum(number: int, modulus: int, factor: int, offset: int) -> int:
    """Return the sum of ``(factor * i + offset) // modulus`` over all i below `number`; no argument is negative.

    >>> floor_sum(4, 10, 6, 3) == sum((6 * i + 3) // 10 for i in range(4))
    True
    """
    found = 0
    while number:
        found += (number - 1) * number // 2 * (factor // modulus) + number * (offset // modulus)
        factor, offset = factor % modulus, offset % modulus
        number, offset = divmod(factor * number + offset, modulus)
        modulus, factor = factor, modulus
    return found


@lru_cache(maxsize=8)
def _order(topology: Topology, steps: int, seed: int, epoch: int, number: int) -> Ints:
    """Return the position of each slot of a block in the order that sources divide: int64[block].

    Among consecutive places of that order, every rank and every step has the same number, to within one.
    """
    ranks, size = topology.num_ranks, topology.batch_size
    stride = next(each for each in range(max(1, round(steps * _GOLDEN)), 2 * steps + 1) if gcd(each, steps) == 1)
    permutation = Permutation(size, derive_key(seed, epoch, f"places of a batch in stage {number}"))
    row = permutation.slice(0, size)
    step = np.arange(steps, dtype=np.int64) * stride % steps
    found = np.empty((steps, size, ranks), dtype=np.int64)
    found[:] = step[:, None, None] + steps * np.arange(ranks) + steps * ranks * row[:, None]
    return found.reshape(-1)


def _order_of(deal: Deal) -> Ints:
    return _order(deal.topology, deal.block_steps, deal.seed, deal.epoch, deal.number)


@lru_cache(maxsize=16)
def _sources(deal: Deal, block: int) -> NDArray[np.int16]:
    """Return the source of each slot of a block; the last block of a stage may have fewer."""
    begin = block * deal.block_rows
    size = min(deal.block_rows, deal.end - begin)
    order = _order_of(deal)
    if size < deal.block_rows:
        slots = np.argsort(order[:size])
        order = np.empty(size, dtype=np.int64)
        order[slots] = np.arange(size)
    before, after = deal.shares(np.array([begin, begin + size]))
    counts = after - before
    if (counts < 0).any():
        due = deal.dues.at(np.array([begin + size]))[0].tolist()
        counts = np.array(_last_rows(due, before.tolist(), size, deal.dues.whole))
    found: NDArray[np.int16] = np.repeat(np.arange(len(counts), dtype=np.int16), counts)[order]
    return found


def _last_rows(due: Sequence[int], had: Sequence[int], places: int, whole: int) -> list[int]:
    """Count the rows of each source in the places up to an end of which the floors would take back rows.

    Args:
        due: the rows that each should have at the end, times `whole`.

    >>> _last_rows((365, 73, 365), [32, 7, 33], 1, 11)
    [1, 0, 0]
    """
    lacks = [each - rows * whole for each, rows in zip(due, had, strict=True)]
    counts = [max(0, each // whole) for each in lacks]

    def over(source: int) -> int:
        return counts[source] * whole - lacks[source]

    if (left := places - sum(counts)) >= 0:
        for source in sorted(range(len(counts)), key=over)[:left]:
            counts[source] += 1
    for _ in range(-left):
        counts[max((each for each in range(len(counts)) if counts[each]), key=lambda each: (over(each), each))] -= 1
    return counts


@lru_cache(maxsize=8)
def _classes(deal: Deal) -> tuple[Ints, Ints]:
    """Return what a block in which no border has moved gives each rank in every L-th of its steps.

    Returns:
        int64[sources + 1, R, L]: the slots before each border; and 1 for the one slot that the border moves across.
    """
    ranks, lanes, size = deal.topology.num_ranks, deal.topology.lanes, deal.block_rows
    step, slot = np.divmod(np.arange(size, dtype=np.int64), deal.step_rows)
    ordered = np.empty(size, dtype=np.int64)
    ordered[_order_of(deal)] = slot % ranks * lanes + step % lanes
    borders = Dues(deal.weights).edges(np.array([size]))[0].tolist()
    below = [np.bincount(ordered[:border], minlength=ranks * lanes) for border in borders]
    hits = [np.bincount(ordered[border : border + 1], minlength=ranks * lanes) for border in borders]
    shape = (len(borders), ranks, lanes)
    return np.array(below, dtype=np.int64).reshape(shape), np.array(hits, dtype=np.int64).reshape(shape)


@lru_cache(maxsize=64)
def _portion(deal: Deal, source: int, left: int, rows: int, number: int) -> Portion:
    begin = deal.place_of(source, left + (number - 1) * rows) if number else 0
    end = deal.place_of(source, left + number * rows)
    before = deal.dealt(begin)[source]
    count = deal.dealt(end)[source] - before
    ends = np.cumsum(count.reshape(-1)).reshape(count.shape)
    return Portion(before, ends - count, count, end == deal.end)
