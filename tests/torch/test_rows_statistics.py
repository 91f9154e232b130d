"""The order that a job delivered, over all ranks and resumed twice, looks like chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.laws.shuffle_statistics import rejected, single
from torch_table_loader import StructuredDataset

ROWS = 131_000


def test_ids_that_a_job_delivered_look_like_chance(tmp_path: Path) -> None:
    for number, part in enumerate(np.split(np.arange(ROWS), [40_000, 41_000])):
        pq.write_table(pa.table({"x": part}), tmp_path / f"{number}.parquet", row_group_size=7_000)
    state: dict[str, Any] | None = None
    delivered: list[np.ndarray[Any, Any]] = []
    for ranks, batch_size, steps in ((3, 500, 20), (2, 1_000, 30), (4, 300, 10**6)):
        found: list[list[np.ndarray[Any, Any]]] = []
        for rank in range(ranks):
            loader, _ = StructuredDataset.create_dataloader(
                str(tmp_path), shuffle="rows", batch_size=batch_size, num_ranks=ranks, rank=rank, check_plan=False
            )
            if state is not None:
                loader.load_state_dict(state)
            batches = iter(loader)
            found.append([batch["x"].numpy() for _, batch in zip(range(steps), batches, strict=False)])
            told = loader.state_dict()
        state = told
        for step in range(max(map(len, found))):
            parts = [mine[step] for mine in found if step < len(mine)]
            whole = np.empty(sum(map(len, parts)), dtype=np.int64)
            for rank, part in enumerate(parts):
                whole[rank::ranks] = part
            delivered.append(whole)
    order = np.concatenate(delivered)
    assert np.array_equal(np.sort(order), np.arange(ROWS))
    assert rejected(list(single(order))) == []
