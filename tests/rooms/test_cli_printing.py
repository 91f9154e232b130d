"""Features of every command: JSON with the documented keys, examples in its help, exit codes, and tables that fit."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_table_loader import StructuredDataset
from torch_table_loader.cli import inspect, terminal
from torch_table_loader.cli.main import main, make_parser
from torch_table_loader.fact_tables import Table
from torch_table_loader.units import Size

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


def documented(command: str) -> set[str]:
    """Return the keys that the documentation names for a command."""
    [line] = [line for line in DOCS.read_text("utf-8").splitlines() if line.startswith(f"| `{command}` | `")]
    return set(re.findall(r"`(\w+)`", line.split("|")[2]))


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Return the parsers of all commands and actions."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in dict.fromkeys(action.choices.values()):
                yield each
                yield from parsers(each)


def told(capsys: pytest.CaptureFixture[str], *typed: str) -> dict[str, Any]:
    assert main([*typed, "--json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_command_prints_json_with_the_documented_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, stores = str(tmp_path / "clicks"), str(tmp_path / "stores")
    pq.write_table(pa.table({"text": ["a", "bc"]}), tmp_path / "text.parquet")
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "x.parquet")
    typed = {
        "sample": ["sample", table],
        "inspect": ["inspect", table],
        "head": ["head", table],
        "schema": ["schema", table],
        "plan": ["plan", table],
        "store build": ["store", "build", table, "--store", stores],
        "store list": ["store", "list", "--store", stores],
        "store verify": ["store", "verify", "--store", stores],
        "store prune": ["store", "prune", "--store", stores, "--older-than", "0"],
        "convert": ["convert", str(tmp_path / "x.parquet"), str(tmp_path / "x"), "--to", "parquet"],
        "tokenize": ["tokenize", str(tmp_path / "text.parquet"), str(tmp_path / "t"), "--tokenizer", "bytes"],
        "skip": ["skip", *(str(tmp_path / name) for name in ("state.json", "later.json")), "--steps", "2"],
        "formats": ["formats"],
    }
    state = StructuredDataset.create_dataloader(str(tmp_path / "x.parquet"))[0].state_dict()
    (tmp_path / "state.json").write_text(json.dumps(state))
    typed["tokenize"] += ["--num-workers", "1"]
    found = {command: told(capsys, *each) for command, each in typed.items()}
    assert {command: set(value) for command, value in found.items()} == {each: documented(each) for each in typed}
    assert found["inspect"]["rows"] == sum(each["rows"] for each in found["inspect"]["data_files"]) == 8400
    [store] = found["store list"]["stores"]
    assert store["rows"] == found["store build"]["rows"] == 8400
    assert found["store prune"]["removed"] == [store["store"]]
    assert found["tokenize"]["tokens"] == 3


def test_an_existing_store_is_reported_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "x.parquet")
    typed = ["store", "build", str(tmp_path / "x.parquet"), "--store", str(tmp_path / "stores")]
    first, again = told(capsys, *typed), told(capsys, *typed)
    assert first["store"] == again["store"]
    assert set(first) == set(again)


def test_every_help_has_examples_of_its_own_command() -> None:
    for parser in parsers(make_parser()):
        assert parser.epilog is not None, parser.prog
        heading, *lines = parser.epilog.replace(" \\\n", "").splitlines()
        assert heading == "examples:"
        assert all(parser.prog in line for line in lines), parser.prog


def test_with_json_errors_go_only_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "/nowhere/at/all", "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_an_interrupted_command_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(inspect, "open_table", stop)
    assert main(["schema", "t"]) == 130


@pytest.mark.slow
def test_debug_ends_an_error_with_1() -> None:
    command = [sys.executable, "-m", "torch_table_loader.cli.main", "schema", "/nowhere/at/all", "--debug"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" in done.stderr


WIDE = Table("files [b]", {"name": "file", "num_bytes": "size"}, [["[red]x/" * 40, Size(1536)]])


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    terminal.show(argparse.Namespace(json=False), None, WIDE)
    return capsys.readouterr().out


def test_a_terminal_gets_tables_that_fit_with_bold_headers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for name, value in (("COLUMNS", "80"), ("TERM", "xterm-256color")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = shown(capsys)
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert text != plain
    assert max(map(len, plain.splitlines())) <= 80
    assert "1.5 KiB" in plain
    assert "".join(plain.replace("1.5 KiB", "").split()).count("[red]") == 40


def test_a_pipe_and_a_terminal_without_colour_get_plain_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")
    piped = shown(capsys)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert shown(capsys) == piped == f"{WIDE.text(80)}\n"
    assert "\x1b" not in piped


def test_json_holds_the_rows_that_are_not_printed() -> None:
    table = Table("t", {"n": "n"}, [[1], [2], [3]], totals=[["all"]], most=1)
    assert str(table).splitlines()[-2:] == ["  all", "  … and 2 more"]
    assert table.records() == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_commands_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name in ("inspect", "tokenize", "even-ranks", "older-than"):
        assert name in script


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("ins", ["inspect"]),
        ("plan clicks --num-ranks 8 --ev", ["--even-ranks"]),
        ("store ver", ["verify"]),
        ("store prune --old", ["--older-than"]),
        ("completion f", ["fish"]),
        ("head cli", []),
    ],
)
def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str], typed: str, found: list[str]) -> None:
    main(["completion", "bash"])
    script = tmp_path / "completion.sh"
    script.write_text(capsys.readouterr().out)
    ask = f"""source {script}
    COMP_WORDS=(torch-table-loader {typed}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
    name=$(complete -p torch-table-loader | sed 's/.*-F \\([^ ]*\\).*/\\1/')
    $name; echo "${{COMPREPLY[@]}}" """
    done = subprocess.run(["/usr/bin/env", "bash", "--norc", "-c", ask], capture_output=True, text=True, check=False)
    assert done.stdout.split() == found, done.stderr
