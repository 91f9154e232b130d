"""Row stores that rot beneath the file system: who compares what, and which option compares all."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tables.plain import meant_warnings
from torch_table_loader import StructuredDataset, TableError
from torch_table_loader.engine import row_store
from torch_table_loader.testing import small_sizes

ROWS = 2_000


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "table").mkdir()
    columns = {"x": np.arange(ROWS), "s": [f"row {number}" for number in range(ROWS)]}
    pq.write_table(pa.table(columns), tmp_path / "table" / "0.parquet", row_group_size=100)
    with small_sizes(store_chunk_bytes=1 << 15):
        epoch(tmp_path / "stores")
        yield tmp_path / "stores"


def epoch(stores: Path, **options: Any) -> list[int]:
    """Read a rank's epoch; return its numbers, sorted."""
    given: dict[str, Any] = {"batch_size": 50, "num_workers": 0, "check_plan": False, "num_ranks": 1}
    with meant_warnings():
        loader, _ = StructuredDataset.create_dataloader(
            str(stores.parent / "table"), shuffle="rows", row_store=str(stores), **given | options
        )
    return sorted(number for batch in loader for number in batch["x"].tolist())


def rot(stores: Path, name: str) -> None:
    """Change the last text or number of a file, and let the manifest have the times that the file has now."""
    (place,) = stores.glob("rows-*")
    path = place / name
    data = bytearray(path.read_bytes())
    at = data.rindex(b"ow ") - 1 if name.startswith("heap") else len(data) - 8
    data[at] ^= 1
    path.write_bytes(data)
    content = json.loads((place / "manifest.json").read_bytes())["store"]
    now = path.stat()
    content["files"][name] = [now.st_size, now.st_mtime_ns, now.st_ctime_ns]
    (place / "manifest.json").write_text(
        json.dumps({"crc": zlib.crc32(json.dumps(content, sort_keys=True).encode()), "store": content})
    )


def chunks(stores: Path) -> int:
    return len(list(stores.glob("rows-*/heap-*.arrow")))


def test_records_that_rot_come_unless_all_is_compared(stores: Path) -> None:
    assert epoch(stores) == list(range(ROWS))
    rot(stores, "records.bin")
    assert epoch(stores) != list(range(ROWS))
    with pytest.raises(TableError, match=r"chunk \d+ of records\.bin is not what was written; remove it"):
        epoch(stores, storage_options={"verify_checksums": "all"})


def test_strings_that_rot_are_found_unless_nothing_is_compared(stores: Path) -> None:
    rot(stores, "heap-000001.arrow")
    with pytest.raises(TableError, match=r"chunk 1 of heap-000001\.arrow is not what was written; remove it"):
        epoch(stores)
    assert epoch(stores, storage_options={"verify_checksums": False}) == list(range(ROWS))


def test_each_chunk_is_compared_by_one_rank_of_a_node(stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = chunks(stores)
    assert count > 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for chunk in range(2):
        rot(stores, f"heap-{chunk:06}.arrow")
        found = []
        for rank in range(2):
            monkeypatch.setenv("LOCAL_RANK", str(rank))
            try:
                epoch(stores, num_ranks=2, rank=rank)
            except TableError as error:
                found.append(str(error))
        assert len(found) == 1
        assert f"heap-{chunk:06}.arrow" in found[0]
        rot(stores, f"heap-{chunk:06}.arrow")
    rot(stores, "heap-000001.arrow")
    with pytest.raises(TableError, match=r"heap-000001"):  # a rank that reads alone compares all
        epoch(stores)


def test_a_store_that_memory_does_not_hold_is_left_to_verify(stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rot(stores, "heap-000001.arrow")
    monkeypatch.setattr(row_store, "available_memory", lambda: 1)
    assert epoch(stores) == list(range(ROWS))


def test_workers_do_not_compare_what_their_trainer_compared(stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"num_workers": 2, "worker_type": "forkserver"}
    with meant_warnings():
        loader, dataset = StructuredDataset.create_dataloader(
            str(stores.parent / "table"), shuffle="rows", row_store=str(stores), batch_size=50, **options
        )
    dataset.job.live_rows[""].store.rows()
    rot(stores, "heap-000001.arrow")
    assert sorted(number for batch in loader for number in batch["x"].tolist()) == list(range(ROWS))
