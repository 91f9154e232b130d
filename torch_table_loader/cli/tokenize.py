"""``torch-table-loader tokenize``: write a token table from a table with text."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

from torch_table_loader.cli.arguments import (
    OF_FILES,
    add_arguments,
    add_cluster,
    cluster_of,
    comma_separated,
    open_table,
)
from torch_table_loader.cli.parser import Parser
from torch_table_loader.cli.printing import show, wants_bar
from torch_table_loader.engine.machine import ranks_on_this_node, usable_cpus
from torch_table_loader.errors import ConfigError
from torch_table_loader.text.token_parts import IdType, Nulls
from torch_table_loader.text.token_table import tokenize_table

if TYPE_CHECKING:
    from torch_table_loader.dataset import TableDataset

_KEYWORDS = (*OF_FILES, "split_size")


def add(parser: Parser) -> None:
    """Add the options of this command."""
    parser.description = (
        "Writes a folder of Parquet files with tokens in place of text, one file for each split of the table. A run "
        "that was stopped continues, and several ranks can write one folder."
    )
    add_arguments(parser, _KEYWORDS, beside=True)
    parser.add_argument("out", metavar="OUT", help="the folder to write, which appears once it is complete")
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
    ids = "name of the column of tokens (default: input_ids)"
    parser.add_argument("--ids", default="input_ids", metavar="NAME", help=ids)
    parser.add_argument("--lengths", metavar="NAME", help="add a column of this name with the number of tokens")
    dtype = "type of a token (default: uint16 if all ids are known to fit, else int32)"
    parser.add_argument("--dtype", default="auto", choices=["auto", *get_args(IdType)], help=dtype)
    nulls = "what to do with rows without text (default: error)"
    parser.add_argument("--nulls", dest="text_nulls", default="error", choices=get_args(Nulls), help=nulls)
    special = "let a tokenizer.json add its special tokens, such as begin and end"
    parser.add_argument("--special-tokens", action="store_true", help=special)
    workers = "processes (default: one per CPU, divided among the ranks of this machine)"
    parser.add_argument("--workers", type=int, metavar="N", help=workers)
    over = "tokenize on the CPUs of a cluster (default: on this machine); every node sees OUT"
    add_cluster(parser, over)
    ranks = "ranks in the job (default: as torchrun or another launcher says)"
    parser.add_argument("--num-ranks", type=int, metavar="N", help=ranks)
    parser.add_argument("--rank", type=int, metavar="N", help="rank of this process")
    parser.add_argument("--quiet", action="store_true", help="draw no progress bar on a terminal (with tqdm)")
    parser.runs(
        run,
        "stories tokens --tokenizer models/llama",
        "db.stories tokens --catalog prod --tokenizer tiktoken:cl100k_base",
    )


def run(typed: argparse.Namespace) -> None:
    """Write this rank's part, and print a summary.

    Raises:
        ConfigError: the options do not fit each other.
    """
    began = time.perf_counter()
    given = [name for name in ("workers", "num_ranks") if getattr(typed, name) is not None]
    if typed.engine is not None and given:
        raise ConfigError(
            f"--engine ray takes all CPUs of the cluster for one job; leave --{given[0].replace('_', '-')} out"
        )
    with cluster_of(typed) as cluster:
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
            workers=_workers(typed),
            cluster=cluster,
        )
    told = f"{share.written:,} of {share.num_parts:,} files written: {share.documents:,} rows, {share.tokens:,} tokens"
    told += f", {share.dropped:,} rows without text left out" if share.dropped else ""
    seconds = time.perf_counter() - began
    end = "is whole" if share.finished else "will appear when the other ranks are done"
    value = {**asdict(share), "seconds": seconds}
    show(typed, value, f"{told}, {seconds:.1f} s\n{typed.out} {end}")


def _workers(typed: argparse.Namespace) -> int:
    if typed.engine is not None:
        return 1
    return max(1, usable_cpus() // ranks_on_this_node()) if typed.workers is None else int(typed.workers)


def _open(typed: argparse.Namespace) -> TableDataset:
    if (typed.rank is None) != (typed.num_ranks is None):
        raise ConfigError("pass --rank and --num-ranks together, or neither of them")
    alone = {"num_ranks": 1} if typed.engine else {"num_ranks": "auto"}
    ranks = alone if typed.rank is None else {"num_ranks": typed.num_ranks, "rank": typed.rank}
    # Every row comes once, in any number of steps: nothing is counted, and no rank is warned of unequal steps.
    own: dict[str, Any] = {"drop_last": True, "count_filtered": False, "output_format": "arrow"}
    own["show_progress"] = wants_bar(typed)
    own |= {"columns": list(dict.fromkeys([typed.column, *typed.keep])), **ranks}
    return open_table(typed, **own)
