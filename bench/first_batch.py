"""From a path to the first batch, imports done, in a process of its own; prints seconds as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from bench.tables import build
from torch_table_loader import StructuredDataset


def main() -> None:
    """Read the command line, open the table, take one batch, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", default="fifty-files")
    parser.add_argument("--root", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    table = build(options.table, options.root)
    begin = time.perf_counter()
    loader, _ = StructuredDataset.create_dataloader(
        str(table.folder), "parquet", batch_size=8192, num_workers=2, shuffle="splits"
    )
    batches = iter(loader)
    next(batches)
    seconds = time.perf_counter() - begin
    del batches
    sys.stdout.write(json.dumps(seconds) + "\n")


if __name__ == "__main__":
    main()
