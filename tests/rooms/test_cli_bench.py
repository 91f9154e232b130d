"""`torch-table-loader bench` measures every format, and counts what both sides deliver."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from torch_table_loader.cli.bench import Duel
from torch_table_loader.cli.main import main

ROWS = pa.table({"x": pa.array(range(500), pa.int64()), "f": [i / 2 for i in range(500)]})


def _ipc(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


WRITERS: dict[str, Callable[[pa.Table, Path], object]] = {
    "parquet": lambda table, path: pq.write_table(table, path, row_group_size=90),
    "orc": pa.orc.write_table,
    "csv": pa.csv.write_csv,
    "json": lambda table, path: path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist())),
    "arrow": _ipc,
}


@pytest.mark.parametrize("form", WRITERS)
def test_it_measures_each_format(tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    for day in (1, 2):
        folder = tmp_path / "t" / f"day=2026-01-0{day}"
        folder.mkdir(parents=True)
        WRITERS[form](ROWS, folder / f"part.{form}")
    arguments = ["bench", str(tmp_path / "t"), "--format", form, "--partitioning", "hive", "--rounds", "2"]
    assert main([*arguments, "--batch-size", "64,100"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("1,000 rows, 3 columns, 2 files, ")
    assert ("read_row_group" in captured.out) == (form == "parquet")
    lines = captured.out.splitlines()[3:]
    assert [re.split(r"\s+", line.strip())[0] for line in lines] == ["64", "100"]
    assert all(float(value) > 0 for line in lines for value in line.split()[-3:-1])
    assert captured.err == ""  # a pipe gets no bar


def test_a_terminal_gets_a_bar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["bench", str(tmp_path), "--rounds", "2", "--batch-size", "64,100"]) == 0
    said = capsys.readouterr().err
    assert "measuring" in said
    assert "12/12" in said


def test_quiet_draws_no_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    assert main(["bench", str(tmp_path), "--quiet", "--rounds", "1", "--columns", "f"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.startswith("500 rows, 1 columns, 1 files, 1 row groups\n2 workers (thread) against")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--partitioning", "hive", "--columns", "day"], "nothing to decode"),
        (["--worker-type", "fibre"], "invalid choice"),
    ],
)
def test_invalid_measurements_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    (tmp_path / "day=1").mkdir()
    pq.write_table(ROWS, tmp_path / "day=1" / "a.parquet")
    try:
        code = main(["bench", str(tmp_path), "--quiet", *options])
    except SystemExit as error:
        code = int(str(error.code))
    assert code == 2
    assert said in capsys.readouterr().err


def test_a_table_without_rows_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(ROWS.slice(0, 0), tmp_path / "a.parquet")
    assert main(["bench", str(tmp_path), "--quiet"]) == 2
    assert "needs a table with rows" in capsys.readouterr().err


def test_ratios_are_paired_round_by_round() -> None:
    assert Duel((2.0, 9.0), (4.0, 3.0), (0.5, 0.5)).ratios == [0.5, 3.0]


def test_json_has_every_figure_and_the_page_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(ROWS, tmp_path / "a<b>.parquet")
    page = tmp_path / "bench.html"
    typed = ["bench", str(tmp_path / "a<b>.parquet"), "--rounds", "1", "--batch-size", "64,1000"]
    assert main([*typed, "--html", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["rounds"], told["page"]) == (500, 1, str(page))
    assert [each["batch_size"] for each in told["results"]] == [64, 1000]
    text = page.read_text(encoding="utf-8")
    assert "a<b>" not in text
    for each in told["results"]:
        assert 0 < each["share_waiting"] <= 1
        assert each["loader_rows_per_second"] <= each["loader_best"]
        for name in ("loader_rows_per_second", "bare_rows_per_second"):
            assert f'value="{each[name]}"' in text
        assert f"{each['share_waiting']:.0%}" in text
        assert f'width="{100 * each["share_waiting"]:.2f}"' in text  # of the whole line
    assert "http" not in text.replace("http-equiv", "")


def test_a_page_that_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    assert main(["bench", str(tmp_path / "a.parquet"), "--rounds", "1", "--html", str(tmp_path / "no" / "p.html")]) == 2
    assert "--html must name a file that can be written" in capsys.readouterr().err
