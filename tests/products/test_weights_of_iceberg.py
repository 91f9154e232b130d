"""Rows of Iceberg tables, drawn by weight."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.launchers.jobs import own_rows
from tests.states import with_newest
from tests.torch.modes import LAKE, write_tables
from torch_table_loader import (
    Weights,
)


def test_deleted_rows_of_a_lake_take_no_part(tmp_path: Path) -> None:
    write_tables(tmp_path)
    loader = LAKE.make(tmp_path, weights=Weights(column="x", samples=300))
    assert len(loader) == 60
    counts, live = Counter(own_rows(loader)), LAKE.live(tmp_path)
    assert counts.total() == 300
    assert len(live) < max(live), "some rows are deleted"
    assert all(abs(counts[row] - 300 * row / sum(live)) < 2 for row in live)
    assert set(counts) <= live
    rest = LAKE.make(tmp_path, weights=Weights(column="x", samples=300), num_ranks=2, rank=1)
    rest.load_state_dict(with_newest(loader.state_dict() | {"epoch": 0}, steps=1, consumed=40))
    again = LAKE.make(tmp_path, weights=Weights(column="x", samples=300), batch_size=1)
    assert own_rows(rest) == own_rows(again)[41::2]
