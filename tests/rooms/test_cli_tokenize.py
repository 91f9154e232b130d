"""The command line's token tables."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.utils.config import Config

from tests.tables.catalogs import load_catalog
from tests.text.word_tokenizers import STOP_FILE, words
from torch_table_loader.cli.main import main

NAME = "tests.text.word_tokenizers"
TEXTS = [f"w{row} w{row % 7}" + " late" * (row == 150) for row in range(200)]


@pytest.fixture
def table(tmp_path: Path) -> str:
    root = tmp_path / "table"
    root.mkdir()
    columns = {"text": TEXTS, "id": list(range(200)), "day": [row // 50 for row in range(200)]}
    pq.write_table(pa.table(columns), root / "a.parquet", row_group_size=20)
    return str(root)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def read(folder: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(file) for file in sorted(folder.glob("*.parquet")))


def test_a_token_table_is_written(table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    given = ["tokenize", table, str(out), "--tokenizer", f"{NAME}:words", "--keep", "id", "--lengths", "n"]
    given += [
        "--split-size",
        "60",
        "--filter",
        "day >= 1",
        "--num-workers",
        "1",
        "--ids",
        "tokens",
        "--dtype",
        "uint16",
    ]
    assert main(given) == 0
    said = capsys.readouterr()
    assert said.out.startswith("3 of 3 files written: 150 rows, 301 tokens, ")
    assert said.out.endswith(f" s\n{out} is whole\n")
    assert said.err == ""
    found = read(out)
    assert found.schema.names == ["tokens", "id", "n"]
    assert found.schema.field("tokens").type.value_type == pa.uint16()
    assert found["tokens"].to_pylist() == words(TEXTS[50:])
    assert found["id"].to_pylist() == list(range(50, 200))
    assert main(given) == 0
    assert capsys.readouterr().out.startswith("0 of 3 files written: 0 rows, 0 tokens, ")


def test_rows_without_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"body": ["a", None, "b"]}), tmp_path / "a.parquet")
    given = [
        "tokenize",
        str(tmp_path / "a.parquet"),
        str(tmp_path / "out"),
        "--tokenizer",
        "bytes",
        "--num-workers",
        "1",
    ]
    given += ["--column", "body"]
    assert main(given) == 2
    assert "error: a.parquet, row 1: the column 'body' is null" in capsys.readouterr().err
    assert main([*given, "--nulls", "drop"]) == 0
    assert "2 rows, 2 tokens, 1 row without text left out, " in capsys.readouterr().out


def test_ranks_by_option_and_by_launcher_write_one_folder(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def given(out: str) -> list[str]:
        options = ["--tokenizer", f"{NAME}:words", "--split-size", "20", "--num-workers", "1"]
        return ["tokenize", table, str(tmp_path / out), *options]

    assert main(given("whole")) == 0
    for rank in "201":
        assert main([*given("options"), "--num-ranks", "3", "--rank", rank]) == 0
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in "10":
        monkeypatch.setenv("RANK", rank)
        assert main(given("launcher")) == 0
    said = capsys.readouterr()
    assert f"{tmp_path / 'launcher'} will appear when the other ranks are done" in said.out
    assert said.out.splitlines()[-1] == f"{tmp_path / 'launcher'} is whole"
    assert said.err == ""
    assert contents(tmp_path / "options") == contents(tmp_path / "launcher") == contents(tmp_path / "whole")
    assert main([*given("half"), "--rank", "1"]) == 2
    assert "pass --rank and --num-ranks together" in capsys.readouterr().err


def test_a_table_of_a_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/lake"}
    lines = [f"    {name}: {value}" for name, value in config.items()]
    (tmp_path / ".pyiceberg.yaml").write_text("catalog:\n  lake:\n" + "\n".join(lines) + "\n")
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    catalog = load_catalog("lake")
    catalog.create_namespace("db")
    rows = pa.table({"text": TEXTS})
    made = catalog.create_table("db.docs", rows.schema)
    made.append(rows)
    first = made.current_snapshot()
    assert first is not None
    made.append(rows)
    given = ["tokenize", "db.docs", str(tmp_path / "out"), "--tokenizer", f"{NAME}:words", "--num-workers", "1"]
    assert main([*given, "--snapshot-id", str(first.snapshot_id)]) == 2
    assert "pass --catalog or --format" in capsys.readouterr().err
    assert main([*given, "--catalog", "lake", "--format", "json"]) == 2
    assert "name an Iceberg table, got --format json" in capsys.readouterr().err
    assert main([*given, "--catalog", "lake", "--snapshot-id", str(first.snapshot_id)]) == 0
    assert read(tmp_path / "out")["input_ids"].to_pylist() == words(TEXTS)


def children_of(process: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += [int(status.parent.name)] if parent == process else []
    return found


def wait_until(what: str, holds: object, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end, f"{what} in {seconds} s"
        time.sleep(0.05)


@pytest.mark.kills
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_killed_command_goes_on_and_leaves_no_process(table: str, tmp_path: Path, workers: str) -> None:
    stop, out = tmp_path / "stop", tmp_path / "out"
    stop.touch()
    options = ["--tokenizer", f"{NAME}:waiting", "--split-size", "20"]
    given = [sys.executable, "-m", "torch_table_loader.cli.main", "tokenize", table, str(out), *options]
    given += ["--num-workers", workers]
    root = str(Path(__file__).parents[2])
    environ = os.environ | {STOP_FILE: str(stop), "PYTHONPATH": os.pathsep.join([root, *filter(None, sys.path)])}
    with subprocess.Popen(given, env=environ, cwd=tmp_path) as process:
        unfinished = tmp_path / "out.unfinished"
        wait_until("seven parts are there", lambda: len(list(unfinished.glob("part-*"))) >= 7)
        wait_until("the eighth is begun", lambda: list(unfinished.glob(".part-00007.*")))
        workers_of = children_of(process.pid)
        process.send_signal(signal.SIGKILL)
    assert not out.exists()
    wait_until("workers end", lambda: not any(Path(f"/proc/{child}").exists() for child in workers_of))
    times = {path.name: path.stat().st_mtime_ns for path in unfinished.glob("part-*")}
    stop.unlink()
    subprocess.run(given, env=environ, cwd=tmp_path, check=True, timeout=100)
    assert {name: (out / name).stat().st_mtime_ns for name in times} == times, "what was there is not written again"
    assert list(out.glob(".*")) == []
    assert read(out)["input_ids"].to_pylist() == words(TEXTS)
    subprocess.run(
        [*given[:5], str(tmp_path / "whole"), *given[6:]], env=environ, cwd=tmp_path, check=True, timeout=100
    )
    assert contents(out) == contents(tmp_path / "whole")
