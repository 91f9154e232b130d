"""Sums, bounds and quantiles of numbers that do not depend on the order or grouping of the numbers.

Sums are integers: a float64 is an integer in units of the smallest power of two, so that nothing is ever rounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

RELATIVE_ERROR = 2.0**-12
"""Relative error of a quantile of more than `Sizes.distinct_values` values."""

_UNIT = 1126
"""Sums are in units of 2 to the minus this: the last bit of the mantissa of the smallest float64."""

_LOW_BITS = 26
_HALF = 27

_EXACT_INTS = 1 << 53
_DROPPED = 41
"""Low bits of a float64 that buckets ignore: the others are sign, exponent and 11 bits of the mantissa."""


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """How often each value occurs; with many distinct values, how often each bucket of near values does.

    Args:
        values: float64 [n], ascending, distinct, finite or infinite.
        counts: int64 [n].
        exact: whether these are the values themselves, rather than the middles of buckets.
    """

    values: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    counts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    exact: bool = True

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Histogram:
        """Count values, none of which is NaN."""
        return cls._joined([values + 0.0], [np.ones(len(values), np.int64)], exact=True)  # -0.0 is 0.0

    @classmethod
    def merged(cls, parts: Sequence[Histogram]) -> Histogram:
        """Add up one or more histograms."""
        exact = all(part.exact for part in parts)
        return cls._joined([part.values for part in parts], [part.counts for part in parts], exact=exact)

    @classmethod
    def _joined(cls, values: Sequence[Any], counts: Sequence[Any], *, exact: bool) -> Histogram:
        keys, numbers = _counted(np.concatenate(values), np.concatenate(counts))
        if exact and len(keys) <= sizes().distinct_values:
            return cls(keys, numbers)
        return cls(*_counted(_middles(keys), numbers), exact=False)

    def quantile(self, share: float) -> float:
        """Return the least value that a share of the values, from 0 to 1, does not exceed; there must be a value.

        The share is taken as the decimal number as written.
        """
        upto = np.cumsum(self.counts)
        rank = max(1, math.ceil(Fraction(repr(float(share))) * int(upto[-1])))
        return float(self.values[np.searchsorted(upto, rank)])


def _counted(values: NDArray[np.float64], counts: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    keys, places = np.unique(values, return_inverse=True)
    found = np.zeros(len(keys), np.int64)
    np.add.at(found, places, counts)
    return keys, found


def _middles(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the middle of each value's bucket; the middle of a middle is itself."""
    bits = values.view(np.int64)
    middles = ((bits >> _DROPPED << _DROPPED) | (1 << (_DROPPED - 1))).view(np.float64)
    return np.where((values == 0) | ~np.isfinite(values), values, middles)


