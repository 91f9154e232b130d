"""Sequences of a global batch are dealt so that ranks have about equal work."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from torch_table_loader.text.sequence_orders import attention_costs, balanced


@settings(max_examples=examples(100), deadline=None)
@given(ranks=st.integers(1, 9), size=st.integers(1, 12), data=st.data())
def test_each_sequence_goes_to_one_rank_and_no_rank_waits_longer(ranks: int, size: int, data: st.DataObject) -> None:
    numbers = st.integers(0, 2**40)
    costs = np.array(data.draw(st.lists(numbers, min_size=ranks * size, max_size=ranks * size)), dtype=np.int64)
    dealt = balanced(costs, ranks)
    assert dealt.shape == (ranks, size)
    assert sorted(dealt.reshape(-1).tolist()) == list(range(ranks * size))
    assert (np.diff(dealt, axis=1) > 0).all()
    in_turn = max(costs[rank::ranks].sum() for rank in range(ranks))
    assert costs[dealt].sum(axis=1).max() <= in_turn
    assert np.array_equal(dealt, balanced(costs, ranks))


def test_ranks_have_about_equal_costs() -> None:
    generator = np.random.default_rng(3)
    spreads = []
    for _ in range(20):
        costs = np.exp(generator.normal(12, 1, 8 * 16)).astype(np.int64)
        loads = costs[balanced(costs, 8)].sum(axis=1)
        spreads.append(loads.max() / loads.mean())
    assert np.median(spreads) < 1.02


@given(st.lists(st.lists(st.integers(1, 50), max_size=5), min_size=1, max_size=9))
def test_costs_are_sums_of_squared_lengths(sequences: list[list[int]]) -> None:
    lengths = np.array([length for sequence in sequences for length in sequence], dtype=np.int64)
    offsets = np.cumsum([0, *map(len, sequences)])
    assert attention_costs(lengths, offsets).tolist() == [sum(n * n for n in sequence) for sequence in sequences]
