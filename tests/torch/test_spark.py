"""Spark's TorchDistributor runs torchrun inside: every row comes once there, and ranks share the work."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.launchers.frameworks import ROOT, run_job
from tests.tables.plain import write_table

GROUPS = [[20, 5], [31], [13, 13, 13], [40], [1], [0, 6]]
TOTAL = sum(map(sum, GROUPS))


def seen_of(what: str, table: Path) -> list[dict[str, Any]]:
    """Run a function of the script on two processes; return what each saw."""
    job = [sys.executable, str(ROOT / "tests/launchers/scripts/spark_job.py"), what, str(table)]
    printed = run_job(job, seconds=250, SPARK_LOCAL_IP="127.0.0.1")
    (line,) = [line for line in printed.splitlines() if line.startswith("seen: ")]
    seen: list[dict[str, Any]] = json.loads(line.removeprefix("seen: "))
    return seen


@pytest.mark.kills
@pytest.mark.timeout(300)
def test_two_processes_of_a_torch_distributor_get_every_row_once(tmp_path: Path) -> None:
    write_table(tmp_path, GROUPS)
    seen = seen_of("train", tmp_path)
    assert [each["found"] for each in seen] == [[rank, 2, "torch.distributed"] for rank in range(2)]
    assert [len(each["rows"]) for each in seen] == [each["told"] for each in seen]
    assert sorted(row for each in seen for batch in each["rows"] for row in batch) == list(range(TOTAL))


@pytest.mark.kills
@pytest.mark.timeout(300)
def test_two_processes_of_a_torch_distributor_tokenize_one_table(tmp_path: Path) -> None:
    texts = [f"story {number}" for number in range(95)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "stories.parquet", row_group_size=10)
    seen = seen_of("tokenize", tmp_path)
    assert [each["parts"] for each in seen] == [10, 10]
    assert sum(each["written"] for each in seen) == 10
    assert min(each["written"] for each in seen) == 5, "rank r writes every second file"
    tokens = pq.read_table(f"{tmp_path}-tokens")["input_ids"].to_pylist()
    assert sorted(bytes(each).decode() for each in tokens) == sorted(texts)
