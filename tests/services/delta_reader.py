"""The library as a reader of Delta Lake tables, for `check_delta.py --reader tests.services.delta_reader:read`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from torch_table_loader import DeltaDataset


def read(table_uri: str, **options: Any) -> pa.Table:
    """Read a table whole."""
    loader, dataset = DeltaDataset.create_dataloader(
        table_uri, output_format="arrow", **{"num_workers": 0, "batch_size": 4096, **options}
    )
    batches = list(loader)
    table = pa.Table.from_batches(batches, dataset.schema)
    assert len(batches) == len(loader)
    return table
