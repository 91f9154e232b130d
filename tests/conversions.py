"""What rows in memory become as one batch of a loader."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from torch_table_loader import StructuredDataset


def batches_of(rows: pa.RecordBatch, **options: Any) -> list[Any]:
    """Return the batches of a loader of these rows."""
    loader, _ = StructuredDataset.create_dataloader(source=pa.Table.from_batches([rows]), num_workers=0, **options)
    return list(loader)


def convert(rows: pa.RecordBatch, **options: Any) -> Any:
    """Return the batch of a loader of these rows; None where there is no row."""
    batches = batches_of(rows, **{"batch_size": max(1, rows.num_rows), **options})
    assert len(batches) == (rows.num_rows > 0)
    return batches[0] if batches else None


def value_of(column: pa.Array, **options: Any) -> Any:
    """Return what a column becomes, in one batch."""
    return convert(pa.record_batch({"x": column}), **options)["x"]
