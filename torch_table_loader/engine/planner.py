"""Plans the epochs of one table for one job, counting what has to be counted."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.planning.epoch import CutEpoch, DealtEpoch, epoch_order
from torch_table_loader.planning.ranks import quotas
from torch_table_loader.planning.splits import SegmentTable

if TYPE_CHECKING:
    from torch_table_loader.engine.counting import LiveCounter
    from torch_table_loader.planning.lanes import RankPlan
    from torch_table_loader.planning.layout import TableLayout
    from torch_table_loader.planning.ranks import Topology
    from torch_table_loader.planning.splits import SplitTable
    from torch_table_loader.planning.strategies import Strategy


@dataclass(frozen=True, slots=True, eq=False)
class PlannedEpoch:
    """One rank's epoch.

    Args:
        segments: what the splits consist of.
        plan: what the rank delivers.
        marks_padding: whether the batches of every rank say which rows are padding.
    """

    segments: SegmentTable
    plan: RankPlan
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
    ) -> None:
        """Cut the table, where the strategy cuts.

        Args:
            layout: the table.
            strategy: how it is split.
            topology: the job's shape.
            shuffle: whether splits are permuted each epoch.
            seed: key of the permutation.
            filtered: whether live rows depend on a row filter.
            counter: counts them; None where the caller gave that up, or there is nothing to count.
        """
        self.layout = layout
        self.strategy = strategy
        self.topology = topology
        self._shuffle = shuffle
        self._seed = seed
        self._filtered = filtered
        self._counter = counter
        self._segments = self._segment(strategy.cut(layout)) if strategy.cuts else None
        self._newest: tuple[tuple[int, int], PlannedEpoch] | None = None

    def with_lanes(self, lanes: int) -> Planner:
        """Plan the same splits, counts included, for another number of lanes."""
        other = copy.copy(self)
        other.topology = replace(self.topology, lanes=lanes)
        other._newest = None
        return other

    @property
    def counted(self) -> bool:
        """Whether live rows are known before reading."""
        return self._counter is not None or not self._filtered

    def plan(self, epoch: int, rank: int) -> PlannedEpoch:
        """Plan one rank's epoch; a pure function of its arguments and the table."""
        if self._newest is None or self._newest[0] != (epoch, rank):
            planned = self._dealt(epoch, rank) if self._segments is None else self._cut(self._segments, epoch, rank)
            self._newest = ((epoch, rank), planned)
        return self._newest[1]

    def steps_of_ranks(self, epoch: int) -> list[int] | None:
        """Steps of every rank; None where a rank knows its own rows alone."""
        if self._segments is None:
            return [self.plan(epoch, rank).plan.steps for rank in range(self.topology.num_ranks)]
        job = self._epoch(self._segments, epoch)
        if self._filtered and (job.segments.live_rows()[job.order] < 0).any():
            return None
        _, steps = quotas(job.rows_of_ranks(), self.topology)
        return [int(count) for count in steps]

    def rows_of_ranks(self, epoch: int) -> list[int] | None:
        """Rows of every rank, padding left out; None where a rank knows its own rows alone."""
        if self._segments is None:
            return [self.plan(epoch, rank).plan.own_rows for rank in range(self.topology.num_ranks)]
        job = self._epoch(self._segments, epoch)
        if self._filtered and (job.segments.live_rows()[job.order] < 0).any():
            return None
        return [int(count) for count in job.rows_of_ranks()]

    def _segment(self, splits: SplitTable) -> SegmentTable:
        return SegmentTable.of(splits, filtered=self._filtered)

    def _epoch(self, segments: SegmentTable, epoch: int) -> CutEpoch:
        order = epoch_order(segments, shuffle=self._shuffle, seed=self._seed, epoch=epoch)
        return CutEpoch(segments, order, self.topology, counted=self.counted)

    def _cut(self, segments: SegmentTable, epoch: int, rank: int) -> PlannedEpoch:
        job = self._epoch(segments, epoch)
        if self._counter is not None:
            segments = self._segments = self._counter.count(segments, job.splits_of(rank))
            job = CutEpoch(segments, job.order, self.topology)
        marks = self.topology.even_ranks == "pad"
        if self.topology.even_ranks == "balance":
            marks = bool(quotas(job.rows_of_ranks(), self.topology)[0].any())
        return PlannedEpoch(segments, job.plan(rank), marks)

    def _dealt(self, epoch: int, rank: int) -> PlannedEpoch:
        topology = self.topology
        ranks = range(topology.num_ranks) if self.strategy.form == "generator_with_ranks" else [rank]
        dealt = {
            each: self.strategy.deal(self.layout, topology.lanes, epoch, topology.num_ranks, each) for each in ranks
        }
        self.strategy.check_coverage([splits for splits, _ in dealt.values()])
        splits, lane_of = dealt[rank]
        segments = self._segment(splits)
        if self._counter is not None:
            segments = self._counter.count(segments, np.arange(len(splits)))
        return PlannedEpoch(segments, DealtEpoch(segments, lane_of, topology, counted=self.counted).plan(), False)


__all__ = ["PlannedEpoch", "Planner"]
