"""Changelogs of Delta Lake alone: its log of commits, and what delta-rs writes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.tables.delta import DeltaWriter, some
from tests.tables.kinds import DELTA
from torch_table_loader import ConfigError, TableError


@pytest.fixture
def table(tmp_path: Path) -> DeltaWriter:
    """Make a table of two commits, the second of which deletes rows."""
    table = DeltaWriter(tmp_path / "t")
    path = table.append(some(0, 20))
    table.commit()
    table.delete(path, range(0, 20, 5))
    table.append(some(20, 24))
    table.commit()
    return table


def test_commits_of_delta_rs_of_every_kind(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_deltalake(uri, pa.table({"x": range(10), "k": [0] * 10}), partition_by=["k"])
    write_deltalake(uri, pa.table({"x": range(10, 14), "k": [1] * 4}), mode="append")
    DeltaTable(uri).delete("x < 3")
    DeltaTable(uri).update({"x": "x + 100"}, predicate="x = 7")
    source = pa.table({"x": [12, 50], "k": [1, 1]})
    merge = DeltaTable(uri).merge(source, "t.x = s.x and t.k = s.k", source_alias="s", target_alias="t")
    merge.when_matched_delete().when_not_matched_insert_all().execute()
    write_deltalake(uri, pa.table({"x": [60, 61], "k": [0, 0]}), mode="append")
    assert DeltaTable(uri).optimize.compact()["numFilesRemoved"] > 1
    write_deltalake(uri, pa.table({"x": [1, 2], "k": [0, 0]}), mode="overwrite")
    DeltaTable(uri).restore(2)
    last = DeltaTable(uri).version()
    at = [Counter(DeltaTable(uri, version=version).to_pyarrow_table()["x"].to_pylist()) for version in range(last + 1)]
    for shuffle in (False, "rows"):
        log = DELTA.changes(DELTA.changelog(uri, start_version=0, shuffle=shuffle))
        assert DELTA.applied(at[0], log, range(1, last + 1)) == at[1:]


def test_a_table_that_was_replaced_is_refused(table: DeltaWriter) -> None:
    for data in list(table.data):
        table.remove(data.add["path"])
    table.partition_by = ["k"]
    table.metadata()
    table.append([{"x": 1, "k": 2, "s": "a"}], {"k": "2"})
    table.commit()
    with pytest.raises(ConfigError, match=r"after version 1 of .* partitioned by other columns.*later start_version"):
        DELTA.changelog(table.uri, start_version=1)


def test_a_commit_that_was_cleaned_up_is_named(table: DeltaWriter, tmp_path: Path) -> None:
    (table.root / "_delta_log" / f"{1:020}.json").rename(tmp_path / "gone.json")
    table.commit()
    with pytest.raises(ConfigError):
        DELTA.changelog(table.uri, start_version=0, end_version=1)


@pytest.mark.parametrize("torn", [b"", b"{}\n"])
def test_a_commit_that_is_torn_is_named(table: DeltaWriter, torn: bytes) -> None:
    table.commit()
    (table.root / "_delta_log" / f"{1:020}.json").write_bytes(torn)
    with pytest.raises(TableError, match=rf"{1:020}\.json must hold the actions of a commit"):
        DELTA.changelog(table.uri, start_version=0)
