"""The forms in which batches come out, and rows of many kinds to see in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from torch_table_loader import Vocabulary

FORMS: list[dict[str, Any]] = [
    {"output_format": "numpy", "nulls": "mask"},
    {"output_format": "arrow"},
    {"output_format": "dict"},
    {"nulls": "mask", "ragged": "pad"},
    {"nulls": {"n": -5}, "ragged": "offsets", "strings": {"s": Vocabulary(["s1", "s2"])}},
    {"nulls": {"n": -5}, "ragged": "nested", "worker_type": "process", "num_workers": 2},
]
"""Options that decide it, all kinds of each between them."""


def rows_of_many_kinds(ids: Sequence[int]) -> pa.Table:
    """Make rows with nulls, strings, lists of both kinds and bools; `id` tells which a row is."""
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "n": pa.array([None if i % 5 == 0 else i for i in ids], pa.int16()),
            "f": pa.array([None if i % 7 == 0 else i / 2 for i in ids]),
            "s": pa.array([None if i % 9 == 0 else f"s{i % 4}" for i in ids]),
            "l": pa.array([list(range(i % 4)) for i in ids]),
            "g": pa.array([[i, i + 1] for i in ids], pa.list_(pa.float32(), 2)),
            "b": pa.array([i % 2 == 0 for i in ids]),
        }
    )


def plain(batch: Any) -> dict[str, Any]:
    """Turn a batch of one row into Python values."""
    columns = batch.to_pydict() if isinstance(batch, pa.RecordBatch) else batch
    row: dict[str, Any] = {name: repr(_values(value)) for name, value in columns.items()}
    row["id"] = int(columns["id"][0])
    return row


def _values(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return [entry.tolist() for entry in value.unbind()] if value.is_nested else value.tolist()
    if isinstance(value, tuple):
        return [_values(entry) for entry in value]
    return value.tolist() if isinstance(value, np.ndarray) else value
