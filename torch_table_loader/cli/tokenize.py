"""``torch-table-loader tokenize``: write a token table from a table with text."""

from __future__ import annotations

import argparse
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, get_args

from torch_table_loader.cli.arguments import OF_FILES, add_arguments, comma_separated, loader_keywords
from torch_table_loader.dataset import StructuredDataset
from torch_table_loader.engine.machine import ranks_on_this_node, usable_cpus
from torch_table_loader.errors import ConfigError
from torch_table_loader.iceberg import IcebergDataset
from torch_table_loader.text.token_parts import IdType, Nulls
from torch_table_loader.text.token_table import tokenize_table

if TYPE_CHECKING:
    from torch_table_loader.dataset import TableDataset

_KEYWORDS = (*OF_FILES, "split_bytes", "split_rows")


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add this command to the parser of all."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "tokenize",
        help="write a token table from a table with text",
        description="Writes a folder of Parquet files with tokens in place of text, one file for each split of the "
        "table. It goes on where it was ended, and several ranks write one folder.",
    )
    add_arguments(parser, _KEYWORDS)
    parser.add_argument("out", metavar="OUT", help="the folder to write, which is there when all of it is")
    parser.add_argument(
        "--tokenizer",
        required=True,
        metavar="WHICH",
        help="a tokenizer.json or its folder, tiktoken:NAME, bytes, or MODULE:ATTRIBUTE of a function of a list of "
        "strings that returns a list of ids for each",
    )
    parser.add_argument("--column", default="text", metavar="NAME", help="the column with text (default: text)")
    keep = "other columns to keep (default: none)"
    parser.add_argument("--keep", default=[], action="extend", type=comma_separated, metavar="A,B", help=keep)
    ids = "what the column of tokens is called (default: input_ids)"
    parser.add_argument("--ids", default="input_ids", metavar="NAME", help=ids)
    parser.add_argument("--lengths", metavar="NAME", help="add a column of this name with the number of tokens")
    dtype = "of a token (default: uint16 if the tokenizer is known to fit, else int32)"
    parser.add_argument("--dtype", default="auto", choices=["auto", *get_args(IdType)], help=dtype)
    nulls = "what becomes of rows without text (default: error)"
    parser.add_argument("--nulls", dest="text_nulls", default="error", choices=get_args(Nulls), help=nulls)
    special = "have a tokenizer.json add begin and end tokens and their like"
    parser.add_argument("--special-tokens", action="store_true", help=special)
    workers = "processes (default: one for each CPU, over the ranks of this machine)"
    parser.add_argument("--workers", type=int, metavar="N", help=workers)
    parser.add_argument("--num-ranks", type=int, metavar="N", help="of the job (default: what torchrun and others say)")
    parser.add_argument("--rank", type=int, metavar="N", help="which of them this is")
    parser.add_argument("--catalog", metavar="NAME", help="PATH is an Iceberg table of this catalog of .pyiceberg.yaml")
    parser.add_argument("--snapshot-id", type=int, metavar="N", help="of the Iceberg table (default: the current one)")
    parser.add_argument("--quiet", action="store_true", help="draw no progress bar on a terminal (with tqdm)")
    parser.set_defaults(run=run)
    return parser


def run(typed: argparse.Namespace) -> None:
    """Write this rank's part, and say what it was.

    Args:
        typed: what was typed.

    Raises:
        ConfigError: options that do not fit each other.
    """
    began = time.perf_counter()
    workers = typed.workers
    if workers is None:
        workers = max(1, usable_cpus() // ranks_on_this_node())
    share = tokenize_table(
        _open(typed),
        typed.out,
        typed.tokenizer,
        column=typed.column,
        ids=typed.ids,
        lengths=typed.lengths,
        dtype=typed.dtype,
        nulls=typed.text_nulls,
        special_tokens=typed.special_tokens,
        workers=workers,
    )
    told = f"{share.written:,} of {share.num_parts:,} files written: {share.documents:,} rows, {share.tokens:,} tokens"
    told += f", {share.dropped:,} rows without text left out" if share.dropped else ""
    print(f"{told}, {time.perf_counter() - began:.1f} s")
    if share.finished:
        print(f"{typed.out} is whole")
    else:
        print(f"{typed.out} will be there when the other ranks are done")


def _open(typed: argparse.Namespace) -> TableDataset:
    if (typed.rank is None) != (typed.num_ranks is None):
        raise ConfigError("--rank and --num-ranks are given together, or none of them")
    ranks = {"num_ranks": "auto"} if typed.rank is None else {"num_ranks": typed.num_ranks, "rank": typed.rank}
    # Every row comes once, in any number of steps: nothing is counted, and no rank is warned of unequal steps.
    own: dict[str, Any] = {"drop_last": True, "count_filtered": False, "check_plan": False, "output_format": "arrow"}
    own["show_progress"] = not typed.quiet and sys.stderr.isatty() and find_spec("tqdm") is not None
    own |= {"columns": list(dict.fromkeys([typed.column, *typed.keep])), **ranks}
    keywords = loader_keywords(typed) | own
    if typed.catalog is None:
        if typed.snapshot_id is not None:
            raise ConfigError("--snapshot-id is of an Iceberg table; pass --catalog NAME too")
        return StructuredDataset(**keywords)
    if not isinstance(keywords["path"], str) or "format" in keywords:
        raise ConfigError("--catalog wants one name of a table in place of PATH, and no --format")
    return IcebergDataset(keywords.pop("path"), typed.catalog, snapshot_id=typed.snapshot_id, **keywords)
