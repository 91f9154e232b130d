"""Peak memory of each epoch, in a process of its own; prints JSON: MiB after imports, and of each epoch."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path

import torch

from bench.duel import contender
from bench.pairing import peak_mib, reset_peak
from bench.tables import build


def main() -> None:
    """Read the command line, run the epochs, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", required=True)
    parser.add_argument("--root", type=Path, default=Path("build/bench"))
    parser.add_argument("--batch-size", type=int, default=8192)
    parser.add_argument("--who", default="ours:thread")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.zeros(1)  # both sides pay for torch, so that the difference is the reading
    table = build(options.table, options.root)
    run = contender(options.who, table, options.batch_size)
    gc.collect()
    reset_peak()
    start, peaks = peak_mib(), []
    for _ in range(options.epochs):
        reset_peak()
        run()
        peaks.append(peak_mib())
    sys.stdout.write(json.dumps({"start": start, "peaks": peaks}) + "\n")


if __name__ == "__main__":
    main()
