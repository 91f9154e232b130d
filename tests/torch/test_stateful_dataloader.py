"""torchdata's StatefulDataLoader goes on where it stood, whatever the number of its workers."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.effort import daily
from tests.tables.plain import as_values, meant_warnings, write_table
from torch_table_loader import ConfigError, MixedDataset, ResumeError, StructuredDataset

ORDERS: dict[str, dict[str, Any]] = {
    "table": {},
    "splits": {"shuffle": "splits", "split_size": 20, "shuffle_buffer_size": 30},
    "rows": {"shuffle": "rows", "row_store": "memory"},
    "uncounted": {"filters": pc.field("k") < 7, "count_filtered": False},
}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_table(tmp_path / "table", [[60, 30], [45], [33, 30]])
    return tmp_path / "table"


def open_table(table: Path, order: str, **options: Any) -> Any:
    if order == "mixture":
        rows: dict[str, Any] = {"shuffle": "rows", "row_store": "memory"}
        sources = {name: StructuredDataset(str(table), "parquet", **rows) for name in ("one", "two")}
        return MixedDataset(sources, {"one": 2, "two": 1}, batch_size=7, **options)
    return StructuredDataset(str(table), "parquet", batch_size=7, **ORDERS[order], **options)


def loader_of(dataset: Any, num_workers: int, **options: Any) -> Any:
    return StatefulDataLoader(dataset, batch_size=None, num_workers=num_workers, **options)


def rows(batches: Any) -> list[list[int]]:
    return [as_values(batch).rows for batch in batches]


@pytest.mark.parametrize("order", [*ORDERS, "mixture"])
@pytest.mark.parametrize("num_workers", [0, 2])
@daily(2)
def test_it_goes_on_with_exactly_the_batches_that_were_left(table: Path, order: str, num_workers: int) -> None:
    with meant_warnings():
        whole = rows(loader_of(open_table(table, order), num_workers))
        plain = rows(DataLoader(open_table(table, order), batch_size=None, num_workers=num_workers))
        assert whole == plain
        batches = iter(loader := loader_of(open_table(table, order), num_workers))
        states = [loader.state_dict()]
        for _ in whole:
            next(batches)
            states.append(loader.state_dict())
        for taken in {0, 1, 2, 3, len(whole) // 2, len(whole) - 1} if num_workers == 0 else (1, len(whole) // 2):
            again = loader_of(open_table(table, order), num_workers)
            again.load_state_dict(json.loads(json.dumps(states[taken])))
            assert rows(again) == whole[taken:], taken


@pytest.mark.parametrize("num_workers", [0, 2])
@daily(1)
def test_it_goes_on_in_the_epoch_that_was_saved_and_then_in_the_next(table: Path, num_workers: int) -> None:
    dataset = open_table(table, "splits")
    loader = loader_of(dataset, num_workers)
    epochs = []
    for epoch in range(3):
        dataset.set_epoch(epoch)
        epochs.append(rows(loader))
    dataset.set_epoch(1)
    batches = iter(loader)
    assert rows(next(batches) for _ in range(5)) == epochs[1][:5]
    state = loader.state_dict()
    del batches
    dataset = open_table(table, "splits")
    loader = loader_of(dataset, num_workers)
    loader.load_state_dict(state)
    assert rows(loader) == epochs[1][5:]
    assert dataset.epoch == 1
    dataset.set_epoch(2)
    assert rows(loader) == epochs[2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_that_persist_go_on_too(table: Path, num_workers: int) -> None:
    options = {"persistent_workers": True} if num_workers else {}
    dataset = open_table(table, "splits")
    loader = loader_of(dataset, num_workers, **options)
    first = rows(loader)
    dataset.set_epoch(1)
    batches = iter(loader)
    taken = rows(next(batches) for _ in range(3))
    state = loader.state_dict()
    left = rows(batches)
    again = loader_of(open_table(table, "splits"), num_workers, **options)
    again.load_state_dict(state)
    assert rows(again) == left
    assert sorted(sum(taken + left, [])) == sorted(sum(first, []))


def test_a_dataset_with_a_loader_of_its_own_goes_on_too(table: Path) -> None:
    def make() -> Any:
        with meant_warnings():
            return StructuredDataset.create_dataloader(str(table), "parquet", batch_size=7, num_workers=2)

    for num_workers in (0, 2):
        dataset = make()[1]
        loader = loader_of(dataset, num_workers)
        whole = rows(loader)
        batches = iter(loader)
        rows(next(batches) for _ in range(4))
        state = loader.state_dict()
        del batches
        again = loader_of(make()[1], num_workers)
        again.load_state_dict(state)
        assert rows(again) == whole[4:]


@pytest.mark.parametrize("num_workers", [0, 2])
@daily(lambda num_workers: num_workers == 0)
def test_a_state_of_another_table_is_refused(table: Path, tmp_path: Path, num_workers: int) -> None:
    loader = loader_of(open_table(table, "table"), num_workers)
    next(iter(loader))
    state = loader.state_dict()
    write_table(tmp_path / "other", [[50], [60]])
    again = loader_of(open_table(tmp_path / "other", "table"), num_workers)
    again.load_state_dict(state)
    with pytest.raises(ResumeError, match="state is of another table"):
        next(iter(again))
    gc.collect()  # torchdata does not tell its workers that they are no longer wanted, and waits 5 s for each


def test_a_plain_dataloader_in_this_process_has_a_state_that_counts_what_was_taken(table: Path) -> None:
    dataset = open_table(table, "splits")
    with pytest.raises(ConfigError, match="create_dataloader"):
        dataset.state_dict()
    whole = rows(DataLoader(dataset, batch_size=None))
    batches = iter(DataLoader(dataset, batch_size=None))
    rows(next(batches) for _ in range(4))
    state = dataset.state_dict()
    again = open_table(table, "splits")
    again.load_state_dict(state)
    assert rows(DataLoader(again, batch_size=None)) == whole[4:]
    assert rows(DataLoader(again, batch_size=None)) == whole, "a position that was loaded serves once"
