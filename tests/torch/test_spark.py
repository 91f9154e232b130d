"""Spark's TorchDistributor runs torchrun inside: every row comes once there, too."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.torch.other_launchers import ROOT, run_job
from tests.torch.tables import write_table

GROUPS = [[20, 5], [31], [13, 13, 13], [40], [1], [0, 6]]
TOTAL = sum(map(sum, GROUPS))


@pytest.mark.kills
@pytest.mark.timeout(300)
def test_two_processes_of_a_torch_distributor_get_every_row_once(tmp_path: Path) -> None:
    write_table(tmp_path, GROUPS)
    job = [sys.executable, str(ROOT / "tests/torch/scripts/spark_job.py"), str(tmp_path)]
    printed = run_job(job, seconds=250, SPARK_LOCAL_IP="127.0.0.1")
    (line,) = [line for line in printed.splitlines() if line.startswith("seen: ")]
    seen = json.loads(line.removeprefix("seen: "))
    assert [each["found"] for each in seen] == [[rank, 2, "torch.distributed"] for rank in range(2)]
    assert [len(each["rows"]) for each in seen] == [each["told"] for each in seen]
    assert sorted(row for each in seen for batch in each["rows"] for row in batch) == list(range(TOTAL))
