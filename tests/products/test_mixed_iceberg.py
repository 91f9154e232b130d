"""An Iceberg table as a source of a mixture: deletes applied, and resumed at the snapshot that the state is of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.states import table_of
from tests.tables.iceberg import COLUMNS, IcebergWriter
from torch_table_loader import IcebergDataset, MixedDataset, ResumeError, StructuredDataset, TableLoader

FORM: dict[str, Any] = {"shuffle": "rows", "columns": ["x", "s"], "check_plan": False}


def make(table: IcebergWriter, plain: Path, **options: Any) -> TableLoader:
    sources = {
        "lake": IcebergDataset(metadata_location=table.metadata, **FORM, **options),
        "files": StructuredDataset(str(plain), **FORM),
    }
    return MixedDataset.create_dataloader(
        sources, {"lake": 1, "files": 1}, batch_size=10, stop="all_exhausted", check_plan=False
    )[0]


def grow(table: IcebergWriter, start: int, stop: int) -> None:
    table.append([{"x": x, "k": x % 10, "s": f"s{x}"} for x in range(start, stop)], "parquet")
    table.delete_rows({table.data[-1].path: [0, 3]}, "parquet")
    table.commit()


def of_the_lake(batches: Any) -> list[int]:
    return [
        x
        for batch in batches
        for x, text, source in zip(batch["x"].tolist(), batch["s"], batch["source"].tolist(), strict=True)
        if source == 0 and text == f"s{x}"
    ]


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain.parquet"
    pq.write_table(pa.table({"x": list(range(1000, 1050)), "s": [f"t{i}" for i in range(50)]}), path)
    return path


def test_deleted_rows_stay_out_and_a_state_finds_its_snapshot(tmp_path: Path, plain: Path) -> None:
    table = IcebergWriter(tmp_path / "lake", columns=COLUMNS)
    grow(table, 0, 90)
    loader = make(table, plain)
    live = {row["x"] for row in table.live()}
    whole = list(loader)
    assert set(of_the_lake(whole)) == live
    assert sorted(of_the_lake(whole)) == sorted(live)
    loader.set_epoch(0)
    going = iter(loader)
    taken = [next(going) for _ in range(4)]
    state = json.loads(json.dumps(loader.state_dict()))
    snapshot = table_of(state, "lake")["snapshot_id"]
    grow(table, 90, 120)
    fresh = make(table, plain)
    assert len(set(of_the_lake(fresh))) == len(live) + 28
    newest = make(table, plain)
    newer = [next(batches) for batches in [iter(newest)] for _ in range(2)]
    for said, before, rows in (
        (state, taken, live),
        (newest.state_dict(), newer, {row["x"] for row in table.live()}),
        (state, taken, live),
    ):
        fresh.load_state_dict(said)
        assert sorted(of_the_lake([*before, *fresh])) == sorted(rows)
    pinned = make(table, plain, snapshot_id=table.snapshots[-1]["snapshot-id"])
    with pytest.raises(ResumeError, match=f"source 'lake': the state is of snapshot {snapshot}"):
        pinned.load_state_dict(state)
