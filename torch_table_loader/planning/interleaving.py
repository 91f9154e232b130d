"""How a rank mixes its splits: several are read side by side, and each window of rows draws on all of them.

Tables lie sorted, by day, user or label, so rows that are close in the table resemble each other. A rank's pieces are
therefore divided into strata: runs of the table, in the order of its files, of about equal rows. In each stratum the
pieces come in the order of the epoch. A window takes rows from every stratum, in proportion to what the stratum has,
so that all of them end together. Which rows a window holds is a pure function of the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.planning.distinct import distinct
from torch_table_loader.planning.runs import Hands, Runs, by_number
from torch_table_loader.planning.window_sizes import WindowSizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS_OF_A_PIECE = 4
"""The least rows that a window takes from a stratum of average size, so that none is left out for long."""


def strata_of(runs: Runs, count: int) -> NDArray[np.int64]:
    """Divide pieces into at most `count` strata: int64[N], the stratum of each, numbered from 0 without gaps.

    A stratum is a run of pieces in the order of the table, and holds at least a quarter of its even share of the rows.

    Args:
        runs: pieces of splits, of at least one row each; splits are numbered in the order of the table.

    >>> strata_of(Runs.of([(5, 0, 10), (0, 0, 10), (3, 0, 10), (1, 0, 10)]), 2).tolist()
    [1, 0, 1, 0]
    """
    order = np.argsort(runs.split)
    ascending = runs.split[order]
    if (ascending[1:] == ascending[:-1]).any():  # several pieces of a split
        order = np.lexsort((runs.start, runs.split))
    rows = (runs.stop - runs.start)[order]
    ends, total = np.cumsum(rows), runs.num_rows
    wanted = (2 * ends - rows) * count // (2 * total)  # the stratum in which the middle of a piece lies
    sums = np.bincount(wanted, rows, count)
    kept = sums * (4 * count) >= total
    number = np.maximum(np.cumsum(kept) - 1, 0)  # a small stratum joins the one before it, or the first
    result = np.empty(len(runs), dtype=np.int64)
    result[order] = number[wanted]
    return result


def shares_of_windows(rows: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many rows of each stratum windows hold, with all windows before them: int64[windows, strata].

    The method is that of largest remainders (Hamilton).

    Args:
        rows: int64[strata], of which each has at least ``sum(rows) / window``, whichever window but the last.
        ends: where windows end, counted over all rows.

    >>> shares_of_windows(np.array([6, 3]), np.array([0, 4, 8, 9])).tolist()
    [[0, 0], [3, 1], [5, 3], [6, 3]]
    """
    exact = rows * (ends / rows.sum())[:, None]
    shares: NDArray[np.int64] = np.minimum(np.floor(exact).astype(np.int64), rows)
    missing = ends - shares.sum(axis=1)
    remainder = np.argsort(shares - exact, axis=1, kind="stable")
    more = np.arange(len(rows)) < missing[:, None]
    np.put_along_axis(shares, remainder, np.take_along_axis(shares, remainder, axis=1) + more, axis=1)
    return shares


def interleaved(runs: Runs, splits: int, sizes: WindowSizes) -> Runs:
    """Return pieces in the order in which windows take them, of each stratum some rows for every window.

    No piece is in two windows, so that what is read for a window is no more than that.

    Args:
        runs: pieces of splits in the epoch's order.
        splits: the most strata.
        sizes: of the windows.

    >>> list(interleaved(Runs.of([(0, 0, 8), (1, 0, 8)]), 2, WindowSizes(8)))
    [(0, 0, 4), (1, 0, 4), (0, 4, 8), (1, 4, 8)]
    """
    strata = _strata(runs, splits, sizes)
    if not len(strata):
        return strata.runs
    runs, rows = strata.runs, strata.rows
    shares = shares_of_windows(rows, sizes.ends(runs.num_rows))
    windows, ends = len(shares), (shares + np.cumsum(rows) - rows).T.reshape(-1)  # stratum by stratum
    cuts = distinct(np.concatenate([ends, runs.ends]))[1:]
    starts = np.concatenate(([0], cuts[:-1]))
    piece = np.searchsorted(runs.ends, starts, side="right")
    offset = runs.stop[piece] - runs.ends[piece]
    cut = Runs(runs.split[piece], starts + offset, cuts + offset)
    of_window = (np.searchsorted(ends, starts, side="right") - 1) % windows
    return cut.take(by_number(of_window, windows))


def interleaved_until(runs: Runs, splits: int, sizes: WindowSizes, row: int) -> Runs:
    """Return the same up to the window of a row, for those who ask which rows the windows before it hold.

    These come in another order, stratum by stratum, so that windows need not be laid out one by one.

    >>> list(interleaved_until(Runs.of([(0, 0, 16), (1, 0, 16)]), 2, WindowSizes(8), 16))
    [(0, 0, 8), (1, 0, 8), (0, 8, 12), (1, 8, 12)]
    """
    strata = _strata(runs, splits, sizes)
    if not len(strata):
        return strata.runs
    total = strata.runs.num_rows
    number, begin = sizes.at(min(row, total - 1))
    shares = shares_of_windows(strata.rows, np.array([0, begin, min(sizes.begin(number + 1), total)]))
    stratum = np.tile(np.arange(len(strata)), 2)
    return strata.parts(stratum, shares[:2].reshape(-1), shares[1:].reshape(-1)).runs


def _strata(runs: Runs, splits: int, sizes: WindowSizes) -> Hands:
    """Return the pieces of each stratum, in the order of the epoch."""
    full = runs.stop > runs.start
    if not full.all():
        runs = runs.take(np.flatnonzero(full))
    if not len(runs):
        return Hands.of([])
    count = max(1, min(splits, len(runs), sizes.least // ROWS_OF_A_PIECE))
    stratum = strata_of(runs, count)
    return Hands.of([runs]).dealt(stratum, int(stratum.max()) + 1)
