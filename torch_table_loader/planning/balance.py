"""Which rank takes which sequences of a global batch, so that no rank waits long for another's attention."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]


def attention_costs(lengths: Ints, offsets: Ints) -> Ints:
    """Return the cost of attention within documents for each sequence: the sum of their squared lengths.

    Args:
        lengths: int64[n] tokens of each part of a document.
        offsets: int64[sequences + 1]; sequence s has the parts ``offsets[s]:offsets[s + 1]``.

    >>> attention_costs(np.array([2, 3, 5]), np.array([0, 2, 3])).tolist()
    [13, 25]
    """
    sums = np.concatenate(([0], np.cumsum(lengths * lengths)))
    found: Ints = sums[offsets[1:]] - sums[offsets[:-1]]
    return found


def balanced(costs: Ints, ranks: int) -> Ints:
    """Deal the sequences of a global batch to ranks, the same number to each.

    The most expensive sequence comes first, and goes to the rank with the least work among those with room. If that
    leaves the busiest rank with no less than taking every R-th sequence would, each rank takes every R-th sequence.

    Args:
        costs: int64[n] cost of each sequence; n is a multiple of `ranks`.

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
