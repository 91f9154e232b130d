"""Ranks take equally many steps unless `even_ranks=False`, and padding is marked whatever the table has."""

from __future__ import annotations

import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from torch_table_loader import ConfigError, MixedDataset, StructuredDataset, TableLoader

RANKS = 8
ROWS_OF_DAYS = (1, 3, 7, 2000, 20, 55, 150, 400, 1, 9, 900)
TOTAL = sum(ROWS_OF_DAYS)


def write(root: Path, rows: tuple[int, ...] = ROWS_OF_DAYS, **more: Any) -> str:
    """Write a folder a day, of very different sizes, with rows that are numbered."""
    first = 0
    for day, count in enumerate(rows):
        folder = root / f"day={day:02}"
        folder.mkdir(parents=True)
        values = np.arange(first, first + count)
        columns = {name: np.full(count, value) for name, value in more.items()}
        pq.write_table(pa.table({"x": values, **columns}), folder / "0.parquet", row_group_size=200)
        first += count
    return str(root)


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("days"))


ORDERS: dict[str, dict[str, Any]] = {
    "in order": {},
    "splits": {"shuffle": "splits"},
    "mixed": {"shuffle": True},
    "windows": {"shuffle": "splits", "shuffle_buffer_size": 100},
    "rows": {"shuffle": "rows", "row_store": "memory"},
    "by file": {"batch_by": "file"},
}


def ranks_of(path: str, ranks: int = RANKS, **options: Any) -> list[TableLoader[Any]]:
    chosen: dict[str, Any] = {"batch_size": 16, "num_workers": 1, "check_plan": False, "columns": ["x"]} | options
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [
            StructuredDataset.create_dataloader(path, num_ranks=ranks, rank=rank, **chosen)[0] for rank in range(ranks)
        ]


def taken(loaders: list[TableLoader[Any]], steps: int | None = None) -> list[list[Any]]:
    """Take some steps of each rank, or all."""
    return [list(islice(loader, steps)) for loader in loaders]


def live(ranks: list[list[Any]]) -> list[int]:
    return sorted(int(row) for batches in ranks for batch in batches for row in batch["x"][~batch["padding"]])


def padded(batches: list[Any]) -> int:
    return sum(int(batch["padding"].sum()) for batch in batches)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", [1, 16, 64, 443])
@daily(8)
def test_ranks_take_equal_steps_and_every_row_once(days: str, order: str, size: int) -> None:
    ranks = taken(ranks_of(days, batch_size=size, **ORDERS[order]))
    assert len({len(batches) for batches in ranks}) == 1
    assert live(ranks) == list(range(TOTAL))
    if order != "by file":
        assert max(map(padded, ranks)) <= 1


@pytest.mark.parametrize("order", ORDERS)
@daily(2)
def test_the_columns_of_a_batch_are_those_of_options_and_world(days: str, order: str) -> None:
    assert [names(loader) for loader in ranks_of(days, **ORDERS[order])] == [["x", "padding"]] * RANKS
    assert names(ranks_of(days, 1, **ORDERS[order])[0]) == ["x"]
    dropping = ranks_of(days, drop_last=True, **ORDERS[order])
    assert names(dropping[0]) == ["x"], "no rank repeats a row where short batches are dropped"
    assert len({len(batches) for batches in taken(ranks_of(days, drop_last=True, **ORDERS[order]))}) == 1


def names(loader: TableLoader[Any]) -> list[str]:
    found = {tuple(batch) for batch in loader}
    assert found == {tuple(loader.dataset.schema.names)}
    return list(loader.dataset.schema.names)


@pytest.mark.parametrize("order", ["splits", "mixed", "rows"])
@pytest.mark.parametrize("others", [1, 3, 11])
@daily(3)
def test_other_ranks_go_on_with_equal_steps(days: str, order: str, others: int) -> None:
    loaders = ranks_of(days, **ORDERS[order])
    began = taken(loaders, 9)
    state = loaders[0].state_dict()
    resumed = ranks_of(days, others, **ORDERS[order])
    for loader in resumed:
        loader.load_state_dict(state)
    rest = taken(resumed)
    assert len({len(batches) for batches in rest}) == 1
    rows = live(began)
    for batches in rest:
        for batch in batches:
            marks = batch["padding"] if others > 1 else np.zeros(len(batch["x"]), dtype=bool)
            rows += batch["x"][~marks].tolist()
    assert sorted(rows) == list(range(TOTAL))


