"""A small table whose files have few row groups, some of them empty, and loaders of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tables.plain import meant_warnings, write_table
from torch_table_loader import StructuredDataset, TableLoader

GROUPS = [[9, 7], [30], [0], [], [8, 8, 8], [1], [5]]


def write_groups(root: Path) -> Path:
    write_table(root / "table", GROUPS)
    return root / "table"


def make(table: Path, **options: Any) -> tuple[TableLoader[StructuredDataset], StructuredDataset]:
    chosen: dict[str, Any] = {"batch_size": 4, "num_workers": 3, "check_plan": False} | options
    with meant_warnings():
        return StructuredDataset.create_dataloader(str(table), "parquet", **chosen)
