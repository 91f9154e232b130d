"""Mixtures over jobs of several ranks that stop and go on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from torch_table_loader import MixedDataset, TableLoader

Row = tuple[str, int]
"""The name of a row's source, and its id there."""


def write_texts(root: Path, sizes: Mapping[str, int]) -> dict[str, str]:
    """Write tables of three files whose rows have an `id`, and a `text` that names their table; return their paths."""
    for name, size in sizes.items():
        (root / name).mkdir()
        for part, ids in enumerate(np.array_split(np.arange(size), 3)):
            columns = {"id": ids, "text": [f"{name} {row}" for row in ids]}
            pq.write_table(pa.table(columns), root / name / f"{part}.parquet", row_group_size=20)
    return {name: str(root / name) for name in sizes}


def write_fours(root: Path, sizes: Mapping[str, int]) -> Path:
    """Write tables whose rows have their number as `x`, and four times as `input_ids`; return their folder."""
    for name, size in sizes.items():
        (root / name).mkdir()
        lists = pa.array([[row] * 4 for row in range(size)], pa.list_(pa.int32()))
        pq.write_table(pa.table({"x": range(size), "input_ids": lists}), root / name / "0.parquet", row_group_size=20)
    return root


def worlds(most_rows: int, most_workers: int = 2) -> st.SearchStrategy[dict[str, Any]]:
    """Draw what may change where a job goes on."""
    return st.fixed_dictionaries(
        {
            "num_ranks": st.integers(1, 3),
            "num_workers": st.integers(0, most_workers),
            "batch_size": st.integers(1, most_rows),
            "even_ranks": st.sampled_from([None, "pad"]),
        }
    )


def source_rows(batch: Any, names: tuple[str, ...]) -> list[Row]:
    """Give source and id of each row of a batch, padding left out."""
    pads = batch["padding"].tolist() if "padding" in batch else [False] * len(batch["id"])
    found = zip(batch["source"].tolist(), batch["id"].tolist(), pads, strict=True)
    return [(names[source], row) for source, row, padding in found if not padding]


def ranks_take(
    make: Callable[..., tuple[TableLoader, MixedDataset]],
    state: Any,
    steps: int | None,
    change: Callable[[MixedDataset], Any] | None = None,
    *,
    rows: Callable[[Any, tuple[str, ...]], list[Any]] = source_rows,
    **world: Any,
) -> tuple[list[list[list[Any]]], list[Any]]:
    """Give what each rank of a job delivers, step by step, and the state of each.

    Args:
        make: makes a rank's loader and dataset.
        state: where the job begins; None: at the start.
        steps: how many are taken; None: all.
        change: called with each rank's dataset after them.
        rows: what is looked at of a batch.
        world: the shape of the job.
    """
    taken, states = [], []
    for rank in range(world["num_ranks"]):
        loader, dataset = make(rank=rank, **world)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        taken.append([rows(batch, dataset.source_names) for batch in islice(loader, steps)])
        if steps is None:
            assert loader.remaining == 0
            assert state is not None or len(loader) == len(taken[-1])
        if change is not None:
            change(dataset)
        states.append(loader.state_dict())
    return taken, states
