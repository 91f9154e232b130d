"""Other ways to a uniformly shuffled epoch; each run gives rows of one, and returns how many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from bench.ours import rows_of
from bench.rivals import lance_folder, tensors_of
from bench.tables import BenchTable

Run = Callable[[], int]

_SLOW_BATCHES = 12
"""Batches of an epoch that are taken where a whole one would last minutes."""


def duckdb(table: BenchTable, batch_size: int) -> Run:
    """DuckDB's ``ORDER BY random()`` over the Parquet files, two threads, tensors by hand."""
    import duckdb

    def run() -> int:
        with duckdb.connect(config={"threads": 2}) as connection:
            found = connection.read_parquet(f"{table.folder}/*.parquet").order("random()")
            return sum(rows_of(tensors_of(batch)) for batch in found.to_arrow_reader(batch_size))

    return run


def randperm(table: BenchTable, batch_size: int) -> Run:
    """The whole table as tensors in memory (not timed), ``torch.randperm``, and ``index_select`` a column and batch."""
    columns = {name: torch.from_numpy(column.to_numpy()) for name, column in _columns(table).items()}

    def run() -> int:
        order = torch.randperm(table.num_rows)
        rows = 0
        for start in range(0, table.num_rows, batch_size):
            places = order[start : start + batch_size]
            rows += rows_of({name: column.index_select(0, places) for name, column in columns.items()})
        return rows

    return run


def lance(table: BenchTable, batch_size: int) -> Run:
    """Lance's own format, converted before (not timed), and ``take`` of random rows; some batches of an epoch."""
    import lance as lance_format

    stored = lance_format.dataset(lance_folder(table))

    def run() -> int:
        order = np.random.default_rng().permutation(table.num_rows)[: _SLOW_BATCHES * batch_size]
        parts = np.split(order, range(batch_size, len(order), batch_size))
        return sum(rows_of(tensors_of(stored.take(part.tolist()).combine_chunks())) for part in parts)

    return run


def hugging_face(table: BenchTable, batch_size: int) -> Run:
    """Hugging Face datasets, map style and shuffled, its cache written before (not timed); some batches of an epoch."""
    import datasets

    datasets.disable_progress_bars()
    loaded: Any = datasets.load_dataset(
        "parquet",
        data_files=[str(file) for file in table.files],
        split="train",
        cache_dir=str(table.folder.parent / "hugging-face"),
    )
    seeds = count()

    def run() -> int:
        stored = loaded.shuffle(seed=next(seeds), keep_in_memory=True).with_format("torch")
        starts = range(0, min(_SLOW_BATCHES, 4) * batch_size, batch_size)
        return sum(rows_of(stored[start : start + batch_size]) for start in starts)

    return run


SHUFFLED: Mapping[str, Callable[[BenchTable, int], Run]] = {
    "DuckDB ORDER BY random()": duckdb,
    "randperm + index_select in memory": randperm,
    "Lance random access": lance,
    "Hugging Face map style": hugging_face,
}


def _columns(table: BenchTable) -> dict[str, Any]:
    whole = pa.concat_tables([pq.read_table(file) for file in table.files]).combine_chunks()
    return {name: whole.column(name) for name in whole.column_names}


__all__ = ["SHUFFLED", "Run"]
