"""The library as a reader of data files, for `check_files.py --reader tests.services.foreign_reader:read`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from torch_table_loader import StructuredDataset


def read(path: str, format: str, **options: Any) -> pa.Table:  # noqa: A002 - the checker's name
    """Read a file whole: all columns, in the file's order unless an option says otherwise."""
    loader, dataset = StructuredDataset.create_dataloader(
        path, format, output_format="arrow", **{"num_workers": 0, "batch_size": 4096, **options}
    )
    batches = list(loader)
    table = pa.Table.from_batches(batches, dataset.schema)
    assert len(batches) == len(loader)
    return table