@dataclass(frozen=True, slots=True, eq=False)
class ValueSums:
    """What is known about the numbers of a column.

    Args:
        count: values that are neither null nor NaN.
        below: values that are minus infinity.
        above: values that are infinity.
        total: the sum of the finite values, in units of 2^-1126.
        squares: the sum of their squares, in units of 2^-2252.
        low: the least value; None if there is none.
        high: the greatest value.
        histogram: how often each value occurs.
    """

    count: int = 0
    nulls: int = 0
    nans: int = 0
    below: int = 0
    above: int = 0
    total: int = 0
    squares: int = 0
    low: Any = None
    high: Any = None
    histogram: Histogram = field(default_factory=Histogram)

    @classmethod
    def of(cls, values: NDArray[Any], nulls: int = 0) -> ValueSums:
        """Sum up one-dimensional integers, bools or floats, after `nulls` nulls were left out."""
        floats = values.dtype.kind == "f"
        as_floats = values.astype(np.float64)
        nan = np.isnan(as_floats)
        nans = int(nan.sum())
        if nans:
            values, as_floats = values[~nan], as_floats[~nan]
        if not len(values):
            return cls(nulls=nulls, nans=nans)
        if floats:
            total, squares = _sums(as_floats[np.isfinite(as_floats)])
        else:
            total, squares = _sums_of_integers(values)
        return cls(
            count=len(values),
            nulls=nulls,
            nans=nans,
            below=int((as_floats == -np.inf).sum()),
            above=int((as_floats == np.inf).sum()),
            total=total,
            squares=squares,
            low=values.min().item() + 0,
            high=values.max().item() + 0,
            histogram=Histogram.of(as_floats),
        )

    @classmethod
    def merged(cls, parts: Sequence[ValueSums]) -> ValueSums:
        """Add up what is known of the parts of a column; the order and grouping do not change the result."""
        if not parts:
            return cls()
        sums = {
            name: sum(getattr(part, name) for part in parts)
            for name in ("count", "nulls", "nans", "below", "above", "total", "squares")
        }
        some = [part for part in parts if part.count]
        return cls(
            **sums,
            low=min((part.low for part in some), default=None),
            high=max((part.high for part in some), default=None),
            histogram=Histogram.merged([part.histogram for part in parts]),
        )

    @property
    def mean(self) -> float:
        """The mean, rounded once; NaN if there is no value."""
        if not self.count or (self.below and self.above):
            return math.nan
        if self.below or self.above:
            if self.above:
                return math.inf
            return -math.inf
        return _as_float(Fraction(self.total, self.count << _UNIT))

    @property
    def std(self) -> float:
        """The standard deviation of the population; NaN if there is no value, or one is infinite."""
        if not self.count or self.below or self.above:
            return math.nan
        spread = self.squares * self.count - self.total**2
        return _root(Fraction(spread, self.count**2 << 2 * _UNIT))

    def quantile(self, share: float) -> float:
        """Return a quantile, within `RELATIVE_ERROR` of it; NaN if there is no value."""
        if not self.count:
            return math.nan
        return min(max(self.histogram.quantile(share), float(self.low)), float(self.high))


def _sums(values: NDArray[np.float64]) -> tuple[int, int]:
    """Return the exact sums of finite values and of their squares, in the units of `ValueSums`."""
    total = squares = 0
    at_once = sizes().numbers_at_once
    for start in range(0, len(values), at_once):
        fractions, exponents = np.frexp(values[start : start + at_once])
        mantissas = np.ldexp(fractions, 53).astype(np.int64)
        shift = exponents.astype(np.int64) + (_UNIT - 53)
        high, low = mantissas >> _LOW_BITS, mantissas & ((1 << _LOW_BITS) - 1)
        total += _shifted(high, shift, _LOW_BITS) + _shifted(low, shift, 0)
        for product, up in ((high * high, 2 * _LOW_BITS), (high * low, _LOW_BITS + 1), (low * low, 0)):
            squares += _shifted(product >> _HALF, 2 * shift, up + _HALF)
            squares += _shifted(product & ((1 << _HALF) - 1), 2 * shift, up)
    return total, squares


def _shifted(values: NDArray[np.int64], shift: NDArray[np.int64], up: int) -> int:
    """Return the sum of values of at most 28 bits, each times two to the power of its shift plus `up`."""
    least = int(shift.min())
    sums = np.bincount(shift - least, weights=values)
    return sum(int(sums[place]) << (least + place + up) for place in np.flatnonzero(sums).tolist())


def _sums_of_integers(values: NDArray[Any]) -> tuple[int, int]:
    if values.dtype.itemsize < 8:
        return _sums(values.astype(np.float64))
    small = values <= _EXACT_INTS
    if values.dtype.kind != "u":
        small &= values >= -_EXACT_INTS
    total, squares = _sums(values[small].astype(np.float64))
    for value in values[~small].tolist():
        total += value << _UNIT
        squares += value * value << 2 * _UNIT
    return total, squares


def _as_float(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.copysign(math.inf, number)


def _root(number: Fraction) -> float:
    """Return a square root, computed from the 128 leading bits so that the smallest spreads keep their digits too."""
    if not number:
        return 0.0
    shift = (number.denominator.bit_length() - number.numerator.bit_length() + 130) // 2
    root = math.isqrt(int(number * Fraction(4) ** shift))
    return _as_float(Fraction(root) / Fraction(2) ** shift)
