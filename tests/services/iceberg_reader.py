"""The library as a reader of Iceberg tables, for `check_iceberg.py --reader tests.services.iceberg_reader:read`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from torch_table_loader import IcebergDataset


def read(
    metadata_location: str,
    *,
    snapshot_id: int | None = None,
    ref: str | None = None,
    properties: dict[str, Any] | None = None,
    **options: Any,
) -> pa.Table:
    """Read a table whole."""
    loader, dataset = IcebergDataset.create_dataloader(
        metadata_location=metadata_location,
        catalog_config=properties or {},
        snapshot_id=snapshot_id,
        branch=ref,
        output_format="arrow",
        **{"num_workers": 0, "batch_size": 4096, **options},
    )
    batches = list(loader)
    table = pa.Table.from_batches(batches, dataset.schema)
    assert len(batches) == len(loader)
    return table
