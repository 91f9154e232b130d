"""What a process holds does not grow over epochs."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_table_loader import StructuredDataset

ROWS = 200_000
SCRIPT = Path(__file__).parents[1] / "launchers" / "scripts" / "resident.py"


@pytest.mark.parametrize("shuffle", ["splits", "rows"])
@pytest.mark.slow
def test_memory_is_flat_over_epochs(tmp_path: Path, shuffle: str) -> None:
    columns = {name: np.arange(ROWS) for name in ("id", "b", "c", "d")}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=ROWS // 8)
    # In a process of its own, whose allocators hold nothing of other tests.
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), shuffle, "20"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    held = json.loads(done.stdout)
    # An epoch is 6.4 MB: were each kept, these would be 77 MB apart.
    assert max(held[-3:]) - max(held[5:8]) < 8_000_000, held


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_a_batch_is_kept_by_nobody_once_the_next_one_is_taken(tmp_path: Path, workers: int) -> None:
    """Neither by the block that it came in, nor while another worker has its turn."""
    lists = pa.array([[row] * 10 for row in range(6_000)], pa.list_(pa.int32()))
    table = pa.table({"x": lists, "y": [f"{row}" for row in range(6_000)]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2_000)
    loader, _ = StructuredDataset.create_dataloader(
        str(tmp_path), batch_size=500, num_workers=workers, ragged="offsets", shuffle=False
    )
    taken: list[weakref.ref[Any]] = []
    gc.disable()  # nothing may wait for the garbage collector
    try:
        for batch in loader:
            taken.append(weakref.ref(batch["x"].values))
            assert [each() is not None for each in taken] == [False] * (len(taken) - 1) + [True]
    finally:
        gc.enable()
    assert len(taken) == 12
