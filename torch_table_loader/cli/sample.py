"""``torch-table-loader sample``: write the table that the documentation's examples read."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_table_loader.cli.terminal import show
from torch_table_loader.errors import ConfigError

DAYS = 7
ROWS = 1200
"""Rows of each day's file."""

GROUP_ROWS = 400


def write_sample(root: Path) -> int:
    """Write a log of clicks: one Parquet file per day with three row groups, in ``day=2026-01-01`` and so on.

    Columns are `label` (int32, 0 or 1), `price` (float) and `ad` (int32). The values are the same every time.

    Returns:
        The number of rows written.

    Raises:
        ConfigError: `root` is not empty.
    """
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(f"OUT must be a new or empty folder, but {str(root)!r} holds something; name another")
    random = np.random.default_rng(1)
    for day in range(1, DAYS + 1):
        folder = root / f"day=2026-01-0{day}"
        folder.mkdir(parents=True)
        columns = {
            "label": random.integers(0, 2, ROWS, dtype=np.int32),
            "price": random.random(ROWS, dtype=np.float32),
            "ad": np.arange(ROWS, dtype=np.int32),
        }
        pq.write_table(pa.table(columns), folder / "part-0.parquet", row_group_size=GROUP_ROWS)
    return DAYS * ROWS


def run(typed: argparse.Namespace) -> None:
    """Write the table, and print a summary."""
    rows = write_sample(Path(typed.out))
    value = {"out": typed.out, "rows": rows, "files": DAYS}
    show(typed, value, f"wrote {rows:,} rows in {DAYS} files to {typed.out}")
