"""Padding in every mode, and what is said of a list that is too long in each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from tests.tables.plain import meant_warnings
from torch_table_loader import ConfigError, MixedDataset, Pad, StructuredDataset, TableError
from torch_table_loader.batching.outputs import Padded

ROWS = 50
LENGTHS = [row * 37 % 11 for row in range(ROWS)]
LAYOUTS: dict[str, Any] = {"ids": Pad(value=-100, length=6, truncate="left", side="left"), "grid": Pad(multiple_of=4)}
OPTIONS: dict[str, Any] = {"batch_size": 8, "ragged": LAYOUTS, "check_plan": False}
FORKED: dict[str, Any] = {"worker_type": "process", "num_workers": 2, "multiprocessing_context": "fork"}
MODES: dict[str, dict[str, Any]] = {
    "threads": {},
    "caller": {"num_workers": 0},
    "processes": FORKED,
    "windows": {"shuffle": True, "split_rows": 9, "shuffle_buffer_size": 7},
    "rows": {"shuffle": "rows"},
    "row-processes": {"shuffle": "rows", **FORKED},
    "collated": {"collate_fn": dict, **FORKED},
    "arrays": {"output_format": "numpy"},
    "device": {"device": "cpu"},
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("padded")
    lists = [[100 * row + at for at in range(LENGTHS[row])] for row in range(ROWS)]
    whole = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "ids": pa.array(lists, pa.list_(pa.int32())),
            "grid": pa.array([[[x, -x] for x in row] for row in lists], pa.list_(pa.list_(pa.float32(), 2))),
            "plain": pa.array(lists, pa.list_(pa.int32())),
        }
    )
    pq.write_table(whole, root / "0.parquet", row_group_size=13)
    return str(root)


def check(batches: Iterable[dict[str, Any]]) -> None:
    """See that each batch is padded as was asked, and that columns that are not named come as they always do."""
    num_rows = 0
    for batch in batches:
        ids = batch["id"].tolist()
        num_rows += len(ids)
        lists = {row: [100 * row + at for at in range(LENGTHS[row])] for row in ids}
        assert isinstance(batch["ids"], Padded)
        assert batch["ids"].values.tolist() == [[-100] * (6 - len(lists[row])) + lists[row][-6:] for row in ids]
        assert batch["ids"].lengths.tolist() == [min(6, LENGTHS[row]) for row in ids]
        width = -(-max(LENGTHS[row] for row in ids) // 4) * 4
        grid = batch["grid"]
        assert tuple(grid.values.shape) == (len(ids), width, 2)
        assert grid.values[..., 0].tolist() == [lists[row] + [0] * (width - len(lists[row])) for row in ids]
        assert grid.lengths.tolist() == [LENGTHS[row] for row in ids]
        assert not isinstance(batch["plain"], Padded)
    assert num_rows == ROWS


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_pads(table: str, mode: str) -> None:
    loader, _ = StructuredDataset.create_dataloader(table, **OPTIONS, **MODES[mode])
    check(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_ones_own_pads(table: str, workers: int) -> None:
    with meant_warnings():
        check(DataLoader(StructuredDataset(table, **OPTIONS), batch_size=None, num_workers=workers))


def test_a_map_view_pads(table: str) -> None:
    view = StructuredDataset(table, **OPTIONS, shuffle="rows").as_map()
    check([view.batch(range(start, min(start + 8, ROWS))) for start in range(0, ROWS, 8)])


def test_a_mixture_pads_as_its_sources_do(table: str) -> None:
    def source(**otherwise: Any) -> StructuredDataset:
        return StructuredDataset(table, **{**OPTIONS, "shuffle": "rows", **otherwise})

    loader, _ = MixedDataset.create_dataloader({"a": source()}, {"a": 1}, batch_size=8)
    check(loader)
    alike = [{"ids": Pad(value=0.0, length=9, truncate="right")}, {"ids": Pad(value=0, length=9, truncate="right")}]
    MixedDataset({str(at): source(ragged=each) for at, each in enumerate(alike)}, {"0": 1, "1": 1})
    with pytest.raises(ConfigError, match=r"must come in one form, but ragged is .*Pad"):
        MixedDataset({"a": source(), "b": source(ragged="pad")}, {"a": 1, "b": 1})


TOO_LONG = LENGTHS.index(10)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({}, "0.parquet: "),
        ({"shuffle": "rows"}, "the row whose row_id is {row}: "),
        ({"shuffle": "rows", "filters": pa.compute.field("id") > 2}, "the row whose row_id is {row}: "),
        ({"shuffle": "rows", **FORKED}, "the row whose row_id is {row}: "),
    ],
    ids=["stream", "rows", "filtered", "row-processes"],
)
def test_a_list_that_is_too_long_is_named_with_its_row(table: str, options: dict[str, Any], where: str) -> None:
    given = {**OPTIONS, "ragged": Pad(length=9), "columns": ["id", "ids"], **options}
    loader, _ = StructuredDataset.create_dataloader(table, **given)
    with pytest.raises(TableError) as caught:
        list(loader)
    rows = [row for row in range(ROWS) if LENGTHS[row] > 9]
    said = str(caught.value)
    assert any(said.startswith(where.format(row=row)) for row in rows)
    assert "column 'ids' has a list of 10 values at row " in said
    assert "truncate=" in said


def test_a_list_that_is_too_long_is_named_in_a_mixture_and_in_a_view(table: str) -> None:
    source = StructuredDataset(table, "parquet", shuffle="rows", ragged=Pad(length=9), columns=["id", "ids"])
    rows = "|".join(str(row) for row in range(ROWS) if LENGTHS[row] > 9)
    with pytest.raises(TableError, match=f"^the row whose row_id is ({rows}) in source 1 of the mixture: column 'ids'"):
        list(MixedDataset.create_dataloader({"a": short(table), "b": source}, {"a": 0, "b": 1})[0])
    with pytest.raises(
        TableError, match=f"^the row at place {TOO_LONG}: column 'ids' has a list of 10 values at row 1"
    ):
        source.as_map().batch([0, TOO_LONG])


def short(table: str) -> StructuredDataset:
    """Open a source of which nothing is too long."""
    some = pa.compute.field("id") == 0
    return StructuredDataset(table, shuffle="rows", ragged=Pad(length=9), columns=["id", "ids"], filters=some)


def test_values_are_ones_own_to_write_to(table: str) -> None:
    loader, _ = StructuredDataset.create_dataloader(table, **OPTIONS)
    for batch in loader:
        batch["ids"].values.fill_(1)
        batch["grid"].values.zero_()
        assert torch.equal(batch["ids"].values, torch.ones_like(batch["ids"].values))
