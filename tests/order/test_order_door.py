"""The guest's door and what it returns hold the contracts of the core; what breaks one is told apart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import torch_table_loader.order
from tests.order.weighted import ROWS, make, write_weighted
from torch_table_loader import Weights
from torch_table_loader.engine.row_draws import RowDraws, row_draws
from torch_table_loader.order.growth import GrownOrder
from torch_table_loader.planning.exclusion import Remaining
from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.orders import EachOnce, RowOrder
from torch_table_loader.planning.permutation import Permutation
from torch_table_loader.testing import ContractError, check_door, check_draws, check_epoch_order

NOTHING = np.empty(0, dtype=np.int64)
KEY = derive_key(7, 0, "rows")


def test_the_door_is_what_the_core_asks_for() -> None:
    door: object = row_draws()
    assert door is torch_table_loader.order
    check_door(torch_table_loader.order, RowDraws)


@pytest.mark.parametrize(
    "weights",
    [
        None,
        "w",
        Weights(column="w", samples=30),
        Weights(samples=9),
        Weights(repeats="w"),
        Weights(balance="kind"),
    ],
    ids=str,
)
def test_what_draws_rows_holds_its_contract(tmp_path_factory: pytest.TempPathFactory, weights: Any) -> None:
    draws = make(write_weighted(tmp_path_factory.mktemp("table")), weights=weights).dataset.job.live_rows[""].draws
    check_draws(draws, ROWS)
    selected = draws.selected(Remaining(ROWS, NOTHING), 7, 0)
    check_epoch_order(RowOrder(Permutation(selected.num_rows, KEY), selected), ROWS)


def test_rows_that_came_later_are_an_order() -> None:
    starts, tables = np.array([0, 7, 7, 20, 31]), [np.array([2]), np.array([2, 0]), np.arange(4)]
    check_epoch_order(GrownOrder.of(starts, tables, np.array([3, 19]), 5, 1), 31)


@dataclass(frozen=True)
class Turning:
    """A selection that breaks one rule."""

    remaining: Remaining
    wrong: str

    @property
    def num_rows(self) -> int:
        return self.remaining.num_rows

    @property
    def gone(self) -> Any:
        return NOTHING if self.wrong == "gone" else self.remaining.gone

    def select(self, ranks: Any, rounds: Any = 0) -> Any:
        rows = self.remaining.select(ranks, rounds)
        if self.wrong == "rows that are left out" and len(self.remaining.gone):
            rows[0] = self.remaining.gone[0]
        if self.wrong == "rounds together":
            return rows[::-1].copy() if np.ndim(rounds) else rows
        return rows.astype(np.int32) if self.wrong == "type" else rows


@dataclass(frozen=True)
class Wrong(EachOnce):
    """Draws rows, and breaks one rule."""

    rule: str = ""

    def selected(self, remaining: Remaining, seed: int, epoch: int, source: str | None = None) -> Any:
        return Turning(replace(remaining, gone=remaining.gone.copy()), self.rule)

    def in_words(self, rows: str, left: str) -> str:
        return rows if self.rule == "words" else super().in_words(rows, left)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("gone", "must name the rows that are left out"),
        ("rows that are left out", "must draw no row that is left out"),
        ("rounds together", "what it draws there alone"),
        ("type", "must give an int64"),
        ("words", "must say of which rows"),
    ],
)
def test_what_draws_rows_wrongly_is_told_apart(rule: str, said: str) -> None:
    check_draws(Wrong(), 40)
    with pytest.raises(ContractError, match=said):
        check_draws(Wrong(rule=rule), 40)


@dataclass(frozen=True)
class Sliding:
    """An order that breaks one rule."""

    rule: str
    ends: tuple[int, ...] = (4, 40)

    def take(self, places: Any) -> Any:
        if self.rule == "among others":
            return np.arange(len(places), dtype=np.int64)
        if self.rule == "the store":
            return places + 1
        return places.astype(float) if self.rule == "type" else places.copy()


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (Sliding("among others"), "must not depend on what is asked for together"),
        (Sliding("the store"), r"rows of the store, in \[0, 40\)"),
        (Sliding("type"), "an int64 for each place"),
        (Sliding("", (5, 3)), "whose ends rise"),
        (Sliding("", ()), "whose ends rise"),
    ],
    ids=lambda given: str(given)[:60],
)
def test_an_order_that_is_wrong_is_told_apart(order: Any, said: str) -> None:
    check_epoch_order(Sliding(""), 40)
    with pytest.raises(ContractError, match=said):
        check_epoch_order(order, 40)
