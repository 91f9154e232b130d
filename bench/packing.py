"""Packing alone: blocks of documents whose lengths are log-normal with median 600 and sigma 1.1, into 4,096 tokens."""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np

from torch_table_loader import Pack
from torch_table_loader.extend import packer_of

SEQ_LEN = 4096


@dataclass(frozen=True, slots=True)
class PackingFigures:
    """What packing blocks of one size took and gave.

    Args:
        micros: CPU time of a document, which says less of what else runs than time does; the median of the blocks.
        fill: share of real tokens; the median of the blocks.
    """

    micros: float
    fill: float


def measure(block: int, blocks: int = 40) -> PackingFigures:
    """Split and pack some blocks.

    Args:
        block: documents of each.
        blocks: how many.
    """
    micros, fills = [], []
    packer = packer_of(Pack(seq_len=SEQ_LEN, strategy="best_fit"))
    for seed in range(blocks):
        lengths = np.random.default_rng(seed).lognormal(np.log(600), 1.1, block).astype(np.int64)
        begin = time.thread_time()
        packed = packer.row(lengths)
        micros.append((time.thread_time() - begin) / block * 1e6)
        fills.append(int(lengths.sum()) / (SEQ_LEN * packed.total))
    return PackingFigures(statistics.median(micros), statistics.median(fills))


def main() -> None:
    """Print the figures as JSON."""
    figures = {block: measure(block) for block in (1000, 4096)}
    sys.stdout.write(json.dumps({block: [found.micros, found.fill] for block, found in figures.items()}) + "\n")


if __name__ == "__main__":
    main()
