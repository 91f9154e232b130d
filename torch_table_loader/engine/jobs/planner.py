"""Plans the epochs of one table for one job, counting what has to be counted."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from torch_table_loader.engine.newest import Newest
from torch_table_loader.planning.consumption import NOTHING_TAKEN, Consumption
from torch_table_loader.planning.distinct import distinct
from torch_table_loader.planning.epoch import CutEpoch, DealtEpoch, epoch_order
from torch_table_loader.planning.keys import stage_key
from torch_table_loader.planning.splits import SegmentTable, SplitTable
from torch_table_loader.planning.stages import StreamPosition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from torch_table_loader.engine.counting import LiveCounter
    from torch_table_loader.planning.lanes import RankPlan
    from torch_table_loader.planning.layout import TableLayout
    from torch_table_loader.planning.ranks import Topology
    from torch_table_loader.planning.stages import Extent, Stage
    from torch_table_loader.planning.steps import Steps
    from torch_table_loader.planning.strategies import Strategy
    from torch_table_loader.planning.windows import Window
    from torch_table_loader.samples import SampleCounts


@dataclass(frozen=True, slots=True, eq=False)
class PlannedStage:
    """What one rank delivers in a stage of an epoch, from the stage's start.

    Args:
        longest: steps of the rank that takes most; None where a rank knows its own rows alone.
    """

    plan: Steps
    longest: int | None


@dataclass(frozen=True, slots=True, eq=False)
class PlannedStream(PlannedStage):
    """What one rank delivers of splits in a stage of an epoch.

    Args:
        windows: windows that were open when earlier stages ended; window w is the split ``len(splits) + w``.
    """

    plan: RankPlan
    segments: SegmentTable
    windows: tuple[Window, ...]


@dataclass(slots=True, eq=False)
class _LaidOut:
    """A stage of an epoch for all ranks, and what was planned of it for some."""

    job: CutEpoch | DealtEpoch
    plans: dict[int, PlannedStream] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Kept:
    """What is known of one epoch, by what was asked.

    Args:
        counter: see `Planner`; it may count for this epoch alone.
        segments: the splits of a strategy that cuts, with what was counted, by what the table was.
        orders: how its splits are ordered, by what the table was.
        stages: the stages that were laid out last, by the history that ends with each, its own steps left out.
        delivered: what all stages of a history delivered.
    """

    epoch: int
    counter: LiveCounter | None
    segments: dict[Extent | None, SegmentTable]
    orders: dict[Extent | None, NDArray[np.int64]] = field(default_factory=dict)
    stages: Newest[tuple[Stage, ...], _LaidOut] = field(default_factory=lambda: Newest(_KEPT_STAGES))
    delivered: dict[tuple[Stage, ...], Consumption] = field(default_factory=dict)


_KEPT_EPOCHS = 2
"""Epochs of which the counts are kept, where each has its own: the one that runs, and the next."""

_KEPT_STAGES = 3
"""Where an epoch begins, the stage that a state is of, and the one that continues it."""


class Planner:
    """Plans any epoch for any rank, and keeps what it has laid out of the newest one."""

    def __init__(
        self,
        layout: TableLayout,
        strategy: Strategy,
        topology: Topology,
        *,
        shuffle: bool,
        seed: int,
        filtered: bool,
        counter: LiveCounter | None,
        by_file: bool = False,
    ) -> None:
        """Cut the table, if the strategy cuts.

        Args:
            filtered: whether live rows depend on a row filter.
            counter: counts what filter and deletes leave; None if counting was turned off, or nothing must be counted.
            by_file: whether a batch ends where a split does.
        """
        self.layout = layout
        self.strategy = strategy
        self.topology = topology
        self.counted = counter is not None or not (filtered or layout.must_count)
        """Whether live rows are known before reading."""
        self._shuffle = shuffle
        self._seed = seed
        self._filtered = filtered
        self._cuts = strategy.cuts
        self._is_uncertain = filtered or layout.has_deletes
        """Whether live rows are known only where they were counted."""
        self._counter = counter
        self._by_file = by_file
        self._segments: dict[Extent | None, SegmentTable] = {}
        """The splits of a strategy that cuts, of the table as it is and as it was."""
        self.files_of: Mapping[Extent, NDArray[np.int64]] = {}
        """Which files the table had, by what it was, as far as that is known."""
        self._by_epoch: Newest[int, tuple[LiveCounter, dict[Extent | None, SegmentTable]]] = Newest(_KEPT_EPOCHS)
        """What counts in an epoch and what it has counted, where each epoch has other rows."""
        if self._cuts:
            self._segments[None] = SegmentTable.of(strategy.cut(layout), filtered=filtered)
        self._kept = self._begun(0)

    def with_topology(self, topology: Topology) -> Planner:
        """Plan the same splits, counts included, for another shape of the job."""
        other = copy.copy(self)
        other.topology = topology
        return other

    def grown_from(self, files_of: Mapping[Extent, NDArray[np.int64]]) -> Planner:
        """Plan the same table with stages of an epoch that began before it grew; see `SavedState.files_of`."""
        other = copy.copy(self)
        other.files_of = dict(files_of)
        other._segments = {extent: each for extent, each in self._segments.items() if extent is None}
        other._by_epoch = Newest(_KEPT_EPOCHS)
        other._kept = other._begun(0)
        return other

    def live_before(self, group: int, row: int) -> int:
        """Count the live rows of a row group before a row; see `LiveCounter.live_before`."""
        assert self._counter is not None  # noqa: S101 without a filter every row lives
        return self._counter.live_before(group, row)

    def digest(self, extent: Extent | None = None) -> str:
        """Hash how the table is split (by a generator: in epoch 0, for one rank with one lane), as it is or was."""
        if extent in self._segments and extent is None:
            return self._segments[extent].splits.digest()
        layout = self._layout_of(extent)
        if self._cuts:
            return self.strategy.cut(layout).digest()
        splits, _ = self.strategy.deal(layout, 1, 0, 1, 0)
        return splits.digest()

    def whole(self) -> SegmentTable:
        """Return the splits of a strategy that cuts, with the live rows of each, whichever rank reads it."""
        kept = self._kept_of(0)
        kept.segments[None] = whole = self._counted_whole(kept.segments[None], kept.counter)
        return whole

    def made_of(self, segments: SegmentTable, epoch: int) -> SampleCounts | None:
        """Return what was counted of the samples that are made of some splits in an epoch."""
        counter = self._kept_of(epoch).counter
        if counter is None:
            return None
        return counter.made_of(segments)

    def start(self, epoch: int) -> StreamPosition:
        """Return the start of an epoch under the job's topology."""
        return StreamPosition.at(epoch, self.topology)

    def plan(self, position: StreamPosition, rank: int) -> PlannedStream:
        """Plan one rank's stage of an epoch; a pure function of its arguments and the table.

        The steps of the position's newest stage do not matter.
        """
        laid_out = self._laid_out(position)
        if rank not in laid_out.plans:
            laid_out.plans[rank] = self._planned(laid_out, position, rank)
        return laid_out.plans[rank]

    def _planned(self, laid_out: _LaidOut, position: StreamPosition, rank: int) -> PlannedStream:
        if isinstance(laid_out.job, DealtEpoch):
            return _dealt(laid_out.job, rank)
        return self._cut(laid_out, position, rank)

    def steps_of_ranks(self, position: StreamPosition, *, count: bool = False) -> list[int] | None:
        """Return the steps of every rank in the position's stage; None if a rank knows only its own rows.

        With `count`, unknown rows of the other ranks are counted.
        """
        topology = position.stage.topology
        if not self._cuts:
            return [self.plan(position, rank).plan.steps for rank in range(topology.num_ranks)]
        job = self._cut_epoch(self._laid_out(position), position, None if count else ())
        if not self._all_known(job):
            return None
        _, steps = job.quotas
        return [int(each) for each in steps]

    def longest(self, position: StreamPosition) -> int:
        """Return the steps of the rank that takes most in the position's stage; the rows of all ranks are counted."""
        return max(self.steps_of_ranks(position, count=True) or [0])

    def is_over(self, position: StreamPosition) -> bool:
        """Return whether no rank has a step left in the newest stage."""
        return self.counted and 0 < position.stage.steps >= self.longest(position)

    def rows_of_ranks(self, position: StreamPosition) -> list[int] | None:
        """Rows of every rank in the position's stage, padding left out; None where a rank knows its own alone."""
        if not self._cuts:
            return [self.plan(position, rank).plan.own_rows for rank in range(position.stage.topology.num_ranks)]
        job = self._cut_epoch(self._laid_out(position), position, ())
        if not self._all_known(job):
            return None
        return [int(each) for each in job.rows_of_ranks]

    def _layout_of(self, extent: Extent | None) -> TableLayout:
        if extent is None:
            return self.layout
        return replace(self.layout.part(self.files_of[extent]), snapshot_id=extent.snapshot_id)

    def _segment(self, splits: SplitTable, extent: Extent | None = None) -> SegmentTable:
        """Divide splits, which may be of the table as it was, into parts of the table as it is."""
        if extent is not None:
            splits = splits.within(self.layout, self.files_of[extent])
        return SegmentTable.of(splits, filtered=self._filtered)

    def _order(self, extent: Extent | None, epoch: int) -> NDArray[np.int64]:
        """Return the epoch's order of the splits of the table, as it is or was."""
        kept = self._kept_of(epoch)
        segments, orders = kept.segments, kept.orders
        if extent not in segments:
            segments[extent] = self._segment(self.strategy.cut(self._layout_of(extent)), extent)
        if extent not in orders:
            orders[extent] = epoch_order(segments[extent], shuffle=self._shuffle, seed=self._seed, epoch=epoch)
        return orders[extent]

    def _counted(self, segments: SegmentTable, wanted: NDArray[np.int64], counter: LiveCounter) -> SegmentTable:
        """Fill in the live rows of some splits; of loose ones, by parts of files that are each counted once."""
        if not segments.splits.loose:
            return counter.count(segments, wanted)
        unknown = wanted[segments.live_rows[wanted] < 0]
        if not len(unknown):
            return segments
        cover = SegmentTable.of(segments.splits.cover(distinct(segments.splits.file[unknown])), filtered=self._filtered)
        return segments.counted_by(counter.count(cover, np.arange(len(cover.splits))))

    def _cut(self, laid_out: _LaidOut, position: StreamPosition, rank: int) -> PlannedStream:
        job = self._cut_epoch(laid_out, position, (rank,))
        plan = job.plan(rank)
        longest: int | None = None
        if self._all_known(job):
            _, steps = job.quotas
            longest = int(steps.max())
        return PlannedStream(plan, longest, job.segments, _windows(job.consumed))

    def _all_known(self, job: CutEpoch) -> bool:
        return not (self._is_uncertain and (job.segments.live_rows[job.order] < 0).any())

    def _cut_epoch(self, laid_out: _LaidOut, position: StreamPosition, ranks: tuple[int, ...] | None) -> CutEpoch:
        """Return a stage that the strategy cuts, with the rows counted that some ranks need (None: all)."""
        job, kept = cast("CutEpoch", laid_out.job), self._kept_of(position.epoch)
        if kept.counter is None:
            return job
        wanted, extent = job.order, position.stage.extent
        if ranks is not None and not job.stage:
            wanted = np.concatenate([wanted[:0], *map(job.splits_of, ranks)])
        kept.segments[extent] = segments = self._counted(kept.segments[extent], wanted, kept.counter)
        if segments is not job.segments:
            laid_out.job = job = replace(job, segments=segments)
        return job

    def _laid_out(self, position: StreamPosition) -> _LaidOut:
        """Lay a stage out for all ranks, or return what was laid out before."""
        stages = self._kept_of(position.epoch).stages
        history = (*position.past, replace(position.stage, steps=0))
        if (known := stages.by_key.get(history)) is not None:
            return known
        delivered, number = self._delivered(position), len(position.past)
        how = self._lay_out_cut if self._cuts else self._lay_out_dealt
        return stages.add(history, _LaidOut(how(position.epoch, position.stage, delivered, number)))

    def _delivered(self, position: StreamPosition) -> Consumption:
        """Add up what the past stages of an epoch delivered."""
        known, past = self._kept_of(position.epoch).delivered, position.past
        for number, stage in enumerate(past):
            if past[: number + 1] not in known:
                begun = replace(position, past=past[:number], stage=stage)
                laid_out = self._laid_out(begun)
                job = laid_out.job
                if self._cuts:
                    job = self._cut_epoch(laid_out, begun, None)
                known[past[: number + 1]] = job.delivered(stage.steps)
        if past:
            return known[past]
        return NOTHING_TAKEN

    def _kept_of(self, epoch: int) -> _Kept:
        if self._kept.epoch != epoch:
            self._kept = self._begun(epoch)
        return self._kept

    def _begun(self, epoch: int) -> _Kept:
        """Return what is known of an epoch of which nothing is planned: counts, which most jobs share over epochs."""
        if self._counter is None or (counter := self._counter.of_epoch(stage_key(self._seed, epoch))) is self._counter:
            return _Kept(epoch, self._counter, self._segments)
        return _Kept(epoch, *self._by_epoch.of(epoch, lambda: (counter, dict(self._segments))))

    def _lay_out_cut(self, epoch: int, stage: Stage, consumed: Consumption, number: int) -> CutEpoch:
        order = self._order(stage.extent, epoch)
        segments = self._kept_of(epoch).segments[stage.extent]
        return CutEpoch(segments, order, stage.topology, self.counted, consumed, number, self._by_file)

    def _lay_out_dealt(self, epoch: int, stage: Stage, consumed: Consumption, number: int) -> DealtEpoch:
        """Let a generator deal a stage to all ranks; of one that takes no ranks, every rank is the first."""
        topology = stage.topology
        ranks = 1
        if self.strategy.form == "generator_with_ranks":
            ranks = topology.num_ranks
        layout = self._layout_of(stage.extent)
        files = list(layout)
        dealt = [
            self.strategy.deal(layout, topology.lanes, epoch, topology.num_ranks, rank, files) for rank in range(ranks)
        ]
        self.strategy.check_coverage([splits for splits, _ in dealt])
        counter = self._kept_of(epoch).counter
        tables = [self._counted_whole(self._segment(splits, stage.extent), counter) for splits, _ in dealt]
        lane_of = [each for _, each in dealt]
        return DealtEpoch(tables, lane_of, topology, self.counted, consumed, number, self._by_file)

    def _counted_whole(self, segments: SegmentTable, counter: LiveCounter | None) -> SegmentTable:
        if counter is None:
            return segments
        return self._counted(segments, np.arange(len(segments.splits)), counter)


def _dealt(job: DealtEpoch, rank: int) -> PlannedStream:
    own = rank if len(job.plans) > 1 else 0
    longest = max(plan.steps for plan in job.plans)
    return PlannedStream(job.plans[own], longest, job.tables[own], _windows(job.consumed))


def _windows(consumed: Consumption) -> tuple[Window, ...]:
    return tuple(entry.window for entry in consumed.windows)
