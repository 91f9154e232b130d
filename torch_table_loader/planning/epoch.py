"""The plan of an epoch: from splits and their live rows to what each lane of each rank reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.cached import cached_property
from torch_table_loader.planning.consumption import NOTHING_TAKEN, Consumption, OpenWindow, delivered_of_lane
from torch_table_loader.planning.distinct import distinct
from torch_table_loader.planning.file_batches import full_batches, in_rows, in_units, num_batches, shared_in_units
from torch_table_loader.planning.interleaving import mixed, mixed_until
from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.lanes import RankPlan, Section, TakenLanes, lane_name, longest_first_of_hands
from torch_table_loader.planning.permutation import permuted_range
from torch_table_loader.planning.ranks import Topology
from torch_table_loader.planning.runs import NO_RUNS, Hands, Runs
from torch_table_loader.planning.splits import SegmentTable

if TYPE_CHECKING:
    from numpy.typing import NDArray


def epoch_order(
    segments: SegmentTable, *, shuffle: bool, seed: int, epoch: int, purpose: str = "splits"
) -> NDArray[np.int64]:
    """Order the splits of an epoch (int64[N], N <= S), without those that metadata proves to be empty.

    Args:
        purpose: what the permutation is for; part of the key too.
    """
    present = np.flatnonzero(segments.metadata_rows > 0)
    if not shuffle:
        return present
    return present[permuted_range(len(present), derive_key(seed, epoch, purpose))]


@dataclass(frozen=True, eq=False)
class CutEpoch:
    """A stage of an epoch in which the library shuffles, slices and assigns (the strategy only cuts).

    Args:
        segments: the splits; live rows may be unknown for splits that this rank does not read.
        counted: False where the caller turned the counting pass off.
        consumed: what earlier stages of the epoch delivered; requires all live rows.
        by_file: whether a batch ends where a split ends. Ranks then share whole batches.
    """

    segments: SegmentTable
    order: NDArray[np.int64]
    topology: Topology
    counted: bool = True
    consumed: Consumption = NOTHING_TAKEN
    stage: int = 0
    by_file: bool = False

    def splits_of(self, rank: int) -> NDArray[np.int64]:
        """Return the splits whose rows a rank must know: its own, or all if ranks or stages depend on each other."""
        if self.topology.even_ranks is not None or self.stage:
            return self.order
        return self.order[rank :: self.topology.num_ranks]

    @cached_property
    def runs(self) -> Runs:
        """What remains, in the epoch's order: open windows, then splits; unknown live rows count as metadata rows."""
        if self.stage:
            left = self.consumed.left_of(self.order, self._live, self.segments.bases)
            whole = Runs.concat([self.consumed.units(len(self.segments.splits)), left])
        else:
            live = self._live[self.order]
            whole = Runs(self.order, np.zeros_like(live), live)
        drops = self.by_file and self.topology.drop_last
        if drops:
            return full_batches(whole, self.topology.batch_size)
        return whole

    @cached_property
    def rows_of_ranks(self) -> NDArray[np.int64]:
        """int64[R] rows of every rank; an upper bound if live rows are unknown."""
        if not self.by_file:
            return self._shares
        ranks = self.topology.num_ranks
        rows: NDArray[np.int64] = self._lanes(np.arange(ranks)).rows.reshape(ranks, -1).sum(axis=1)
        return rows

    @cached_property
    def quotas(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What every rank repeats, in rows or batches, and the steps of every rank; see `quotas`."""
        return quotas(self._shares, self._sharing)

    def plan(self, rank: int) -> RankPlan:
        """Plan one rank."""
        topology = self.topology
        padding, steps = self.quotas
        dealt = self._lanes(np.array([rank]))
        lanes = tuple(dealt)
        windows, mixing = topology.windows_of(dealt.runs.num_rows), topology.mixing
        if mixing is not None and windows is not None:
            lanes = tuple(mixed(lane, len(self._live), mixing.splits, windows) for lane in dealt)
        repeated = self._in_rows(repeat_rows(self._shared, int(padding[rank])))
        return RankPlan(
            lanes,
            repeated,
            topology.batch_size,
            int(steps[rank]),
            self._name(rank),
            counted=self.counted,
            by_file=self.by_file,
            windows=windows,
            deals=mixing is not None,
        )

    def _name(self, rank: int) -> str:
        return f"rank {rank} in stage {self.stage}"

    def delivered(self, steps: int) -> Consumption:
        """Return what the epoch has delivered after some steps of this stage; requires all live rows."""
        ranks = np.flatnonzero(self._shares)  # others repeat rows at most
        if not len(ranks):
            return self.consumed
        _, most = self.quotas
        size = self.topology.batch_size
        taken = TakenLanes.after(self._lanes(ranks), most[ranks], steps, size, by_file=self.by_file)
        if self.topology.shuffle_buffer_size is None:
            return self.consumed.with_delivered([(taken.runs, (), self.segments.bases)])
        opened, runs = list[OpenWindow](), [NO_RUNS]
        for rows, windows in self._delivered_in_windows(ranks.tolist(), taken):
            runs.append(rows)
            opened += windows
        return self.consumed.with_delivered([(Runs.concat(runs), opened, self.segments.bases)])

    def _delivered_in_windows(self, ranks: list[int], taken: TakenLanes) -> Iterator[tuple[Runs, Sequence[OpenWindow]]]:
        """Yield the rows that each lane has delivered or that are in an open window, and this window."""
        topology, mixing, dealt, lanes = self.topology, self.topology.mixing, 0, taken.lanes
        rows_of_ranks = lanes.rows.reshape(len(ranks), -1).sum(axis=1)
        rows_of_lanes = np.repeat(rows_of_ranks, topology.lanes).tolist()  # of the ranks that they are of
        sizes = [each for each in map(topology.windows_of, rows_of_lanes) if each is not None]
        if mixing is not None:
            dealt = topology.batch_size
            lanes = mixed_until(lanes, len(self._live), mixing.splits, sizes, taken.taken)
        each = zip(lanes, sizes, taken.taken.tolist(), taken.bodies.tolist(), strict=True)
        for number, (lane, windows, rows, body) in enumerate(each):
            rank, at = divmod(number, topology.lanes)
            name = lane_name(at, self._name(ranks[rank]))
            section = Section(name, lane, body, 0, self.by_file, windows, dealt)
            yield delivered_of_lane(section, self.segments, rows, body)

    def _lanes(self, ranks: NDArray[np.int64]) -> Hands:
        """Return what the lanes of some ranks read, rank by rank, before they mix it."""
        shared = runs_of_ranks(self._shared, self._sliced, self._shares, ranks)
        own = Hands(self._in_rows(shared.runs), shared.borders)
        lanes = self.topology.lanes
        if lanes == 1:
            return own
        return own.dealt(longest_first_of_hands(self._weights(own.runs), own.borders, lanes), lanes)

    def _in_rows(self, shared: Runs) -> Runs:
        if self.by_file:
            return in_rows(shared, self.runs, self.topology.batch_size)
        return shared

    @cached_property
    def _shared(self) -> Runs:
        """What ranks share: rows, or batches if batches end with splits."""
        if self.by_file:
            return in_units(self.runs, self.topology.batch_size)
        return self.runs

    @cached_property
    def _sharing(self) -> Topology:
        """The topology of the job, applied to what ranks share."""
        if self.by_file:
            return shared_in_units(self.topology)
        return self.topology

    @cached_property
    def _shares(self) -> NDArray[np.int64]:
        """int64[R] each rank's part of it."""
        sharing = self._sharing
        return rank_rows(self._sliced, sharing)

    @cached_property
    def _sliced(self) -> NDArray[np.int64]:
        return sliced_rows(self._shared, self.topology.num_ranks)

    @cached_property
    def _live(self) -> NDArray[np.int64]:
        live = self.segments.live_rows
        return np.where(live < 0, self.segments.metadata_rows, live)

    def _weights(self, runs: Runs) -> NDArray[np.int64]:
        """Metadata rows of each piece; a part of a split weighs its share, a part of a window its rows."""
        weights = runs.stop - runs.start
        plain = np.flatnonzero(runs.split < len(self._live))
        split = runs.split[plain]
        weights[plain] = self.segments.metadata_rows[split] * weights[plain] // np.maximum(self._live[split], 1)
        return weights


@dataclass(frozen=True, eq=False)
class DealtEpoch:
    """A stage of an epoch whose order and assignment come from a generator strategy.

    Args:
        tables: the splits of each rank; of one alone if every rank reads the whole table. Live rows are counted.
        lane_of: the lane of each split, int64[S] for each rank.
        counted: False where the caller turned the counting pass off.
        consumed: what earlier stages of the epoch delivered.
        by_file: whether a batch ends where a split ends.
    """

    tables: Sequence[SegmentTable]
    lane_of: Sequence[NDArray[np.int64]]
    topology: Topology
    counted: bool = True
    consumed: Consumption = NOTHING_TAKEN
    stage: int = 0
    by_file: bool = False

    @cached_property
    def plans(self) -> list[RankPlan]:
        """The plan of each rank: what the strategy dealt, minus what was consumed; open windows are dealt in turn."""
        return [self._plan(rank) for rank in range(len(self.tables))]

    def delivered(self, steps: int) -> Consumption:
        """Return what the epoch has delivered after some steps of this stage."""
        parts = []
        for plan, segments, bases in zip(self.plans, self.tables, self._bases, strict=True):
            taken = TakenLanes.of_plan(plan, steps)
            each = zip(taken.taken.tolist(), taken.bodies.tolist(), strict=True)
            for lane, (rows, body) in enumerate(each):
                parts.append((*delivered_of_lane(plan.whole(lane, 0), segments, rows, body), bases))
        return self.consumed.with_delivered(parts)

    @cached_property
    def _bases(self) -> list[NDArray[np.int64]]:
        """The places of the splits of each rank, which together cover the table, as it is or was."""
        joined = SegmentTable.concat(self.tables).bases
        return np.split(joined, np.cumsum([len(table.splits) for table in self.tables])[:-1])

    def _plan(self, rank: int) -> RankPlan:
        segments = self.tables[rank]
        live, rows = segments.live_rows, segments.metadata_rows
        stop = np.where(live < 0, rows, live)
        order = np.flatnonzero(rows > 0)
        runs = Runs(order, np.zeros_like(order), stop[order])
        if self.stage:
            runs = self.consumed.left_of(order, stop, self._bases[rank])
        units = self.consumed.units(len(segments.splits))
        units = units.take(np.arange(rank, len(units), len(self.tables)))
        count, size = self.topology.lanes, self.topology.batch_size
        lanes = tuple(
            Runs.concat(
                [
                    units.take(np.arange(lane, len(units), count)),
                    runs.take(np.flatnonzero(self.lane_of[rank][runs.split] == lane)),
                ]
            )
            for lane in range(count)
        )
        steps = self.topology.batches(sum(lane.num_rows for lane in lanes))
        if self.by_file:
            if self.topology.drop_last:
                lanes = tuple(full_batches(lane, size) for lane in lanes)
            steps = sum(num_batches(lane, size) for lane in lanes)
        return RankPlan(
            lanes,
            NO_RUNS,
            size,
            steps,
            f"rank {rank} in stage {self.stage}",
            counted=self.counted,
            by_file=self.by_file,
            windows=self.topology.windows_of(sum(lane.num_rows for lane in lanes)),
        )


def repeat_rows(order: Runs, count: int) -> Runs:
    """Return the first rows of the epoch's order, starting over where it ends; it is empty only if `count` is 0.

    >>> list(repeat_rows(Runs.of([(4, 0, 3)]), 5))
    [(4, 0, 3), (4, 0, 2)]
    """
    if not count:
        return NO_RUNS
    whole, rest = divmod(count, order.num_rows)
    return Runs.concat([order] * whole + [order.slice(0, rest)])


def uneven_steps(steps: Sequence[int]) -> str | None:
    """Return how steps differ over ranks, or None if they do not.

    >>> uneven_steps([3, 2, 2])
    '3, 2, 2'
    >>> uneven_steps([2, 2]) is None
    True
    """
    if len(set(steps)) <= 1:
        return None
    shown = ", ".join(map(str, steps[:16]))
    if len(steps) <= 16:
        return shown
    return f"{shown}, … ({min(steps)} to {max(steps)} over {len(steps)} ranks)"


def sliced_rows(order: Runs, ranks: int) -> NDArray[np.int64]:
    """Count the rows of every rank, when each takes every R-th piece: int64[R].

    >>> sliced_rows(Runs.of([(s, 0, 10) for s in range(7)]), 3).tolist()
    [30, 20, 20]
    """
    count = len(order.start)
    rows = np.zeros(-(-count // ranks) * ranks, dtype=np.int64)
    np.subtract(order.stop, order.start, out=rows[:count])
    total: NDArray[np.int64] = rows.reshape(-1, ranks).sum(axis=0)
    return total


def rank_rows(sliced: NDArray[np.int64], topology: Topology) -> NDArray[np.int64]:
    """Count the rows of every rank, int64[R], from those of `sliced_rows`.

    >>> rank_rows(np.array([30, 20, 20]), Topology(3, 1, 4, even_ranks="balance")).tolist()
    [24, 23, 23]
    """
    if topology.even_ranks == "balance":
        return _balanced(sliced)
    return sliced


def runs_of_ranks(order: Runs, before: NDArray[np.int64], target: NDArray[np.int64], ranks: NDArray[np.int64]) -> Hands:
    """Return the pieces of some ranks (int64[K]): every R-th, and those that move to them from other ranks.

    Rows move from the ends of the longest ranks to the shortest, in rank order, until each rank has its own.

    Args:
        before: int64[R] the rows of every R-th piece, of each rank; see `sliced_rows`.
        target: int64[R] the rows that each rank gets; see `rank_rows`.
    """
    if (before[ranks] == target[ranks]).all():
        return Hands.every(order, ranks, len(target))
    given = np.concatenate(([0], np.cumsum(np.maximum(before - target, 0))))
    taken = np.concatenate(([0], np.cumsum(np.maximum(target - before, 0))))
    first = np.searchsorted(given, taken[ranks], side="right") - 1
    last = np.searchsorted(given, taken[ranks + 1], side="left")
    donors = np.where(taken[ranks + 1] > taken[ranks], last - first, 0)
    ends = np.cumsum(donors)
    to = np.repeat(np.arange(len(ranks)), donors)
    donor = np.arange(len(to)) + np.repeat(first - ends + donors, donors)
    low = np.maximum(taken[ranks[to]], given[donor]) - given[donor] + target[donor]
    high = np.minimum(taken[ranks[to] + 1], given[donor + 1]) - given[donor] + target[donor]
    # the own pieces of a rank come before those that it gets
    by_rank = np.argsort(np.concatenate((np.arange(len(ranks)), to)), kind="stable")
    whose = np.concatenate((ranks, donor))[by_rank]
    start = np.concatenate((np.zeros_like(ranks), low))[by_rank]
    stop = np.concatenate((np.minimum(before, target)[ranks], high))[by_rank]
    read = distinct(whose)
    parts = Hands.every(order, read, len(target)).parts(np.searchsorted(read, whose), start, stop)
    return Hands(parts.runs, parts.borders[np.concatenate(([0], ends + np.arange(1, len(ranks) + 1)))])


def quotas(rows: NDArray[np.int64], topology: Topology) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the padding rows and the steps of every rank, each int64[R], for the rows of each.

    Padding repeats rows of the start of the epoch's order; rows of a rank beyond its steps are dropped.

    >>> [a.tolist() for a in quotas(np.array([30, 20, 20]), Topology(3, 1, 8, even_ranks="pad"))]
    [[0, 10, 10], [4, 4, 4]]
    """
    size, most = topology.batch_size, int(rows.max())
    padding = np.zeros_like(rows)
    if topology.even_ranks == "pad":
        padding = most - rows
    elif topology.even_ranks == "balance" and not topology.drop_last:
        padding = (-(-rows // size) < -(-most // size)).astype(np.int64)
    total = rows + padding
    steps = total // size if topology.drop_last else -(-total // size)
    if topology.even_ranks in ("drop", "balance"):
        steps = np.full_like(steps, steps.min())
    return padding, steps


def _balanced(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """⌈N/R⌉ for the N mod R longest ranks (ties by rank), ⌊N/R⌋ for the others."""
    total, ranks = int(rows.sum()), len(rows)
    target = np.full(ranks, total // ranks, dtype=np.int64)
    target[np.argsort(-rows, kind="stable")[: total % ranks]] += 1
    return target
