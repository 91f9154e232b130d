"""Shuffle windows: rows are permuted inside consecutive windows of a section, as a pure function of their place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.permutation import Permutation
from torch_table_loader.planning.runs import Runs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.lanes import Section
    from torch_table_loader.planning.splits import SegmentTable


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Rows of splits, which consist of `segments`, that are read in order and delivered permuted.

    Args:
        name: the key of its permutation, with seed and epoch.
    """

    segments: SegmentTable
    runs: Runs
    name: str

    def order(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the order of its rows: int64[rows], the row at each place."""
        return permuted(self.runs.num_rows, seed, epoch, self.name)


def permuted(length: int, seed: int, epoch: int, name: str) -> NDArray[np.int64]:
    """Return the order of so many rows in the window of that name.

    >>> permuted(4, seed=1, epoch=0, name="window at 0 of lane 0").tolist()
    [1, 3, 2, 0]
    """
    return Permutation(length, derive_key(seed, epoch, name)).slice(0, length)


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Consecutive rows of a section that are delivered in one way.

    Rows come as read, window by window, or in the remaining order of an older window (a unit).

    Args:
        at: its first row, counted in the section.
        start: how many of them were delivered before.
        segments: what the splits of `runs` consist of.
        unit: the number of that older window, which is never permuted again, or None.
    """

    section: str
    at: int
    runs: Runs
    start: int
    segments: SegmentTable
    size: int | None
    unit: int | None

    def window(self, number: int) -> Window:
        """Return one of its windows."""
        size = self.size or self.runs.num_rows
        return Window(self.segments, self.runs.slice(number * size, (number + 1) * size), self.window_name(number))

    def window_name(self, number: int) -> str:
        """Name one of its windows by its first row."""
        return f"window at {self.at + number * (self.size or 0)} of {self.section}"

    @property
    def open_window(self) -> tuple[Window, int] | None:
        """The window of which only some rows were delivered, and their number; None if there is none."""
        if self.size is None or self.start % self.size == 0:
            return None
        return self.window(self.start // self.size), self.start % self.size


def stretches(section: Section, segments: SegmentTable, size: int | None) -> Iterator[Stretch]:
    """Yield what a section still has to deliver, in windows of `size` rows; None: unpermuted.

    Windows begin at the section's start, and again after each unit, or at each piece if the section says so.

    Args:
        segments: the split ``len(splits) + w`` is a part of the older window w.
    """
    at, num_splits = 0, len(segments.splits)
    for runs in _apart(section.runs, num_splits, each=section.apart and size is not None):
        end = at + runs.num_rows
        if end > section.skip:
            first = int(runs.split[0])
            unit = first - num_splits if first >= num_splits else None
            own_size = size if unit is None else None
            yield Stretch(section.name, at, runs, max(0, section.skip - at), segments, own_size, unit)
        at = end


def _apart(runs: Runs, num_splits: int, *, each: bool) -> Iterator[Runs]:
    """Split runs where plain pieces and units meet; each unit comes alone, and each piece if asked."""
    is_unit = (runs.split >= num_splits) | each
    if not is_unit.any():
        if len(runs):
            yield runs
        return
    borders = np.flatnonzero(is_unit[1:] | is_unit[:-1]) + 1
    for part in np.split(np.arange(len(runs)), borders):
        yield runs.take(part)
