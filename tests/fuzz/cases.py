"""What runs in the sandbox: a file is read from end to end. It imports all that a case needs, which a fork then has."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro  # noqa: F401 - imported here, once, and not in each case
import pyarrow.csv
import pyarrow.json
import pyarrow.orc
import pyarrow.parquet  # noqa: F401
import torch

from torch_table_loader import StructuredDataset

# The first ragged column imports modules for a second.
torch.nested.nested_tensor_from_jagged(torch.zeros(1), torch.tensor([0, 1]))


@dataclass(frozen=True, slots=True)
class Rows:
    """What was delivered.

    Args:
        count: how many rows.
        digest: a hash of their values, in order, where these came as Python objects.
    """

    count: int
    digest: str = ""


def read_rows(path: str, form: str, options: dict[str, Any]) -> Rows:
    """Read a file, each value of it.

    Args:
        path: the file.
        form: its format.
        options: of `StructuredDataset.create_dataloader`.
    """
    loader, _ = StructuredDataset.create_dataloader(path, form, batch_size=16, **options)
    count, digest = 0, hashlib.sha256()
    for batch in loader:
        if options["output_format"] == "arrow":
            batch.validate(full=True)
            count += batch.num_rows
            digest.update(repr(batch.to_pylist()).encode("utf-8", "surrogatepass"))
        elif options["output_format"] == "dict":
            count += len(next(iter(batch.values()), ()))
            digest.update(repr(batch).encode("utf-8", "surrogatepass"))
        else:
            count += len(next(iter(batch.values()), ()))
    return Rows(count, digest.hexdigest())


def read_damaged(path: str, form: str, files: Mapping[str, bytes], read: str, options: dict[str, Any]) -> Rows:
    """Write files, by how their names end, and read one of them: see `read_rows`."""
    for suffix, data in files.items():
        Path(f"{path}{suffix}").write_bytes(data)
    return read_rows(f"{path}{read}", form, options)


def count_rows(path: str, form: str) -> int:
    """Return how many rows a file has, once all are read."""
    loader, _ = StructuredDataset.create_dataloader(
        path, form, batch_size=1 << 16, output_format="arrow", num_workers=0
    )
    return sum(batch.num_rows for batch in loader)
