"""What the core gathers by index holds the contract of items; what breaks it is told apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typing_extensions import override

from torch_table_loader import Budget, RowStore, StructuredDataset
from torch_table_loader.engine.items import ItemStream, TurnsOf, TurnStream
from torch_table_loader.planning.exclusion import Exclusions
from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.orders import RowOrder
from torch_table_loader.planning.permutation import Permutation
from torch_table_loader.testing import ContractError, check_item_stream, check_items, check_map, check_turn_stream

ROWS = 60
ONE = pa.schema({"x": pa.int64()})


@dataclass(frozen=True, slots=True, eq=False)
class OneRound(TurnsOf):
    """The turns of a source that comes once."""

    @override
    def order_of(self, rows: Any) -> RowOrder:
        return RowOrder(Permutation(rows.num_rows, derive_key(self.seed, self.epoch, "a contract")), rows)


def job_of(folder: Path, **options: Any) -> Any:
    """Return a job whose store, in a folder, is open."""
    words = [f"w{row % 5}" for row in range(ROWS)]
    table = pa.table({"x": np.arange(ROWS), "word": words, "list": [[row] * (row % 3) for row in range(ROWS)]})
    chosen: dict[str, Any] = {"row_store": RowStore(str(folder)), "row_id": True, "shuffle": "rows", "batch_size": 4}
    job: Any = StructuredDataset.from_arrow(table, check_plan=False, **{**chosen, **options}).job
    job.live_rows[""].store.open()
    return job


@pytest.mark.parametrize("options", [{}, {"filters": "x > 6"}, {"columns": ["x"], "row_id": False}], ids=str)
def test_rows_hold_the_contract_of_items(tmp_path: Path, options: dict[str, Any]) -> None:
    job = job_of(tmp_path, **options)
    names, start = job.columns.names, job.start(0)
    check_turn_stream(job.items.stream(start), names, start.total, ROWS)
    turns = OneRound("a", 0, job.columns, Exclusions().exclude([7, 9], ROWS), 3, 1)
    check_turn_stream(job.items.by_turn(turns), names, job.items.count(turns), ROWS)
    check_map(job.items, ROWS)


@pytest.mark.parametrize("size", [4, Budget(tokens=16, length="x")], ids=["rows", "budget"])
def test_epochs_of_rows_hold_the_contract_of_items(tmp_path: Path, size: Any) -> None:
    job = job_of(tmp_path, batch_size=size, filters="x < 12")
    check_items(job.items, job.by_step)


class WrongItems:
    """Items that break one rule."""

    def __init__(self, items: Any, rule: str) -> None:
        self._items, self._rule, self._epochs = items, rule, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._items, name)

    def start(self, epoch: int, by_step: Any) -> Any:
        self._epochs += self._rule == "start"
        start = self._items.start(epoch, by_step)
        return replace(start, start=int(self._rule == "first"), total=start.total - self._epochs)

    def locate(self, position: Any, places: Any) -> Any:
        return self._items.locate(position, np.sort(places) if self._rule != "locate" else places[::-1])

    def records(self, position: Any) -> Any:
        return {**self._items.records(position), **({"stray": 1} if self._rule == "records" else {})}

    def next_stage(self, position: Any, by_step: Any) -> Any:
        after = self._items.next_stage(position, by_step)
        return replace(after, start=after.start - (self._rule == "stage"))

    @property
    def bounds(self) -> Any:
        return {} if self._rule == "bounds" else self._items.bounds


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("start", "in the same way each time"),
        ("first", "at its first item"),
        ("locate", "locate items in the order"),
        ("records", r"does not name \['stray'\]"),
        ("stage", "after what was taken"),
        ("bounds", "is bound to"),
    ],
)
def test_epochs_that_break_a_rule_are_told_apart(tmp_path: Path, rule: str, said: str) -> None:
    job = job_of(tmp_path)
    sound: Any = WrongItems(job.items, "")
    check_items(sound, job.by_step)
    wrong: Any = WrongItems(job.items, rule)
    with pytest.raises(ContractError, match=said):
        check_items(wrong, job.by_step)


@dataclass(frozen=True)
class Wrong(ItemStream):
    """Items that are their places, which break one rule."""

    rule: str

    @property
    def stores(self) -> list[Any]:
        return []

    @override
    def columns(self, blocks: Iterator[tuple[Any, Any]], fetcher: Any) -> Iterator[tuple[list[pa.Array], Any]]:
        for places, note in blocks:
            if self.rule == "sorted":
                yield [pa.array(np.sort(places))], note
            elif self.rule == "block":
                yield [pa.array(places + len(places))], note
            elif self.rule == "note":
                yield [pa.array(places)], 0
            else:
                yield [pa.array(places[1:] if self.rule == "short" else places)], note

    @override
    def name_of(self, place: int) -> str:
        return "" if self.rule == "name" else f"place {place}"


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("sorted", "in the order of the places"),
        ("block", "must not depend on blocks"),
        ("note", "with its note"),
        ("short", "must give 30 values"),
        ("name", "must call each item something"),
    ],
)
def test_items_that_break_a_rule_are_told_apart(rule: str, said: str) -> None:
    check_item_stream(Wrong(""), ["x"], 30)
    with pytest.raises(ContractError, match=said):
        check_item_stream(Wrong(rule), ["x"], 30)


@dataclass(frozen=True)
class WrongTurns(Wrong, TurnStream):
    """The same as a source of a mixture."""

    first: int = 0

    @override
    def columns(self, blocks: Any, fetcher: Any, most_blocks: Any = None) -> Iterator[tuple[list[pa.Array], Any]]:
        shifted = ((places + self.first, note) for places, note in blocks)
        return super().columns(shifted, fetcher)

    @override
    def anchor(self, turn: int) -> list[int]:
        return [turn]

    @override
    def begin_at(self, anchor: list[int]) -> None:
        if self.rule == "anchor":
            object.__setattr__(self, "first", 1)

    @override
    def found(self, turns: Any) -> tuple[Any, Any]:
        counts = np.ones(len(turns), dtype=np.int64) * (2 if self.rule == "counts" else 1)
        if self.rule == "together":
            return np.arange(len(turns)), counts
        return (turns + ROWS if self.rule == "ids" else turns), counts


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("counts", "must count the row ids of each item"),
        ("ids", r"row ids in \[0, 60\)"),
        ("together", "alone as of items together"),
        ("anchor", "go on from an anchor"),
    ],
)
def test_turns_that_break_a_rule_are_told_apart(rule: str, said: str) -> None:
    check_turn_stream(WrongTurns(""), ["x"], 30, ROWS)
    with pytest.raises(ContractError, match=said):
        check_turn_stream(WrongTurns(rule), ["x"], 30, ROWS)


@dataclass(frozen=True)
class WrongMap:
    """A map of places that breaks one rule."""

    rule: str
    columns: pa.Schema = ONE
    num_places: int = 30

    def columns_at(self, places: Any) -> list[pa.Array]:
        if self.rule == "sorted":
            return [pa.array(np.sort(places))]
        return [pa.array(places)] * (2 if self.rule == "columns" else 1)

    def ids_at(self, places: Any) -> Any:
        if self.rule == "backwards":
            return places[::-1]
        return places + ROWS if self.rule == "ids" else places


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("sorted", "in the order of the places"),
        ("columns", r"30 values of each of \['x'\]"),
        ("ids", r"row ids in \[0, 60\)"),
        ("backwards", "in the table's order"),
    ],
)
def test_a_map_that_breaks_a_rule_is_told_apart(rule: str, said: str) -> None:
    sound: Any = WrongMap("")
    check_map(sound, ROWS)
    wrong: Any = WrongMap(rule)
    with pytest.raises(ContractError, match=said):
        check_map(wrong, ROWS)
