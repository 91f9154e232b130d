"""Epochs of mixed splits beside those of the plain stream, by CPU, in a process of its own; prints JSON.

Other processes of a shared machine change how long an epoch takes more than the CPU that it takes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import warnings
from pathlib import Path

from bench import ours
from bench.pairing import ROUNDS, interleave
from bench.tables import build


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", required=True)
    parser.add_argument("--root", type=Path, default=Path("build/bench"))
    parser.add_argument("--batch-size", type=int, default=8192)
    parser.add_argument("--window", type=int, help="rows of a window; the default's if left out")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    table = build(options.table, options.root)
    size, workers = options.batch_size, options.workers
    mixed = ours.epochs(table, size, num_workers=workers, shuffle=True, shuffle_buffer_size=options.window)
    plain = ours.epochs(table, size, num_workers=workers, shuffle="splits")
    pairs = interleave(mixed, plain, options.rounds)
    sides = {side: [dataclasses.asdict(sample) for sample in getattr(pairs, side)] for side in ("left", "right")}
    sys.stdout.write(json.dumps(sides) + "\n")
    sys.stdout.flush()
    os._exit(0)  # threads of a reader may abort a process that ends; what was measured is out


if __name__ == "__main__":
    main()
