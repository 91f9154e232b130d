"""The command ``torch-table-loader``: each module of this folder is a subcommand."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, NoReturn

from torch_table_loader.cli import completion, convert, inspect, looking, registry, sample, store, tokenize
from torch_table_loader.cli.arguments import Help
from torch_table_loader.errors import TableLoaderError
from torch_table_loader.scrubbing import without_logins

COMMANDS = (
    inspect,
    looking.head,
    looking.schema,
    looking.plan,
    store,
    tokenize,
    convert,
    sample,
    registry,
    completion,
)
"""Each has ``add_parser(subparsers)``, which returns parsers that set ``run``: a function of the parsed options."""

USAGE_ERROR = 2


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line and never show a login, whatever was mistyped."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": Help, **settings})

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


def say(kind: str, message: str) -> None:
    """Write one line on stderr, without the logins of URLs."""
    line = without_logins(" ".join(message.split()))
    sys.stderr.write(f"torch-table-loader: {kind}: {line}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: arguments without the program's name; None for those of this process.

    Returns:
        The exit code: 0 for success; 1 if the reader of the output has gone; 2 for an error of the caller, the table or
        the store; 130 if interrupted.
    """
    typed = make_parser().parse_args(arguments)
    try:
        with warnings_in_one_line(always=not typed.debug):
            typed.run(typed)
            sys.stdout.flush()
    except TableLoaderError as error:
        if typed.debug:
            raise
        say("error", str(error))
        return USAGE_ERROR
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, such as head, has gone: Python's remaining output is discarded
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def make_parser() -> Parser:
    """Build the main parser with all commands."""
    parser = Parser(prog="torch-table-loader", description="Looks at tables as the loader sees them.")
    parser.add_argument("--version", action="version", version=f"torch-table-loader {version('torch-table-loader')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        for made in command.add_parser(commands):
            if command is completion:
                made.set_defaults(parser=parser)
            else:
                made.add_argument("--json", action="store_true", help="print one JSON object")
            made.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


@contextmanager
def warnings_in_one_line(*, always: bool) -> Iterator[None]:
    """Print the library's warnings as one line each, without the source line that Python adds."""
    with warnings.catch_warnings():
        if always:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda message, *_args, **_named: say("warning", str(message))
        yield


if __name__ == "__main__":
    sys.exit(main())
