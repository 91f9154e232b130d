"""How many rows the windows over a run of rows have: few at first, so that the first batch comes soon."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

GROWTH = 4
"""How many times as many rows as the one before it a window has, while windows grow."""


@dataclass(frozen=True, slots=True)
class WindowSizes:
    """How many rows each window has; the last one has what is left.

    Args:
        rows: of each window beside the first ones.
        first: those of the first windows, which grow.

    >>> sizes = WindowSizes(100, (4, 16, 64))
    >>> sizes.ends(300).tolist(), sizes.at(20), sizes.at(190), sizes.most
    ([0, 4, 20, 84, 184, 284, 300], (2, 20), (4, 184), 100)
    """

    rows: int
    first: tuple[int, ...] = ()

    @classmethod
    def growing(cls, total: int, rows: int, first: int, unit: int) -> WindowSizes:
        """Return those over so many rows, whole units; the windows beside the first ones are about equal.

        Args:
            rows: about how many a window has.
            first: about how many the first window has; as many as `rows` where they do not grow.

        >>> WindowSizes.growing(10_100, 1000, 1000, 64), WindowSizes.growing(10_100, 1000, 60, 64)
        (WindowSizes(rows=1024, first=()), WindowSizes(rows=1024, first=(64, 256)))
        """
        size, early = -(-first // unit) * unit, []
        while size < rows:
            early.append(size)
            size *= GROWTH
        left = max(0, total - sum(early))
        windows = max(1, -(-left // rows) if early else round(left / rows))
        even = max(1, -(-left // (windows * unit))) * unit
        if windows == 1:  # the last one, of what is left; smaller ones never follow
            even = max((even, *early))
        return cls(even, tuple(early))

    @property
    def least(self) -> int:
        """The least rows of a window, but for the last."""
        return min((self.rows, *self.first))

    @property
    def most(self) -> int:
        """The most rows of a window."""
        return max((self.rows, *self.first))

    def size(self, number: int) -> int:
        """Return the rows of a window, which may be more than are left."""
        if number < len(self.first):
            return self.first[number]
        return self.rows

    def begin(self, number: int) -> int:
        """Count the rows before a window."""
        return sum(self.first[:number]) + max(0, number - len(self.first)) * self.rows

    def at(self, row: int) -> tuple[int, int]:
        """Return the window that a row is in, and the first row of this window."""
        early = self.begin(len(self.first))
        number = len(self.first) + (row - early) // self.rows
        if row < early:
            number = sum(end <= row for end in accumulate(self.first))
        return number, self.begin(number)

    def ends(self, total: int) -> NDArray[np.int64]:
        """Return where the windows over so many rows end, after 0: int64[windows + 1]."""
        early = np.array([0, *accumulate(self.first)], dtype=np.int64)
        others = np.arange(early[-1] + self.rows, total, self.rows, dtype=np.int64)
        return np.concatenate((early[early < total], others, [total]))
