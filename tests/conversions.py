"""What rows in memory become as one batch of a loader."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from torch_table_loader import StructuredDataset


def convert(rows: pa.RecordBatch, **options: Any) -> Any:
    """Return the batch of a loader of these rows; None where there is no row."""
    given = {"batch_size": max(1, rows.num_rows), "num_workers": 0, **options}
    loader, _ = StructuredDataset.create_dataloader(source=pa.Table.from_batches([rows]), **given)
    batches = list(loader)
    assert len(batches) == (rows.num_rows > 0)
    return batches[0] if batches else None


def value_of(column: pa.Array, **options: Any) -> Any:
    """Return what a column becomes, in one batch."""
    return convert(pa.record_batch({"x": column}), **options)["x"]
