"""Quotas: every prefix has each source's share to within one turn, and any block is computed independently."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.effort import examples
from torch_table_loader.errors import ConfigError
from torch_table_loader.extend import Mixture, Quotas, StopRule, derive_key
from torch_table_loader.mixtures.quotas import _earliest_deadline, _fit

weights = st.one_of(
    st.lists(st.integers(1, 20), min_size=1, max_size=12),
    st.lists(st.integers(10**5, 10**7), min_size=1, max_size=9),
    st.lists(st.sampled_from([0, 10**15, 10**17 + 3, 45 * 10**15]), min_size=1, max_size=9),
    st.lists(st.sampled_from([1, 3, 20, 450, 1000]), min_size=1, max_size=30),
).filter(any)


def turns_of(quotas: Quotas, first: int, number: int, seed: int = 0) -> np.ndarray:
    return quotas.arranged(np.arange(first, first + number), derive_key(seed, 0, "quotas"))


def check(quotas: Quotas, first: int, turns: list[int]) -> None:
    """Compare each prefix that ends in a block with the shares, in whole numbers."""
    total = sum(quotas.weights)
    counts = quotas.had(np.array([first]))[0].tolist()
    start = first * quotas.block_turns
    assert sum(counts) == start
    for n, source in enumerate(turns, start + 1):
        counts[source] += 1
        for count, weight in zip(counts, quotas.weights, strict=True):
            assert abs(count * total - n * weight) < total, n


@settings(max_examples=examples(120), deadline=None)
@given(weights=weights, first=st.one_of(st.integers(0, 3), st.integers(0, 10**9)), seed=st.integers(0, 9))
@example(weights=[10**6, 1, 450], first=0, seed=0)
@example(weights=[1] * 30, first=10**9, seed=0)
def test_every_prefix_has_its_shares(weights: list[int], first: int, seed: int) -> None:
    quotas = Quotas(tuple(weights))
    number = 3 if quotas.block_turns < 10_000 else 1
    turns = turns_of(quotas, first, number, seed)
    check(quotas, first, turns.reshape(-1)[:4000].tolist())
    borders = quotas.had(np.arange(first, first + number + 1))
    for block, (before, after) in zip(turns, pairwise(borders), strict=True):
        assert np.bincount(block, minlength=len(weights)).tolist() == (after - before).tolist()


@settings(max_examples=examples(40), deadline=None)
@given(weights=weights, first=st.integers(0, 10**6))
def test_a_block_does_not_depend_on_the_other_blocks(weights: list[int], first: int) -> None:
    quotas = Quotas(tuple(weights))
    if quotas.block_turns < 10_000:
        assert (turns_of(quotas, first, 4)[2] == turns_of(quotas, first + 2, 1)[0]).all()


@settings(max_examples=examples(60), deadline=None)
@given(weights=weights, first=st.integers(0, 1000))
def test_earliest_deadline_first_fits_where_middles_do_not(weights: list[int], first: int) -> None:
    quotas = Quotas(tuple(weights))
    if quotas.block_turns < 10_000:
        fitted = quotas._fitted(np.array([first]))
        assert _fit(fitted).all()
        assert _fit(np.array([list(_earliest_deadline(np.sort(fitted[0])))])).all()


def test_a_turn_may_come_at_any_slot_of_its_window() -> None:
    """Two sources of one weight: each pair of turns is one of two, with even chances, whatever the ones before it."""
    turns = turns_of(Quotas((1, 1)), 0, 200).reshape(-1, 2)
    assert (turns.sum(axis=1) == 1).all()
    first = turns[:, 0]
    pairs = np.bincount(first[:-1] * 2 + first[1:], minlength=4)
    expected = len(first) / 4
    assert ((pairs - expected) ** 2 / expected).sum() < 22, "chi-square of 3 degrees of freedom, p < 0.0001"


@pytest.mark.parametrize("weights", [(6, 3, 1), (5, 3, 2), (1, 1, 1, 1), (700, 299, 1)])
@pytest.mark.parametrize("ranks", [2, 5, 10])
def test_no_rank_has_very_different_shares_from_its_neighbors(weights: tuple[int, ...], ranks: int) -> None:
    """Ranks take every R-th place; a periodic order would give one of them a source alone. Windows leave a little."""
    counts = np.zeros((ranks, len(weights)))
    for seed in range(20):
        turns = turns_of(Quotas(weights), seed, 8, seed).reshape(-1)
        for rank in range(ranks):
            counts[rank] += np.bincount(turns[rank::ranks], minlength=len(weights))
    shares = counts / counts.sum(axis=1, keepdims=True)
    assert abs(shares - np.array(weights) / sum(weights)).max() < 0.06


@settings(max_examples=examples(80), deadline=None)
@given(
    rows=st.lists(st.integers(0, 900), min_size=1, max_size=6).filter(any),
    taken=st.integers(0, 1500),
    rule=st.sampled_from(["first_exhausted", "all_exhausted"]),
    changed=st.booleans(),
)
def test_natural_shares_deliver_each_row_once(rows: list[int], taken: int, rule: StopRule, changed: bool) -> None:
    """Also when natural shares begin in the middle of an epoch, and when a source joins there."""
    counts = dict(zip("abcdef", rows, strict=False))
    natural = Mixture.of(dict.fromkeys(counts, 1), 3, 1, 0).of_what_is_left(0, counts)
    if not changed:
        assert natural.length(list(counts.values()), rule) == sum(rows)
        assert natural.of_what_is_left(taken, counts) is natural
        turns = natural.places(0, sum(rows))
        for number, count in enumerate(rows):
            assert turns.turn[turns.source == number].tolist() == list(range(count))
        return
    taken = min(taken, sum(rows))
    more = {**counts, "z": 40}
    left = natural.of_what_is_left(taken, more)
    length = left.length(list(more.values()), rule)
    assert length == sum(rows) + 40
    assert left.rows_before(length) == tuple(more.values())


def test_with_nothing_left_the_epoch_ends_or_begins_another_round() -> None:
    natural = Mixture.of({"a": 1, "b": 2}, 0, 0, 0).of_what_is_left(0, {"a": 10, "b": 20})
    again = (
        natural.reweighted(20, {"a": 1, "b": 1})
        .reweighted(60, {"a": 2, "b": 1})
        .of_what_is_left(90, {"a": 10, "b": 20})
    )
    assert again.length([10, 20], "first_exhausted") == 90
    assert again.shares.weights == (1, 2)
    with pytest.raises(ConfigError, match="no source has a row"):
        natural.of_what_is_left(0, {"a": 0, "c": 0})


def test_the_order_is_frozen() -> None:
    """It is part of the state's format."""
    turns = turns_of(Quotas((5, 3, 2)), 7, 1, 42)[0]
    assert "".join("abc"[number] for number in turns[:60].tolist()) == (
        "cabaacabacbaabcabaacbaababcaababcaacabbacaacbabaababcaacabac"
    )
    rare = Quotas((400, 1, 77, 301))
    assert rare.block_turns == 1024
    assert "".join("abcd"[number] for number in turns_of(rare, 5, 1, 42)[0, 360:420].tolist()) == (
        "adcadadaadadcadaadaadadcaaddaadcadaadadadacaddaadacaddaadaad"
    )
    assert rare.had(np.array([10**9])).tolist() == [[525802310655, 1314505776, 101216944801, 395666238768]]
