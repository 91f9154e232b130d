"""Shuffle windows: rows are permuted inside consecutive windows of a section, as a pure function of their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_table_loader.planning.keys import derive_key, keyed_hashes
from torch_table_loader.planning.permutation import permuted_range
from torch_table_loader.planning.runs import Runs
from torch_table_loader.planning.window_sizes import WindowSizes

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
        return order_of(self.runs.num_rows, self.dealt, seed, epoch, self.name)


def order_of(length: int, dealt: int, seed: int, epoch: int, name: str) -> NDArray[np.int64]:
    """Return the order of so many rows in the window of that name; for `dealt` see `Window`."""
    if not dealt:
        return permuted(length, seed, epoch, name)
    return Dealing.of(length, dealt, seed, epoch, name).order


def order_of_runs(rows: int, dealt: int, seed: int, epoch: int, name: str) -> Callable[[int], NDArray[np.int64]]:
    """Return what orders the runs of rows of a window that stay together, given how many runs its rows are.

    Batches are taken to have about equally many runs.
    """

    def order(runs: int) -> NDArray[np.int64]:
        return order_of(runs, -(-dealt * runs // rows), seed, epoch, name)

    return order


def permuted(length: int, seed: int, epoch: int, name: str) -> NDArray[np.int64]:
    """Return the order of so many rows in the window of that name.

    >>> permuted(4, seed=1, epoch=0, name="window at 0 of lane 0").tolist()
    [1, 3, 2, 0]
    """
    return permuted_range(length, derive_key(seed, epoch, name))


_NEAR_NUMBERS = 1 << 13
"""Numbers of an order that are made at a time, so that a core's first caches hold them."""

_BLOCKS = 16
"""Blocks of which a dealt batch consists, at most: each of rows that lie near each other in the window."""


