"""``torch-table-loader completion``: a script that completes commands and options in a shell."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from torch_table_loader.cli.main import make_parser
from torch_table_loader.cli.parser import PROGRAM

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


def run(typed: argparse.Namespace) -> None:
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
