"""Jagged tensors, in every mode: torch pads them to their longest list and no further, and adds those of one shape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from tests.tables.plain import meant_warnings
from torch_table_loader import MixedDataset, StructuredDataset
from torch_table_loader.engine.device import BatchMover, CudaCopier

ROWS = 50
LENGTHS = [row * 37 % 11 for row in range(ROWS)]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("jagged")
    lists = [[row + at / 100 for at in range(LENGTHS[row])] for row in range(ROWS)]
    whole = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "short": pa.array(lists, pa.list_(pa.float32())),
            "grid": pa.array([[[x, x] for x in row] for row in lists], pa.list_(pa.list_(pa.float32(), 2))),
            "twin": pa.array([[-x for x in row] for row in lists], pa.large_list(pa.float64())),
            "some": pa.array([None if row % 5 == 0 else lists[row] for row in range(ROWS)]),
            "empty": pa.array([[] for _ in range(ROWS)], pa.large_list(pa.int32())),
        }
    )
    pq.write_table(whole, root / "0.parquet", row_group_size=13)
    return str(root)


OPTIONS: dict[str, Any] = {"batch_size": 8, "nulls": {"some": [7.0, 7.0, 7.0]}, "check_plan": False}


def check(batches: Iterable[dict[str, torch.Tensor]]) -> None:
    """See that each batch pads to its own longest list, and that columns with the same lengths can be added."""
    num_rows = 0
    for batch in batches:
        ids = batch["id"].tolist()
        num_rows += len(ids)
        longest = max(LENGTHS[row] for row in ids)
        with_fill = max(3 if row % 5 == 0 else LENGTHS[row] for row in ids)
        shapes = {
            name: tuple(torch.nested.to_padded_tensor(batch[name], -1.0).shape)
            for name in ("short", "grid", "some", "empty")
        }
        assert shapes == {
            "short": (len(ids), longest),
            "grid": (len(ids), longest, 2),
            "some": (len(ids), with_fill),
            "empty": (len(ids), 0),
        }
        both = torch.nested.to_padded_tensor(batch["short"] + batch["twin"], 1.0)
        assert [(row.abs() < 1e-3).sum().item() for row in both] == [LENGTHS[row] for row in ids]
        padded = torch.nested.to_padded_tensor(batch["short"], -1.0)
        assert [(row >= 0).sum().item() for row in padded] == [LENGTHS[row] for row in ids]
    assert num_rows == ROWS


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 0},
        {"worker_type": "process", "num_workers": 2, "multiprocessing_context": "fork"},
        {"shuffle": True, "split_rows": 9, "shuffle_buffer_size": 7},
        {"shuffle": "rows"},
        {"shuffle": "rows", "worker_type": "process", "num_workers": 2, "multiprocessing_context": "fork"},
        {"device": "cpu"},
        {"collate_fn": dict, "worker_type": "process", "num_workers": 2, "multiprocessing_context": "fork"},
    ],
    ids=["threads", "caller", "processes", "windows", "rows", "row-processes", "device", "collated"],
)
def test_batches_pad_to_their_longest_list(table: str, options: dict[str, Any]) -> None:
    loader, _ = StructuredDataset.create_dataloader(table, **OPTIONS, **options)
    check(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_loader_of_ones_own_do(table: str, workers: int) -> None:
    with meant_warnings():
        check(DataLoader(StructuredDataset(table, **OPTIONS), batch_size=None, num_workers=workers))


def test_batches_of_a_mixture_do(table: str) -> None:
    source = StructuredDataset(table, **OPTIONS, shuffle="rows")
    loader, _ = MixedDataset.create_dataloader({"a": source}, {"a": 1}, batch_size=8)
    check(loader)


def test_rows_of_a_map_view_do(table: str) -> None:
    view = StructuredDataset(table, **OPTIONS, shuffle="rows").as_map()
    check([view.batch(range(start, min(start + 8, ROWS))) for start in range(0, ROWS, 8)])


class _HereCopier(CudaCopier):
    """Copies on the CPU what a GPU's copier would send."""

    def __init__(self) -> None:
        """Need no GPU."""

    def page_locked(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def send(self, data: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return data.clone(), _Done()

    def receive(self, data: torch.Tensor, mark: Any) -> None:
        """Wait for nothing."""


class _Done:
    def synchronize(self) -> None:
        """Wait for nothing."""


def test_batches_that_cross_to_a_device_in_one_buffer_do(table: str) -> None:
    loader, _ = StructuredDataset.create_dataloader(table, **OPTIONS)
    check(BatchMover(iter(loader), _HereCopier()))


def test_a_tensor_that_does_not_know_its_lengths_crosses_as_it_is() -> None:
    bare: Any = torch.nested.nested_tensor_from_jagged(torch.arange(7.0), torch.tensor([0, 2, 2, 7]))
    (came,) = BatchMover(iter([{"lists": bare}]), _HereCopier())
    assert came["lists"].values().tolist() == bare.values().tolist()
    assert tuple(torch.nested.to_padded_tensor(came["lists"], 0.0, (3, 5)).shape) == (3, 5)
