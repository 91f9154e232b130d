"""The items of a source in a mixture of streams: round after round of its splits, and what earlier stages left.

An item is a row of a split, or several consecutive rows in a round's order: a sequence of tokens, of the length that
sequences have in a stage. The last item of a round may have fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torch_table_loader.planning.consumption import Consumption
from torch_table_loader.planning.epoch import epoch_order
from torch_table_loader.planning.keys import EpochKey
from torch_table_loader.planning.runs import Runs
from torch_table_loader.planning.stages import Stage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.mixtures.dealing import Deal, Portion
    from torch_table_loader.planning.splits import SegmentTable


@dataclass(frozen=True, slots=True, kw_only=True)
class DealtStage(Stage):
    """A stage of an epoch of a mixture of streams, in which neither the job nor the weights changed."""

    deal: Deal

    @classmethod
    def of(cls, deal: Deal, steps: int = 0) -> DealtStage:
        """Return the stage with the topology of its deal."""
        return cls(deal.topology, steps, deal=deal)

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


class RoundRuns(NamedTuple):
    """Consecutive rows of what is left of a round; rounds are counted from 0 at the epoch's start."""

    round: int
    runs: Runs


@dataclass(frozen=True, eq=False)
class Rounds:
    """The order of a source: all its items once, then all of them again in another order of splits, and so on.

    In a stage each channel (a lane of a rank) takes a run of what is left of each round; see `Deal.portion`.

    Args:
        segments: its splits; all live rows are known.
    """

    name: str
    segments: SegmentTable
    shuffle: bool
    seed: int
    live: NDArray[np.int64] = field(init=False)
    rows: int = field(init=False)
    """Rows of a round."""
    _known: list[tuple[int, tuple[DealtStage, ...], Rest]] = field(default_factory=list, init=False, repr=False)
    """What stages left that were asked for last: an epoch's stages come one after the other."""

    def __post_init__(self) -> None:
        """Count the rows."""
        object.__setattr__(self, "live", self.segments.live_rows)
        object.__setattr__(self, "rows", int(self.live.sum()))

    def items(self, width: int) -> int:
        """Count the items of a round, of so many rows each."""
        return items_of(self.rows, width)

    def order(self, epoch: int, number: int) -> Runs:
        """Return the splits of a round of an epoch, in its order."""
        purpose = f"splits of {self.name} in round {number}"
        order = epoch_order(self.segments, shuffle=self.shuffle, seed=self.seed, epoch=epoch, purpose=purpose)
        return Runs(order, np.zeros_like(order), self.live[order])

    def packs_key(self, epoch: int, number: int) -> EpochKey:
        """Return the key of the order in which blocks of documents are packed in a round of an epoch."""
        return EpochKey.of(self.seed, epoch, f"packs of {self.name} in round {number}")

    def rest(self, epoch: int, past: Sequence[DealtStage]) -> Rest:
        """Return what the stages of an epoch left, oldest first; a source starts over after a stage that lacked it."""
        past, done = tuple(past), 0
        nothing = rest = Rest(0, Consumption.none(), self.rows)
        for known_epoch, stages, known in self._known:
            if known_epoch == epoch and past[: len(stages)] == stages:
                rest, done = known, len(stages)
        for stage in past[done:]:
            rest = self.after(rest, epoch, stage) if self.name in stage.deal.names else nothing
        self._known[:] = [(epoch, past, rest)]
        return rest

    def after(self, rest: Rest, epoch: int, stage: DealtStage) -> Rest:
        """Return what remains after one more stage."""
        deal, places = stage.deal, stage.places
        source = deal.names.index(self.name)
        had = int(deal.rows_before(places)[source])
        if not had:
            return rest
        number = self._round_of(rest, had, deal.width)
        runs, bases = self.left(rest, epoch, number), self.segments.bases
        portion = self._portion(rest, deal, source, number)
        taken = deal.dealt(places)[source] - portion.before
        consumed = Consumption.none() if number else rest.consumed
        pairs = zip(portion.first.reshape(-1).tolist(), taken.reshape(-1).tolist(), strict=True)
        items = (_items(runs, deal.width, first, first + count) for first, count in pairs if count)
        delivered = Runs.concat(list(items))
        return Rest(rest.round + number, consumed.with_runs(delivered, bases), runs.num_rows - delivered.num_rows)

    def left(self, rest: Rest, epoch: int, number: int) -> Runs:
        """Return what is left of a round, in its order; number 0 is the round that is open there."""
        whole = self.order(epoch, rest.round + number)
        if number:
            return whole.take(np.flatnonzero(whole.stop > whole.start))
        return rest.consumed.left_of(whole, self.segments.bases)

    def of_channel(
        self, rest: Rest, epoch: int, deal: Deal, channel: tuple[int, int], place: int
    ) -> Iterator[RoundRuns]:
        """Yield what a channel reads from a place of a stage on, where a step begins, round by round."""
        source = deal.names.index(self.name)
        if not deal.takes(source, channel):
            return
        taken = int(deal.dealt(place)[source][channel])
        had = int(deal.rows_before(place)[source])
        for number in count(self._round_of(rest, had, deal.width)):
            portion = self._portion(rest, deal, source, number)
            first, items = int(portion.first[channel]), int(portion.rows[channel])
            skip = max(0, taken - int(portion.before[channel]))
            if skip < items:
                runs = _items(self.left(rest, epoch, number), deal.width, first + skip, first + items)
                yield RoundRuns(rest.round + number, runs)
            if portion.is_last:
                return

    def at(self, rest: Rest, epoch: int, deal: Deal, places: NDArray[np.int64]) -> list[RoundRuns]:
        """Return the item at each of some places of a stage that belong to this source."""
        source = deal.names.index(self.name)
        _, channels, ordinals = deal.ordinals(places)
        left: dict[int, Runs] = {}
        found = []
        for place, channel, ordinal in zip(places.tolist(), channels.tolist(), ordinals.tolist(), strict=True):
            number = self._round_of(rest, int(deal.rows_before(place)[source]), deal.width)
            portion = self._portion(rest, deal, source, number)
            at = divmod(channel, deal.topology.lanes)
            item = int(portion.first[at]) + ordinal - int(portion.before[at])
            if number not in left:
                left[number] = self.left(rest, epoch, number)
            found.append(RoundRuns(rest.round + number, _items(left[number], deal.width, item, item + 1)))
        return found

    def _portion(self, rest: Rest, deal: Deal, source: int, number: int) -> Portion:
        return deal.portion(source, items_of(rest.left, deal.width), self.items(deal.width), number)

    def _round_of(self, rest: Rest, had: int, width: int) -> int:
        """Return the round of the item after so many items of a stage, counted from the open round."""
        left = items_of(rest.left, width)
        if had < left:
            return 0
        return 1 + (had - left) // self.items(width)


def items_of(rows: int, width: int) -> int:
    """Count the items of so many rows each; the last may have fewer."""
    return -(-rows // width)


def _items(runs: Runs, width: int, start: int, stop: int) -> Runs:
    """Return the rows of some items."""
    return runs.slice(start * width, stop * width)
