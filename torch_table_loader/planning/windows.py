"""Shuffle windows: rows are permuted inside consecutive windows of a section, as a pure function of their place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from torch_table_loader.planning.keys import derive_key, keyed_hashes
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
        dealt: rows of the batches to which its rows are dealt; 0 if they are permuted at random.
    """

    segments: SegmentTable
    runs: Runs
    name: str
    dealt: int = 0

    def order(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the order of its rows: int64[rows], the row at each place."""
        return order_of_window(self.runs.num_rows, self.dealt, seed, epoch, self.name)


def order_of_window(length: int, batch_size: int, seed: int, epoch: int, name: str) -> NDArray[np.int64]:
    """Return the order of so many rows in the window of that name; see `Window.dealt`."""
    return dealt(length, batch_size, seed, epoch, name) if batch_size else permuted(length, seed, epoch, name)


def permuted(length: int, seed: int, epoch: int, name: str) -> NDArray[np.int64]:
    """Return the order of so many rows in the window of that name.

    >>> permuted(4, seed=1, epoch=0, name="window at 0 of lane 0").tolist()
    [1, 3, 2, 0]
    """
    return Permutation(length, derive_key(seed, epoch, name)).slice(0, length)


_ROWS_AT_ONCE = 1 << 14
"""Rows whose order is made at once: caches must hold it."""


def dealt(length: int, batch_size: int, seed: int, epoch: int, name: str) -> NDArray[np.int64]:
    """Return an order in which rows that are close go to different batches.

    Of every run of as many rows as the window has batches, each batch gets one, by chance. Rows of a batch are then
    permuted. The permutations of the runs are rotations of one, by chance, and so are those of the batches: numbers
    drawn for each row would cost more than the rows.

    >>> dealt(8, 2, seed=1, epoch=0, name="window at 0 of lane 0").tolist()
    [7, 0, 6, 1, 3, 4, 5, 2]
    """
    if not length:
        return np.empty(0, dtype=np.int64)
    batches = -(-length // batch_size)
    runs = -(-length // batches)
    key = derive_key(seed, epoch, name)
    drawn = keyed_hashes(2 * (batches + runs), key)
    of_run, of_batch = np.argsort(drawn[:batches]), np.argsort(drawn[batches : batches + runs])
    turns = (drawn[batches + runs :] >> np.uint64(1)).view(np.int64)
    turned_runs, turned_batches = turns[:runs] % batches, turns[runs:] % runs
    # Batch b holds, of run r, the row `of_run[(b + turned_runs[r]) % batches]`.
    row_of, twice = np.tile(of_run, 2), np.tile(of_batch, 2)
    turned = sliding_window_view(turned_runs[twice], runs)
    first_rows = sliding_window_view(twice * batches, runs)
    order = np.empty((batches, runs), dtype=np.int64)
    step = max(1, _ROWS_AT_ONCE // runs)
    for start in range(0, batches, step):
        part, turns = order[start : start + step], turned_batches[start : start + step]
        row_of.take(turned[turns] + np.arange(start, start + len(part))[:, None], out=part, mode="clip")
        part += first_rows[turns]
    flat = order.reshape(-1)
    return flat if len(flat) == length else flat[flat < length]


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Consecutive rows of a section that are delivered in one way.

    Rows come as read, window by window, or in the remaining order of an older window (a unit).

    Args:
        dealt: see `Window`.
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
    dealt: int = 0

    def window(self, number: int) -> Window:
        """Return one of its windows."""
        size = self.size or self.runs.num_rows
        return Window(
            self.segments, self.runs.slice(number * size, (number + 1) * size), self.window_name(number), self.dealt
        )

    def window_name(self, number: int) -> str:
        """Name one of its windows by its first row."""
        return f"window at {self.at + number * (self.size or 0)} of {self.section}"

    @property
    def open_window(self) -> tuple[Window, int] | None:
        """The window of which only some rows were delivered, and their number; None if there is none."""
        if self.size is None or self.start % self.size == 0:
            return None
        return self.window(self.start // self.size), self.start % self.size


def stretches(section: Section, segments: SegmentTable) -> Iterator[Stretch]:
    """Yield what a section still has to deliver, in the windows that it says.

    Windows begin at the section's start, and again after each unit, or at each piece if the section says so.

    Args:
        segments: the split ``len(splits) + w`` is a part of the older window w.
    """
    at, num_splits, size = 0, len(segments.splits), section.window
    for runs in _apart(section.runs, num_splits, each=section.apart and size is not None):
        end = at + runs.num_rows
        if end > section.skip:
            first = int(runs.split[0])
            unit = first - num_splits if first >= num_splits else None
            own_size = size if unit is None else None
            yield Stretch(section.name, at, runs, max(0, section.skip - at), segments, own_size, unit, section.dealt)
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
