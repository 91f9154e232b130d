"""Incremental reads of Iceberg: the rows that were appended between two snapshots."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from tests.iceberg import IcebergWriter, some
from tests.torch.tables import meant_warnings
from torch_table_loader import ConfigError, IcebergDataset, ResumeError, TableError, TableLoader


def written(root: Path) -> IcebergWriter:
    """Make a table of five commits of ten rows each, 1001 to 1005, the second of which deletes by key."""
    table = IcebergWriter(root)
    for number in range(5):
        table.append(some(10 * number, 10 * number + 10), group=4)
        if number == 1:
            table.delete_keys([2], [{"k": 1}])
        table.commit(operation="overwrite" if number == 1 else "append")
    return table


def make(location: str, **options: Any) -> TableLoader:
    with meant_warnings():
        chosen: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "columns": ["x"], "check_plan": False} | options
        return IcebergDataset.create_dataloader(metadata_location=location, **chosen)[0]


def dataset_of(loader: TableLoader) -> IcebergDataset:
    dataset = loader.dataset
    assert isinstance(dataset, IcebergDataset)
    return dataset


def values(loader: TableLoader) -> list[int]:
    return [x for batch in loader for x in batch["x"].tolist()]


@pytest.mark.parametrize("shuffle", [False, True, "rows"])
@pytest.mark.parametrize(
    ("start", "end", "rows"), [(1002, 1005, (20, 50)), (1003, 1004, (30, 40)), (1004, 1004, (0, 0))]
)
def test_the_rows_after_one_snapshot_up_to_another(
    tmp_path: Path, shuffle: Any, start: int, end: int, rows: tuple[int, int]
) -> None:
    location = written(tmp_path).metadata
    loaders = [
        make(location, start_snapshot_id=start, end_snapshot_id=end, shuffle=shuffle, num_ranks=2, rank=rank)
        for rank in range(2)
    ]
    assert sorted(x for loader in loaders for x in values(loader)) == list(range(*rows))
    assert dataset_of(loaders[0]).snapshot_id == end


def test_the_end_is_the_current_snapshot_or_what_is_chosen(tmp_path: Path) -> None:
    table = written(tmp_path)
    table.refs["day"] = {"snapshot-id": 1004, "type": "tag"}
    assert sorted(values(make(table.metadata, start_snapshot_id=1003))) == list(range(30, 50))
    assert sorted(values(make(table.metadata, start_snapshot_id=1003, tag="day"))) == list(range(30, 40))
    assert sorted(values(make(table.metadata, start_snapshot_id=1003, snapshot_id=1004))) == list(range(30, 40))


def test_filters_rule_appended_files_out_and_hold_for_rows(tmp_path: Path) -> None:
    loader = make(
        written(tmp_path).metadata, start_snapshot_id=1002, filters=pc.field("x") < 33, plan_cache=str(tmp_path / "c")
    )
    again = make(
        written(tmp_path / "b").metadata,
        start_snapshot_id=1002,
        filters=pc.field("x") < 33,
        plan_cache=str(tmp_path / "c"),
    )
    assert sorted(values(loader)) == sorted(values(again)) == list(range(20, 33))
    assert any("prunes 1 of 3 appended files" in note for note in dataset_of(loader).explain().notes)


def test_what_is_more_than_appending_is_refused_by_its_snapshot(tmp_path: Path) -> None:
    location = written(tmp_path).metadata
    with pytest.raises(
        ConfigError, match=r"snapshot 1002, between 1001 and 1005, has the operation 'overwrite'"
    ) as found:
        make(location, start_snapshot_id=1001)
    assert "end_snapshot_id=1001" in str(found.value)
    assert "start_snapshot_id=1002" in str(found.value)


def test_the_start_must_be_an_ancestor(tmp_path: Path) -> None:
    table = written(tmp_path)
    with pytest.raises(
        ConfigError, match=r"snapshot 1004 must be an ancestor of snapshot 1003.*back to 1001, which has"
    ):
        make(table.metadata, start_snapshot_id=1004, end_snapshot_id=1003)
    with pytest.raises(ConfigError, match="no snapshot 77: it has expired, or is of another table"):
        make(table.metadata, start_snapshot_id=77)
    del table.snapshots[3]
    with pytest.raises(ConfigError, match=r"must be an ancestor.*whose parent 1004 has expired"):
        make(table.metadata, start_snapshot_id=1003)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"end_snapshot_id": 1004}, "got it with no start_snapshot_id"),
        ({"start_snapshot_id": 1003, "end_snapshot_id": 1004, "snapshot_id": 1004}, "got it with snapshot_id"),
        ({"start_snapshot_id": "1003"}, "start_snapshot_id must be an int"),
    ],
)
def test_wrong_choices_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(written(tmp_path).metadata, **options)


def test_files_that_were_replaced_come_as_they_were_appended(tmp_path: Path) -> None:
    """A compaction merges files of before and after the start, and moves none of their rows."""
    table = IcebergWriter(tmp_path)
    for number in range(3):
        table.append(some(10 * number, 10 * number + 10))
        table.commit()
    compacted = [table.data.pop(), table.data.pop()]
    table.append(some(10, 30))
    table.commit(operation="replace")
    table.append(some(30, 40))
    table.commit()
    loader = make(table.metadata, start_snapshot_id=1002)
    assert sorted(values(loader)) == list(range(20, 40))
    assert any("1004, which replace files" in note for note in dataset_of(loader).explain().notes)
    assert compacted


@pytest.mark.parametrize("lie", [lambda table: table.data.pop(0), lambda table: table.delete_keys([2], [{"k": 1}])])
def test_a_commit_that_only_says_that_it_appends_is_found_out(
    tmp_path: Path, lie: Callable[[IcebergWriter], Any]
) -> None:
    table = written(tmp_path)
    lie(table)
    table.append(some(50, 60))
    table.commit()
    with pytest.raises(
        TableError, match=r"after 1005 up to 1006 say that they append, but 1 (files are gone|delete files)"
    ):
        make(table.metadata, start_snapshot_id=1005)


@pytest.mark.parametrize("shuffle", [False, True, "rows"])
def test_a_state_is_pinned_to_both_snapshots(tmp_path: Path, shuffle: Any) -> None:
    table = written(tmp_path)
    loader = make(table.metadata, start_snapshot_id=1002, shuffle=shuffle)
    batches = iter(loader)
    seen = [x for _ in range(3) for x in next(batches)["x"].tolist()]
    state = json.loads(json.dumps(loader.state_dict()))
    assert (state["table"]["start_snapshot_id"], state["table"]["snapshot_id"]) == (1002, 1005)
    table.append(some(50, 60))
    table.commit()
    newer = make(table.metadata, start_snapshot_id=1002, shuffle=shuffle)
    assert dataset_of(newer).snapshot_id == 1006
    newer.load_state_dict(state)
    assert dataset_of(newer).snapshot_id == 1005
    assert sorted(seen + values(newer)) == list(range(20, 50))
    with pytest.raises(ResumeError, match="the state is of the rows after snapshot 1002, and this is the rows after"):
        make(table.metadata, start_snapshot_id=1003, end_snapshot_id=1005, shuffle=shuffle).load_state_dict(state)
    with pytest.raises(ResumeError, match="after snapshot 1002, and this is a whole snapshot"):
        make(table.metadata, snapshot_id=1005, shuffle=shuffle).load_state_dict(state)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    catalog = load_catalog("here", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("db")
    return catalog.create_table("db.t", pa.schema([("x", pa.int64())]))


def test_what_pyiceberg_appends_and_merges(table: Table) -> None:
    table.transaction().set_properties(
        {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
    ).commit_transaction()
    ids = []
    for number in range(4):
        table.append(pa.table({"x": range(10 * number, 10 * number + 10)}))
        current = table.current_snapshot()
        assert current is not None
        ids.append(current.snapshot_id)
    for first in range(4):
        for last in range(first, 4):
            loader = make(table.metadata_location, start_snapshot_id=ids[first], end_snapshot_id=ids[last])
            assert sorted(values(loader)) == list(range(10 * first + 10, 10 * last + 10))
    table.delete("x < 5")
    with pytest.raises(ConfigError, match="has the operation 'overwrite'"):
        make(table.metadata_location, start_snapshot_id=ids[0])
