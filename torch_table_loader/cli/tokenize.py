"""``torch-table-loader tokenize``: write a token table from a table with text."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch_table_loader.cli.named_table import cluster_of, open_table
from torch_table_loader.cli.printing import number_of, show, wants_bar
from torch_table_loader.engine.machine import ranks_on_this_node, usable_cpus
from torch_table_loader.errors import ConfigError
from torch_table_loader.text.token_table import tokenize_table

if TYPE_CHECKING:
    from torch_table_loader.dataset import TableDataset


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
    told = f"{share.written:,} of {number_of(share.num_parts, 'file')} written: {number_of(share.documents, 'row')}"
    told += f", {number_of(share.tokens, 'token')}"
    told += f", {number_of(share.dropped, 'row')} without text left out" if share.dropped else ""
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