@dataclass(frozen=True, slots=True, eq=False)
class Dealing:
    """How rows of a window are dealt to batches, so that rows that are close go to different ones.

    Of every run of as many rows as the window has batches, each batch gets one, by chance. The permutations of the runs
    are rotations of one, by chance: numbers drawn for each row would cost more than the rows. Runs come in blocks,
    which are permuted in the same way in all batches. So rows can go to their places as they are read, many at a time,
    while caches hold them.

    Args:
        length: rows of the window.
        row_of: int64[N] the row that each batch gets of a run that is not rotated.
        turns: int64[R] how far each run is rotated.
        starts: int64[blocks] where each block of runs begins in a batch.
        block: runs of a block; the last may have fewer.
    """

    length: int
    row_of: NDArray[np.int64]
    turns: NDArray[np.int64]
    starts: NDArray[np.int64]
    block: int

    @classmethod
    def of(cls, length: int, batch_size: int, seed: int, epoch: int, name: str) -> Dealing:
        """Deal so many rows of the window of that name.

        >>> Dealing.of(8, 2, seed=1, epoch=0, name="window at 0 of lane 0").order.tolist()
        [7, 0, 6, 1, 4, 3, 5, 2]
        """
        batches = max(1, -(-length // batch_size))
        runs = -(-length // batches)
        block = max(1, -(-runs // _BLOCKS))
        blocks = -(-runs // block)
        drawn = keyed_hashes(batches + blocks + runs, derive_key(seed, epoch, name))
        order = np.argsort(drawn[batches : batches + blocks])
        lengths = np.full(blocks, block, dtype=np.int64)
        lengths[-1:] = runs - (blocks - 1) * block
        starts = np.empty(blocks, dtype=np.int64)
        starts[order] = np.cumsum(lengths[order]) - lengths[order]
        turns = (drawn[batches + blocks :] >> np.uint64(1)).view(np.int64) % batches
        return cls(length, np.argsort(drawn[:batches]), turns, starts, block)

    @property
    def batches(self) -> int:
        """How many."""
        return len(self.row_of)

    @property
    def runs(self) -> int:
        """Runs of rows, and so the rows of a batch."""
        return len(self.turns)

    @property
    def order(self) -> NDArray[np.int64]:
        """The order in which rows come: int64[rows], the row at each place."""
        return self.order_in(np.empty)

    def order_in(self, new: Callable[[tuple[int, ...], Any], NDArray[Any]]) -> NDArray[np.int64]:
        """Return the order, in an array that a function makes: pages of new memory cost more than the numbers."""
        runs = np.empty(self.runs, dtype=np.int64)
        for start, first, stop in self.blocks(0, self.runs):
            runs[start : start + stop - first] = np.arange(first, stop)
        flat = self._rows(runs, new).reshape(-1)
        if len(flat) == self.length:
            return flat
        return flat[flat < self.length]

    def rows(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the row that each batch gets of some runs: int64[batches, runs]."""
        return self._rows(np.arange(first, stop, dtype=np.int64), np.empty)

    def _rows(self, runs: NDArray[np.int64], new: Callable[[tuple[int, ...], Any], NDArray[Any]]) -> NDArray[np.int64]:
        rows = new((self.batches, len(runs)), np.int64)
        twice, turns, begins = np.concatenate((self.row_of, self.row_of)), self.turns[runs], runs * self.batches
        few = max(1, _NEAR_NUMBERS // max(1, len(runs)))
        for first in range(0, self.batches, few):
            some = rows[first : first + few]
            twice.take(np.add.outer(np.arange(first, first + len(some)), turns), out=some, mode="clip")
            some += begins
        return rows

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of some rows in the order, of a window of whole batches."""
        run, in_run = np.divmod(rows, self.batches)
        batch_of = np.empty(self.batches, dtype=np.int64)
        batch_of[self.row_of] = np.arange(self.batches)
        batch = (batch_of[in_run] - self.turns[run]) % self.batches
        places: NDArray[np.int64] = batch * self.runs + self.starts[run // self.block] + run % self.block
        return places

    def blocks(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield parts of some runs, each of one block: where it begins in a batch, and its first and last run."""
        for begin in range(first // self.block, -(-stop // self.block)):
            low, high = max(first, begin * self.block), min(stop, (begin + 1) * self.block)
            yield int(self.starts[begin]) + low - begin * self.block, low, high


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
        stop: how many of them are delivered, from the first one on; None: all.
        sizes: what its windows have; None where there are none.
    """

    section: str
    at: int
    runs: Runs
    start: int
    segments: SegmentTable
    sizes: WindowSizes | None
    unit: int | None
    dealt: int = 0
    stop: int | None = None

    def window(self, number: int) -> Window:
        """Return one of its windows."""
        sizes = self.sizes or WindowSizes(self.runs.num_rows)
        runs = self.runs.slice(sizes.begin(number), sizes.begin(number + 1))
        return Window(self.segments, runs, self.window_name(number), self.dealt)

    def window_name(self, number: int) -> str:
        """Name one of its windows by its first row."""
        begin = 0 if self.sizes is None else self.sizes.begin(number)
        return f"window at {self.at + begin} of {self.section}"

    @property
    def open_window(self) -> tuple[Window, int] | None:
        """The window of which only some rows were delivered, and their number; None if there is none."""
        if self.sizes is None:
            return None
        number, begin = self.sizes.at(self.start)
        if self.start == begin:
            return None
        return self.window(number), self.start - begin


def stretches(section: Section, segments: SegmentTable) -> Iterator[Stretch]:
    """Yield what a section still has to deliver, in the windows that it says.

    Windows begin at the section's start, and again after each unit, or at each piece if the section says so.

    Args:
        segments: the split ``len(splits) + w`` is a part of the older window w.
    """
    at, num_splits = 0, len(segments.splits)
    for runs in _apart(section.runs, num_splits, each=section.apart and section.windows is not None):
        end = at + runs.num_rows
        if section.stop is not None and at >= section.stop:
            return
        if end > section.skip:
            first = int(runs.split[0])
            unit = first - num_splits if first >= num_splits else None
            sizes = section.windows if unit is None else None
            start = max(0, section.skip - at)
            stretch = Stretch(section.name, at, runs, start, segments, sizes, unit, section.dealt)
            yield stretch if section.stop is None else _up_to(stretch, section.stop - at)
        at = end


def _up_to(stretch: Stretch, stop: int) -> Stretch:
    """Return a stretch of which no more than so many rows are delivered; those of its last window are kept."""
    if stop >= stretch.runs.num_rows:
        return stretch
    sizes = stretch.sizes or WindowSizes(1)
    number, _ = sizes.at(stop - 1)
    return replace(stretch, runs=stretch.runs.slice(0, sizes.begin(number + 1)), stop=stop)


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
