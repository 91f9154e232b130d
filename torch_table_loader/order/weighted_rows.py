"""Rows drawn by weight: the total weight is cut into equal shares, and each share draws one row, by weight.

Let the weights be integers whose sum is W, and n the samples of an epoch. Sample j takes the row at the point
``floor((j * W + r) / n)`` of the concatenated weights, where r is an integer in [0, W) derived from a hash of j. So a
row of weight w is drawn n * w / W times in expectation: of the n * W numbers ``j * W + r``, each point has n. A row
that covers m whole shares is drawn at least m times, and at most m + 2 times, as it reaches into two more shares. That
has less variance than drawing each sample from all rows (stratified sampling: Cochran, Sampling Techniques, 1977,
ch. 5).

Where weights say how often rows come, n is their sum, and a share is a weight of one: whole weights come exactly so
often, each time in the share that is theirs alone.

One r for all shares (systematic sampling) would have even less variance, but rows that are one share apart would always
be drawn together: in a table in which two kinds of rows alternate, an epoch could contain only one kind.

Nothing here may change the result: the order is part of the saved state's format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from torch_table_loader.errors import ConfigError
from torch_table_loader.planning.keys import Key, hashes_of, u64
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

_MOST_SAMPLES = 1 << 40
"""The arithmetic is exact up to this number."""

_HALF = 20
"""Bits of a sample's number that are multiplied at a time."""

_TOTAL_BITS = 61
"""Weights become integers of about this many bits in total, so that their sum plus a share fits into 63 bits."""

REPEAT_BITS = 20
"""Weights that say how often rows come are integers times 2^-20; so a weight of one is 2^20."""

_MOST_REPEATS = 1 << 40
"""The sum of these fits into 63 bits, with a share more."""

_STRIDE = 256
"""A power of two. Numbers apart are 1/256 of all, and those between two of them are on one page of memory, or two."""


@dataclass(frozen=True, slots=True, eq=False)
class WeightSums:
    """The weight of the rows before each row, with every 256th number apart, so that a search touches little memory.

    Args:
        cells: int64[R+1] from `cumulate`.

    >>> WeightSums(np.array([0, 2, 2, 6])).rows_at(np.array([0, 1, 2, 5])).tolist()
    [0, 0, 2, 2]
    """

    cells: Ints
    _apart: Ints = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Separate the numbers."""
        object.__setattr__(self, "_apart", self.cells[::_STRIDE].copy())

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.cells) - 1

    @property
    def total(self) -> int:
        """The weight of all rows."""
        return int(self.cells[-1])

    def rows_at(self, points: Ints) -> Ints:
        """Return the row at each point (int64[k], each in [0, total)) of the concatenated weights."""
        order = np.argsort(points)  # sorted, neighbors look at the same memory
        rising = points[order]
        found = (np.searchsorted(self._apart, rising, side="right").astype(np.int64) - 1) * _STRIDE
        step = _STRIDE >> 1
        while step:  # to the last number that is at most the point; all searches take each step together
            probed = np.minimum(found + step, self.rows)
            found += step * (self.cells[probed] <= rising)
            step >>= 1
        rows = np.empty_like(found)
        rows[order] = found
        return rows


class KeepsSums(Protocol):
    """Holds the weights of rows, so that a pickle of its user need not."""

    @property
    def sums(self) -> WeightSums:
        """The weights of all rows of the table."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class WeightedRows:
    """The rows of a table as samples drawn by weight; the counterpart of `Remaining`, whose rows come once each.

    Args:
        gone: int64[g] excluded rows: sorted, without duplicates.
        samples: samples of an epoch; None: as many as rows are left, or as their weights say.
        key: the key of the points inside the shares.
        one: the weight of a row that comes once, where weights say how often rows come.

    Raises:
        ConfigError: no row with a weight is left to draw from.
    """

    weights: KeepsSums
    gone: Ints
    samples: int | None
    key: Key
    one: int | None = None
    num_rows: int = field(init=False)
    """Samples of an epoch."""
    weight: int = field(init=False)
    """Total weight of the remaining rows."""
    _borders: Ints = field(init=False, repr=False)
    """Remaining weight before each excluded row."""
    _skipped: Ints = field(init=False, repr=False)
    """Cumulative weights of the first excluded rows: of none, one, two, …"""

    def __post_init__(self) -> None:
        """Compute what every look-up needs."""
        sums = self.weights.sums
        starts = sums.cells[self.gone]
        skipped = np.concatenate(([0], np.cumsum(sums.cells[self.gone + 1] - starts))).astype(np.int64)
        left, weight = sums.rows - len(self.gone), sums.total - int(skipped[-1])
        samples = self._asked(left, weight)
        if not 0 <= samples <= _MOST_SAMPLES:
            raise ConfigError(f"samples must be in [0, 2**40], got {samples}")
        if (samples and not weight) or (left and self.one and not samples):
            raise ConfigError(
                f"none of the {left} rows that are left has a weight above 0, so that {samples} samples cannot be "
                "drawn; include() some that have, or change the filter"
            )
        object.__setattr__(self, "num_rows", samples)
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "_borders", starts - skipped[:-1])
        object.__setattr__(self, "_skipped", skipped)

    def _asked(self, left: int, weight: int) -> int:
        """Return how many samples an epoch has."""
        if self.samples is not None:
            return self.samples
        if self.one is None:
            return left
        return (2 * weight + self.one) // (2 * self.one)

    def select(self, ranks: Ints, rounds: Ints | int = 0) -> Ints:
        """Return the row of each sample.

        Args:
            ranks: int64[k] numbers of samples, each in [0, num_rows).
            rounds: how often all samples came before, one for each sample or one for all; each round draws again.
        """
        if not len(ranks):
            return ranks
        turns = (ranks + np.asarray(rounds, dtype=np.int64) * self.num_rows).astype(np.uint64)
        points = self._points(ranks, _share_of(hashes_of(turns, self.key), self.weight))
        points += self._skipped[np.searchsorted(self._borders, points, side="right")]
        return self.weights.sums.rows_at(points)

    def _points(self, samples: Ints, within: Ints) -> Ints:
        """Return ``floor((samples * weight + within) / num_rows)``; products beyond 63 bits are computed in halves."""
        count = self.num_rows
        whole, part = divmod(self.weight, count)
        high, rest = np.divmod((samples >> _HALF) * part, count)
        low, rest = np.divmod((rest << _HALF) + (samples & ((1 << _HALF) - 1)) * part, count)
        points: Ints = samples * whole + (high << _HALF) + low + (rest + within) // count
        return points


