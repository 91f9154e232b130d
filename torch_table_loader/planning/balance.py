"""Which rank takes which sequences of a global batch, so that none waits long for the others' attention."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]


def attention_costs(lengths: Ints, offsets: Ints) -> Ints:
    """Return what attention within documents costs in each sequence: the sum of their squared lengths.

    Args:
        lengths: int64[n] tokens of each part of a document.
        offsets: int64[sequences + 1] sequence s has the parts ``offsets[s]`` to before ``offsets[s + 1]``.

    >>> attention_costs(np.array([2, 3, 5]), np.array([0, 2, 3])).tolist()
    [13, 25]
    """
    sums = np.concatenate(([0], np.cumsum(lengths * lengths)))
    found: Ints = sums[offsets[1:]] - sums[offsets[:-1]]
    return found


def balanced(costs: Ints, ranks: int) -> Ints:
    """Deal the sequences of a global batch to ranks, equally many to each.

    The most expensive comes first, and goes to the rank that has least to do of those that have room. Where the dearest
    rank would not have less than if every R-th sequence were a rank's, that is what each gets.

    Args:
        costs: int64[n] of each sequence; n is a multiple of `ranks`.
        ranks: R.

    Returns:
        int64[ranks, n / ranks] the sequences of each rank, ascending.

    >>> balanced(np.array([9, 1, 9, 1]), 2).tolist()
    [[0, 1], [2, 3]]
    """
    size = len(costs) // ranks
    in_turn = np.arange(len(costs), dtype=np.int64).reshape(size, ranks).T
    rank_of = np.empty(len(costs), dtype=np.int64)
    loads = [(0, rank) for rank in range(ranks)]
    room = [size] * ranks
    order = np.argsort(-costs, kind="stable")
    for sequence, cost in zip(order.tolist(), costs[order].tolist(), strict=True):
        load, rank = loads[0]
        rank_of[sequence] = rank
        room[rank] -= 1
        if room[rank]:
            heapq.heapreplace(loads, (load + cost, rank))
        else:
            heapq.heappop(loads)
    dealt: Ints = np.argsort(rank_of, kind="stable").reshape(ranks, size)
    return dealt if costs[dealt].sum(axis=1).max() < costs[in_turn].sum(axis=1).max() else in_turn
