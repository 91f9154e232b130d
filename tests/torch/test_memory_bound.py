"""The law of bounded memory: Arrow's pool stays within what `explain()` states, whatever the table and the options."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_table_loader import StructuredDataset

_POOLS: list[pa.MemoryPool] = []
"""Buffers must not outlive the pool that they are of."""


@contextmanager
def _own_pool() -> Iterator[pa.MemoryPool]:
    """Let Arrow allocate in a pool that knows how much was allocated at once."""
    before = pa.default_memory_pool()
    _POOLS.append(pa.proxy_memory_pool(before))
    pa.set_memory_pool(_POOLS[-1])
    try:
        yield _POOLS[-1]
    finally:
        pa.set_memory_pool(before)


def _bound_and_used(path: Path, **options: Any) -> tuple[int, int]:
    """Return the bound of a job, and the most bytes of Arrow's pool while its first epoch is read."""
    with _own_pool() as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader, dataset = StructuredDataset.create_dataloader(str(path), **options)
        bound = dataset.explain().memory_bound
        assert sum(1 for _ in loader) == len(loader)
    used = pool.max_memory()
    assert used is not None
    return bound, used


def _texts(rows: int, width: int, distinct: int, *, nested: bool) -> pa.Array:
    words = pa.array([f"{number:08}".ljust(width, "x") for number in range(distinct)])
    codes = pa.array(np.random.default_rng(0).integers(0, distinct, rows), pa.int32())
    texts = pa.DictionaryArray.from_arrays(codes, words)
    return pa.array([[text] for text in texts.to_pylist()]) if nested else texts


@pytest.mark.parametrize("nested", [False, True], ids=["texts", "lists of texts"])
def test_a_row_store_of_repeated_long_texts_is_built_within_the_bound(tmp_path: Path, *, nested: bool) -> None:
    """Texts that repeat are kept once while the store is built; what cannot be is counted."""
    column = _texts(8_000, 10_000, 50, nested=nested)
    pq.write_table(pa.table({"s": column}), tmp_path / "a.parquet", row_group_size=8_000, store_schema=False)
    bound, used = _bound_and_used(
        tmp_path, shuffle="rows", row_store="memory", batch_size=64, num_workers=0, output_format="arrow"
    )
    assert used <= bound
    assert bound <= max(3 * used, 64 << 20)


_MIXED: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "small row groups": (32, 4_000, 4_000, {}),
    "large row groups": (6, 120_000, 120_000, {"num_workers": 2}),
    "one thread": (8, 40_000, 20_000, {"num_workers": 0}),
}


@pytest.mark.parametrize(("files", "rows", "group", "options"), _MIXED.values(), ids=_MIXED)
def test_mixing_stays_within_the_bound(
    tmp_path: Path, files: int, rows: int, group: int, options: dict[str, Any]
) -> None:
    """Windows, and the row groups that are open side by side, are counted."""
    rng = np.random.default_rng(0)
    for number in range(files):
        columns = {f"x{place}": rng.random(rows) for place in range(10)}
        pq.write_table(pa.table(columns), tmp_path / f"{number:03}.parquet", row_group_size=group)
    bound, used = _bound_and_used(tmp_path, shuffle="mixed", batch_size=256, **options)
    assert used <= bound
    assert bound <= max(3 * used, 64 << 20)
