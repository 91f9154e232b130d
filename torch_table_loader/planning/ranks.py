"""Which rows each rank reads, and how ranks come to take equally many steps."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_table_loader.planning.distinct import distinct
from torch_table_loader.planning.runs import Hands, Runs
from torch_table_loader.planning.window_sizes import WindowSizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.options import EvenRanks


@dataclass(frozen=True, slots=True)
class Mixing:
    """How a rank mixes what it reads.

    Args:
        rows: about how many rows a window has.
        splits: how many splits are read side by side.
        first: about how many rows the first window has, from which windows grow; None: they are all alike.
    """

    rows: int
    splits: int
    first: int | None = None

    def to_state(self) -> dict[str, int]:
        """Write as plain values by name.

        >>> Mixing(1024, 16).to_state(), Mixing(1024, 16, 64).to_state()
        ({'rows': 1024, 'splits': 16}, {'first': 64, 'rows': 1024, 'splits': 16})
        """
        grows = {} if self.first is None else {"first": self.first}
        return {**grows, "rows": self.rows, "splits": self.splits}

    def windows_of(self, rows: int, lanes: int, batch_size: int) -> WindowSizes:
        """Return what windows have of so many rows that lanes share: whole batches, about equally many, once grown.

        >>> Mixing(1000, 16).windows_of(10_100, 1, 64), Mixing(1000, 16).windows_of(10, 1, 64)
        (WindowSizes(rows=1024, first=()), WindowSizes(rows=64, first=()))
        """
        own, window = -(-rows // lanes), -(-self.rows // lanes)
        return WindowSizes.growing(own, window, self.first or window, batch_size)


@dataclass(frozen=True, slots=True)
class Topology:
    """The shape of a job, as far as it decides which row comes when.

    Args:
        num_ranks: R.
        lanes: workers of a rank.
        batch_size: B, rows of a batch on a rank.
        shuffle_buffer_size: rows of a shuffle window, how splits are mixed, or None.
        even_ranks: None, "balance", "drop" or "pad".
        drop_last: whether a short last batch is dropped.
        micro_batches: k, batches of a rank in a step of the optimizer; 1 for a stream.
    """

    num_ranks: int
    lanes: int
    batch_size: int
    shuffle_buffer_size: int | Mixing | None = None
    even_ranks: EvenRanks | None = None
    drop_last: bool = False
    micro_batches: int = 1

    @classmethod
    def of_state(cls, fields: Mapping[str, Any]) -> Topology:
        """Read what `to_state` wrote, in a checked state."""
        window = fields.get("shuffle_buffer_size")
        if isinstance(window, dict):
            window = Mixing(**window)
        return cls(**{name: fields[name] for name in _NAMED}, shuffle_buffer_size=window)

    def to_state(self) -> dict[str, Any]:
        """Write as plain values by name; micro-batches are for the job to say that has some.

        >>> Topology(4, 1, 64, Mixing(1024, 16)).to_state()["shuffle_buffer_size"]
        {'rows': 1024, 'splits': 16}
        """
        fields = dict(zip(_NAMED, _SHAPE(self), strict=True))
        window = self.shuffle_buffer_size
        if window is not None:
            fields["shuffle_buffer_size"] = window.to_state() if isinstance(window, Mixing) else window
        return fields

    @property
    def marks_padding(self) -> bool:
        """Whether batches have a column that marks padding: where there may be some, whatever the table has."""
        balances = self.even_ranks == "balance" and self.num_ranks > 1 and not self.drop_last
        return balances or self.even_ranks == "pad"

    @property
    def mixing(self) -> Mixing | None:
        """How splits are mixed, if they are."""
        if isinstance(self.shuffle_buffer_size, Mixing):
            return self.shuffle_buffer_size
        return None

    def windows_of(self, rows: int) -> WindowSizes | None:
        """Return what the shuffle windows of a lane have, for a rank of so many rows; None if there are none."""
        window = self.shuffle_buffer_size
        if isinstance(window, Mixing):
            return window.windows_of(rows, self.lanes, self.batch_size)
        if window is None:
            return None
        return WindowSizes(window)

    def has_batches_of(self, other: Topology) -> bool:
        """Return whether batches are as large as in another topology, and as many of them a step of the optimizer."""
        return (self.batch_size, self.micro_batches) == (other.batch_size, other.micro_batches)

    def batches(self, rows: int) -> int:
        """Return the number of batches for so many rows of a rank."""
        if self.drop_last:
            return rows // self.batch_size
        return -(-rows // self.batch_size)


MOST_SPLITS = 1024
"""The most splits that may be read side by side."""

_NAMED = ("num_ranks", "lanes", "batch_size", "even_ranks", "drop_last")
_SHAPE = operator.attrgetter(*_NAMED)


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
