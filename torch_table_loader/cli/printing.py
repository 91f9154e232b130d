"""Output of commands: text and tables for people, or one JSON object for programs."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from importlib.util import find_spec
from typing import Any

from torch_table_loader.cli.shell_words import in_shell_words
from torch_table_loader.report import Table, wrapped

_PLAIN_WIDTH = 80
"""Width of a pipe or a file, unless the environment gives another number."""

_LEAST_WIDTH = 40


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
