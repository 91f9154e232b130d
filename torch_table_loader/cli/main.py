"""The command ``torch-table-loader``. Only the module of the command that was typed is imported."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version

from torch_table_loader.cli.terminal import PROGRAM, USAGE_ERROR, Parser, say
from torch_table_loader.errors import TableLoaderError

COMMANDS = {
    "inspect": "print a table's schema and files, and what each rank reads",
    "head": "print a table's first rows, after deletes and filters",
    "schema": "print a table's columns, as Arrow has them",
    "plan": "print what a rank will read in an epoch, and why",
    "store": "build, list, verify and prune row stores",
    "tokenize": "write a token table from a table with text",
    "convert": "write a table's files in another format, such as tensor shards",
    "sample": "write the table of the documentation's examples",
    "formats": "list formats and sources, and what each can do",
    "completion": "print a script that completes commands and options in a shell",
}
"""What each command does."""

_BARE = ((), ("store", "build"), *((name,) for name in COMMANDS if name != "formats"))
"""Calls that have nothing to work on, and show the help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; without anything to work on, show the help.

    Returns:
        The exit code: 0 for success; 1 if the reader of the output has gone; 2 for an error of the caller, the table or
        the store; 130 if interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    typed = make_parser([name for name in COMMANDS if name in words]).parse_args(
        [*words, "--help"] if tuple(words) in _BARE else words
    )
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


def make_parser(names: Sequence[str] = tuple(COMMANDS)) -> Parser:
    """Build the main parser.

    Args:
        names: the commands whose options are added; the others are only named.
    """
    parser = Parser(prog=PROGRAM, description="Looks at tables as the loader sees them.")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {version(PROGRAM)}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        made = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if name in names:
            getattr(import_module("torch_table_loader.cli.commands"), f"add_{name}")(made)
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


_BASH = """\
_torch_table_loader() {
  local word=${COMP_WORDS[COMP_CWORD]} typed="" at options=""
  for at in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$at" in -*) ;; *) typed="$typed $at" ;; esac
  done
  while :; do
    case "${typed# }" in
CASES
    esac
    [[ -z $typed ]] && break
    typed=${typed% *}
  done
  COMPREPLY=($(compgen -W "$options" -- "$word"))
}
complete -o default -F _torch_table_loader torch-table-loader
"""
"""The longest run of words that is a command decides; the names of files complete what it does not know."""

_ZSH = f"""\
autoload -U +X bashcompinit && bashcompinit
{_BASH}"""


def complete(typed: argparse.Namespace) -> None:
    """Print the script."""
    words = dict(_words((), make_parser()))
    if typed.shell == "fish":
        lines = [_fish(path, word, text) for path, found in words.items() for word, text in found.items()]
        sys.stdout.write("\n".join([f"complete -c {PROGRAM} -f -n __fish_use_subcommand", *lines]) + "\n")
        return
    cases = [f'      "{" ".join(path)}") options="{" ".join(found)}"; break ;;' for path, found in words.items()]
    script = _ZSH if typed.shell == "zsh" else _BASH
    sys.stdout.write(script.replace("CASES", "\n".join(cases)))


def _words(path: tuple[str, ...], parser: argparse.ArgumentParser) -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
    """Yield what may follow a command, with what each word means, and the same of the commands below it."""
    found: dict[str, str] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            found |= {name: texts.get(name, "") for name in action.choices}
            for name, below in action.choices.items():
                yield from _words((*path, name), below)
        elif action.option_strings:
            found |= {flag: action.help or "" for flag in action.option_strings if flag.startswith("--")}
        elif action.choices:
            found |= {str(choice): "" for choice in action.choices}
    yield path, found


def _fish(path: tuple[str, ...], word: str, text: str) -> str:
    where = (
        f"'{'; and '.join(f'__fish_seen_subcommand_from {name}' for name in path)}'"
        if path
        else "__fish_use_subcommand"
    )
    what = f"-l {word[2:]}" if word.startswith("--") else f"-f -a {word}"
    meaning = text.replace("%%", "%").replace("'", "\\'")
    return f"complete -c {PROGRAM} -n {where} {what}" + (f" -d '{meaning}'" if meaning else "")


if __name__ == "__main__":
    sys.exit(main())