@pytest.mark.parametrize("order", ["splits", "mixed", "rows"])
@daily(1)
def test_a_filter_leaves_steps_equal(days: str, order: str) -> None:
    ranks = taken(ranks_of(days, filters="x >= 1990", **ORDERS[order]))
    assert len({len(batches) for batches in ranks}) == 1
    assert live(ranks) == list(range(1990, TOTAL))


def mixed_ranks(path: str, order: str, ranks: int) -> list[TableLoader[Any]]:
    loaders: list[TableLoader[Any]] = []
    for rank in range(ranks):
        own = {name: StructuredDataset(path, columns=["x"], check_plan=False, **ORDERS[order]) for name in "ab"}
        job: dict[str, Any] = {"num_ranks": ranks, "rank": rank, "check_plan": False, "num_workers": 1}
        mixed = MixedDataset(own, {"a": 1, "b": 1}, stop="all_exhausted", batch_size=48, **job)
        loaders.append(mixed.loader())
    return loaders


@pytest.mark.parametrize("order", ["splits", "rows"])
def test_mixtures_take_equal_steps(days: str, order: str) -> None:
    ranks = taken(mixed_ranks(days, order, RANKS))
    assert len({len(batches) for batches in ranks}) == 1
    [alone] = taken(mixed_ranks(days, order, 1))
    assert live(ranks) == sorted(int(row) for batch in alone for row in batch["x"])


def test_fewer_rows_than_ranks(tmp_path: Path) -> None:
    path = write(tmp_path, (2, 1))
    for order in ("in order", "mixed", "rows"):
        ranks = taken(ranks_of(path, **ORDERS[order]))
        assert [len(batches) for batches in ranks] == [1] * RANKS
        assert live(ranks) == [0, 1, 2]


def test_false_is_the_bare_deal_and_warns(days: str) -> None:
    for order in ("in order", "mixed"):
        with pytest.warns(UserWarning, match="ranks take different numbers of steps.*leave even_ranks=False out"):
            StructuredDataset.create_dataloader(
                days, even_ranks=False, num_ranks=RANKS, rank=0, batch_size=16, check_plan=False, **ORDERS[order]
            )
    job: dict[str, Any] = {"num_ranks": RANKS, "rank": 0, "check_plan": False, "batch_size": 443}
    with pytest.warns(UserWarning, match="ranks take different numbers of steps.*leave even_ranks=False out"):
        StructuredDataset.create_dataloader(days, even_ranks=False, **job, **ORDERS["rows"])


def test_rows_that_are_not_counted_are_dealt_with_a_warning(days: str) -> None:
    with pytest.warns(UserWarning, match="each of 8 ranks counts its own rows"):
        _, dataset = StructuredDataset.create_dataloader(
            days, columns=["x"], filters="x > 4", count_filtered=False, num_ranks=RANKS, rank=0, check_plan=False
        )
    assert dataset.schema.names == ["x"]


def test_explain_says_that_steps_are_equal(days: str) -> None:
    note = "ranks take equally many steps, and what is repeated for it is marked as padding"
    explained = ranks_of(days)[0].dataset.explain()
    assert note in explained.notes
    assert explained.steps_per_rank == (28,) * RANKS
    assert note not in ranks_of(days, 1)[0].dataset.explain().notes


@pytest.mark.parametrize("order", ["in order", "rows"])
def test_a_column_of_that_name_is_refused_on_several_ranks(tmp_path: Path, order: str) -> None:
    path = write(tmp_path, (5, 5), padding=1)
    options: dict[str, Any] = {"check_plan": False, "rank": 0, **ORDERS[order]}
    with pytest.raises(ConfigError, match=r"adds a column 'padding'.*leave it out of columns=, or pass even_ranks=Fal"):
        StructuredDataset(path, num_ranks=2, **options)
    assert StructuredDataset(path, num_ranks=2, even_ranks=False, **options).schema.names[:2] == ["x", "padding"]
    assert StructuredDataset(path, num_ranks=1, **options).schema.names[:2] == ["x", "padding"]
