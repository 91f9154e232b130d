"""This library as a contender."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from bench.tables import BenchTable


def epochs(
    table: BenchTable, batch_size: int, worker_type: Literal["thread", "process"] = "thread", num_workers: int = 2
) -> Callable[[], int]:
    """Open a table once; each call of what comes back is one epoch and returns its rows.

    Args:
        table: what to read; lists come as values and offsets.
        batch_size: rows of a batch.
        worker_type: "thread" or "process".
        num_workers: lanes.
    """
    from torch_table_loader import StructuredDataset

    loader, _ = StructuredDataset.create_dataloader(
        str(table.folder),
        "parquet",
        batch_size=batch_size,
        num_workers=num_workers,
        worker_type=worker_type,
        ragged="offsets",
    )
    return lambda: sum(rows_of(batch) for batch in loader)


def rows_of(batch: Mapping[str, Any]) -> int:
    """Count a batch's rows by its last column, which is a plain one in every bench table."""
    return len(batch[next(reversed(batch.keys()))])  # type: ignore[call-overload]


__all__ = ["epochs", "rows_of"]
