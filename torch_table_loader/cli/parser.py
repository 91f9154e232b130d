"""The parser of every command: errors in one line, and examples in its help. It imports nothing large."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from torch_table_loader.cli.printing import in_shell_words
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
        return text if text.startswith(_EXAMPLES) else super()._fill_text(text, width, indent)


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
            examples: lines at the end of the help, behind the command's name; long ones continue as in a shell.
        """
        if prints_json:
            self.add_argument("--json", action="store_true", help="print one JSON object")
        self.add_argument("--debug", action="store_true", help="show the traceback of an error")
        self.set_defaults(run=partial(_run, place))
        self.shows(*examples)

    def shows(self, *examples: str) -> None:
        """Show examples at the end of the help."""
        lines = [
            textwrap.wrap(f"{self.prog} {each}", 72, break_long_words=False, break_on_hyphens=False)
            for each in examples
        ]
        self.epilog = "\n  ".join([_EXAMPLES, *(" \\\n      ".join(parts) for parts in lines)])

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse; report unknown arguments by name, without their values."""
        typed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            names = [text.partition("=")[0] for text in unknown if text.startswith("-")]
            self.error(f"unknown arguments: {', '.join(names) or 'a value that belongs to no option'}")
        return typed

    def error(self, message: str) -> NoReturn:
        """Report the error in one line that says where to find help, and exit."""
        say("error", f"{message} (see {self.prog} --help)")
        raise SystemExit(USAGE_ERROR)
