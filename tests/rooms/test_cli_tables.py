"""Every command opens Iceberg and Delta Lake tables as it opens files; head, schema and plan show them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.utils.config import Config

from tests.tables.catalogs import load_catalog
from torch_table_loader.cli.main import main, make_parser

ROWS = pa.table({"x": range(100), "day": ["mon", "tue"] * 50, "f": [0.5, None] * 50})


@pytest.fixture
def delta(tmp_path: Path) -> list[str]:
    """A Delta Lake table with a version that deleted rows."""
    uri = str(tmp_path / "orders")
    write_deltalake(uri, ROWS, partition_by=["day"])
    DeltaTable(uri).delete("x < 10")
    return [uri]


@pytest.fixture
def iceberg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An Iceberg table of a catalog that pyiceberg's configuration names; its second snapshot adds rows."""
    lines = [f"    uri: sqlite:///{tmp_path}/catalog.db", f"    warehouse: file://{tmp_path}", "    type: sql"]
    (tmp_path / ".pyiceberg.yaml").write_text("catalog:\n  lake:\n" + "\n".join(lines) + "\n")
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    catalog = load_catalog("lake")
    catalog.create_namespace("db")
    made = catalog.create_table("db.t", ROWS.schema)
    made.append(ROWS.slice(0, 60))
    made.append(ROWS.slice(60))
    return ["--catalog", "lake", "--table", "db.t"]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """One file."""
    pq.write_table(ROWS, tmp_path / "a.parquet")
    return [str(tmp_path / "a.parquet")]


def run(capsys: pytest.CaptureFixture[str], *typed: str) -> str:
    """Run a command that must succeed; return its output."""
    assert main(typed) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *typed: str) -> str:
    assert main(typed) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(("kind", "rows"), [("files", 100), ("delta", 90), ("iceberg", 100)])
def test_every_command_opens_every_table(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str, rows: int
) -> None:
    table = request.getfixturevalue(kind)
    assert json.loads(run(capsys, "plan", *table, "--json"))["live_rows"] == rows
    assert len(json.loads(run(capsys, "head", *table, "--rows", "1000", "--json"))["rows"]) == rows
    names = [column["name"] for column in json.loads(run(capsys, "schema", *table, "--json"))["columns"]]
    assert sorted(names) == ["day", "f", "x"]
    assert "memory: " in run(capsys, "inspect", *table, "--columns", "x,f")
    store = ["--store", str(tmp_path / "stores")]
    assert f"{rows} rows" in run(capsys, "store", "build", *table, "--columns", "x", *store)


@pytest.mark.parametrize(("kind", "rows"), [("files", 100), ("delta", 90), ("iceberg", 100)])
def test_tables_are_converted_and_tokenized(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str, rows: int
) -> None:
    table = request.getfixturevalue(kind)
    if kind == "iceberg":  # beside OUT, PATH is the table's name
        table = ["db.t", "--catalog", "lake"]
    out = str(tmp_path / "out")
    run(capsys, "convert", table[0], out, *table[1:], "--to", "parquet")
    assert pq.read_table(out).num_rows == rows
    tokens = str(tmp_path / "tokens")
    typed = ["--tokenizer", "bytes", "--column", "day", "--num-workers", "1", "--quiet"]
    run(capsys, "tokenize", table[0], tokens, *table[1:], *typed)
    assert pq.read_table(tokens).num_rows == rows


