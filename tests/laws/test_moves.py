"""How far a reader has to walk: from file to file, call by call, to follow how a loader is made and resumed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.calls import made_by
from torch_table_loader import StructuredDataset, TableLoader

MOST_TO_MAKE = 235
MOST_TO_RESUME = 174
"""Moves between files: they may only become fewer. Other threads do not count, since their work depends on time."""


def moves(deed: Callable[[], Any]) -> int:
    """Count the calls of the package that are in another file than the call before."""
    return sum(one.file != other.file for one, other in pairwise(made_by(deed)))


def loader(folder: Path, rank: int, num_ranks: int, num_workers: int) -> TableLoader[Any]:
    return StructuredDataset.create_dataloader(
        folder,
        shuffle="splits",
        batch_size=50,
        num_workers=num_workers,
        num_ranks=num_ranks,
        rank=rank,
        check_plan=False,
    )[0]


def test_a_reader_of_a_loader_that_is_made_and_resumed_walks_from_file_to_file_so_often(tmp_path: Path) -> None:
    for n in range(4):
        pq.write_table(pa.table({"x": np.arange(1000) + 1000 * n}), tmp_path / f"{n}.parquet", row_group_size=500)
    with loader(tmp_path, 0, 4, 2) as trained, loader(tmp_path, 1, 3, 3) as resumed:
        batches = iter(trained)
        for _ in range(3):
            next(batches)
        state = trained.state_dict()
        assert moves(lambda: resumed.load_state_dict(state)) + moves(lambda: next(iter(resumed))) <= MOST_TO_RESUME
        assert moves(lambda: loader(tmp_path, 1, 3, 3)) <= MOST_TO_MAKE
