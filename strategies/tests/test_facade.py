"""A user names a strategy, and every row of a real table comes once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_table_loader import StructuredDataset


def write_table(root: Path) -> int:
    rows = 0
    for day in (3, 1, 2):
        for part in range(2):
            folder = root / f"day={day}"
            folder.mkdir(parents=True, exist_ok=True)
            ids = pa.array(range(rows, rows + 20 + day), pa.int64())
            pq.write_table(pa.table({"id": ids}), folder / f"{part}.parquet", row_group_size=6)
            rows += len(ids)
    return rows


@pytest.mark.parametrize(("name", "num_ranks"), [("by_partition", 3), ("node_local", 3), ("newest_first", 1)])
def test_every_row_once(tmp_path: Path, name: str, num_ranks: int) -> None:
    rows = write_table(tmp_path)
    ids: list[int] = []
    for rank in range(num_ranks):
        loader, _ = StructuredDataset.create_dataloader(
            str(tmp_path), "parquet", batch_size=7, split_strategy=name, num_workers=2,
            num_ranks=num_ranks, rank=rank, output_format="dict", check_plan=False,
        )  # fmt: skip
        ids += [row for batch in loader for row in batch["id"]]
    assert sorted(ids) == list(range(rows))


def test_by_partition_unshuffled_goes_day_by_day(tmp_path: Path) -> None:
    write_table(tmp_path)
    loader, _ = StructuredDataset.create_dataloader(
        str(tmp_path), "parquet", split_strategy="by_partition", num_workers=0,
        output_format="dict",
    )  # fmt: skip
    days = [day for batch in loader for day in batch["day"]]
    assert days == sorted(days)
    assert len(set(days)) == 3
