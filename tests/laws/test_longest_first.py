"""Pieces go to lanes by longest processing time first, however it is computed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_table_loader.extend import longest_first


def by_hand(weights: list[int], lanes: int) -> list[int]:
    """Assign each piece, the heaviest first, to the lane with the least load."""
    loads, lane_of = [0] * lanes, [0] * len(weights)
    for piece in sorted(range(len(weights)), key=lambda at: (-weights[at], at)):
        lane_of[piece] = min(range(lanes), key=lambda lane: (loads[lane], lane))
        loads[lane_of[piece]] += weights[piece]
    return lane_of


@given(
    weights=st.one_of(
        st.lists(st.integers(0, 9), max_size=30),
        st.lists(st.integers(0, 1 << 50), max_size=30),
        st.builds(lambda weight, count: [weight] * count, st.integers(0, 3), st.integers(0, 30)),
    ),
    lanes=st.integers(1, 6),
)
def test_the_heaviest_piece_goes_to_the_least_load(weights: list[int], lanes: int) -> None:
    assert longest_first(np.array(weights, dtype=np.int64), lanes).tolist() == by_hand(weights, lanes)


@pytest.mark.parametrize("lanes", [1, 4])
def test_numbers_beyond_64_bits_are_handled(lanes: int) -> None:
    weights = [(1 << 62) + at for at in range(5)]
    assert longest_first(np.array(weights, dtype=np.int64), lanes).tolist() == by_hand(weights, lanes)
