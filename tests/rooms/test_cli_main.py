"""The command line in general: one line for an error, exit codes, and no secret in any output."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from torch_table_loader import ConfigError, LoaderOptions
from torch_table_loader.cli import arguments, named_table
from torch_table_loader.cli.main import COMMANDS, main, make_parser
from torch_table_loader.cli.terminal import in_shell_words
from torch_table_loader.options import defaults

GROUPS = ("which table", "what is read of it", "order and batches", "form of columns")
"""Titles in the help of commands that open a table."""


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
        (["inspect", "{table}", "--num-ranks", "0"], "num_ranks must be at least 1"),
        (["inspect", "{table}", "--filter", "x >"], "expected a value, got the end"),
        (["inspect", "{table}", "--split-strategy", "round_robbin"], "did you mean round_robin"),
        (["inspect", "{table}", "--work", "2"], "unknown option --work; did you mean --num-workers? (see"),
        (["plan", "{table}", "--workers", "2"], "unknown option --workers; did you mean --num-workers? (see"),
        (["plan", "{table}", "--seed=2", "--ranks"], "options --seed, --ranks; did you mean --shuffle-seed, --num-ran"),
        (["plan", "{table}", "--strategy", "x"], "did you mean --split-strategy? (see torch-table-loader plan --help)"),
        (["plan", "{table}", "--no-count"], "did you mean --no-count-filtered?"),
        (["head", "{table}", "--row", "2"], "did you mean --rows? (see torch-table-loader head --help)"),
        (["head", "{table}", "--batch-size", "2"], "unknown option --batch-size (see torch-table-loader head --help)"),
        (["store", "verify", "--stores", "a"], "did you mean --store? (see torch-table-loader store verify --help)"),
        (["inspct", "{table}"], "unknown command 'inspct'; did you mean inspect? (see torch-table-loader --help)"),
        (["store", "biuld"], "unknown action 'biuld'; did you mean build? (see torch-table-loader store --help)"),
        (["quux"], "unknown command 'quux' (see torch-table-loader --help)"),
        (["plan", "{table}", "--shuffle=row"], "--shuffle: expected one of splits, mixed, rows, got 'row' (see"),
        (["inspect", "{table}", "--shuffle", "rows"], "not read with --shuffle rows; run plan instead"),
        (["plan", "{table}", "--shuffle", "rows", "--split-size", "5"], "--split-size 5 does not work with --shuffle"),
        (["inspect", "{table}", "--epoch", "-1"], "epoch must be at least 0"),
    ],
)
def test_an_error_is_one_line_and_exit_code_2(
    table: Path, capsys: pytest.CaptureFixture[str], typed: list[str], said: str
) -> None:
    assert said in refused(capsys, *(text.format(table=table) for text in typed))


def helped(capsys: pytest.CaptureFixture[str], *typed: str) -> str:
    """Run what shows a help; return it."""
    with pytest.raises(SystemExit) as ended:
        main(typed)
    assert not ended.value.code
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def test_a_bare_call_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    said = helped(capsys)
    assert all(re.search(rf"\n    {name}\s", said) for name in COMMANDS)
    for name in set(COMMANDS) - {"formats"}:
        assert helped(capsys, name) == helped(capsys, name, "--help")
    assert helped(capsys, "store", "build") == helped(capsys, "store", "build", "--help")
    assert main(["formats"]) == 0


def test_the_help_of_plan_is_short_and_in_groups(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = helped(capsys, "plan", "--help").splitlines()
    assert len(lines) <= 60
    assert lines[0] == "usage: torch-table-loader plan [OPTIONS] [PATH ...]"
    assert [line[:-1] for line in lines if line.endswith(":") and line[0] != " "] == [
        *("options", *GROUPS),
        "examples",
    ]


@pytest.mark.parametrize(
    "typed",
    [["--version"], ["--help"], ["formatz"], ["plan"], ["head", "--help"], ["tokenize", "-h"], ["completion", "bash"]],
    ids=" ".join,
)
@daily(3)
def test_what_needs_no_table_imports_nothing_large(typed: list[str]) -> None:
    code = "import sys\nfrom torch_table_loader.cli.main import main\ntry: main(sys.argv[1:])\n"
    code += "finally: print({'torch', 'pyarrow', 'numpy', 'pyiceberg', 'deltalake'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code, *typed], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("\nset()\n") or done.stdout == "set()\n"
    assert done.returncode == (2 if typed == ["formatz"] else 0)


def test_options_of_the_loader_are_described_by_its_docstring(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for title in GROUPS:
        assert f"{title}:" in said
    assert "--batch-size N rows per batch of a rank (default: 1024)" in said
    assert "--output-format NAME torch, numpy, arrow or dict (default: torch)" in said
    assert "--split-size SIZE of a split: rows, or bytes such as 128MiB" in said
    assert "--ragged FORM of lists: nested, pad or offsets" in said


@pytest.mark.parametrize("name", ["output_format", "ragged", "strings", "even_ranks", "on_error", "unsupported"])
def test_help_names_every_value(name: str, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = values_of(get_type_hints(LoaderOptions)[name])
    flag = f"--{name.replace('_', '-')}"
    described = " ".join(helped(capsys, "plan", "--help").split()).partition(f" {flag} ")[2].partition(" --")[0]
    assert len(values) >= 2
    assert all(value in described for value in values)
    assert "invalid choice: 'other'" in refused(capsys, "plan", str(table), flag, "other")


def values_of(kind: Any) -> set[str]:
    """Return the words that a type allows."""
    if get_origin(kind) is Literal:
        return {value for value in get_args(kind) if isinstance(value, str)}
    return set[str]().union(*map(values_of, get_args(kind)))


def test_tokenize_offers_the_types_and_the_ways_that_there_are() -> None:
    from torch_table_loader.text.token_table import IdType, Nulls

    parser = make_parser(["tokenize"])
    given = {"dtype": ["auto", *get_args(IdType)], "text_nulls": list(get_args(Nulls))}
    for dest, choices in given.items():
        [action] = [each for each in below(parser, "tokenize")._actions if each.dest == dest]
        assert action.choices == choices


def below(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    """Return the parser of a command."""
    [commands] = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    found: argparse.ArgumentParser = commands.choices[name]
    return found


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("leave it out with columns=[...]", "leave it out with --columns A,B"),
        ("pass columns=['a', 'b']", "pass --columns a,b"),
        ("pass nulls={'day': fill}", "pass --nulls day=fill"),
        (
            'take it with unsupported="list", or output_format="arrow"',
            "take it with --unsupported list, or --output-format arrow",
        ),
        ("pass num_ranks= and even_ranks=None", "pass --num-ranks and --even-ranks"),
        ("needs the count; leave count_filtered=True", "needs the count; leave --no-count-filtered out"),
        ('read it with DeltaDataset.create_dataloader("/lake/t")', "read it with PATH /lake/t"),
        ('IcebergDataset.create_dataloader(metadata_location="m.json")', "PATH m.json"),
        ("in /lake/format=x/columns=y, file a", "in /lake/format=x/columns=y, file a"),
    ],
)
def test_advice_names_flags(said: str, meant: str) -> None:
    assert in_shell_words(said) == meant


def test_advice_in_a_shell_holds_no_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = {"d": pa.array([Decimal("1.5"), None]), "m": pa.array([[(1, 2)], None], pa.map_(pa.int8(), pa.int8()))}
    pq.write_table(pa.table({**columns, "x": [1, None]}), tmp_path / "a.parquet")
    path = str(tmp_path / "a.parquet")
    assert main(["inspect", path]) == 0
    told = [capsys.readouterr().out]
    told.append(refused(capsys, "plan", path))
    assert "--unsupported float64" in told[0]
    assert "--nulls x=fill" in told[0]
    for each in told:
        assert not re.search(r"\b\w+=[\[{\"']|Dataset", each), each


@pytest.mark.parametrize(("rows", "title"), [(0, "no rows"), (1, "the first row"), (2, "the first 2 rows")])
def test_numbers_agree_with_their_nouns(table: Path, capsys: pytest.CaptureFixture[str], rows: int, title: str) -> None:
    assert main(["head", str(table), "-n", str(rows)]) == 0
    assert capsys.readouterr().out.startswith(f"{title}\n")
    assert main(["inspect", str(table)]) == 0
    assert capsys.readouterr().out.startswith("1 file, 1 row group, 10 rows, ")


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
    assert main(["inspect", str(table), "--split-strategy", "newest_first", "--num-ranks", "2"]) == 0
    assert capsys.readouterr().err.startswith("torch-table-loader: warning: NewestFirst.generate")


@pytest.mark.slow
def test_a_reader_that_goes_away_is_not_an_error(table: Path) -> None:
    command = [sys.executable, "-m", "torch_table_loader.cli.main", "inspect", str(table), "--lines", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "--num-ranks", "2000"], **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline().startswith("1 file,")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 1


def test_every_option_of_the_table_is_a_keyword_of_the_loader() -> None:
    known = {"path", "format"} | set(defaults())
    assert set(arguments.OPTIONS) <= known
    assert set(arguments._OWN) == {*arguments.OPTIONS, *arguments.SNAPSHOTS}
    assert len(set(map(arguments.flag_of, arguments.OPTIONS))) == len(arguments.OPTIONS)


def test_options_that_are_not_given_keep_the_library_defaults() -> None:
    typed = make_parser().parse_args(["inspect", "t"])
    keywords = arguments.loader_keywords(typed)
    assert keywords == {"path": "t"}
    typed = make_parser().parse_args(
        ["inspect", "t", "--no-count-filtered", "--shuffle", "--columns", "a,b", "--columns", "c"]
    )
    keywords = arguments.loader_keywords(typed)
    assert keywords == {"path": "t", "count_filtered": False, "shuffle": True, "columns": ["a", "b", "c"]}
    assert LoaderOptions(**{name: value for name, value in keywords.items() if name != "path"}).columns


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["--shuffle"], True),
        (["--shuffle", "{table}"], True),
        (["--shuffle", "--json"], True),
        (["--shuffle", "splits"], "splits"),
        (["--shuffle=mixed"], "mixed"),
        (["--shuffle", "rows"], "rows"),
        ([], None),
    ],
    ids=str,
)
def test_an_order_can_be_said(
    table: Path,
    typed: list[str],
    meant: bool | str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[dict[str, object]] = []
    true_keywords = arguments.loader_keywords

    def noted(typed: argparse.Namespace) -> dict[str, object]:
        seen.append(true_keywords(typed))
        return seen[-1]

    monkeypatch.setattr(named_table, "loader_keywords", noted)
    words = [word.format(table=table) for word in typed]
    assert main(["plan", *([] if str(table) in words else [str(table)]), *words]) == 0
    assert seen[0].get("shuffle") == meant
    assert seen[0]["path"] == str(table)
    assert capsys.readouterr().out


def test_the_orders_are_those_of_the_loader(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "plan", str(table), "--shuffle=quux")
    offered = said.partition("expected one of ")[2].partition(", got")[0]
    assert set(offered.split(", ")) == values_of(get_type_hints(LoaderOptions)["shuffle"])


@pytest.mark.parametrize("name", COMMANDS)
def test_flags_are_the_names_of_keywords_in_every_command(name: str) -> None:
    """`--filter` and `--storage-option`, which are given once for each, are singular."""
    of_options = {field.name for field in fields(LoaderOptions)} - {"filters", "storage_options"}
    actions = [action for action in below(make_parser([name]), name)._actions if action.dest in of_options]
    for action in actions:
        spelt = action.dest.replace("_", "-")
        assert set(action.option_strings) <= {f"--{spelt}", f"--no-{spelt}"}
    flags = below(make_parser([name]), name)._option_string_actions
    assert not {"--ranks", "--workers", "--seed", "--strategy", "--no-count"} & set(flags)


@pytest.mark.parametrize(("typed", "meant"), [("500", 500), ("64MiB", "64MiB"), ("500B", "500B")])
def test_a_size_of_splits_is_rows_unless_it_has_a_unit(typed: str, meant: int | str) -> None:
    asked = make_parser().parse_args(["inspect", "t", "--split-size", typed])
    assert arguments.loader_keywords(asked)["split_size"] == meant


@pytest.mark.parametrize("text", ["secret", "=x", ":=1", "a:=nojson"])
def test_a_storage_option_that_cannot_be_read_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--storage-option" in refused(capsys, "inspect", "s3://bucket/t", "--storage-option", text)
