"""Nulls of ints in every mode: they become NaN, or the mean of the training part, and the dtype is the column's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.effort import daily
from torch_table_loader import MixedDataset, StructuredDataset, TableLoader, part_of

AGES = [1_000 + 17 * (row % 90) if row % 7 else None for row in range(240)]
ROWS: dict[str, Any] = {"shuffle": "rows", "row_store": "memory"}
MODES: dict[str, dict[str, Any]] = {
    "stream": {"shuffle": False},
    "window": {"shuffle": "splits", "shuffle_buffer_size": 50},
    "rows": ROWS,
    "files of rows": {"shuffle": "rows"},
    "a mixture of streams": {"shuffle": "splits"},
    "a mixture of rows": ROWS,
}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write two files, the first of which begins with a batch that has no gap."""
    monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "t").mkdir()
    for number in range(2):
        ages = [age for age in AGES if age is not None] if number == 0 else AGES
        columns = {"id": range(len(ages)), "age": pa.array(ages, pa.int32())}
        pq.write_table(pa.table(columns), tmp_path / "t" / f"{number}.parquet", row_group_size=40)
    return str(tmp_path / "t")


def made(mode: str, table: str, worker_type: str, **options: Any) -> TableLoader:
    workers: dict[str, Any] = {"num_workers": 0} if worker_type == "caller" else {"worker_type": worker_type}
    job: dict[str, Any] = {"batch_size": 16, "num_workers": 2} | workers
    own = options | MODES[mode]
    if not mode.startswith("a mixture"):
        return StructuredDataset.create_dataloader(table, **own, **job)[0]
    sources = {name: StructuredDataset(table, **own) for name in ("a", "b")}
    return MixedDataset.create_dataloader(sources, "rows", **job)[0]


@pytest.mark.parametrize("worker_type", ["caller", "thread", "process"])
@pytest.mark.parametrize("mode", MODES)
@daily(3)
def test_a_gap_is_the_mean_of_the_training_part(mode: str, table: str, worker_type: str) -> None:
    training = StructuredDataset(table, filters=part_of("id", {"train": 0.8, "val": 0.2}, "train"))
    stats = training.statistics(["age"])["age"]
    assert stats.nulls > 0
    transforms = {"age": stats.standardize}
    batches = [batch["age"] for batch in made(mode, table, worker_type, nulls={"age": stats}, transforms=transforms)]
    assert {batch.dtype for batch in batches} == {torch.float64}
    assert {bool((batch == 0).any()) for batch in batches} >= {True}
    copies = 2 if mode.startswith("a mixture") else 1
    expected = [(stats.mean if age is None else age) for age in AGES] + [age for age in AGES if age is not None]
    found = torch.cat(batches).sort().values
    torch.testing.assert_close(found, stats.standardize(torch.tensor(expected * copies)).double().sort().values)
    assert int((found == 0).sum()) == copies * AGES.count(None), "each gap, and no value, is exactly the mean"


@pytest.mark.parametrize("mode", MODES)
def test_a_gap_is_nan_and_batches_without_one_are_floats_too(mode: str, table: str) -> None:
    batches = [batch["age"] for batch in made(mode, table, "thread", nulls={"age": "nan"})]
    assert {batch.dtype for batch in batches} == {torch.float64}
    ages = [age for batch in batches for age in batch.tolist()]
    copies = 2 if mode.startswith("a mixture") else 1
    assert sum(map(math.isnan, ages)) == copies * AGES.count(None)
    whole = 2 * copies * sum(age for age in AGES if age is not None)
    assert sum(age for age in ages if not math.isnan(age)) == whole
