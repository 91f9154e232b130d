"""Iterates epochs of a table and prints the resident bytes after each, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from torch_table_loader import StructuredDataset


def main() -> None:
    """Read the path, the shuffle and the number of epochs from the command line."""
    path, mode, epochs = sys.argv[1:]
    loader, _ = StructuredDataset.create_dataloader(
        path, "parquet", batch_size=4096, shuffle="rows" if mode == "rows" else "splits", num_workers=2
    )
    held = []
    for epoch in range(int(epochs)):
        loader.set_epoch(epoch)
        if sum(1 for _ in loader) != len(loader):
            raise SystemExit("an epoch has other batches than its length says")
        held.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
    print(json.dumps(held))


main()
