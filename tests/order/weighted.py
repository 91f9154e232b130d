"""A table whose rows weigh differently, and loaders of it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.tables.plain import meant_warnings
from torch_table_loader import StructuredDataset

SIZES = [40, 1, 0, 59]
ROWS = sum(SIZES)


def write(root: Path, **columns: Any) -> str:
    """Write a table of files of `SIZES` rows with the column `x`, each row's ordinal, and others; give its path."""
    root.mkdir(exist_ok=True)
    whole = pa.table({"x": np.arange(ROWS), **columns})
    start = 0
    for number, size in enumerate(SIZES):
        part, path = whole.slice(start, size), root / f"{number}.parquet"
        pq.write_table(part, path, row_group_size=13, compression="none", use_dictionary=False)
        start += size
    return str(root)


def write_weighted(root: Path) -> str:
    """Write rows whose weight `w` is 0 to 3, of which one in ten has the class "rare"."""
    rows = np.arange(ROWS)
    kind = np.where(rows % 10 == 3, "rare", "often")
    return write(root, w=(rows % 4).astype("f4"), kind=kind)


def make(path: str, **options: Any) -> Any:
    options = {"shuffle": "rows", "weights": "w", "check_plan": False, "row_id": True, "num_workers": 2} | options
    if "global_batch_size" not in options:
        options = {"batch_size": 7} | options
    with meant_warnings():
        return StructuredDataset.create_dataloader(path, "parquet", **options)[0]


def ids(loader: Any, steps: int | None = None) -> list[int]:
    """Give the rows of some batches, padding left out."""
    found: list[int] = []
    for batch in islice(loader, steps):
        rows = batch["row_id"].tolist()
        padding = batch["padding"].tolist() if "padding" in batch else [False] * len(rows)
        found += [row for row, pads in zip(rows, padding, strict=True) if not pads]
    return found
