"""The items of a source in a mixture of streams: round after round of its splits, and what earlier stages left.

An item is a row of a split, or several consecutive rows in a round's order: a sequence of tokens, of the length that
sequences have in a stage. The last item of a round may have fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_table_loader.engine.newest import Newest
from torch_table_loader.mixtures.mixed_windows import MixedSource, laid_out, mixings_of, rows_of_a_batch, taken_of
from torch_table_loader.planning.consumption import NOTHING_TAKEN, Consumption, delivered_of
from torch_table_loader.planning.epoch import epoch_order
from torch_table_loader.planning.keys import EpochKey
from torch_table_loader.planning.rows_of import runs_of_section
from torch_table_loader.planning.runs import Hands, Runs
from torch_table_loader.planning.stages import Stage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.mixtures.dealing import Deal, Portion
    from torch_table_loader.mixtures.mixed_windows import MixingCost
    from torch_table_loader.planning.lanes import Section
    from torch_table_loader.planning.ranks import Mixing
    from torch_table_loader.planning.splits import SegmentTable
    from torch_table_loader.planning.windows import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class DealtStage(Stage):
    """A stage of an epoch of a mixture of streams, in which neither the job nor the weights changed.

    Args:
        mixed: how a rank mixes the splits of a source, by name; rows of other sources come as they are read.
    """

    deal: Deal
    mixed: Mapping[str, Mixing] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, deal: Deal, steps: int = 0, mixed: Mapping[str, Mixing] | None = None) -> DealtStage:
        """Return the stage with the topology of its deal."""
        return cls(deal.topology, steps, deal=deal, mixed=mixed or {})

    @property
    def places(self) -> int:
        """Places that the job took."""
        return min(self.steps * self.deal.step_rows, self.deal.end)


class Rest(NamedTuple):
    """What is left of a source where a stage begins: no rows only if the source has none.

    Args:
        left: rows of the round that is open.
    """

    round: int
    consumed: Consumption
    left: int

    def had(self, rows: int, width: int) -> int:
        """Return how many items a source of so many rows has delivered, if all had so many rows."""
        whole = items_of(rows, width)
        return (self.round + 1) * whole - items_of(self.left, width)


class RoundSection(NamedTuple):
    """What is read of a round; rounds are counted from 0 at the epoch's start.

    Args:
        windows: those that earlier stages left open, of which the section has parts.
    """

    round: int
    section: Section
    windows: tuple[Window, ...] = ()

    @property
    def end(self) -> int:
        """Where what is read of the section ends."""
        if self.section.stop is None:
            return self.section.runs.num_rows
        return self.section.stop

    def rows(self, segments: SegmentTable, keys: tuple[int, int]) -> Runs:
        """Return its rows in the order in which they come, as pieces of splits that consist of `segments`."""
        found = runs_of_section(self.section, self.end, segments, self.windows, keys)
        return Runs.concat([runs for _, runs in found])


_KEPT_RESTS = 3
"""What the newest stages left, and what an epoch leaves whose length is asked for meanwhile."""


@dataclass(frozen=True, eq=False)
class Rounds:
    """The order of a source: all its items once, then all of them again in another order of splits, and so on.

    In a stage each channel (a lane of a rank) takes a run of what is left of each round; see `Deal.portion`. Where
    splits are mixed, runs share all that is left of the round, and what the stage takes of each is mixed over it.

    Args:
        segments: its splits; all live rows are known.
        cost: of mixing its splits; None if they are not mixed.
    """

    name: str
    segments: SegmentTable
    shuffle: bool
    seed: int
    cost: MixingCost | None = None
    live: NDArray[np.int64] = field(init=False)
    rows: int = field(init=False)
    """Rows of a round."""
    _known: list[tuple[int, tuple[DealtStage, ...], Rest]] = field(default_factory=list, init=False, repr=False)
    """What stages left that were asked for last, oldest first: an epoch's stages come one after the other."""

    _orders: Newest[tuple[int, int], NDArray[np.int64]] = field(
        default_factory=lambda: Newest(1), init=False, repr=False
    )
    """How the splits of the round come that was asked for last."""

    def __post_init__(self) -> None:
        """Count the rows."""
        object.__setattr__(self, "live", self.segments.live_rows)
        object.__setattr__(self, "rows", int(self.live.sum()))

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker needs, which follows no stages."""
        return {**vars(self), "_known": [], "_orders": Newest(1)}

    def items(self, width: int) -> int:
        """Count the items of a round, of so many rows each."""
        return items_of(self.rows, width)

    def order(self, epoch: int, number: int) -> Runs:
        """Return the splits of a round of an epoch, in its order."""
        purpose = f"splits of {self.name} in round {number}"
        order = self._orders.of(
            (epoch, number),
            lambda: epoch_order(self.segments, shuffle=self.shuffle, seed=self.seed, epoch=epoch, purpose=purpose),
        )
        return Runs(order, np.zeros_like(order), self.live[order])

    def packs_key(self, epoch: int, number: int) -> EpochKey:
        """Return the key of the order in which blocks of documents are packed in a round of an epoch."""
        return EpochKey.of(self.seed, epoch, f"packs of {self.name} in round {number}")

    def rest(self, epoch: int, past: Sequence[DealtStage]) -> Rest:
        """Return what the stages of an epoch left, oldest first; a source starts over after a stage that lacked it."""
        past, done = tuple(past), 0
        nothing = rest = Rest(0, NOTHING_TAKEN, self.rows)
        for known_epoch, stages, known in self._known:
            if known_epoch == epoch and done < len(stages) and past[: len(stages)] == stages:
                rest, done = known, len(stages)
        for number, stage in enumerate(past[done:], done + 1):
            rest = self.after(rest, epoch, stage) if self.name in stage.deal.names else nothing
            self._known[:] = [*self._known[1 - _KEPT_RESTS :], (epoch, past[:number], rest)]
        return rest

    def or_known(self, other: Rounds | None) -> Rounds:
        """Return another one that has the same order, and knows what stages left."""
        if other is None or other.segments is not self.segments:
            return self
        if (other.name, other.shuffle, other.seed, other.cost) != (self.name, self.shuffle, self.seed, self.cost):
            return self
        return other

    def after(self, rest: Rest, epoch: int, stage: DealtStage) -> Rest:
        """Return what remains after one more stage."""
        deal, places = stage.deal, stage.places
        source = deal.names.index(self.name)
        had = int(deal.rows_before(places)[source])
        if not had:
            return rest
        number = self._round_of(rest, had, deal.width)
        left = self.left(rest, epoch, number)
        sections = self._taken(rest, stage, number, left)
        consumed = NOTHING_TAKEN if number else rest.consumed
        after = consumed.with_delivered((*delivered_of(each, self.segments), self.segments.bases) for each in sections)
        return Rest(rest.round + number, after, left.num_rows - sum(each.skip for each in sections))

    def _taken(self, rest: Rest, stage: DealtStage, number: int, left: Runs) -> list[Section]:
        """Return what each channel took of the round in which a stage ends, given what was left of it."""
        deal, source, mixing = stage.deal, stage.deal.names.index(self.name), stage.mixed.get(self.name)
        portion = self._portion(rest, deal, source, number)
        taken = deal.dealt(stage.places)[source] - portion.before
        channels = [(rank, lane) for rank, lane in np.argwhere(taken > 0).tolist()]
        if not channels:
            return []
        shares = [self._share(stage, portion, left, channel) for channel in channels]
        first, stop = np.array(shares, dtype=np.int64).reshape(-1, 2).T
        names = [self._section_name(rest, deal, number, channel) for channel in channels]
        lanes = Hands.of([left]).parts(np.zeros_like(first), first, stop)
        rows = np.minimum(taken[taken > 0] * deal.width, lanes.rows)
        return taken_of(names, lanes, rows, len(self.segments.splits), mixing, rows_of_a_batch(deal, self.name))

    def left(self, rest: Rest, epoch: int, number: int) -> Runs:
        """Return what is left of a round, in its order; number 0 is the round that is open there."""
        whole = self.order(epoch, rest.round + number)
        if number:
            return whole.take(np.flatnonzero(whole.stop > whole.start))
        units = rest.consumed.units(len(self.segments.splits))
        return Runs.concat([units, rest.consumed.left_of(whole.split, self.live, self.segments.bases)])

    def of_channel(
        self, rest: Rest, epoch: int, stage: DealtStage, channel: tuple[int, int], place: int
    ) -> Iterator[RoundSection]:
        """Yield what a channel reads from a place of a stage on, where a step begins, round by round."""
        deal = stage.deal
        source = deal.names.index(self.name)
        if not deal.takes(source, channel):
            return
        taken = int(deal.dealt(place)[source][channel])
        had = int(deal.rows_before(place)[source])
        for number in count(self._round_of(rest, had, deal.width)):
            portion = self._portion(rest, deal, source, number)
            skip = max(0, taken - int(portion.before[channel]))
            if skip < portion.rows[channel]:
                yield self._section(rest, stage, number, self.left(rest, epoch, number), channel, skip)
            if portion.is_last:
                return

    def at(
        self, rest: Rest, epoch: int, stage: DealtStage, places: NDArray[np.int64]
    ) -> Iterator[tuple[RoundSection, NDArray[np.int64]]]:
        """Yield the items at some places of a stage that belong to this source.

        Returns:
            Items that follow one another, and which of them each of some places has: int64[n, 2], the place's position
            among the places and the item's among these items. Every place is in one of these.
        """
        deal, source = stage.deal, stage.deal.names.index(self.name)
        _, channels, ordinals = deal.ordinals(places)
        had = (int(deal.rows_before(place)[source]) for place in places.tolist())
        numbers = np.array([self._round_of(rest, before, deal.width) for before in had], dtype=np.int64)
        order = np.lexsort((ordinals, channels, numbers))
        gaps = np.diff(ordinals[order]) > 1
        gaps |= (np.diff(channels[order]) != 0) | (np.diff(numbers[order]) != 0)
        left: dict[int, Runs] = {}
        for group in np.split(order, np.flatnonzero(gaps) + 1):
            number, channel = int(numbers[group[0]]), divmod(int(channels[group[0]]), deal.topology.lanes)
            if number not in left:
                left[number] = self.left(rest, epoch, number)
            items = ordinals[group] - ordinals[group[0]]
            first = int(ordinals[group[0]] - self._portion(rest, deal, source, number).before[channel])
            found = self._section(rest, stage, number, left[number], channel, first)
            stop = min((first + int(items[-1]) + 1) * deal.width, found.end)
            yield found._replace(section=replace(found.section, stop=stop)), np.stack([group, items], axis=1)

    def _section(
        self, rest: Rest, stage: DealtStage, number: int, left: Runs, channel: tuple[int, int], skip: int
    ) -> RoundSection:
        """Return what a channel takes of a round after some items of it, given what is left of the round."""
        deal, mixing = stage.deal, stage.mixed.get(self.name)
        portion = self._portion(rest, deal, deal.names.index(self.name), number)
        runs = left.slice(*self._share(stage, portion, left, channel))
        name, batch = self._section_name(rest, deal, number, channel), rows_of_a_batch(deal, self.name)
        section = laid_out(name, runs, len(self.segments.splits), mixing, batch)
        windows = () if number else tuple(entry.window for entry in rest.consumed.windows)
        skipped, stop = min(skip * deal.width, runs.num_rows), int(portion.rows[channel]) * deal.width
        if stop < runs.num_rows:
            section = replace(section, stop=stop)
        return RoundSection(rest.round + number, replace(section, skip=skipped), windows)

    def _share(self, stage: DealtStage, portion: Portion, left: Runs, channel: tuple[int, int]) -> tuple[int, int]:
        """Return the rows [first, stop) of what is left of a round that a channel reads."""
        first, items, width = int(portion.first[channel]), int(portion.rows[channel]), stage.deal.width
        if self.name in stage.mixed:
            first, items = _share_of(portion, channel, items_of(left.num_rows, width))
        return min(first * width, left.num_rows), min((first + items) * width, left.num_rows)

    def _section_name(self, rest: Rest, deal: Deal, number: int, channel: tuple[int, int]) -> str:
        rank, lane = channel
        return f"rank {rank} lane {lane} of round {rest.round + number} of {self.name} in stage {deal.number}"

    def _portion(self, rest: Rest, deal: Deal, source: int, number: int) -> Portion:
        return deal.portion(source, items_of(rest.left, deal.width), self.items(deal.width), number)

    def _round_of(self, rest: Rest, had: int, width: int) -> int:
        """Return the round of the item after so many items of a stage, counted from the open round."""
        left = items_of(rest.left, width)
        if had < left:
            return 0
        return 1 + (had - left) // self.items(width)


def _share_of(portion: Portion, channel: tuple[int, int], items: int) -> tuple[int, int]:
    """Return the first item of a channel's share of all that is left of a round, and how many these are.

    A stage may end within a round. What a channel takes of it is then spread over as large a part of what is left.
    """
    number, rows = int(np.ravel_multi_index(channel, portion.rows.shape)), portion.rows.reshape(-1)
    ends = np.cumsum(rows).tolist()
    end = ends[number] * items // ends[-1]
    first = (ends[number] - int(rows[number])) * items // ends[-1]
    return first, end - first


def items_of(rows: int, width: int) -> int:
    """Count the items of so many rows each; the last may have fewer."""
    return -(-rows // width)


def mixed_of(deal: Deal, rounds: Mapping[str, Rounds]) -> dict[str, Mixing]:
    """Return how a rank mixes the splits of each source in a stage that begins."""
    costs = {name: own.cost for name, own in rounds.items()}
    return mixings_of(deal, {name: MixedSource(cost, rounds[name].rows) for name, cost in costs.items() if cost})
