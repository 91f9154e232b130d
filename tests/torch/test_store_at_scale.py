"""A row store is built by all ranks of torchrun, and by the tasks of a Ray cluster: each has its share."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.launchers.frameworks import ROOT, run_job
from torch_table_loader import StructuredDataset

pytestmark = [pytest.mark.kills, pytest.mark.timeout(300)]
CHUNKS, ROWS, WIDTH = 8, 256, 32_768
SCRIPT = str(ROOT / "tests/launchers/scripts/build_store.py")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small table whose rows are wide, so that each of its files is a chunk of a store."""
    root = tmp_path_factory.mktemp("wide")
    for number in range(CHUNKS):
        x = np.arange(number * ROWS, (number + 1) * ROWS)
        wide = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(x.astype("float32"), WIDTH)), WIDTH)
        pq.write_table(pa.table({"x": x, "wide": wide}), root / f"{number}.parquet")
    return root


def shares(printed: str) -> list[int]:
    """Read how many chunks each builder says it built; together they must have built all."""
    built = [int(found) for found in re.findall(rf"built (\d+) of {CHUNKS} chunks", printed)]
    assert sum(built) >= CHUNKS, printed
    return built


def check(table: Path, stores: Path, **options: Any) -> None:
    """Open the one store that was built, and hold every value in it against the table."""
    (made,) = stores.glob("rows-*/manifest.json")
    before = made.stat().st_mtime_ns
    loader, _ = StructuredDataset.create_dataloader(
        table, shuffle="rows", batch_size=64, row_store=str(stores), **options
    )
    seen = np.zeros(CHUNKS * ROWS, dtype=int)
    for batch in loader:
        np.add.at(seen, batch["x"].numpy(), 1)
        assert bool((batch["wide"] == batch["x"][:, None]).all())
    assert (seen == 1).all()
    assert made.stat().st_mtime_ns == before, "the loader opens what was built"


def test_each_rank_of_torchrun_builds_its_share(table: Path, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    printed = run_job([*torchrun, SCRIPT, str(tmp_path), str(table)])
    built = shares(printed)
    assert len(built) == 2
    assert min(built) > 0
    assert "warning" not in printed
    check(table, tmp_path / "meet-stores")


def test_ranks_that_want_the_first_batch_build_together(table: Path, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run_job([*torchrun, SCRIPT, str(tmp_path), str(table), "loader"])
    seen = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert sorted(seen[0]["built"] + seen[1]["built"]) == list(range(CHUNKS)), "each chunk by one rank"
    assert all(rank["built"] for rank in seen)
    assert sorted(seen[0]["rows"] + seen[1]["rows"]) == list(range(CHUNKS * ROWS))


def test_each_node_of_a_ray_cluster_builds_its_share(table: Path, tmp_path: Path) -> None:
    printed = run_job([sys.executable, SCRIPT, str(tmp_path), str(table), "ray"], seconds=250)
    meeting, dying, planning = re.split(r"^rows-", printed, flags=re.MULTILINE)[1:]
    assert len(shares(meeting)) == 2
    assert min(shares(meeting)) > 0
    check(table, tmp_path / "meet-stores")
    assert shares(dying), "a worker was killed, its task was started again, and its chunk was built by somebody"
    assert (tmp_path / "die_once" / "died").exists()
    check(table, tmp_path / "die_once-stores")
    assert sum(map(int, re.findall(rf"planned (\d+) of {CHUNKS} files", planning))) == CHUNKS
    check(table, tmp_path / "plan-stores", filters=pc.field("x") >= 0)
