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
    from collections.abc import Sequence

    from numpy.typing import NDArray

ROWS_OF_A_PIECE = 4
"""The least rows that a window takes from a stratum of average size, so that none is left out for long."""


def strata_of(lanes: Hands, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Divide the pieces of each lane into strata: int64[N], the stratum of each, numbered from 0 without gaps.

    A stratum is a run of pieces in the order of the table, and holds at least a quarter of its even share of the rows.

    Args:
        lanes: pieces of splits, of at least one row each; splits are numbered in the order of the table.
        counts: int64[H] how many strata each lane has at most; one at least.

    >>> runs = Runs.of([(5, 0, 10), (0, 0, 10), (3, 0, 10), (1, 0, 10)])
    >>> strata_of(Hands.of([runs]), np.array([2])).tolist()
    [1, 0, 1, 0]
    """
    most, pieces = int(counts.max(initial=1)), np.diff(lanes.borders)
    begins = zip(lanes, lanes.borders.tolist(), strict=False)
    order = np.concatenate([lanes.borders[:0], *(_by_table(lane) + begin for lane, begin in begins)])
    rows = (lanes.runs.stop - lanes.runs.start)[order]
    ends = np.cumsum(rows)
    total = lanes.rows
    before = np.repeat(np.cumsum(total) - total, pieces)
    middle = 2 * (ends - before) - rows
    wanted = middle * np.repeat(counts, pieces) // np.repeat(2 * total, pieces)  # the stratum in which it lies
    wanted += np.repeat(np.arange(len(lanes)) * most, pieces)
    sums = np.bincount(wanted, rows, len(lanes) * most).reshape(-1, most)
    kept = sums * (4 * counts)[:, None] >= np.maximum(total, 1)[:, None]
    number = np.maximum(np.cumsum(kept, axis=1) - 1, 0)  # a small stratum joins the one before it, or the first
    result = np.empty(len(order), dtype=np.int64)
    result[order] = number.reshape(-1)[wanted]
    return result


def _by_table(runs: Runs) -> NDArray[np.int64]:
    """Return the places of pieces in the order of the table."""
    order = np.argsort(runs.split)
    ascending = runs.split[order]
    if (ascending[1:] == ascending[:-1]).any():  # several pieces of a split
        order = np.lexsort((runs.start, runs.split))
    return order


def shares_of_windows(rows: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many rows of each stratum windows hold, with all windows before them: int64[..., windows, strata].

    The method is that of largest remainders (Hamilton).

    Args:
        rows: int64[..., strata], of which each has at least ``sum(rows) / window``, whichever window but the last, or
            none; these come last.
        ends: int64[..., windows] where windows end, counted over all rows.

    >>> shares_of_windows(np.array([6, 3]), np.array([0, 4, 8, 9])).tolist()
    [[0, 0], [3, 1], [5, 3], [6, 3]]
    """
    total = np.maximum(rows.sum(axis=-1, keepdims=True), 1)
    exact = rows[..., None, :] * (ends / total)[..., None]
    shares: NDArray[np.int64] = np.minimum(np.floor(exact).astype(np.int64), rows[..., None, :])
    missing = ends - shares.sum(axis=-1)
    remainder = np.argsort(shares - exact, axis=-1, kind="stable")
    shares += np.argsort(remainder, axis=-1) < missing[..., None]
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
    strata = _strata(Hands.of([runs]), splits, [sizes])
    runs, rows = strata.runs, strata.rows
    if not len(runs):
        return runs
    shares = shares_of_windows(rows, sizes.ends(runs.num_rows))
    windows, ends = len(shares), (shares + np.cumsum(rows) - rows).T.reshape(-1)  # stratum by stratum
    cuts = distinct(np.concatenate([ends, runs.ends]))[1:]
    starts = np.concatenate(([0], cuts[:-1]))
    piece = np.searchsorted(runs.ends, starts, side="right")
    offset = runs.stop[piece] - runs.ends[piece]
    cut = Runs(runs.split[piece], starts + offset, cuts + offset)
    of_window = (np.searchsorted(ends, starts, side="right") - 1) % windows
    return cut.take(by_number(of_window, windows))


def mixed(runs: Runs, num_splits: int, splits: int, sizes: WindowSizes) -> Runs:
    """Return what a lane reads: units of open windows, then splits side by side; see `interleaved`.

    Args:
        num_splits: the split ``num_splits + w`` is a part of the older window w.
    """
    is_unit = runs.split >= num_splits
    if not is_unit.any():
        return interleaved(runs, splits, sizes)
    plain = interleaved(runs.take(np.flatnonzero(~is_unit)), splits, sizes)
    return Runs.concat([runs.take(np.flatnonzero(is_unit)), plain])


def mixed_until(
    lanes: Hands, num_splits: int, splits: int, sizes: Sequence[WindowSizes], rows: NDArray[np.int64]
) -> Hands:
    """Return the same of lanes, each up to the window of a row; see `interleaved_until`."""
    is_unit = lanes.runs.split >= num_splits
    units, plain = lanes.some(is_unit), lanes.some(~is_unit)
    return units.followed_by(interleaved_until(plain, splits, sizes, rows - units.rows))


def interleaved_until(lanes: Hands, splits: int, sizes: Sequence[WindowSizes], rows: NDArray[np.int64]) -> Hands:
    """Return the same of lanes, each up to the window of a row, for those who ask what the windows before it hold.

    These come in another order, stratum by stratum, so that windows need not be laid out one by one.

    Args:
        sizes: of the windows of each lane.
        rows: int64[H]; a row beyond the last one stands for that.

    >>> lane = Hands.of([Runs.of([(0, 0, 16), (1, 0, 16)])])
    >>> list(interleaved_until(lane, 2, [WindowSizes(8)], np.array([16]))[0])
    [(0, 0, 8), (1, 0, 8), (0, 8, 12), (1, 8, 12)]
    """
    strata = _strata(lanes, splits, sizes)
    of_strata = strata.rows.reshape(len(lanes), -1)
    borders = [(0, *each) for each in map(_window_at, sizes, rows.tolist(), of_strata.sum(axis=1).tolist())]
    shares = shares_of_windows(of_strata, np.array(borders, dtype=np.int64))
    stratum = np.arange(len(strata)).reshape(len(lanes), 1, -1)
    parts = strata.parts(
        np.repeat(stratum, 2, axis=1).reshape(-1), shares[:, :2].reshape(-1), shares[:, 1:].reshape(-1)
    )
    return Hands(parts.runs, parts.borders[:: 2 * of_strata.shape[1]])


def _window_at(sizes: WindowSizes, row: int, total: int) -> tuple[int, int]:
    """Return where the window of a row begins and ends, of so many rows."""
    number, begin = sizes.at(max(0, min(row, total - 1)))
    return begin, min(sizes.begin(number + 1), total)


def _strata(lanes: Hands, splits: int, sizes: Sequence[WindowSizes]) -> Hands:
    """Return the pieces of each stratum of each lane, in the order of the epoch; of each lane as many strata."""
    lanes = lanes.some(lanes.runs.stop > lanes.runs.start)
    least = np.array([each.least for each in sizes]) // ROWS_OF_A_PIECE
    counts = np.maximum(np.minimum(np.minimum(np.diff(lanes.borders), splits), least), 1)
    stratum = strata_of(lanes, counts)
    return lanes.dealt(stratum, int(stratum.max(initial=0)) + 1)
