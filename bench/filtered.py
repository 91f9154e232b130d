"""Row filters that keep one row in a hundred: this library, and polars, which filters while it scans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc

from bench.ours import rows_of
from bench.rivals import tensors_of
from bench.tables import BenchTable

FILTERS: dict[tuple[str, str], tuple[str, float, float]] = {
    ("A-zstd", "sorted"): ("l_orderkey", 3_000_000, 3_060_000),
    ("A-zstd", "unsorted"): ("l_partkey", 0, 2_000),
    ("B", "unsorted"): ("dense_0", 2.3263, 100.0),
}
"""A column and its bounds, by the table and whether the rows are sorted by the column."""


def ours(table: BenchTable, batch_size: int, order: str) -> Callable[[], int]:
    """Open a table once, which counts; each call of what comes back is one epoch and returns the rows that pass.

    Args:
        table: what to read.
        batch_size: rows of a batch.
        order: "sorted" or "unsorted".
    """
    from torch_table_loader import StructuredDataset

    name, low, high = FILTERS[table.name, order]
    loader, _ = StructuredDataset.create_dataloader(
        str(table.folder),
        "parquet",
        batch_size=batch_size,
        num_workers=2,
        filters=(pc.field(name) >= low) & (pc.field(name) <= high),
    )
    return lambda: sum(rows_of(batch) for batch in loader)


def polars(table: BenchTable, batch_size: int, order: str) -> Callable[[], int]:
    """Scan with polars on all cores: each call reads all that passes, and makes batches of tensors of it by hand.

    Args:
        table: what to read.
        batch_size: rows of a batch.
        order: "sorted" or "unsorted".
    """
    import polars as pl

    name, low, high = FILTERS[table.name, order]

    def run() -> int:
        column: Any = pl.col(name)
        frame = pl.scan_parquet(table.folder / "*.parquet").filter((column >= low) & (column <= high)).collect()
        return sum(rows_of(tensors_of(piece.to_arrow())) for piece in frame.iter_slices(batch_size))

    return run


__all__ = ["FILTERS", "ours", "polars"]
