"""``torch-table-loader completion``: a script that completes commands and options in a shell."""

from __future__ import annotations

import argparse
import sys

from torch_table_loader.cli.main import make_parser
from torch_table_loader.cli.parser import Parser
from torch_table_loader.errors import MissingExtraError

SHELLS = ("bash", "zsh", "fish")


def add(parser: Parser) -> None:
    """Add the options of this command."""
    parser.description = (
        "Prints a script that completes commands and options in a shell. Needs shtab, the extra cli. In ~/.bashrc, and "
        f'in ~/.zshrc below compinit: eval "$({parser.prog} bash)", or zsh. For fish write it to '
        "~/.config/fish/completions/torch-table-loader.fish."
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.runs(run, *SHELLS, prints_json=False)


def run(typed: argparse.Namespace) -> None:
    """Print the script.

    Raises:
        MissingExtraError: shtab is not installed.
    """
    try:
        import shtab
    except ImportError as error:
        raise MissingExtraError(
            f"shell completion needs shtab ({error}); pip install 'torch-table-loader[cli]'"
        ) from error
    sys.stdout.write(shtab.complete(make_parser(), typed.shell) + "\n")
