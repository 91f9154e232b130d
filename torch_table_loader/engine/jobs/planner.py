"""Plans the epochs of one table for one job, counting what has to be counted."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.planning.consumption import Consumption
from torch_table_loader.planning.distinct import distinct
from torch_table_loader.planning.epoch import CutEpoch, DealtEpoch, epoch_order
from torch_table_loader.planning.splits import SegmentTable, SplitTable
from torch_table_loader.planning.stages import StreamPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from torch_table_loader.engine.counting import LiveCounter
    from torch_table_loader.planning.consumption import PlacedPlan
    from torch_table_loader.planning.lanes import RankPlan
    from torch_table_loader.planning.layout import TableLayout
    from torch_table_loader.planning.pack_counts import PackCounts
    from torch_table_loader.planning.ranks import Topology
    from torch_table_loader.planning.stages import Extent, Stage
    from torch_table_loader.planning.steps import Steps
    from torch_table_loader.planning.strategies import Strategy
    from torch_table_loader.planning.windows import Window


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
    marks_padding: bool


class Planner:
    """Plans any epoch for any rank; the newest plan is kept."""

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
        self._counter = counter
        self._by_file = by_file
        self._segments: dict[Extent | None, SegmentTable] = {}
        """The splits of a strategy that cuts, of the table as it is and as it was."""
        self.files_of: Mapping[Extent, NDArray[np.int64]] = {}
        """Which files the table had, by what it was, as far as that is known."""
        self._forget()
        if strategy.cuts:
            self._segments[None] = self._segment(strategy.cut(layout))

    def _forget(self) -> None:
        """Forget the plans that were made."""
        self._newest: tuple[tuple[StreamPosition, int], PlannedStream] | None = None
        self._newest_cut: tuple[StreamPosition, CutEpoch] | None = None
        self._consumed: dict[tuple[int, tuple[Stage, ...]], Consumption] = {}
        self._newest_dealt: tuple[StreamPosition, tuple[list[DealtEpoch], list[RankPlan]]] | None = None

    def with_lanes(self, lanes: int) -> Planner:
        """Plan the same splits, counts included, for another number of lanes."""
        other = copy.copy(self)
        other.topology = replace(self.topology, lanes=lanes)
        return other

    def grown_from(self, files_of: Mapping[Extent, NDArray[np.int64]]) -> Planner:
        """Plan the same table with stages of an epoch that began before it grew; see `SavedState.files_of`."""
        other = copy.copy(self)
        other.files_of = dict(files_of)
        other._segments = {extent: each for extent, each in self._segments.items() if extent is None}
        other._forget()
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
        splits = self.strategy.cut(layout) if self.strategy.cuts else self.strategy.deal(layout, 1, 0, 1, 0)[0]
        return splits.digest()

    def whole(self) -> SegmentTable:
        """Return the splits of a strategy that cuts, with the live rows of each, whichever rank reads it."""
        return self._count(None, np.arange(len(self._segments[None].splits)))

    def packed(self, segments: SegmentTable) -> PackCounts | None:
        """Return what packing makes of some splits."""
        return None if self._counter is None else self._counter.packed(segments)

    def start(self, epoch: int) -> StreamPosition:
        """Return the start of an epoch under the job's topology."""
        return StreamPosition.at(epoch, self.topology)

    def plan(self, position: StreamPosition, rank: int) -> PlannedStream:
        """Plan one rank's stage of an epoch; a pure function of its arguments and the table.

        The steps of the position's newest stage do not matter.
        """
        position = position.after(0)
        if self._newest is None or self._newest[0] != (position, rank):
            planned = self._cut(position, rank) if self.strategy.cuts else self._dealt(position, rank)
            self._newest = ((position, rank), planned)
        return self._newest[1]

    def steps_of_ranks(self, position: StreamPosition, *, count: bool = False) -> list[int] | None:
        """Return the steps of every rank in the position's stage; None if a rank knows only its own rows.

        With `count`, unknown rows of the other ranks are counted.
        """
        topology = position.stage.topology
        if not self.strategy.cuts:
            return [self.plan(position, rank).plan.steps for rank in range(topology.num_ranks)]
        job = self._cut_epoch(position.after(0), None if count else ())
        if not self._all_known(job):
            return None
        _, steps = job.quotas()
        return [int(each) for each in steps]

    def longest(self, position: StreamPosition) -> int:
        """Return the steps of the rank that takes most in the position's stage; the rows of all ranks are counted."""
        return max(self.steps_of_ranks(position, count=True) or [0])

    def rows_of_ranks(self, position: StreamPosition) -> list[int] | None:
        """Rows of every rank in the position's stage, padding left out; None where a rank knows its own alone."""
        if not self.strategy.cuts:
            return [self.plan(position, rank).plan.own_rows for rank in range(position.stage.topology.num_ranks)]
        job = self._cut_epoch(position.after(0), ())
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

    def _ordered(self, extent: Extent | None, epoch: int) -> tuple[SegmentTable, NDArray[np.int64]]:
        """Return the splits of the table, as it is or was, and the epoch's order of them."""
        if extent not in self._segments:
            self._segments[extent] = self._segment(self.strategy.cut(self._layout_of(extent)), extent)
        segments = self._segments[extent]
        return segments, epoch_order(segments, shuffle=self._shuffle, seed=self._seed, epoch=epoch)

    def _count(self, extent: Extent | None, splits: NDArray[np.int64]) -> SegmentTable:
        """Return the splits of the table, as it is or was, with the live rows of some of them."""
        if self._counter is not None:
            self._segments[extent] = self._counted(self._segments[extent], splits, self._counter)
        return self._segments[extent]

    def _counted(self, segments: SegmentTable, wanted: NDArray[np.int64], counter: LiveCounter) -> SegmentTable:
        """Fill in the live rows of some splits; of loose ones, by parts of files that are each counted once."""
        if not segments.splits.loose:
            return counter.count(segments, wanted)
        unknown = wanted[segments.live_rows()[wanted] < 0]
        if not len(unknown):
            return segments
        cover = SegmentTable.of(segments.splits.cover(distinct(segments.splits.file[unknown])), filtered=self._filtered)
        return segments.counted_by(counter.count(cover, np.arange(len(cover.splits))))

    def _cut(self, position: StreamPosition, rank: int) -> PlannedStream:
        job = self._cut_epoch(position, (rank,))
        padding, steps = job.quotas()
        even_ranks = job.topology.even_ranks
        marks = even_ranks == "pad" or (even_ranks == "balance" and bool(padding.any()))
        longest = int(steps.max()) if self._all_known(job) else None
        return PlannedStream(job.plan(rank), longest, job.segments, _windows(job.consumed), marks)

    def _all_known(self, job: CutEpoch) -> bool:
        uncertain = self._filtered or self.layout.has_deletes
        return not (uncertain and (job.segments.live_rows()[job.order] < 0).any())

    def _cut_epoch(self, position: StreamPosition, ranks: tuple[int, ...] | None) -> CutEpoch:
        """Lay a stage out for all ranks, with the rows counted that some ranks need (None: all)."""
        extent = position.stage.extent
        segments, order = self._ordered(extent, position.epoch)
        job = CutEpoch(
            segments,
            order,
            position.stage.topology,
            counted=self.counted,
            stage=len(position.past),
            by_file=self._by_file,
        )
        everything = ranks is None or bool(position.past)
        wanted = order if everything else np.concatenate([order[:0], *map(job.splits_of, ranks or ())])
        segments = self._count(extent, wanted)
        if self._newest_cut is None or self._newest_cut[0] != position or self._newest_cut[1].segments is not segments:

            def place(stage: Stage, consumed: Consumption, number: int) -> Iterator[PlacedPlan]:
                _, order = self._ordered(stage.extent, position.epoch)
                segments = self._count(stage.extent, order)
                job = CutEpoch(segments, order, stage.topology, consumed=consumed, stage=number, by_file=self._by_file)
                bases = segments.bases()
                for rank in job.ranks_with_rows:
                    yield job.plan(rank), segments, bases, stage.topology.shuffle_buffer_size

            consumed = self._consumed_before(position, place)
            self._newest_cut = (position, replace(job, segments=segments, consumed=consumed))
        return self._newest_cut[1]

    def _consumed_before(
        self, position: StreamPosition, place: Callable[[Stage, Consumption, int], Iterator[PlacedPlan]]
    ) -> Consumption:
        """Add up what the past stages of an epoch delivered; the sums are kept for the next, longer history."""
        sums: dict[tuple[int, tuple[Stage, ...]], Consumption] = {}
        consumed = Consumption.none()
        for number, stage in enumerate(position.past):
            key = (position.epoch, position.past[: number + 1])
            known = self._consumed.get(key)
            consumed = consumed.after(place(stage, consumed, number), stage.steps) if known is None else known
            sums[key] = consumed
        self._consumed = sums
        return consumed

    def _dealt(self, position: StreamPosition, rank: int) -> PlannedStream:
        jobs, plans = self._dealt_to_all(position)
        own = rank if len(jobs) > 1 else 0
        longest = max(plan.steps for plan in plans)
        windows = _windows(jobs[own].consumed)
        return PlannedStream(plans[own], longest, jobs[own].segments, windows, marks_padding=False)

    def _dealt_to_all(self, position: StreamPosition) -> tuple[list[DealtEpoch], list[RankPlan]]:
        if self._newest_dealt is None or self._newest_dealt[0] != position:

            def place(stage: Stage, consumed: Consumption, number: int) -> Iterator[PlacedPlan]:
                for job in self._deal(position, stage, consumed, number):
                    yield job.plan(), job.segments, job.bases, stage.topology.shuffle_buffer_size

            consumed = self._consumed_before(position, place)
            jobs = self._deal(position, position.stage, consumed, len(position.past))
            self._newest_dealt = (position, (jobs, [job.plan() for job in jobs]))
        return self._newest_dealt[1]

    def _deal(self, position: StreamPosition, stage: Stage, consumed: Consumption, number: int) -> list[DealtEpoch]:
        """Let a generator deal a stage to all ranks; of one that takes no ranks, every rank is the first."""
        topology = stage.topology
        ranks = topology.num_ranks if self.strategy.form == "generator_with_ranks" else 1
        layout = self._layout_of(stage.extent)
        files = list(layout)
        dealt = [
            self.strategy.deal(layout, topology.lanes, position.epoch, topology.num_ranks, rank, files)
            for rank in range(ranks)
        ]
        self.strategy.check_coverage([splits for splits, _ in dealt])
        tables = [self._counted_whole(self._segment(splits, stage.extent)) for splits, _ in dealt]
        bases = self._bases(tables) if position.past else [np.empty(0, dtype=np.int64)] * ranks
        return [
            DealtEpoch(
                segments,
                lane_of,
                topology,
                rank,
                ranks,
                bases[rank],
                self.counted,
                consumed,
                number,
                self._by_file,
            )
            for rank, (segments, (_, lane_of)) in enumerate(zip(tables, dealt, strict=True))
        ]

    def _counted_whole(self, segments: SegmentTable) -> SegmentTable:
        if self._counter is None:
            return segments
        return self._counted(segments, np.arange(len(segments.splits)), self._counter)

    @staticmethod
    def _bases(tables: Sequence[SegmentTable]) -> list[NDArray[np.int64]]:
        """Place the splits of all ranks, which together cover the table, as it is or was."""
        joined = SegmentTable.concat(tables).bases()
        return np.split(joined, np.cumsum([len(table.splits) for table in tables])[:-1])


def _windows(consumed: Consumption) -> tuple[Window, ...]:
    return tuple(entry.window for entry in consumed.windows)
