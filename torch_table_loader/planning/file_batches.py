"""Batches that end where pieces of files end: how many there are, and which rows each has.

Ranks then share whole batches, as they otherwise share rows. A piece of n rows is ⌈n/B⌉ units of one batch each, and
the arithmetic of rows applies to units with a batch size of 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.planning.runs import Runs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.ranks import Topology


def batch_ends(runs: Runs, size: int) -> NDArray[np.int64]:
    """Count the batches of each piece, together with those of all pieces before it.

    >>> batch_ends(Runs.of([(0, 0, 7), (1, 2, 5)]), 3).tolist()
    [3, 4]
    """
    return np.cumsum(-((runs.start - runs.stop) // size), dtype=np.int64)


def num_batches(runs: Runs, size: int) -> int:
    """Count the batches of all pieces."""
    if len(runs):
        return int(batch_ends(runs, size)[-1])
    return 0


def first_row(runs: Runs, size: int, batch: int) -> int:
    """Count the rows before a batch; all rows if there are fewer batches.

    >>> [first_row(Runs.of([(0, 0, 7), (1, 2, 5)]), 3, batch) for batch in range(6)]
    [0, 3, 6, 7, 10, 10]
    """
    ends = batch_ends(runs, size)
    piece = int(np.searchsorted(ends, batch, side="right"))
    if piece == len(runs):
        return runs.num_rows
    if not piece:
        return batch * size
    return int(runs.ends[piece - 1]) + (batch - int(ends[piece - 1])) * size


def row_after(runs: Runs, size: int, row: int) -> int:
    """Return the row after the last row of the batch that begins at a row.

    >>> [row_after(Runs.of([(0, 0, 7), (1, 2, 5)]), 3, row) for row in (0, 3, 6, 7)]
    [3, 6, 7, 10]
    """
    return min(row + size, int(runs.ends[np.searchsorted(runs.ends, row, side="right")]))


def full_batches(runs: Runs, size: int) -> Runs:
    """Return the pieces without the rows that do not fill a batch.

    >>> list(full_batches(Runs.of([(0, 0, 7), (1, 2, 4), (2, 0, 3)]), 3))
    [(0, 0, 6), (2, 0, 3)]
    """
    whole = Runs(runs.split, runs.start, runs.start + (runs.stop - runs.start) // size * size)
    return whole.take(np.flatnonzero(whole.stop > whole.start))


def in_units(runs: Runs, size: int) -> Runs:
    """Return pieces as units of one batch each; unit u of a piece stands for its batch u.

    >>> list(in_units(Runs.of([(5, 0, 7), (1, 2, 5)]), 3))
    [(0, 0, 3), (1, 0, 1)]
    """
    ends = batch_ends(runs, size)
    return Runs(np.arange(len(runs), dtype=np.int64), np.zeros_like(ends), np.diff(ends, prepend=0))


def in_rows(units: Runs, runs: Runs, size: int) -> Runs:
    """Return the rows of some units of the pieces in `runs`; see `in_units`.

    >>> list(in_rows(Runs.of([(0, 1, 3), (1, 0, 1)]), Runs.of([(5, 10, 17), (1, 2, 5)]), 3))
    [(5, 13, 17), (1, 2, 5)]
    """
    start = runs.start[units.split]
    stop = np.minimum(start + units.stop * size, runs.stop[units.split])
    return Runs(runs.split[units.split], start + units.start * size, stop)


def shared_in_units(topology: Topology) -> Topology:
    """Return the topology of a job whose ranks share units: a unit is a batch, and no unit is short."""
    return replace(topology, batch_size=1, drop_last=False)
