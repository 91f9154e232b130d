"""The demo on small tables, through the real torchrun: what it prints is what it proved."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from demo.make_clicks import write_tables
from demo.make_lake import write_lake
from demo.moto import held_port
from tests.tables.catalogs import load_catalog

ROOT = Path(__file__).parents[2]
ROWS = 40_000


LAUNCHER = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
LIVE = 37_632
"""What the rules of `demo.make_lake` leave of the log."""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the demo's Iceberg tables, small."""
    out = tmp_path_factory.mktemp("demo") / "lake"
    write_lake(out, ROWS)
    return out


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the demo's plain tables, small."""
    out = tmp_path_factory.mktemp("demo") / "plain"
    write_tables(out, ROWS)
    return out


def test_the_log_is_a_hive_partitioned_table_of_several_row_groups(plain: Path) -> None:
    files = sorted((plain / "clicks").rglob("*.parquet"))
    footers = [pq.read_metadata(path) for path in files]
    assert len(files) >= 8
    assert sum(footer.num_rows for footer in footers) == ROWS
    assert all(footer.num_row_groups > 1 and footer.num_columns == 41 for footer in footers)
    assert {path.parent.name for path in files} == {f"day=2026-01-0{day}" for day in range(1, 9)}


def test_the_log_is_written_once_and_the_same_each_time(plain: Path, tmp_path: Path) -> None:
    first = plain / "clicks" / "day=2026-01-03" / "part-1.parquet"
    written = first.stat().st_mtime_ns
    write_tables(plain, ROWS)
    write_tables(tmp_path / "again", ROWS)
    again = tmp_path / "again" / first.relative_to(plain)
    assert first.stat().st_mtime_ns == written
    assert pq.read_table(again).equals(pq.read_table(first))


def test_the_lake_has_a_past(lake: Path) -> None:
    table = load_catalog(**json.loads((lake / "catalog.json").read_text())).load_table("demo.clicks")
    clean = table.snapshot_by_name("clean")
    assert clean is not None
    files = table.inspect.files(clean.snapshot_id)
    assert Counter(files["content"].to_pylist()) == {0: 16, 1: 6, 2: 3}
    assert table.scan().to_arrow().num_rows == ROWS * 7 // 8
    assert [schema.find_field(2).name for schema in table.schemas().values()] == ["clicked", "label"]
    assert int(np.load(lake / "live.npy").sum()) == LIVE


def test_the_lake_is_written_once_and_anew_where_it_was_moved(lake: Path, tmp_path: Path) -> None:
    written = (lake / "catalog.db").stat().st_mtime_ns
    write_lake(lake, ROWS)
    assert (lake / "catalog.db").stat().st_mtime_ns == written
    moved = tmp_path / "moved"
    shutil.copytree(lake, moved)
    write_lake(moved, ROWS)
    assert str(moved) in (moved / "catalog.json").read_text()
    assert np.array_equal(np.load(moved / "live.npy"), np.load(lake / "live.npy"))


@pytest.mark.slow
def test_two_ranks_deliver_every_live_row_once_and_the_loss_falls(lake: Path) -> None:
    proved(_run(*LAUNCHER, "-m", "demo.train", "--data", str(lake), "--batch-size", "512"))


@pytest.mark.rare
def test_the_same_from_s3_and_glue(tmp_path: Path) -> None:
    out = tmp_path / "s3"
    proved(_run("demo.on_s3", "--out", str(out), "--rows", str(ROWS), "--batch-size", "512"))
    assert "s3://lake/demo" in (out / "catalog.json").read_text()


@pytest.mark.rare
def test_the_same_from_plain_files(plain: Path) -> None:
    done = _run(*LAUNCHER, "-m", "demo.train", "--data", str(plain), "--batch-size", "512", "--epochs", "1")
    assert "each of the 40,000 live rows came exactly once over all ranks, and none of the 0" in done.stdout


def proved(done: subprocess.CompletedProcess[str]) -> None:
    for epoch in (1, 2):
        assert f"epoch {epoch}: rows per rank: rank 0: 18,816, rank 1: 18,816" in done.stdout
        assert f"epoch {epoch}: proved: each of the 37,632 live rows came exactly once over all ranks" in done.stdout
        assert "and none of the 2,368 deleted ones" in done.stdout
    assert "the demo proved what it promised" in done.stdout
    assert "warning" not in done.stderr.lower(), done.stderr


FORGETFUL = """
whole = t.real_rows
def all_but_the_first(batch):
    real = whole(batch)
    real[0] = False
    return real
t.real_rows = all_but_the_first
"""
FAULTS = {
    "a row that never comes": (FORGETFUL, "74 rows never came, 0 came more than once, and 0 came that were deleted"),
    "rows of a branch without deletes": (
        "t.BRANCH = 'main'\n",
        "5,000 rows never came, 0 came more than once, and 2,368 came that were deleted",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["rows of a branch without deletes", pytest.param("a row that never comes", marks=pytest.mark.rare)]
)
def test_a_fault_fails_the_demo(lake: Path, tmp_path: Path, fault: str) -> None:
    planted, said = FAULTS[fault]
    script = tmp_path / "demo_with_a_fault.py"
    script.write_text(f"import demo.train as t\n{planted}t.main()\n")
    done = _run(*LAUNCHER, str(script), "--data", str(lake), "--batch-size", "512", "--epochs", "1", check=False)
    assert done.returncode != 0
    assert f"FAILED: epoch 1: {said}" in done.stdout


def _run(module: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_nobody_else_gets_a_port_that_is_held() -> None:
    with held_port() as port:
        with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
            other.bind(("127.0.0.1", port))
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
        with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
            pass
