"""The command line in general: one line for an error, exit codes, and no secret in any output."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_table_loader import ConfigError, LoaderOptions
from torch_table_loader.cli import arguments
from torch_table_loader.cli.main import COMMANDS, main, make_parser
from torch_table_loader.options import defaults, meanings


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """One small file."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": range(10)}), path)
    return path


def refused(capsys: pytest.CaptureFixture[str], *typed: str) -> str:
    """Run a command that must fail; return its one line on stderr."""
    try:
        code = main(typed)
    except SystemExit as error:
        code = int(str(error.code))
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.startswith("torch-table-loader: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["inspect", "{table}", "--columns", "y"], "no column 'y'; did you mean x?"),
        (["inspect", "{table}.gone"], "path matches nothing"),
        (["inspect", "{table}", "--format", "orc"], "a.parquet"),
        (["inspect", "{table}", "--ranks", "0"], "num_ranks must be at least 1"),
        (["inspect", "{table}", "--filter", "x >"], "expected a value, got the end"),
        (["inspect", "{table}", "--strategy", "round_robbin"], "did you mean round_robin"),
        (["inspect", "{table}", "--work", "2"], "unknown arguments: --work"),
        (["inspect", "{table}", "--epoch", "-1"], "epoch must be at least 0"),
    ],
)
def test_an_error_is_one_line_and_exit_code_2(
    table: Path, capsys: pytest.CaptureFixture[str], typed: list[str], said: str
) -> None:
    assert said in refused(capsys, *(text.format(table=table) for text in typed))


def test_a_bare_call_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert not ended.value.code
    said = capsys.readouterr()
    assert said.err == ""
    assert all(re.search(rf"\n    {name}\s", said.out) for name in COMMANDS)


@pytest.mark.parametrize("typed", [["--version"], ["--help"], ["formatz"]])
def test_what_needs_no_table_imports_nothing_large(typed: list[str]) -> None:
    code = "import sys\nfrom torch_table_loader.cli.main import main\ntry: main(sys.argv[1:])\n"
    code += "finally: print({'torch', 'pyarrow', 'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code, *typed], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("\nset()\n") or done.stdout == "set()\n"
    assert done.returncode == (2 if typed == ["formatz"] else 0)


def test_options_of_the_loader_are_described_by_its_docstring(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for title in arguments.GROUPS:
        assert f"{title}:" in said
    assert "--batch-size N rows per batch on this rank (default: 1024)" in said
    assert "--output-format {torch,numpy,arrow,dict}" in said
    assert "--split-size SIZE target size of a split" in said
    assert "--drop-last drop the last batch of a rank if it is short" in said
    assert "--ragged {nested,pad,offsets}" in said
    assert meanings().keys() == defaults().keys()


def test_debug_shows_the_traceback(table: Path) -> None:
    with pytest.raises(ConfigError, match="no column 'y'"):
        main(["inspect", str(table), "--columns", "y", "--debug"])


@pytest.mark.parametrize(
    "typed",
    [
        ["inspect", "s3://bucket/t", "--storage-option", "secret=hunter2", "--storage-option", "key=K",
         "--storage-option", "endpoint_url=http://127.0.0.1:9", "--storage-option", "connect_timeout:=1",
         "--storage-option", "retry_strategy:=\"hunter2\"", "--storage-option", "retry_seconds:=0.1"],
        ["inspect", "s3://bucket/t", "--storage-option", "hunter2"],
        ["inspect", "s3://bucket/t", "--storage-option", "secret:=hunter2"],
        ["inspect", "s3://bucket/t", "--storage-option", "key=K", "secret=hunter2"],
        ["inspect", "s3://bucket/t", "--storage-options", "secret=hunter2"],
        ["inspect", "s3://bucket/t", "--secret=hunter2"],
        ["s3://key:hunter2@bucket/t"],
    ],
)  # fmt: skip
def test_secrets_are_never_printed(capsys: pytest.CaptureFixture[str], typed: list[str]) -> None:
    assert "hunter2" not in refused(capsys, *typed)


def test_storage_options_reach_the_store(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "inspect", "s3://b/t", "--storage-option", "profile=p", "--storage-option", "role_arn=r")
    assert "profile (p)" in said


def test_a_warning_is_one_line(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(table), "--strategy", "newest_first", "--ranks", "2"]) == 0
    assert capsys.readouterr().err.startswith("torch-table-loader: warning: NewestFirst.generate")


@pytest.mark.slow
def test_a_reader_that_goes_away_is_not_an_error(table: Path) -> None:
    command = [sys.executable, "-m", "torch_table_loader.cli.main", "inspect", str(table), "--lines", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "--ranks", "2000"], **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline().startswith("1 files")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 1


def test_every_option_of_the_table_is_a_keyword_of_the_loader() -> None:
    known = {"path", "format"} | set(defaults())
    assert set(arguments.OPTIONS) <= known
    assert set(arguments._OWN) <= {*arguments.OPTIONS, *arguments.SNAPSHOTS}
    assert len(set(map(arguments.flag_of, arguments.OPTIONS))) == len(arguments.OPTIONS)


def test_options_that_are_not_given_keep_the_library_defaults() -> None:
    typed = make_parser().parse_args(["inspect", "t"])
    keywords = arguments.loader_keywords(typed)
    assert keywords == {"path": "t"}
    typed = make_parser().parse_args(["inspect", "t", "--no-count", "--shuffle", "--columns", "a,b", "--columns", "c"])
    keywords = arguments.loader_keywords(typed)
    assert keywords == {"path": "t", "count_filtered": False, "shuffle": True, "columns": ["a", "b", "c"]}
    assert LoaderOptions(**{name: value for name, value in keywords.items() if name != "path"}).columns


@pytest.mark.parametrize(("typed", "meant"), [("500", 500), ("64MiB", "64MiB"), ("500B", "500B")])
def test_a_size_of_splits_is_rows_unless_it_has_a_unit(typed: str, meant: int | str) -> None:
    asked = make_parser().parse_args(["inspect", "t", "--split-size", typed])
    assert arguments.loader_keywords(asked)["split_size"] == meant


@pytest.mark.parametrize("text", ["secret", "=x", ":=1", "a:=nojson"])
def test_a_storage_option_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        arguments.storage_option(text)
