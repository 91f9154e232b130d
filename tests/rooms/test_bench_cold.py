"""The race against fio gathers rows of a large store; fio itself is not run here."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench import cold
from torch_table_loader import StructuredDataset

TOLD = {"jobs": [{"usr_cpu": 1, "sys_cpu": 2, "read": {"runtime": 4000, "total_ios": 77}}]}


def test_lanes_gather_rows_of_a_store_made_for_the_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"a": range(100), "b": [0.5] * 100}), tmp_path / "table.parquet")
    made: dict[str, Any] = {"shuffle": "rows", "row_store": str(tmp_path / "store"), "num_workers": 0}
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path / "table.parquet"), "parquet", batch_size=10, **made)
    next(iter(loader))
    monkeypatch.setattr(cold, "WINDOW_BYTES", 8 << 20)

    def fio(*_: Any, **__: Any) -> Any:
        return subprocess.CompletedProcess([], 0, json.dumps(TOLD).encode())

    monkeypatch.setattr(subprocess, "run", fio)
    (tmp_path / "large").mkdir()
    job: Any = loader._position.job
    pairs, read = cold.against_fio(job.live_rows[""].store.rows(), tmp_path / "large", 1 << 20, 2)
    assert [sample.rows for sample in pairs.left] == [16_384, 16_384]
    assert [sample.rows for sample in pairs.right] == [77, 77]
    assert read >= 0
