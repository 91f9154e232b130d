"""Reads of what was appended to tables of Iceberg alone: ancestors, tags, and what snapshots say of themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from tests.tables.catalogs import load_catalog
from tests.tables.iceberg import IcebergWriter, some
from tests.tables.kinds import ICEBERG, rows_of
from torch_table_loader import ConfigError, TableError, TableLoader


def written(root: Path) -> IcebergWriter:
    """Make a table of five commits of ten rows each, 1001 to 1005."""
    table = IcebergWriter(root)
    for number in range(5):
        table.append(some(10 * number, 10 * number + 10), group=4)
        table.commit()
    return table


def make(location: str, **options: Any) -> TableLoader:
    return ICEBERG.loader(location, **{"batch_size": 4, "num_workers": 2, "columns": ["x"], **options})


def test_the_end_may_be_a_tag(tmp_path: Path) -> None:
    table = written(tmp_path)
    table.refs["day"] = {"snapshot-id": 1004, "type": "tag"}
    assert sorted(rows_of(make(table.metadata, start_snapshot_id=1003, tag="day"))) == list(range(30, 40))


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
            assert sorted(rows_of(loader)) == list(range(10 * first + 10, 10 * last + 10))
    table.delete("x < 5")
    with pytest.raises(ConfigError, match=r"removes or changes rows \(overwrite\)"):
        make(table.metadata_location, start_snapshot_id=ids[0])