def _share_of(hashes: NDArray[np.uint64], whole: int) -> Ints:
    """Return ``floor(hashes * whole / 2**64)``: numbers below `whole`, equally likely.

    >>> _share_of(np.array([0, 2**63, 2**64 - 1], dtype=np.uint64), 10**18 + 1).tolist()
    [0, 500000000000000000, 1000000000000000000]
    """
    low_bits, shift = u64((1 << 32) - 1), u64(32)
    high, low = hashes >> shift, hashes & low_bits
    whole_high, whole_low = u64(whole >> 32), u64(whole & ((1 << 32) - 1))
    middle = high * whole_low + (low * whole_low >> shift)
    other = low * whole_high + (middle & low_bits)
    found: Ints = (high * whole_high + (middle >> shift) + (other >> shift)).view(np.int64)
    return found


def cumulate_repeats(cells: Ints) -> float:
    """Turn repeats into the cells of `WeightSums`, in place, and return their sum; too large a one changes no cell.

    Repeats are rounded to `REPEAT_BITS`, and those of positive ones become at least 1. See `cumulate`.

    >>> cells = np.zeros(4, dtype=np.int64)
    >>> cells[1:].view(np.float64)[:] = [2, 0, 0.5]
    >>> cumulate_repeats(cells), (cells / 2**REPEAT_BITS).tolist()
    (2.5, [0.0, 2.0, 2.0, 2.5])
    """
    weights = cells[1:].view(np.float64)
    whole = float(sum(float(weights[part].sum()) for part in _parts(len(weights))))
    if whole < _MOST_REPEATS:
        cells[0] = 0
        _sum_up(cells, REPEAT_BITS)
    return whole


def cumulate(cells: Ints) -> None:
    """Turn weights into the cells of `WeightSums`, in place and alike on every machine.

    Weights are scaled by a power of two and rounded to integers; those of positive weights become at least 1.
    Integers and other numbers of few digits keep their ratios exactly, and others within about 2^-61 of the total.

    Args:
        cells: int64[R+1]; the bits of cells[1:] are the weights as float64, finite and none negative.

    >>> cells = np.zeros(4, dtype=np.int64)
    >>> cells[1:].view(np.float64)[:] = [0.5, 0, 1.5]
    >>> cumulate(cells)
    >>> (cells // cells[1]).tolist()
    [0, 1, 1, 4]
    """
    cells[0] = 0
    weights, rows = cells[1:].view(np.float64), len(cells) - 1
    largest = max((float(weights[part].max()) for part in _parts(rows)), default=0.0)
    if not largest:
        cells[1:] = 0
        return
    scale = _TOTAL_BITS - rows.bit_length() - int(np.frexp(largest)[1])
    rough = sum(int(np.rint(np.ldexp(weights[part], scale)).astype(np.int64).sum()) for part in _parts(rows))
    _sum_up(cells, scale + _TOTAL_BITS - (rough + rows).bit_length())  # rounding took at most half of one from each


def _sum_up(cells: Ints, scale: int) -> None:
    """Turn weights into the sums of integers that are 2^scale times them, in place."""
    weights, before = cells[1:].view(np.float64), 0
    for part in _parts(len(weights)):
        taken = weights[part].copy()
        whole = np.maximum(np.rint(np.ldexp(taken, scale)).astype(np.int64), taken > 0)
        np.cumsum(whole, out=whole)
        whole += before
        cells[1:][part] = whole
        before = int(whole[-1])


def _parts(rows: int) -> Iterator[slice]:
    """Cut rows into parts, so that what is computed from a part stays small."""
    at_once = sizes().numbers_at_once
    return (slice(first, min(first + at_once, rows)) for first in range(0, rows, at_once))
