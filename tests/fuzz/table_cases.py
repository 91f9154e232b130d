"""What runs in the sandbox: a table is read from end to end. It imports all that a case needs."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.orc
import pyarrow.parquet  # noqa: F401 - imported here, once, and not in each case
import pyroaring  # noqa: F401

import torch_table_loader.iceberg.source  # noqa: F401
from tests.fuzz.cases import Rows
from torch_table_loader import IcebergDataset


def read_table(
    root: str, sound: str, location: str, damaged: tuple[str, bytes] | None, options: dict[str, Any]
) -> Rows:
    """Put a table as it was, damage one of its files, and read it.

    Args:
        root: the table's folder.
        sound: a copy of the folder.
        location: of the metadata file.
        damaged: a path, and its new bytes; or None.
        options: of `IcebergDataset.create_dataloader`; "filtered" reads with a filter that every row passes.
    """
    shutil.rmtree(root)
    shutil.copytree(sound, root)
    if damaged is not None:
        Path(damaged[0]).write_bytes(damaged[1])
    given = dict(options)
    if given.pop("filtered", False):
        given["filters"] = pc.field("x") >= 0
    loader, _ = IcebergDataset.create_dataloader(
        metadata_location=location, output_format="arrow", batch_size=16, num_workers=0, **given
    )
    rows: list[str] = []
    for batch in loader:
        batch.validate(full=True)
        rows += map(repr, batch.to_pylist())
    return Rows(len(rows), hashlib.sha256("\n".join(sorted(rows)).encode("utf-8", "surrogatepass")).hexdigest())
