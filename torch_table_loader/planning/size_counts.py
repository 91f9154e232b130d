"""The distribution of sizes: a histogram whose bins double in width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_BINS = 16


@dataclass(frozen=True, slots=True)
class SizeBin:
    """Sizes from `start` up to, but not including, `stop`."""

    start: int
    stop: int
    count: int


@dataclass(frozen=True, slots=True)
class SizeCounts:
    """How many things have which size, in bytes.

    Args:
        least: the smallest size; 0 if there are none.
        bins: from the smallest size to the largest, including empty ones between; at most 17.
    """

    least: int
    median: int
    most: int
    bins: tuple[SizeBin, ...]

    @classmethod
    def of(cls, sizes: NDArray[np.int64]) -> Self:
        """Count sizes: int64[n], none negative.

        >>> SizeCounts.of(np.array([0, 5, 6, 17])).bins  # doctest: +NORMALIZE_WHITESPACE
        (SizeBin(start=0, stop=1, count=1), SizeBin(start=1, stop=2, count=0), SizeBin(start=2, stop=4, count=0),
         SizeBin(start=4, stop=8, count=2), SizeBin(start=8, stop=16, count=0), SizeBin(start=16, stop=32, count=1))
        """
        if not len(sizes):
            return cls(0, 0, 0, ())
        least, most = int(sizes.min()), int(sizes.max())
        lowest, highest = max(least, 1).bit_length() - 1, max(most, 1).bit_length()
        width = -(-(highest - lowest) // _MOST_BINS)
        edges = [*([0] if least == 0 else []), *(1 << power for power in range(lowest, highest + width, width))]
        counts = np.histogram(sizes, edges)[0].tolist()
        bins = map(SizeBin, edges[:-1], edges[1:], counts)
        return cls(least, int(np.median(sizes)), most, tuple(bins))
