"""The command ``torch-table-loader``, and the options of each command.

Only the module of the command that was typed is imported, when it runs: help and completion need none.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from torch_table_loader.cli.arguments import OF_FILES, OPTIONS, add_arguments, comma_separated, with_order
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
    "skip": "write a state that goes on some steps after another",
    "sample": "write the table of the documentation's examples",
    "formats": "list formats and sources, and what each can do",
    "completion": "print a script that completes commands and options in a shell",
}
"""What each command does."""

_BARE = ((), ("store", "build"), *((name,) for name in COMMANDS if name != "formats"))
"""Calls that have nothing to work on, and show the help."""

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

SHELLS = ("bash", "zsh", "fish")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; without anything to work on, show the help.

    Returns:
        The exit code: 0 for success; 1 if the reader of the output has gone; 2 for an error of the caller, the table or
        the store; 130 if interrupted.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    words = with_order(arguments)
    if tuple(words) in _BARE:
        words.append("--help")
    typed = make_parser([name for name in COMMANDS if name in words]).parse_args(words)
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
            globals()[f"add_{name}"](made)
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


def complete(typed: argparse.Namespace) -> None:
    """Print the script."""
    words = dict(_words((), make_parser()))
    if typed.shell == "fish":
        lines = [_fish(path, word, text) for path, found in words.items() for word, text in found.items()]
        sys.stdout.write("\n".join([f"complete -c {PROGRAM} -f -n __fish_use_subcommand", *lines]) + "\n")
        return
    cases = [f'      "{" ".join(path)}") options="{" ".join(found)}"; break ;;' for path, found in words.items()]
    script = _BASH
    if typed.shell == "zsh":
        script = _ZSH
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
    where, what = "__fish_use_subcommand", f"-f -a {word}"
    if path:
        where = f"'{'; and '.join(f'__fish_seen_subcommand_from {name}' for name in path)}'"
    if word.startswith("--"):
        what = f"-l {word[2:]}"
    line = f"complete -c {PROGRAM} -n {where} {what}"
    if text:
        meaning = text.replace("%%", "%").replace("'", "\\'")
        line += f" -d '{meaning}'"
    return line


def add_inspect(parser: Parser) -> None:
    """Add the options of ``inspect``."""
    parser.description = "Prints a table's schema, files and splits, and what each rank and worker would read."
    add_arguments(parser, [name for name in OPTIONS if name != "worker_type"])  # which changes nothing of this
    parser.add_argument("--epoch", type=int, default=0, metavar="N", help="epoch to plan (default: 0)")
    lines = "files, workers and ranks to list; 0: all (default: 20)"
    parser.add_argument("--lines", type=int, default=20, metavar="N", help=lines)
    parser.add_argument("--html", metavar="FILE", help="also write rank 0's plan as a web page")
    parser.runs(
        "inspect.run",
        "clicks --columns label --num-ranks 8",
        "--catalog prod --table db.clicks --as-of 2026-01-31T00:00:00+00:00",
        "lake/orders --format delta --snapshot-id 3",
        "clicks --num-ranks 8 --shuffle --html clicks.html",
    )


def add_head(parser: Parser) -> None:
    """Add the options of ``head``."""
    add_arguments(parser, (*OF_FILES, "columns"))
    parser.add_argument("-n", "--rows", type=int, default=5, metavar="N", help="rows to print at most (default: 5)")
    parser.runs(
        "inspect.head",
        "clicks -n 10",
        "--catalog prod --table db.clicks --columns label,price --json",
        "lake/orders --filter \"day = 'mon'\"",
    )


def add_schema(parser: Parser) -> None:
    """Add the options of ``schema``."""
    add_arguments(parser, {*OF_FILES, "columns"} - {"filters"})
    parser.runs("inspect.schema", "clicks", "warehouse/db/clicks/metadata/00003-4a.metadata.json --json")


def add_plan(parser: Parser) -> None:
    """Add the options of ``plan``."""
    add_arguments(parser, OPTIONS)
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="rank whose plan to print (default: 0)")
    parser.add_argument("--epoch", type=int, default=0, metavar="N", help="epoch to plan (default: 0)")
    parser.runs(
        "inspect.plan",
        "clicks --columns label --num-ranks 8 --rank 3 --shuffle rows --epoch 2",
        "--catalog prod --table db.clicks --branch daily --json",
    )


def add_store(parser: Parser) -> None:
    """Add the actions of ``store``, and their options."""
    parser.description = 'Looks after the stores of shuffle="rows".'
    parser.shows("build clicks --store stores", "list")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    build = _action(actions, "build", "build a table's store, which later runs open")
    add_arguments(build, (*OF_FILES, "columns"))
    build.add_argument("--progress", action="store_true", help="draw a progress bar (needs tqdm)")
    _add_cluster(build, "build on a cluster (default: in this process)")
    build.runs("store.build", "clicks --columns label")
    _action(actions, "list", "list the stores of a folder").runs("store.list_stores", "--store stores --json")
    verify = _action(actions, "verify", "read whole stores and compare their checksums")
    verify.runs("store.verify", "--store stores")
    prune = _action(actions, "prune", "remove stores")
    prune.add_argument("--damaged", action="store_true", help="remove damaged stores")
    prune.add_argument("--unfinished", action="store_true", help="remove stores whose build was abandoned")
    older = "remove stores that were finished more than DAYS ago"
    prune.add_argument("--older-than", type=float, metavar="DAYS", help=older)
    prune.add_argument("--name", action="append", default=[], metavar="NAME", help="remove the store of this name")
    prune.runs("store.prune", "--damaged --unfinished --older-than 30")


def _action(actions: Any, name: str, text: str) -> Parser:
    parser: Parser = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    folder = "folder of the stores; for build also a URL (default: the cache directory)"
    parser.add_argument("--store", metavar="DIR", help=folder)
    return parser


def add_tokenize(parser: Parser) -> None:
    """Add the options of ``tokenize``."""
    parser.description = (
        "Writes a folder of Parquet files with tokens in place of text, one file for each split of the table. A run "
        "that was stopped continues, and several ranks can write one folder."
    )
    add_arguments(parser, (*OF_FILES, "split_size"), beside=True)
    parser.add_argument("out", metavar="OUT", help="the folder to write, which appears once it is complete")
    parser.add_argument(
        "--tokenizer",
        required=True,
        metavar="WHICH",
        help="needed: a tokenizer.json or its folder, tiktoken:NAME, bytes, or MODULE:ATTRIBUTE of a function that "
        "takes a list of strings and returns a list of ids for each",
    )
    _add_chat(parser)
    keep = "other columns to keep (default: none)"
    parser.add_argument("--keep", default=[], action="extend", type=comma_separated, metavar="A,B", help=keep)
    ids = "name of the column of tokens (default: input_ids)"
    parser.add_argument("--ids", default="input_ids", metavar="NAME", help=ids)
    parser.add_argument("--lengths", metavar="NAME", help="add a column of this name with the number of tokens")
    dtype = "uint16, uint32 or int32 (default: uint16 if all ids are known to fit, else int32)"
    kinds = ["auto", "uint16", "uint32", "int32"]
    parser.add_argument("--dtype", default="auto", choices=kinds, metavar="TYPE", help=dtype)
    nulls = "rows without text: error, drop or empty (default: error)"
    choices = ["error", "drop", "empty"]
    parser.add_argument("--nulls", dest="text_nulls", default="error", choices=choices, metavar="HOW", help=nulls)
    special = "let a tokenizer.json add its special tokens, such as begin and end"
    parser.add_argument("--special-tokens", action="store_true", help=special)
    workers = "processes (default: one per CPU, divided among the ranks of this machine)"
    parser.add_argument("--num-workers", dest="processes", type=int, metavar="N", help=workers)
    _add_cluster(parser, "tokenize on the CPUs of a cluster (default: on this machine); every node sees OUT")
    ranks = "ranks in the job (default: as torchrun or another launcher says)"
    parser.add_argument("--num-ranks", type=int, metavar="N", help=ranks)
    parser.add_argument("--rank", type=int, metavar="N", help="rank of this process")
    parser.add_argument("--quiet", action="store_true", help="draw no progress bar on a terminal (with tqdm)")
    parser.runs(
        "writing.tokenize",
        "stories tokens --tokenizer models/llama",
        "db.stories tokens --catalog prod --tokenizer tiktoken:cl100k_base",
    )


def _add_chat(parser: Parser) -> None:
    """Add what says which column becomes tokens, and how conversations do."""
    column = "the column with text (default: text; with --chat: messages)"
    parser.add_argument("--column", metavar="NAME", help=column)
    chat = "the column has conversations: lists of messages with role and content; adds assistant_mask"
    parser.add_argument("--chat", action="store_true", help=chat)
    template = "a chat template (default: the tokenizer's own)"
    parser.add_argument("--template", metavar="FILE.jinja", help=template)
    parser.add_argument("--tools", metavar="NAME", help="the column with the tools of each conversation")


def add_convert(parser: Parser) -> None:
    """Add the options of ``convert``."""
    parser.description = (
        "Writes one file for each file of a table, with its rows in order. The folder gets its name once it is "
        "complete."
    )
    add_arguments(parser, (*OF_FILES, "columns", "on_error"), beside=True)
    parser.add_argument("out", metavar="OUT", help="the folder to write, which must not exist yet")
    to = "format to write (default: parquet; for Parquet files, tensorproto)"
    parser.add_argument("--to", metavar="NAME", help=to)
    parser.add_argument("--quiet", action="store_true", help="draw no progress bar on a terminal (with tqdm)")
    parser.runs("writing.convert", "clicks shards", "db.clicks clicks --catalog prod --to parquet")


def add_skip(parser: Parser) -> None:
    """Add the options of ``skip``."""
    parser.description = (
        "Writes a state that goes on some steps after another, so that a run leaves them out, as after a spike of "
        "the loss. A step is a batch of each rank."
    )
    parser.add_argument("state", metavar="STATE", help="what state_dict() returned, as JSON")
    parser.add_argument("out", metavar="OUT", help="the file to write")
    parser.add_argument("--steps", type=int, required=True, metavar="N", help="steps to leave out")
    rows = 'rows of a step, or sequences, over all ranks; with shuffle="rows" alone'
    parser.add_argument("--rows-per-step", type=int, metavar="N", help=rows)
    parser.runs("states.skip", "state.json later.json --steps 100", "a.json b.json --steps 100 --rows-per-step 4096")


def add_sample(parser: Parser) -> None:
    """Add the options of ``sample``."""
    parser.description = "Writes a small log of clicks as Parquet: the table that the documentation's examples read."
    parser.add_argument("out", metavar="OUT", help="a new or empty folder")
    parser.runs("writing.sample", "clicks")


def add_formats(parser: Parser) -> None:
    """Add the options of ``formats``."""
    parser.description = (
        "Lists the formats and sources of this library, and the formats that other distributions install."
    )
    parser.runs("registry.run", "", "--json")


def add_completion(parser: Parser) -> None:
    """Add the options of ``completion``."""
    parser.description = (
        "Prints a script that completes commands and options in a shell. In ~/.bashrc, and in ~/.zshrc below "
        f'compinit: eval "$({parser.prog} bash)", or zsh. For fish write it to '
        "~/.config/fish/completions/torch-table-loader.fish."
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.runs("main.complete", *SHELLS, prints_json=False)


def _add_cluster(parser: Parser, what: str) -> None:
    """Add the options that name a cluster on which a command does its work."""
    parser.add_argument("--engine", choices=["ray"], help=what)
    address = "address of the Ray cluster (default: the one that Ray finds)"
    parser.add_argument("--address", metavar="HOST:PORT", help=address)


if __name__ == "__main__":
    sys.exit(main())
