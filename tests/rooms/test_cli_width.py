"""Output fits 80 columns, on a terminal and in a pipe; only a line of one path may be longer."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.rooms.test_cli_printing import parsers
from torch_table_loader.cli.main import main, make_parser
from torch_table_loader.fact_tables import Table, wrapped

WIDTH = 80
Run = Callable[..., str]


def too_wide(text: str) -> list[str]:
    """Return the lines that are too long, those aside that hold one word, which has no place to break."""
    return [line for line in text.splitlines() if len(line) > WIDTH and len(line.split()) > 1]


@pytest.fixture(params=["pipe", "terminal"])
def run(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command as a pipe or a terminal of 80 columns shows it; return what it prints."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if request.param != "pipe":
        monkeypatch.setenv("COLUMNS", str(WIDTH))
        monkeypatch.setenv("TERM", "xterm-256color")

    def printed(*typed: object) -> str:
        with monkeypatch.context() as patch:
            if request.param != "pipe":
                patch.setattr("sys.stdout.isatty", lambda: True)
            assert main([*map(str, typed)]) == 0, capsys.readouterr().err
        text = capsys.readouterr().out
        assert text
        return re.sub(r"\x1b\[[\d;]*m", "", text)

    return printed


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A table with long names, in a folder with a long path."""
    folder = tmp_path / ("a_folder_with_a_long_name_" * 4) / "clicks"
    names = [f"a_column_with_a_name_of_many_words_number_{number}" for number in range(3)]
    table = pa.table(
        {
            names[0]: [1, 2, None],
            names[1]: ["word " * 30, "x" * 100, None],
            names[2]: pa.array([[{"inner": 1.5}], [], None], pa.list_(pa.struct([("inner", pa.float64())]))),
            "text": ["some text", "more", "last"],
        }
    )
    (folder / "day=2026-01-01").mkdir(parents=True)
    pq.write_table(table, folder / "day=2026-01-01" / f"{'part' * 20}.parquet", row_group_size=2)
    return folder


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A table of more columns than 80 characters have room for."""
    path = tmp_path / "many.parquet"
    pq.write_table(pa.table({f"feature_{number}": [number, 10**9 + number] for number in range(40)}), path)
    return path


@pytest.mark.parametrize(
    "typed",
    [
        ["head"],
        ["schema"],
        ["inspect", "--num-ranks", "3"],
        ["inspect", "--num-ranks", "3", "--columns", "text", "--no-count-filtered", "--filter", "text != 'more'"],
        ["plan", "--num-ranks", "3", "--columns", "text", "--even-ranks", "pad"],
    ],
    ids=" ".join,
)
def test_commands_that_look_at_a_table_fit(typed: list[str], wide: Path, run: Run) -> None:
    assert too_wide(run(typed[0], wide, *typed[1:])) == []


def test_commands_that_write_fit(wide: Path, run: Run) -> None:
    beside = wide.parent
    assert too_wide(run("sample", beside / "sample")) == []
    assert too_wide(run("convert", wide, beside / "converted", "--to", "parquet", "--quiet")) == []
    made = run("tokenize", wide, beside / "tokens", "--tokenizer", "bytes", "--num-workers", 1, "--quiet")
    assert too_wide(made) == []
    assert str(beside / "tokens") in made.split(), "paths stay whole"


def test_row_stores_fit(wide: Path, run: Run) -> None:
    stores = wide.parent / "stores"
    assert too_wide(run("store", "build", wide, "--columns", "text", "--store", stores)) == []
    assert too_wide(run("store", "build", wide, "--columns", "text", "--store", stores)) == []
    for action in (["list"], ["verify"], ["prune", "--older-than", 0]):
        assert too_wide(run("store", *action, "--store", stores)) == []


def test_formats_fit(run: Run) -> None:
    assert too_wide(run("formats")) == []


def test_rows_of_many_columns_fit_and_hold_each_value(many: Path, run: Run) -> None:
    text = run("head", many)
    assert too_wide(text) == []
    for number in range(40):
        assert f"feature_{number}" in text.split()
        assert f"{10**9 + number:,}" in text.split()


def test_every_help_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    assert {parser.prog: too_wide(parser.format_help()) for parser in parsers(make_parser())} == {
        parser.prog: [] for parser in parsers(make_parser())
    }


def test_folding_loses_no_character() -> None:
    path = "day=2026-01-01/" + "part" * 30
    table = Table("files", {"file": "file", "rows": "rows", "note": "note"}, [[path, 12345, "one two " * 9]])
    text = table.text(WIDTH)
    assert max(map(len, text.splitlines())) <= WIDTH
    columns = [line[2 : len(line)] for line in text.splitlines()[2:]]
    assert "".join(line.split()[0] for line in columns if line.strip()).startswith(path[:20])
    assert sorted("".join("".join(columns).split())) == sorted("".join((path, "12,345", "onetwo" * 9)))


def test_wide_output_is_not_folded(
    monkeypatch: pytest.MonkeyPatch, wide: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["schema", str(wide)]) == 0
    assert "list<" in capsys.readouterr().out
    assert wrapped("a b", 400) == "a b"
