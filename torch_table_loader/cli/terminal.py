"""How commands read and write: parsers with examples in their help, and output for people or programs.

Errors are one line, in the words of a shell. Nothing large is imported here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

from torch_table_loader.fact_tables import Table, wrapped
from torch_table_loader.messages import did_you_mean, nearest
from torch_table_loader.scrubbing import without_logins

PROGRAM = "torch-table-loader"
USAGE_ERROR = 2

_EXAMPLES = "examples:"


def say(kind: str, message: str) -> None:
    """Write one line on stderr, without the logins of URLs, and in the words of a shell."""
    line = in_shell_words(without_logins(" ".join(message.split())))
    sys.stderr.write(f"{PROGRAM}: {kind}: {line}\n")


def _run(place: str, typed: argparse.Namespace) -> None:
    module, _, function = place.partition(".")
    getattr(import_module(f"torch_table_loader.cli.{module}"), function)(typed)


class Help(argparse.HelpFormatter):
    """A help formatter with one short line of usage, which wraps all text except examples."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=27)

    def _format_usage(
        self, usage: str | None, actions: Iterable[argparse.Action], _groups: Any, prefix: str | None
    ) -> str:
        """Leave the options to the lines below."""
        text = super()._format_usage(usage, [each for each in actions if not each.option_strings], [], prefix)
        return text.replace(self._prog, f"{self._prog} [OPTIONS]", 1)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(_EXAMPLES):
            return text
        return super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line and never show a login, whatever was mistyped."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": Help, **settings})

    def add_subparsers(self, **settings: Any) -> Any:
        """Add commands, whose names follow this parser's own."""
        return super().add_subparsers(prog=self.prog, **settings)

    def runs(self, place: str, *examples: str, prints_json: bool = True) -> None:
        """Make this the parser of a command that does something.

        Args:
            place: the module of this package, and the function in it, that does it, given the parsed options.
            examples: lines at the end of the help, after the command's name; long ones continue as in a shell.
        """
        if prints_json:
            self.add_argument("--json", action="store_true", help="print one JSON object")
        self.add_argument("--debug", action="store_true", help="show the traceback of an error")
        self.set_defaults(run=partial(_run, place), parser=self)
        self.shows(*examples)

    def shows(self, *examples: str) -> None:
        """Show examples at the end of the help."""
        lines = [
            textwrap.wrap(f"{self.prog} {each}", 72, break_long_words=False, break_on_hyphens=False)
            for each in examples
        ]
        self.epilog = "\n  ".join([_EXAMPLES, *(" \\\n      ".join(parts) for parts in lines)])

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse; report unknown options by name, without their values, and with those that may be meant."""
        typed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            typed.parser.refuse([text.partition("=")[0] for text in unknown if text.startswith("-")])
        return typed

    def refuse(self, names: Sequence[str]) -> NoReturn:
        """Report options that this command does not have."""
        if not names:
            self.error("a value belongs to no option")
        known = [flag for flag in self._option_string_actions if flag.startswith("--")]
        near: dict[str, None] = {}
        for name in names:
            longer = [flag for flag in known if name[1:] in flag]
            near |= dict.fromkeys((longer or nearest(name, known, spare=0, least=0.7))[:1])
        hint = ""
        if near:
            hint = f"; did you mean {', '.join(near)}?"
        self.error(f"unknown option{'s' if len(names) > 1 else ''} {', '.join(names)}{hint}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a command that does not exist, with the nearest."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            hint = did_you_mean(value, action.choices)
            raise argparse.ArgumentError(None, f"unknown {str(action.metavar).lower()} {value!r}{hint}")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        """Report the error in one line that says where to find help, and exit."""
        say("error", f"{message} (see {self.prog} --help)")
        raise SystemExit(USAGE_ERROR)


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
    "leave it True": "leave --no-count-filtered out",
    "leave count_filtered=True": "leave --no-count-filtered out",
    "count_filtered=False": "--no-count-filtered",
}
"""What is said of switches."""


def width_of_output() -> int:
    """Return the width of standard output; a pipe has 80 columns, unless the variable COLUMNS gives another number."""
    if sys.stdout.isatty():
        return max(shutil.get_terminal_size().columns, _LEAST_WIDTH)
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked):
        return max(int(asked), _LEAST_WIDTH)
    return _PLAIN_WIDTH


def show(typed: argparse.Namespace, value: Any, *parts: str | Table) -> None:
    """Print one JSON object with ``--json``, else text and tables separated by empty lines.

    Args:
        value: the value for programs; types that JSON lacks become text.
    """
    if typed.json:
        sys.stdout.write(json.dumps(value, indent=1, default=str, ensure_ascii=False) + "\n")
        return
    width = width_of_output()
    strong: Callable[[str], str] = _bold
    if not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        strong = str
    for number, part in enumerate(parts):
        text = part.text(width, strong) if isinstance(part, Table) else wrapped(part, width)
        if number:
            sys.stdout.write("\n")
        sys.stdout.write(f"{text}\n")


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
    for words, meant in _WORDS.items():
        text = text.replace(words, meant)
    keyword = re.compile(rf"(?<![\w/.-])({'|'.join(flags)})=(?:({_VALUE}))?")
    return keyword.sub(lambda match: " ".join(filter(None, (flags[match[1]], _typed(match[2] or "")))), text)


def _typed(value: str) -> str:
    """Return a Python value as one types it in a shell.

    >>> _typed("['a', 'b']"), _typed("{'a': 0}"), _typed('"x"'), _typed("None")
    ('a,b', 'a=0', 'x', '')
    """
    inner = re.sub(r"[\[\]{}\"']", "", value)
    if value.startswith("["):
        if inner == "...":
            return "A,B"
        return inner.replace(", ", ",")
    if value.startswith("{"):
        return inner.replace(": ", "=")
    if inner in ("None", "True"):
        return ""
    return inner
