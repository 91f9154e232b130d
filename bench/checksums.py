"""What verifying page checksums costs: an epoch with and without, of a file that has them; prints seconds as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from bench.ours import rows_of
from bench.pairing import ROUNDS, interleave
from bench.tables import build
from torch_table_loader import StructuredDataset


def with_checksums(name: str, root: Path, codec: str) -> Path:
    """Write a bench table's first file again, with a checksum in each page header; returns its folder."""
    first = min(build(name, root).folder.glob("*.parquet"))
    folder = root / f"{first.parent.name}-{codec}-checksums"
    folder.mkdir(exist_ok=True)
    file = folder / first.name
    if not file.exists():
        rows = pq.read_metadata(first).row_group(0).num_rows
        unfinished = file.with_suffix(".tmp")
        pq.write_table(
            pq.read_table(first), unfinished, row_group_size=rows, compression=codec, write_page_checksum=True
        )
        unfinished.rename(file)
    return folder


def epochs(folder: Path, *, verify: bool) -> Callable[[], int]:
    """Open a table once; each call of what comes back is one epoch and returns its rows."""
    loader, _ = StructuredDataset.create_dataloader(
        str(folder),
        "parquet",
        batch_size=8192,
        num_workers=2,
        ragged="offsets",
        storage_options={"verify_checksums": verify},
    )
    return lambda: sum(rows_of(batch) for batch in loader)


def main() -> None:
    """Read the command line, race both, print the samples of both sides."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", default="B")
    parser.add_argument("--codec", default="zstd", help='"none", "snappy", "zstd"')
    parser.add_argument("--root", type=Path, default=Path("build/bench"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    folder = with_checksums(options.table, options.root, options.codec)
    pairs = interleave(epochs(folder, verify=True), epochs(folder, verify=False), options.rounds)
    found = {side: [dataclasses.asdict(sample) for sample in getattr(pairs, side)] for side in ("left", "right")}
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stderr.write(
        f"speed with over without: median {pairs.median:.3f}, {min(pairs.ratios):.3f} to {max(pairs.ratios):.3f}\n"
    )


if __name__ == "__main__":
    main()
