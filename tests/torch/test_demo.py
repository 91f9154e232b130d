"""The demo on a small table, through the real torchrun: what it prints is what it proved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
ROWS = 40_000


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the demo's tables, small."""
    out = tmp_path_factory.mktemp("demo") / "tables"
    _run("demo.make_clicks", "--rows", str(ROWS), "--out", str(out))
    return out


def test_the_log_is_a_hive_partitioned_table_of_several_row_groups(tables: Path) -> None:
    files = sorted((tables / "clicks").rglob("*.parquet"))
    footers = [pq.read_metadata(path) for path in files]
    assert len(files) >= 8
    assert sum(footer.num_rows for footer in footers) == ROWS
    assert all(footer.num_row_groups > 1 and footer.num_columns == 40 for footer in footers)
    assert {path.parent.name for path in files} == {f"day=2026-01-0{day}" for day in range(1, 9)}


def test_the_log_is_written_once_and_the_same_each_time(tables: Path, tmp_path: Path) -> None:
    first = tables / "clicks" / "day=2026-01-03" / "part-1.parquet"
    written = first.stat().st_mtime_ns
    _run("demo.make_clicks", "--rows", str(ROWS), "--out", str(tables))
    _run("demo.make_clicks", "--rows", str(ROWS), "--out", str(tmp_path / "again"))
    again = tmp_path / "again" / first.relative_to(tables)
    assert first.stat().st_mtime_ns == written
    assert pq.read_table(again).equals(pq.read_table(first))


def test_two_ranks_deliver_every_row_once_and_the_loss_falls(tables: Path) -> None:
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "demo.train")
    done = _run(*launcher, "--data", str(tables), "--batch-size", "512")
    for epoch in (1, 2):
        assert f"epoch {epoch}: rows per rank: rank 0: 20,000, rank 1: 20,000" in done.stdout
        assert f"epoch {epoch}: proved: every one of the 40,000 row ids came exactly once" in done.stdout
    assert "the demo proved what it promised" in done.stdout
    assert "warning" not in done.stderr.lower(), done.stderr


def test_a_row_that_never_comes_fails_the_demo(tables: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / "demo_with_a_loss.py").write_text(
        "import demo.train as t\n"
        "whole = t.real_rows\n"
        "def all_but_the_first(batch):\n"
        "    real = whole(batch)\n"
        "    real[0] = False\n"
        "    return real\n"
        "t.real_rows = all_but_the_first\n"
        "t.main()\n"
    )
    script = str(torn / "demo_with_a_loss.py")
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", script)
    done = _run(*launcher, "--data", str(tables), "--batch-size", "512", "--epochs", "1", check=False)
    assert done.returncode != 0
    assert "FAILED: epoch 1: 80 rows never came and 0 came more than once" in done.stdout


def _run(module: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done
