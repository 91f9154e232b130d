"""The contracts of `planning/orders.py`: what draws rows, and what puts them in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.planning.exclusion import Remaining
from torch_table_loader.testing.rules import pickled, require

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.orders import Draws, EpochOrder, Order, Selects

    Ints = NDArray[np.int64]

_SEED = 3


def check_order(order: Order, rows: int, places: int) -> None:
    """Check an order: the row at a place is the same whatever is asked for with it, and in another process.

    Args:
        rows: of the store.
        places: so many are asked for.

    Raises:
        ContractError: a rule is broken; the message names it.
    """
    who, asked = type(order).__name__, np.arange(places, dtype=np.int64)
    whole = order.take(asked)
    require(whole.dtype == np.int64 and whole.shape == asked.shape, f"{who} must give an int64 for each place")
    require(bool(((whole >= 0) & (whole < rows)).all()), f"{who} must give rows of the store, in [0, {rows})")
    mixed = np.concatenate((asked[::-1], asked[::3], asked[:0]))
    require(bool((order.take(mixed) == whole[mixed]).all()), f"{who} must not depend on what is asked for together")
    alone = [int(order.take(asked[at : at + 1])[0]) for at in range(min(places, 20))]
    require(alone == whole[: len(alone)].tolist(), f"{who} must give a place alone what it gives it among others")
    require(bool((pickled(order, who).take(asked) == whole).all()), f"{who} must be the same in another process")


def check_epoch_order(order: EpochOrder, rows: int) -> None:
    """Check the order of an epoch, to its end; see `check_order`.

    Raises:
        ContractError: a rule is broken; the message names it.
    """
    ends = [int(end) for end in order.ends]
    require(ends and ends == sorted(ends), f"{type(order).__name__} must have parts whose ends rise, has {ends}")
    check_order(order, rows, ends[-1])


def check_draws(draws: Draws, rows: int) -> None:
    """Check what draws rows of a table, with and without some that are left out.

    Args:
        rows: of the table, of which some can come even if every other one is left out.

    Raises:
        ContractError: a rule is broken; the message names it.
    """
    who = type(draws).__name__
    for gone in (np.empty(0, dtype=np.int64), np.arange(0, rows, 2, dtype=np.int64)):
        left = Remaining(rows, gone)
        for source in (None, "a"):
            _check_selected(who, draws.selected(left, _SEED, 1, source), left)
            _check_same(
                who, draws.selected(left, _SEED, 1, source), pickled(draws, who).selected(left, _SEED, 1, source)
            )
    nothing = draws.selected(Remaining(rows, np.arange(rows, dtype=np.int64)), _SEED, 0, "a")
    require(not nothing.num_rows, f"{who} must draw nothing where no row is left, draws {nothing.num_rows}")
    require(draws.most is None or 0 <= draws.most <= rows, f"{who} must have as many rows at most as there are")
    require(draws.memory_bytes >= 0, f"{who} must say how much memory it holds, says {draws.memory_bytes}")
    said = draws.in_words("4 rows", "8 of 9 live rows")
    require("8 of 9 live rows" in said, f"{who} must say of which rows an epoch has some, says {said!r}")


def _check_selected(who: str, selected: Selects, left: Remaining) -> None:
    numbers = np.arange(selected.num_rows, dtype=np.int64)
    require(np.array_equal(selected.gone, left.gone), f"{who} must name the rows that are left out")
    for rounds in (0, 1, numbers % 3):
        rows = selected.select(numbers, rounds)
        require(rows.dtype == np.int64 and len(rows) == len(numbers), f"{who} must give an int64 for each number")
        require(not np.isin(rows, left.gone).any(), f"{who} must draw no row that is left out")
        require(bool(((rows >= 0) & (rows < left.total)).all()), f"{who} must draw rows in [0, {left.total})")
    both = selected.select(np.concatenate((numbers, numbers)), np.repeat([0, 1], len(numbers)))
    apart = np.concatenate((selected.select(numbers), selected.select(numbers, 1)))
    require(np.array_equal(both, apart), f"{who} must draw in each round what it draws there alone")


def _check_same(who: str, first: Selects, then: Selects) -> None:
    numbers = np.arange(first.num_rows, dtype=np.int64)
    same = then.num_rows == first.num_rows and np.array_equal(first.select(numbers), then.select(numbers))
    require(same, f"{who} must draw the same rows for the same seed, epoch and source, in any process")
