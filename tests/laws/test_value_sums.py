"""The laws of `planning.value_sums`: only the result is rounded, and parts and order do not matter."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_table_loader.extend import ValueSums
from torch_table_loader.planning import value_sums
from torch_table_loader.planning.value_sums import RELATIVE_ERROR, Histogram
from torch_table_loader.sizes import small_sizes

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=64)
COLUMNS = st.one_of(
    st.lists(FLOATS, min_size=1, max_size=40).map(lambda values: np.array(values, np.float64)),
    st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=40).map(lambda values: np.array(values, np.float32)),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40).map(lambda values: np.array(values, np.int64)),
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40).map(lambda values: np.array(values, np.uint64)),
    st.lists(st.integers(-128, 127), min_size=1, max_size=40).map(lambda values: np.array(values, np.int8)),
    st.lists(st.booleans(), min_size=1, max_size=40).map(lambda values: np.array(values, np.uint8)),
)


def exact(values: np.ndarray[Any, Any]) -> list[Fraction]:
    """Return each value as an exact fraction."""
    return [Fraction(value) for value in values.tolist()]


def same(one: ValueSums, two: ValueSums) -> bool:
    """Compare all fields."""
    names = ("count", "nulls", "nans", "below", "above", "total", "squares", "low", "high")
    return (
        all(getattr(one, name) == getattr(two, name) for name in names)
        and np.array_equal(one.histogram.values, two.histogram.values)
        and np.array_equal(one.histogram.counts, two.histogram.counts)
        and one.histogram.exact == two.histogram.exact
    )


@given(COLUMNS)
def test_sums_are_exact(values: np.ndarray[Any, Any]) -> None:
    found, numbers = ValueSums.of(values), exact(values)
    assert Fraction(found.total, 1 << 1126) == sum(numbers)
    assert Fraction(found.squares, 1 << 2252) == sum(number * number for number in numbers)
    assert (found.low, found.high) == (min(values.tolist()), max(values.tolist()))
    mean = sum(numbers, Fraction()) / len(numbers)
    assert found.mean == float(mean)
    spread = sum(((number - mean) * (number - mean) for number in numbers), Fraction()) / len(numbers)
    root = Fraction(found.std) if math.isfinite(found.std) else None
    if root is not None and found.std > 1e-300:
        assert abs(root * root - spread) <= spread * Fraction(1, 2**51)
    assert bool(found.std) == bool(spread) or spread < Fraction(1, 10**640)


@given(COLUMNS, st.lists(st.integers(0, 40), max_size=4), st.randoms(use_true_random=False), st.integers(1, 9))
def test_parts_and_order_do_not_matter(values: np.ndarray[Any, Any], cuts: list[int], random: Any, limit: int) -> None:
    with small_sizes(distinct_values=limit):
        whole = ValueSums.of(values, nulls=3)
        parts = [ValueSums.of(part) for part in np.split(values, sorted(min(cut, len(values)) for cut in cuts))]
        parts.append(ValueSums(nulls=3))
        random.shuffle(parts)
        at = random.randrange(len(parts) + 1)
        assert same(ValueSums.merged(parts), whole)
        assert same(ValueSums.merged([ValueSums.merged(parts[:at]), ValueSums.merged(parts[at:])]), whole)


@given(COLUMNS, st.sampled_from([0.0, 0.01, 0.1, 0.25, 0.5, 0.9, 1.0]), st.booleans())
def test_a_quantile_equals_a_value_or_is_near_one(values: np.ndarray[Any, Any], share: float, few: bool) -> None:
    wanted = sorted(float(value) for value in values.tolist())
    rank = max(1, math.ceil(Fraction(str(share)) * len(wanted)))
    with small_sizes(distinct_values=2 if few else 1000):
        found = ValueSums.of(values).quantile(share)
    near = wanted[rank - 1]
    assert found == near or (few and abs(found - near) <= RELATIVE_ERROR * abs(near) + 2.0**-1030)


def test_many_values_are_summed_in_exact_runs() -> None:
    values = np.random.default_rng(1).normal(1e6, 1e-3, 5000)
    whole = ValueSums.of(values)
    with small_sizes(numbers_at_once=7):
        assert same(ValueSums.of(values), whole)
    assert whole.mean == pytest.approx(statistics.fmean(values.tolist()), rel=1e-15)
    assert whole.std == pytest.approx(statistics.pstdev(values.tolist()), rel=1e-12)


def test_non_finite_numbers_are_counted() -> None:
    found = ValueSums.of(np.array([1.0, math.nan, math.inf, 3.0]), nulls=2)
    assert (found.count, found.nulls, found.nans, found.below, found.above) == (3, 2, 1, 0, 1)
    assert found.mean == math.inf
    assert math.isnan(found.std)
    assert (found.low, found.high, found.quantile(0.5)) == (1.0, math.inf, 3.0)
    both = ValueSums.merged([found, ValueSums.of(np.array([-math.inf]))])
    assert math.isnan(both.mean)
    assert both.low == -math.inf
    nothing = ValueSums.of(np.array([math.nan], np.float32))
    assert (nothing.count, nothing.low) == (0, None)
    assert all(map(math.isnan, (nothing.mean, nothing.std, nothing.quantile(0.5))))


def test_the_middle_of_a_bucket_is_in_it_and_zero_is_exact() -> None:
    values = np.array([-2.5, 0.0, 1.0, 3.14159, 1e300, np.inf])
    middles = value_sums._middles(values)
    assert np.array_equal(value_sums._middles(middles), middles)
    assert middles[1] == 0
    assert middles[-1] == np.inf
    assert Histogram.of(np.array([-0.0, 0.0])).counts.tolist() == [2]
