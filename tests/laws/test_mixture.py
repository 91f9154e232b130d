"""Mixture: shares that hold over every prefix of blocks, and weights that change without a row lost or repeated."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_table_loader.errors import ConfigError
from torch_table_loader.planning.mixture import Mixture, StopRule, source_rows

weights = st.dictionaries(st.sampled_from("abcde"), st.floats(0.01, 10), min_size=1)
changes = st.lists(st.tuples(st.integers(0, 700), weights), max_size=3)


@given(weights=weights, blocks=st.integers(0, 30), seed=st.integers(0, 5))
def test_counts_over_blocks_are_within_one_of_the_share(weights: dict[str, float], blocks: int, seed: int) -> None:
    mixture = Mixture.of(weights, seed, 0)
    places = min(blocks * mixture.stages[0].block, 20_000) // mixture.stages[0].block * mixture.stages[0].block
    counts = mixture.rows_before(places)
    total = sum(map(Fraction, weights.values()))
    for count, weight in zip(counts, weights.values(), strict=True):
        assert abs(count - places * Fraction(weight) / total) < 1
    assert sum(counts) == places
    assert np.bincount(mixture.places(0, places).source, minlength=len(counts)).tolist() == list(counts)


@settings(max_examples=60)
@given(weights=weights, changes=changes, epoch=st.integers(0, 2))
def test_the_rows_of_each_source_come_in_turn_whatever_the_weights_become(
    weights: dict[str, float], changes: list[tuple[int, dict[str, float]]], epoch: int
) -> None:
    mixture = Mixture.of(weights, 0, epoch)
    at, seen = 0, Counter[str]()
    for step, new in [*changes, (300, weights)]:
        source, index = mixture.places(at, at + step)
        for name, number in zip((mixture.names[s] for s in source.tolist()), index.tolist(), strict=True):
            assert number == seen[name]
            seen[name] += 1
        at += step
        assert dict(zip(mixture.names, mixture.rows_before(at), strict=True)) == {n: seen[n] for n in mixture.names}
        mixture = mixture.reweighted(at, new)
        assert mixture.rows_before(at) == tuple(seen[name] for name in mixture.names)


@given(weights=weights, places=st.lists(st.integers(0, 5_000), min_size=1, max_size=20))
def test_any_place_is_found_alone(weights: dict[str, float], places: list[int]) -> None:
    mixture = Mixture.of(weights, 3, 1).reweighted(777, {"a": 1, "z": 2})
    together = mixture.take(np.array(places))
    for number, place in enumerate(places):
        source, index = mixture.take(np.array([place]))
        assert (source[0], index[0]) == (together.source[number], together.turn[number])


def test_a_rare_source_makes_blocks_longer() -> None:
    mixture = Mixture.of({"a": 1000, "b": 1}, 0, 0)
    assert mixture.stages[0].block == 1001
    assert mixture.rows_before(1001 * 5) == (5000, 5)


@given(rows=st.integers(1, 50), epoch=st.integers(0, 2))
def test_a_source_repeats_no_row_until_it_wraps(rows: int, epoch: int) -> None:
    taken = source_rows(np.arange(rows * 3), rows, 0, "a", epoch).reshape(3, rows)
    assert all(sorted(wrap) == list(range(rows)) for wrap in taken.tolist())
    if rows > 20:
        assert len({tuple(wrap) for wrap in taken.tolist()}) == 3
        assert taken.tolist() != source_rows(np.arange(rows * 3), rows, 0, "b", epoch).reshape(3, rows).tolist()


@settings(max_examples=60)
@given(weights=weights, data=st.data(), rule=st.sampled_from(["first_exhausted", "all_exhausted"]))
def test_the_epoch_ends_where_its_rule_says(weights: dict[str, float], data: st.DataObject, rule: StopRule) -> None:
    mixture = Mixture.of(weights, 0, 0)
    rows = [data.draw(st.integers(1, 200)) for _ in weights]
    length = mixture.length(rows, rule)
    assert length is not None
    counts, after = mixture.rows_before(length), mixture.rows_before(length + 1)
    if rule == "first_exhausted":
        assert all(count <= most for count, most in zip(counts, rows, strict=True))
        assert any(count > most for count, most in zip(after, rows, strict=True))
    else:
        before = mixture.rows_before(length - 1)
        assert all(count >= most for count, most in zip(counts, rows, strict=True))
        assert any(count < most for count, most in zip(before, rows, strict=True))
    assert mixture.length(rows, "forever") is None


@pytest.mark.parametrize("wrong", [{}, {"a": 0}, {"a": 1, "b": -1}, {"a": float("nan")}, {"a": 1, "b": 1e-9}])
def test_weights_that_cannot_be_meant_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="weight"):
        Mixture.of(wrong, 0, 0)


def test_an_empty_source_and_an_earlier_change_are_refused() -> None:
    mixture = Mixture.of({"a": 1, "b": 1}, 0, 0)
    with pytest.raises(ConfigError, match="'b' has no row"):
        mixture.length([3, 0], "forever")
    with pytest.raises(ConfigError, match="stop must be one of"):
        mixture.length([3, 3], "never")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="behind 9"):
        mixture.reweighted(10, {"a": 1}).reweighted(9, {"a": 1})
