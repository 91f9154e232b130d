"""What it costs to hold decoded row groups while others are read, with pyarrow alone, by CPU; prints JSON.

Mixed splits hold up to 16. What they cost here is memory that Arrow's pool returned to the system and took again: with
`MIMALLOC_PURGE_DELAY=-1` in the environment the pool keeps it, and the ratio is about 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench.pairing import ROUNDS, interleave
from bench.tables import BenchTable, build

_BUFFER_BYTES = 128 * 1024
"""What the loader reads local files through."""

_COLUMNS_AT_ONCE = 4


def epochs(table: BenchTable, held: int) -> Callable[[], int]:
    """Open a table; each call of what comes back decodes its row groups, keeps the last `held`, and counts rows."""
    files = [pq.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER_BYTES) for file in table.files]
    groups = [(file, group) for file in files for group in range(file.num_row_groups)]

    def epoch() -> int:
        kept: deque[Any] = deque()
        rows = 0
        for file, group in groups:
            while len(kept) >= max(1, held):
                kept.popleft()
            names = file.schema_arrow.names
            some = [names[at : at + _COLUMNS_AT_ONCE] for at in range(0, len(names), _COLUMNS_AT_ONCE)]
            kept.append([file.read_row_group(group, columns=columns, use_threads=False) for columns in some])
            rows += kept[-1][0].num_rows
        return rows

    return epoch


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", required=True)
    parser.add_argument("--root", type=Path, default=Path("build/bench"))
    parser.add_argument("--held", type=int, default=16, help="row groups that are held")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    table = build(options.table, options.root)
    pairs = interleave(epochs(table, options.held), epochs(table, 1), options.rounds)
    sides = {side: [dataclasses.asdict(sample) for sample in getattr(pairs, side)] for side in ("left", "right")}
    sys.stdout.write(json.dumps({"speed_by_cpu": pairs.median_by_cpu, **sides}) + "\n")


if __name__ == "__main__":
    main()
