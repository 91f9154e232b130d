"""Changelogs of Iceberg alone: its manifests, its deletes of keys, and what pyiceberg writes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from tests.tables.catalogs import load_catalog
from tests.tables.iceberg import IcebergWriter, SharingWriter, some
from tests.tables.kinds import ICEBERG
from torch_table_loader import ConfigError


def test_deletes_reach_files_of_older_manifests(tmp_path: Path) -> None:
    table = SharingWriter(tmp_path)
    file = table.append(some(0, 10))
    table.commit()
    table.delete_rows({file: [4]})
    table.commit(operation="delete")
    assert len(table.made) == 2, "one of data and one of deletes"
    assert ICEBERG.changes(ICEBERG.changelog(table.metadata, start_snapshot_id=1001)) == [(4, "DELETE", 1002)]


def test_equality_deletes_are_refused_where_they_are_made_alone(tmp_path: Path) -> None:
    """Those that were there before say, with the rest, which rows lived."""
    table = IcebergWriter(tmp_path)
    table.append(some(0, 10))
    table.commit()
    table.delete_keys([2], [{"k": 1}])
    table.commit(operation="delete")
    file = table.append(some(10, 20))
    table.commit()
    table.delete_rows({table.data[0].path: [0, 1, 2], file: [0]})
    table.commit(operation="delete")
    table.data.pop(0)
    table.commit(operation="delete")
    with pytest.raises(
        ConfigError, match=r"snapshot 1002 deletes rows of .* by equality deletes.*end_snapshot_id=1001"
    ):
        ICEBERG.changelog(table.metadata, start_snapshot_id=1001)
    batches = list(ICEBERG.changelog(table.metadata, start_snapshot_id=1002))
    assert sorted(ICEBERG.changes(batches)) == sorted(
        [
            *((x, "INSERT", 1003) for x in range(10, 20)),
            *((x, "DELETE", 1004) for x in (0, 2, 10)),
            *((x, "DELETE", 1005) for x in (3, 4, 5, 7, 8, 9)),
        ]
    )
    assert ICEBERG.ordinals(batches) == {(1003, 0), (1004, 1), (1005, 2)}


def test_what_pyiceberg_writes_copies_rows(tmp_path: Path) -> None:
    """It deletes and overwrites by writing the rest of a file anew, which goes and comes."""
    catalog = load_catalog("here", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", pa.schema([("x", pa.int64())]))
    table.append(pa.table({"x": range(10)}))
    table.append(pa.table({"x": range(10, 15)}))
    table.delete("x = 3 or x = 12")
    table.overwrite(pa.table({"x": [100, 101]}), overwrite_filter="x < 5")
    ids = [each.snapshot_id for each in table.history()]
    at = [Counter(table.scan(snapshot_id=each).to_arrow()["x"].to_pylist()) for each in ids]
    for first, start in enumerate(ids):
        log = ICEBERG.changes(ICEBERG.changelog(table.metadata_location, start_snapshot_id=start))
        assert ICEBERG.applied(at[first], log, ids[first + 1 :]) == at[first + 1 :]
