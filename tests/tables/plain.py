"""Small tables on disk whose column `x` is each row's ordinal, and what a whole job delivers of them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq

from torch_table_loader import LoaderOptions, StructuredDataset, TableLoader

Groups = Sequence[Sequence[int]]

SCHEMA = pa.schema([("x", pa.int64()), ("k", pa.int32()), ("f", pa.float64())])
SUFFIX = {"parquet": "parquet", "orc": "orc", "csv": "csv", "json": "jsonl", "arrow": "arrow"}
DEFAULTS: dict[str, Any] = {entry.name: entry.default for entry in fields(LoaderOptions)}
"""Of each option."""

_MEANT = (
    "ranks take different numbers of steps",
    "under a row filter each of",
    "This DataLoader will create",
    "epoch . is iterated again",
    ".* rows are longer than tokens=",
)


def rows(start: int, stop: int) -> pa.Table:
    """Make the rows of ordinals [start, stop); `k` scatters 0…9 over them."""
    x = range(start, stop)
    return pa.table([pa.array(x, "int64"), [key(i) for i in x], [i / 2 for i in x]], schema=SCHEMA)


def key(ordinal: int) -> int:
    """Give `k` of a row."""
    return ordinal * 7919 % 10


def write_table(root: Path, groups: Groups, form: str = "parquet") -> int:
    """Write one file for each list of row group sizes; returns the number of rows."""
    root.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, sizes in enumerate(groups):
        starts = [first, *(first + rows for rows in accumulate(sizes))]
        parts = [rows(start, start + size) for start, size in zip(starts, sizes, strict=False)]
        _write(root / f"{number:03}.{SUFFIX[form]}", parts, form)
        first = starts[-1]
    return first


def write_clicks(root: Path, days: int = 3, rows: int = 700) -> int:
    """Write the table that the examples train on: columns `label` and `price`, a file a day; returns its rows."""
    for day in range(1, days + 1):
        folder = root / f"day=2026-01-0{day}"
        folder.mkdir(parents=True)
        columns = {
            "label": pa.array([key(row + day) % 2 for row in range(rows)], "int32"),
            "price": pa.array([key(row * day) / 10 for row in range(rows)], "float32"),
        }
        pq.write_table(pa.table(columns), folder / "part-0.parquet", row_group_size=200)
    return days * rows


def _write(path: Path, parts: list[pa.Table], form: str) -> None:
    whole = pa.concat_tables([SCHEMA.empty_table(), *parts])
    if form == "parquet":
        with pq.ParquetWriter(path, SCHEMA) as writer:
            for part in parts:
                writer.write_table(part)
    elif form == "orc":
        pa.orc.write_table(whole, path)
    elif form == "csv":
        pa.csv.write_csv(whole.combine_chunks(), path)  # pyarrow 21 writes the header again behind empty chunks
    elif form == "json":
        path.write_text("".join(json.dumps(row) + "\n" for row in whole.to_pylist()))
    else:
        with pa.ipc.new_file(path, SCHEMA) as writer:
            for part in parts:
                writer.write_table(part)


@dataclass(frozen=True)
class Batch:
    """A batch as Python values.

    Args:
        rows: the column `x`.
        ids: the column `row_id`, where it was asked for.
        padding: the column `padding`; None where there is none.
    """

    rows: list[int]
    ids: list[int] | None
    padding: list[bool] | None


def as_values(batch: dict[str, Any]) -> Batch:
    """Copy a batch of tensors into Python values."""
    listed = {name: batch[name].tolist() for name in ("x", "row_id", "padding") if name in batch}
    return Batch(listed["x"], listed.get("row_id"), listed.get("padding"))


@contextmanager
def meant_warnings() -> Iterator[None]:
    """Leave out the warnings that jobs of these tests bring upon themselves."""
    with warnings.catch_warnings():
        for message in _MEANT:
            warnings.filterwarnings("ignore", message=message)
        yield


def make(table: Path, worker_type: str = "thread", **options: Any) -> TableLoader:
    """Make a loader with two workers."""
    chosen: dict[str, Any] = {"batch_size": 8, "num_workers": 2, "worker_type": worker_type} | options
    return StructuredDataset.create_dataloader(str(table), "parquet", **chosen)[0]


def deliver(root: Path | str, epoch: int = 0, form: str = "parquet", **options: Any) -> list[Batch]:
    """Give the batches of one rank."""
    chosen: dict[str, Any] = {"check_plan": False, "row_id": True} | options
    with meant_warnings():
        loader, _ = StructuredDataset.create_dataloader(str(root), form, **chosen)
        loader.set_epoch(epoch)
        return [as_values(batch) for batch in loader]


def deliver_all(root: Path | str, num_ranks: int, **options: Any) -> list[list[Batch]]:
    """Give the batches of every rank."""
    return [deliver(root, num_ranks=num_ranks, rank=rank, **options) for rank in range(num_ranks)]
