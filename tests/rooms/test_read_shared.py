"""Row groups that are too few for the threads: threads of Arrow's pool share the columns of each, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from torch_table_loader import StructuredDataset
from torch_table_loader.read.tasks import TaskReader

ROWS, GROUP = 8000, 1000


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    columns = {f"x{number}": rng.standard_normal(ROWS) for number in range(5)}
    words = [None if row % 7 == 0 else f"word {row % 50}" for row in range(ROWS)]
    rows = pa.table({"row": np.arange(ROWS), **columns, "word": words})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=GROUP)
    return tmp_path


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call of pyarrow might use its threads."""
    seen: list[bool] = []
    monkeypatch.setattr("torch_table_loader.engine.machine.usable_cpus", lambda: 4)
    for name in ("read_row_group", "iter_batches"):
        read = getattr(pq.ParquetFile, name)

        def noted(self: pq.ParquetFile, *args: Any, read: Any = read, **options: Any) -> Any:
            seen.append(options["use_threads"])
            return read(self, *args, **options)

        monkeypatch.setattr(pq.ParquetFile, name, noted)
    return seen


def epoch(table: Path, batch_size: int = 100, **options: Any) -> list[dict[str, Any]]:
    made = StructuredDataset.create_dataloader(
        str(table), "parquet", batch_size=batch_size, shuffle="splits", num_workers=2, nulls={"word": ""}, **options
    )
    with made[0] as loader:
        return list(loader)


@pytest.mark.parametrize("batch_size", [100, 1000])
def test_batches_are_the_same_where_threads_share_the_only_row_group(
    table: Path, shared: list[bool], monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    within = (pc.field("row") >= 3000) & (pc.field("row") < 3900)
    found = epoch(table, batch_size, filters=within)
    assert shared[-1]
    monkeypatch.setattr(TaskReader, "sharing", lambda self: self)
    shared.clear()
    alone = epoch(table, batch_size, filters=within)
    assert shared
    assert not any(shared)
    assert sum(len(batch["row"]) for batch in found) == 900
    for one, other in zip(found, alone, strict=True):
        assert one.keys() == other.keys()
        assert all(
            torch.equal(one[name], other[name]) if isinstance(one[name], torch.Tensor) else one[name] == other[name]
            for name in one
        )


@pytest.mark.parametrize("last", [2000, ROWS])
def test_enough_row_groups_are_decoded_by_a_thread_each(table: Path, shared: list[bool], last: int) -> None:
    assert sum(len(batch["row"]) for batch in epoch(table, filters=pc.field("row") < last)) == last
    assert shared
    assert not any(shared)
