"""What a split strategy is told of files: where they are, and which snapshot of the table is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tables.catalogs import load_catalog
from tests.tables.plain import write_table
from torch_table_loader import IcebergDataset, StructuredDataset
from torch_table_loader.extend import DataFileInfo, Shard, Split, TableLayout, open_storage


class Cut:
    """Cuts a file into one split, and keeps what it saw: by call, the URI and snapshot of each file."""

    def __init__(self) -> None:
        """See nothing yet."""
        self.calls: list[list[tuple[str | None, int | None]]] = []

    def __call__(self, files: Sequence[DataFileInfo]) -> list[Split]:
        """Keep and cut."""
        self.calls.append([(file.uri, file.snapshot_id) for file in files])
        return [Split(file) for file in files]


class Deal(Cut):
    """The same as a generator of three arguments."""

    def generate(self, files: Sequence[DataFileInfo], num_workers: int, epoch: int) -> list[Shard]:
        """Keep and deal."""
        splits = self(files)
        return [Shard(worker, splits[worker::num_workers]) for worker in range(num_workers)]


@pytest.mark.parametrize("kind", [Cut, Deal])
def test_files_of_this_machine_have_their_paths(tmp_path: Path, kind: type[Cut]) -> None:
    write_table(tmp_path, [[3], [4]])
    seen = kind()
    assert len(StructuredDataset(str(tmp_path), split_strategy=seen, num_workers=2)) > 0
    expected = [(str(tmp_path / name), None) for name in ("000.parquet", "001.parquet")]
    assert seen.calls
    assert all(call == expected for call in seen.calls)


def test_files_of_a_store_have_their_urls() -> None:
    with fsspec.filesystem("memory").open("/seen/0.parquet", "wb") as sink:
        pq.write_table(pa.table({"x": [1, 2]}), sink)
    seen = Cut()
    StructuredDataset("memory://seen", split_strategy=seen)
    assert seen.calls[0] == [("memory://seen/0.parquet", None)]


@pytest.mark.parametrize(
    ("url", "prefix"), [("s3://bucket/t", "s3://"), ("gs://bucket/t", "gs://"), ("https://host/t?sig=1", ""), ("t", "")]
)
def test_a_path_and_its_prefix_are_its_url(url: str, prefix: str) -> None:
    storage, _ = open_storage(url, None)
    assert storage.uri_prefix == prefix


def test_a_uri_holds_no_secret() -> None:
    info = DataFileInfo("a.parquet", 5, 1, uri="https://me:word@host/a.parquet?sig=hidden", snapshot_id=7)
    (again,) = TableLayout.of_infos([info])
    assert (again.path, again.uri, again.snapshot_id) == ("a.parquet", "https://host/a.parquet", 7)


def test_a_table_that_grew_is_replayed_as_the_snapshot_that_it_was(tmp_path: Path) -> None:
    catalog: dict[str, Any] = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/c.db",
        "warehouse": f"file://{tmp_path}/lake",
    }
    made = load_catalog("default", **catalog)
    made.create_namespace("db")
    rows = pa.table({"x": range(8)})
    table = made.create_table("db.t", rows.schema)
    table.append(rows)
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 1, "on_growth": "continue"}
    first, before = Cut(), table.current_snapshot()
    loader, _ = IcebergDataset.create_dataloader("db.t", catalog, split_strategy=first, **options)
    taken = next(iter(loader))["x"].tolist()
    state = loader.state_dict()
    table.append(pa.table({"x": range(8, 16)}))
    after = table.current_snapshot()
    assert before is not None
    assert after is not None
    again = Cut()
    resumed, _ = IcebergDataset.create_dataloader("db.t", catalog, split_strategy=again, **options)
    resumed.load_state_dict(state)
    for batch in resumed:
        taken += batch["x"].tolist()
    assert sorted(taken) == list(range(16))
    old = first.calls[0]
    assert [snapshot for _, snapshot in old] == [before.snapshot_id]
    assert str(old[0][0]).startswith("file://")
    assert old in again.calls
    assert {len(call): {snapshot for _, snapshot in call} for call in again.calls} == {
        1: {before.snapshot_id},
        2: {after.snapshot_id},
    }
