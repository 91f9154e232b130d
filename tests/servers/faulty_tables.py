"""Loaders of the table "t" of a store that may fail."""

from __future__ import annotations

from typing import Any

from tests.servers.faults import BUCKET, FaultyStore
from tests.servers.remote_files import in_storage_options
from torch_table_loader import StructuredDataset, TableLoader

URL = f"s3://{BUCKET}/t"


def options_of(store: FaultyStore, options: dict[str, Any]) -> dict[str, Any]:
    """Add to options what reaches the store, and what these tests have in common."""
    chosen = {"batch_size": 50, "num_workers": 2, "check_plan": False, "storage_options": store.options} | options
    return in_storage_options(chosen)


def loader_of(store: FaultyStore, **options: Any) -> TableLoader:
    """Make a loader."""
    return StructuredDataset.create_dataloader(URL, "parquet", **options_of(store, options))[0]


def taken(loader: TableLoader) -> list[int]:
    """Take an epoch; the values of its column x as they come."""
    return [int(x) for batch in loader for x in batch["x"]]
