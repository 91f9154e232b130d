"""What a process holds does not grow over epochs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