def test_a_snapshot_a_version_and_a_time_are_chosen(
    delta: list[str], iceberg: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    first = load_catalog("lake").load_table("db.t").snapshots()[0].snapshot_id

    def rows(*typed: str) -> Any:
        return json.loads(run(capsys, "plan", *typed, "--json"))["live_rows"]

    assert rows(*delta, "--snapshot-id", "0") == 100
    assert rows(*delta, "--as-of", "2100-01-01T00:00:00+00:00") == 90
    assert rows(*iceberg, "--snapshot-id", str(first)) == 60
    assert rows(*iceberg, "--branch", "main") == 100
    location = load_catalog("lake").load_table("db.t").metadata_location
    assert rows(location.removeprefix("file://")) == 100
    assert rows(location, "--format", "iceberg", "--filter", "x < 7") == 7


def test_head_and_schema_print_rows_and_columns(delta: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "head", *delta, "--columns", "x,day,f", "--filter", "x >= 97 and day = 'tue'") == (
        "the first 2 rows\n   x  day  f\n  97  tue  null\n  99  tue  null\n"
    )
    told = run(capsys, "schema", *delta, "--columns", "x")
    assert told.startswith("Delta Lake table ")
    assert told.endswith("\n  column  Arrow type  nulls allowed\n  x       int64       yes\n")
    said = json.loads(run(capsys, "schema", *delta, "--columns", "x", "--json"))
    assert said["snapshot_id"] == 1
    assert said["columns"] == [{"name": "x", "type": "int64", "nullable": True}]


def test_head_takes_n_as_the_shell_command_does(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert len(json.loads(run(capsys, "head", *files, "-n", "3", "--json"))["rows"]) == 3


def test_json_holds_values_of_every_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = {"b": [b"\xff"], "n": [float("nan")], "l": [[1, None]], "t": pa.array([0], pa.timestamp("us", "UTC"))}
    pq.write_table(pa.table({**values, "s": ["a\nb" * 40]}), tmp_path / "a.parquet")
    [row] = json.loads(run(capsys, "head", str(tmp_path / "a.parquet"), "--json"))["rows"]
    assert row == {"b": "/w==", "n": "nan", "l": [1, None], "t": "1970-01-01 00:00:00+00:00", "s": "a\nb" * 40}
    assert max(map(len, run(capsys, "head", str(tmp_path / "a.parquet")).splitlines())) < 120


def test_plan_says_what_a_rank_reads(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    typed = [
        "plan",
        *files,
        "--num-ranks",
        "3",
        "--rank",
        "1",
        "--batch-size",
        "10",
        "--split-size",
        "10",
        "--epoch",
        "4",
    ]
    told = json.loads(run(capsys, *typed, "--json", "--even-ranks", "balance"))
    assert (told["rank"], told["num_ranks"], told["epoch"], sum(told["rows_per_rank"])) == (1, 3, 4, 100)
    assert "Epoch 4 as rank 1 of 3" in run(capsys, *typed, "--even-ranks", "balance")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["head", "-n", "3"], "name one table: PATH, or --table with the --catalog that has it"),
        (["head", "{files}", "--table", "db.t"], "name one table"),
        (["head", "{files}", "--branch", "main"], "--branch is for Iceberg and Delta Lake tables"),
        (["head", "{delta}", "--branch", "main"], "--branch is for Iceberg tables, but this is a Delta Lake table"),
        (["head", "{delta}", "--catalog", "lake", "--format", "delta"], "name an Iceberg table, got --format delta"),
        (["head", "{delta}", "{files}", "--format", "delta"], "expected the path of one table, got 2 paths"),
        (["head", "{delta}", "--rows", "-1"], "--rows must be at least 0"),
        (["head", "{delta}", "--snapshot-id", "7"], "version 7 cannot be read"),
        (["head", "{files}", "--format", "delta"], "cannot be read as a Delta Lake table"),
    ],
)
def test_arguments_that_name_no_table_are_refused(
    files: list[str], delta: list[str], capsys: pytest.CaptureFixture[str], typed: list[str], said: str
) -> None:
    assert said in refused(capsys, *(text.format(files=files[0], delta=delta[0]) for text in typed))


@pytest.mark.parametrize("command", ["inspect", "head", "schema", "plan", "tokenize", "convert"])
def test_help_shows_examples_that_parse(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    _, _, shown = capsys.readouterr().out.partition("\nexamples:\n")
    lines = shown.replace(" \\\n", " ").splitlines()
    assert len(lines) >= 2
    for line in lines:
        program, *typed = shlex.split(line)
        assert program == "torch-table-loader"
        assert make_parser().parse_args(typed).run is not None


@pytest.mark.parametrize("command", ["head", "schema", "inspect", "plan"])
def test_folders_of_which_no_column_is_made_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (tmp_path / "day=1").mkdir()
    pq.write_table(ROWS.select(["x"]), tmp_path / "day=1" / "a.parquet")
    assert main([command, str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "note: folders" not in printed
    assert "day" in printed
    pq.write_table(ROWS.select(["x"]), tmp_path / "beside.parquet")
    said = "folders are named by day, of which no column is made, because not all files lie in such folders"
    assert main([command, str(tmp_path)]) == 0
    assert f"note: {said}" in " ".join(capsys.readouterr().out.split())
    assert main([command, str(tmp_path), "--json"]) == 0
    assert said in json.loads(capsys.readouterr().out)["notes"]
    assert main([command, str(tmp_path), "--columns", "day"]) == 2
    assert said in capsys.readouterr().err
