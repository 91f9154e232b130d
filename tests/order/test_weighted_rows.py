"""Laws of rows drawn by weight."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.effort import examples
from torch_table_loader import ConfigError
from torch_table_loader.extend import (
    Remaining,
    WeightedRows,
    WeightSums,
    cumulate,
    derive_key,
)
from torch_table_loader.order import weighted_rows
from torch_table_loader.sizes import small_sizes

Ints: TypeAlias = NDArray[np.int64]

NOTHING = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Held:
    """Holds sums."""

    sums: WeightSums


def sums_of(weights: list[float]) -> Ints:
    """Return the sums of some weights."""
    cells = np.empty(len(weights) + 1, dtype=np.int64)
    cells[1:].view(np.float64)[:] = weights
    cumulate(cells)
    return cells


def drawn(weights: list[float], gone: Collection[int] = (), samples: int | None = None, epoch: int = 0) -> WeightedRows:
    """Return the rows of an epoch."""
    out = np.array(sorted(gone), dtype=np.int64)
    return WeightedRows(Held(WeightSums(sums_of(weights))), out, samples, derive_key(7, epoch, "a law"))


ratios = st.one_of(st.integers(0, 9).map(float), st.floats(0, 1e300), st.floats(0, 1), st.just(5e-324))


@settings(max_examples=examples(200))
@given(st.lists(ratios, min_size=1, max_size=40), st.data())
def test_each_share_draws_a_row_that_lies_in_it(weights: list[float], data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.integers(0, len(weights) - 1)))
    samples = data.draw(st.one_of(st.none(), st.integers(1, 90), st.integers(2**39, 2**40)))
    left = [0.0 if row in gone else weight for row, weight in enumerate(weights)]
    if not any(left):
        if samples is not None or len(gone) < len(weights):
            with pytest.raises(ConfigError, match="weight above 0"):
                drawn(weights, gone, samples)
        return
    rows = drawn(weights, gone, samples)
    whole = np.diff(sums_of(weights)).tolist()
    ends = list(accumulate(0 if row in gone else each for row, each in enumerate(whole)))
    assert rows.num_rows == (len(weights) - len(gone) if samples is None else samples)
    assert rows.weight == ends[-1] < 2**62
    numbers = sorted({*range(min(90, rows.num_rows)), rows.num_rows // 3, rows.num_rows - 1})
    for number, row in zip(numbers, rows.select(np.array(numbers)).tolist(), strict=True):
        assert row not in gone
        assert weights[row] > 0
        share = Fraction(ends[-1], rows.num_rows)
        begin = ends[row] - whole[row]
        assert begin < (number + 1) * share
        assert number * share < ends[row], "what the row covers reaches into the share"


@settings(max_examples=examples(200))
@given(
    st.integers(1, 2**40),
    st.integers(1, 2**62 - 1),
    st.lists(st.integers(0, 2**40 - 1), min_size=1, max_size=20),
    st.lists(st.integers(0, 2**64 - 1), min_size=20, max_size=20),
)
def test_points_equal_those_of_unbounded_integers(samples: int, total: int, of: list[int], hashes: list[int]) -> None:
    rows = WeightedRows(Held(WeightSums(np.array([0, total]))), NOTHING, samples, derive_key(0, 0, "a law"))
    numbers = [number % samples for number in of]
    within = weighted_rows._share_of(np.array(hashes[: len(of)], dtype=np.uint64), total)
    assert within.tolist() == [each * total >> 64 for each in hashes[: len(of)]]
    wanted = [(number * total + each) // samples for number, each in zip(numbers, within.tolist(), strict=True)]
    assert rows._points(np.array(numbers), within).tolist() == wanted


@settings(max_examples=examples(200))
@given(st.lists(ratios, min_size=1, max_size=60).filter(any), st.integers(1, 300), st.integers(0, 3))
def test_a_row_comes_once_for_each_covered_share_and_at_most_twice_more(
    weights: list[float], samples: int, epoch: int
) -> None:
    rows = drawn(weights, samples=samples, epoch=epoch)
    counts = np.bincount(rows.select(np.arange(samples)), minlength=len(weights)).tolist()
    ends = [Fraction(end * samples, rows.weight) for end in sums_of(weights).tolist()]
    for row, count in enumerate(counts):
        covered = max(0, int(ends[row + 1]) + -(-ends[row] // 1) * -1)
        assert covered <= count <= covered + 2
        assert abs(count - (ends[row + 1] - ends[row])) < 2
    assert sum(counts) == samples


@given(st.integers(1, 200), st.integers(1, 4), st.sampled_from([0.1, 1.0, 3.0]))
def test_rows_of_one_weight_come_equally_often(rows: int, times: int, weight: float) -> None:
    found = drawn([weight] * rows, samples=times * rows)
    assert found.select(np.arange(times * rows)).tolist() == [row for row in range(rows) for _ in range(times)]


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=50).filter(any), st.sampled_from([1.0, 0.25, 2.0**-1060]))
def test_integers_keep_their_ratios(weights: list[int], unit: float) -> None:
    whole = np.diff(sums_of([weight * unit for weight in weights])).tolist()
    assert [each * sum(weights) for each in whole] == [weight * sum(whole) for weight in weights]


@given(st.lists(ratios, min_size=1, max_size=50).filter(any))
def test_other_weights_are_accurate_to_a_fraction_of_the_total(weights: list[float]) -> None:
    whole, exact = np.diff(sums_of(weights)).tolist(), list(map(Fraction, weights))
    total = sum(exact)
    assert 2**58 < sum(whole) < 2**62
    for each, weight in zip(whole, exact, strict=True):
        assert abs(Fraction(each, sum(whole)) - weight / total) < Fraction(len(weights), 2**58)
        assert (each > 0) == (weight > 0)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=2_000).filter(any), st.integers(0, 2**32))
def test_a_point_finds_the_row_that_covers_it(weights: list[int], seed: int) -> None:
    cells = np.cumsum([0, *weights])
    points = np.random.default_rng(seed).integers(0, cells[-1], 300)
    assert np.array_equal(WeightSums(cells).rows_at(points), np.repeat(np.arange(len(weights)), weights)[points])


def test_sums_do_not_depend_on_the_size_of_parts() -> None:
    weights = np.random.default_rng(0).random(1000).tolist()
    whole = sums_of(weights)
    with small_sizes(numbers_at_once=7):
        assert np.array_equal(sums_of(weights), whole)


def test_a_row_without_weight_in_an_empty_table_or_alone_cannot_be_drawn() -> None:
    assert drawn([], samples=None).num_rows == 0
    with pytest.raises(ConfigError, match="none of the 0 rows"):
        drawn([], samples=3)
    with pytest.raises(ConfigError, match="none of the 2 rows that are left"):
        drawn([0, 0, 4], gone={2})


def test_the_expected_counts_follow_the_weights() -> None:
    weights, gone, samples, epochs = [0.0, 1.0, 2.5, 0.3, 7.0, 0.0, 4.0, 0.2, 9.0], {4}, 5, 4_000
    counts = np.zeros(len(weights))
    for epoch in range(epochs):
        counts += np.bincount(drawn(weights, gone, samples, epoch).select(np.arange(samples)), minlength=len(weights))
    left = np.array([0.0 if row in gone else weight for row, weight in enumerate(weights)])
    wanted = left / left.sum() * samples * epochs
    assert (counts[wanted == 0] == 0).all()
    # A count is a sum of independent draws of variance at most 1/4 in each of two shares.
    assert np.abs(counts - wanted).max() < 5 * np.sqrt(epochs / 2)


def test_rows_one_share_apart_are_drawn_independently() -> None:
    """An epoch of a table in which two kinds alternate has both: the reason why each share has its own point."""
    kinds = drawn([1.0] * 10_000, samples=5_000).select(np.arange(5_000)) % 2
    assert abs(int(kinds.sum()) - 2_500) < 5 * np.sqrt(5_000 / 4)
    assert abs(int((kinds[1:] == kinds[:-1]).sum()) - 2_500) < 5 * np.sqrt(5_000 / 4)


def test_rounds_differ_and_do_not_affect_rows_that_come_once() -> None:
    rows = drawn([1.0] * 100, samples=50)
    each = [rows.select(np.arange(50), number).tolist() for number in range(3)]
    assert each[0] != each[1] != each[2] != each[0]
    assert Remaining(5, NOTHING).select(np.arange(5), np.array([0, 1, 0, 1, 0])).tolist() == list(range(5))
