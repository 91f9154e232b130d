"""``torch-table-loader completion``: a script that completes commands and options in a shell."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from torch_table_loader.cli.arguments import examples
from torch_table_loader.errors import MissingExtraError

SHELLS = ("bash", "zsh", "fish")


def add_parser(commands: Any) -> list[argparse.ArgumentParser]:
    """Add this command to the main parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "completion",
        help="print a script that completes commands and options in a shell",
        description="Prints a script that completes commands and options in a shell. Needs shtab, the extra cli.",
        epilog=examples(
            'eval "$(torch-table-loader completion bash)"    # in ~/.bashrc',
            'eval "$(torch-table-loader completion zsh)"     # in ~/.zshrc, below compinit',
            "torch-table-loader completion fish > ~/.config/fish/completions/torch-table-loader.fish",
        ),
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.set_defaults(run=run)
    return [parser]


def run(typed: argparse.Namespace) -> None:
    """Print the script.

    Args:
        typed: the parsed options, with the main parser.

    Raises:
        MissingExtraError: shtab is not installed.
    """
    try:
        import shtab
    except ImportError as error:
        raise MissingExtraError(
            f"shell completion needs shtab ({error}); pip install 'torch-table-loader[cli]'"
        ) from error
    sys.stdout.write(shtab.complete(typed.parser, typed.shell) + "\n")
