"""What rows in memory become as one batch of a loader."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from torch_table_loader import StructuredDataset


def convert(rows: pa.RecordBatch, **options: Any) -> Any:
    """Return the one batch of a loader of these rows."""
    given = {"batch_size": max(1, rows.num_rows), "num_workers": 0, **options}
    loader, _ = StructuredDataset.create_dataloader(source=pa.Table.from_batches([rows]), **given)
    (batch,) = loader
    return batch


def value_of(column: pa.Array, **options: Any) -> Any:
    """Return what a column becomes, in one batch."""
    return convert(pa.record_batch({"x": column}), **options)["x"]
