"""The plan of an epoch: from splits and their live rows to what each lane of each rank reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.lanes import RankPlan, longest_first
from torch_table_loader.planning.permutation import Permutation
from torch_table_loader.planning.ranks import Quota, Topology, quota_of, rank_rows, rank_runs
from torch_table_loader.planning.runs import Runs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.splits import SegmentTable


def epoch_order(segments: SegmentTable, *, shuffle: bool, seed: int, epoch: int) -> NDArray[np.int64]:
    """Order the splits of an epoch; those that metadata proves to be empty are left out.

    Args:
        segments: S splits.
        shuffle: whether they are permuted.
        seed: key of the permutation, with the epoch.
        epoch: from 0.

    Returns:
        int64[N] splits, N <= S.
    """
    present = np.flatnonzero(segments.metadata_rows() > 0)
    if not shuffle:
        return present
    permutation = Permutation(len(present), derive_key(seed, epoch, "splits"))
    return present[permutation.slice(0, len(present))]


@dataclass(frozen=True, slots=True, eq=False)
class CutEpoch:
    """An epoch in which the library shuffles, slices and assigns (the strategy cuts).

    Args:
        segments: the splits; live rows may be unknown for splits that this rank does not read.
        order: int64[N] splits in the epoch's order.
        topology: the job's shape.
        counted: False where the caller gave the counting pass up.
    """

    segments: SegmentTable
    order: NDArray[np.int64]
    topology: Topology
    counted: bool = True

    def splits_of(self, rank: int) -> NDArray[np.int64]:
        """Name the splits that a rank needs counted: its own, or all where ranks depend on each other."""
        if self.topology.even_ranks is not None:
            return self.order
        return self.order[rank :: self.topology.num_ranks]

    def runs(self) -> Runs:
        """All splits, whole, in the epoch's order; unknown live rows count as metadata rows."""
        live, rows = self.segments.live_rows(), self.segments.metadata_rows()
        stop = np.where(live < 0, rows, live)[self.order]
        return Runs(self.order, np.zeros_like(stop), stop)

    def rows_of_ranks(self) -> NDArray[np.int64]:
        """int64[R] rows of every rank: an upper bound where live rows are unknown."""
        return rank_rows(self.runs(), self.topology)

    def quota(self, rank: int) -> Quota:
        """What a rank delivers."""
        return quota_of(self.rows_of_ranks(), self.topology, rank)

    def plan(self, rank: int) -> RankPlan:
        """Plan one rank."""
        order, topology = self.runs(), self.topology
        own = rank_runs(order, topology, rank)
        quota = self.quota(rank)
        lane_of = longest_first(self._weights(own), topology.lanes)
        lanes = tuple(own.take(np.flatnonzero(lane_of == lane)) for lane in range(topology.lanes))
        padding = repeat_rows(order, quota.padding)
        return RankPlan(lanes, padding, topology.batch_size, quota.steps, counted=self.counted)

    def _weights(self, runs: Runs) -> NDArray[np.int64]:
        """Metadata rows of each piece; a part of a split weighs its share."""
        live, rows = self.segments.live_rows()[runs.split], self.segments.metadata_rows()[runs.split]
        whole = np.where(live < 0, rows, live)
        return rows * (runs.stop - runs.start) // np.maximum(whole, 1)


@dataclass(frozen=True, slots=True, eq=False)
class DealtEpoch:
    """An epoch whose order and assignment a generator strategy owns.

    Args:
        segments: this rank's splits, shard by shard.
        lane_of: int64[S] the lane of each split.
        topology: the job's shape; `even_ranks` is None.
        counted: False where the caller gave the counting pass up.
    """

    segments: SegmentTable
    lane_of: NDArray[np.int64]
    topology: Topology
    counted: bool = True

    def plan(self) -> RankPlan:
        """Plan this rank."""
        live, rows = self.segments.live_rows(), self.segments.metadata_rows()
        stop = np.where(live < 0, rows, live)
        runs = Runs(np.arange(len(stop), dtype=np.int64), np.zeros_like(stop), stop)
        lanes = tuple(
            runs.take(np.flatnonzero((self.lane_of == lane) & (rows > 0))) for lane in range(self.topology.lanes)
        )
        steps = self.topology.batches(int(stop.sum()))
        return RankPlan(lanes, Runs.of([]), self.topology.batch_size, steps, counted=self.counted)


def repeat_rows(order: Runs, count: int) -> Runs:
    """Take the first rows of the epoch's order, beginning again where it ends.

    Args:
        order: at least one row, where `count` is not 0.
        count: how many rows.

    >>> list(repeat_rows(Runs.of([(4, 0, 3)]), 5))
    [(4, 0, 3), (4, 0, 2)]
    """
    if not count:
        return Runs.of([])
    whole, rest = divmod(count, order.num_rows)
    return Runs.concat([order] * whole + [order.slice(0, rest)])


def window_order(seed: int, epoch: int, rank: int, section: str, window: int, length: int) -> NDArray[np.int64]:
    """Permute the rows of one shuffle window, as a pure function of its place.

    Args:
        seed: the loader's.
        epoch: from 0.
        rank: the rank that reads it.
        section: the name of the `Section`.
        window: its number in the section.
        length: its rows.

    Returns:
        int64[length].
    """
    key = derive_key(seed, epoch, f"window {window} of {section} of rank {rank}")
    return Permutation(length, key).slice(0, length)


def uneven_steps(steps: Sequence[int]) -> str | None:
    """Say how steps differ over ranks, or None if they do not.

    >>> uneven_steps([3, 2, 2])
    '3, 2, 2'
    >>> uneven_steps([2, 2]) is None
    True
    """
    if len(set(steps)) <= 1:
        return None
    shown = ", ".join(map(str, steps[:16]))
    return shown if len(steps) <= 16 else f"{shown}, … ({min(steps)} to {max(steps)} over {len(steps)} ranks)"


__all__ = ["CutEpoch", "DealtEpoch", "epoch_order", "repeat_rows", "uneven_steps", "window_order"]
