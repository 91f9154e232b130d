"""Output of commands: text and tables for people in the words of a shell, or one JSON object for programs."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from importlib.util import find_spec
from typing import Any

from torch_table_loader.report import Table, wrapped

_PLAIN_WIDTH = 80
"""Width of a pipe or a file, unless the environment gives another number."""

_LEAST_WIDTH = 40

_OTHERS = {
    "catalog_config": "--catalog",
    "metadata_location": "PATH",
    "path": "PATH",
    "rank": "--rank",
    "table_uri": "PATH",
    "timestamp": "--as-of",
    "version": "--snapshot-id",
}
"""Keywords that no flag is named after."""

_CALL = re.compile(r"\b\w+Dataset\.create_dataloader\((?:\w+=)?\"([^\"]*)\"\)")
_PYTHON = re.compile(r"; source=pyarrow\b[^;]*")
_VALUE = r"\[[^\]]*\]|\{[^}]*\}|\"[^\"]*\"|'[^']*'|[\w.]+"
_WORDS = {
    "leave it True": "leave --no-count out",
    "leave count_filtered=True": "leave --no-count out",
    "count_filtered=False": "--no-count",
    'shuffle="rows"': "row mode",
}
"""What is said of switches."""


def width_of_output() -> int:
    """Return the width of standard output; a pipe has 80 columns, unless the variable COLUMNS gives another number."""
    if sys.stdout.isatty():
        return max(shutil.get_terminal_size().columns, _LEAST_WIDTH)
    said = os.environ.get("COLUMNS", "")
    return max(int(said), _LEAST_WIDTH) if said.isdecimal() and int(said) else _PLAIN_WIDTH


def show(typed: argparse.Namespace, value: Any, *parts: str | Table) -> None:
    """Print one JSON object with ``--json``, else text and tables separated by empty lines.

    Args:
        value: the value for programs; types that JSON lacks become text.
    """
    if typed.json:
        sys.stdout.write(json.dumps(value, indent=1, default=str, ensure_ascii=False) + "\n")
        return
    width, plain = width_of_output(), not sys.stdout.isatty() or "NO_COLOR" in os.environ
    for number, part in enumerate(parts):
        text = part.text(width, str if plain else _bold) if isinstance(part, Table) else wrapped(part, width)
        sys.stdout.write(f"\n{text}\n" if number else f"{text}\n")


def note(text: str) -> str:
    """Return a line for people with something that the library has to say."""
    return f"note: {in_shell_words(text)}"


def number_of(count: int, what: str) -> str:
    """Return a number with its noun.

    >>> number_of(1, "row"), number_of(8400, "row group")
    ('1 row', '8,400 row groups')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _bold(line: str) -> str:
    return f"\x1b[1m{line}\x1b[0m"


def wants_bar(typed: argparse.Namespace) -> bool:
    """Return whether to draw a progress bar: on a terminal, with tqdm, and without ``--quiet``."""
    return not getattr(typed, "quiet", False) and sys.stderr.isatty() and find_spec("tqdm") is not None


def in_shell_words(message: str) -> str:
    """Return a message of the library with flags in place of keyword arguments.

    >>> in_shell_words('pass unsupported="list", or leave it out with columns=[...]')
    'pass --unsupported list, or leave it out with --columns A,B'
    >>> in_shell_words("pass nulls={'day': fill}")
    'pass --nulls day=fill'
    """
    from torch_table_loader.cli.arguments import OPTIONS, SNAPSHOTS, flag_of

    flags = {name: flag_of(name) for name in (*OPTIONS, *SNAPSHOTS)} | _OTHERS
    text = _CALL.sub(r"PATH \1", _PYTHON.sub("", message))
    for said, meant in _WORDS.items():
        text = text.replace(said, meant)
    keyword = re.compile(rf"(?<![\w/.-])({'|'.join(flags)})=(?:({_VALUE}))?")
    return keyword.sub(lambda match: " ".join(filter(None, (flags[match[1]], _typed(match[2] or "")))), text)


def _typed(value: str) -> str:
    """Return a Python value as one types it in a shell.

    >>> _typed("['a', 'b']"), _typed("{'a': 0}"), _typed('"x"'), _typed("None")
    ('a,b', 'a=0', 'x', '')
    """
    inner = re.sub(r"[\[\]{}\"']", "", value)
    if value.startswith("["):
        return "A,B" if inner == "..." else inner.replace(", ", ",")
    return inner.replace(": ", "=") if value.startswith("{") else "" if inner in ("None", "True") else inner
