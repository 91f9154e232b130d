"""Reads of what was appended to tables of Delta Lake alone: its log of commits, and what delta-rs writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.tables.delta import DeltaWriter, some
from tests.tables.kinds import DELTA, rows_of
from torch_table_loader import ConfigError, TableError, TableLoader


def make(table: str, **options: Any) -> TableLoader:
    return DELTA.loader(table, **{"batch_size": 4, "num_workers": 2, "columns": ["x"], **options})


def test_filters_of_partitions_rule_appended_files_out(tmp_path: Path) -> None:
    table = DeltaWriter(tmp_path / "t", partition_by=["s"])
    for at in range(4):
        table.append([{**row, "s": str(at)} for row in some(10 * at, 10 * at + 10)], {"s": str(at)})
        table.commit()
    loader = make(table.uri, start_version=0, filters=pc.field("s") == "2")
    assert sorted(rows_of(loader)) == list(range(20, 30))
    assert any("prunes 2 of 3 files" in note for note in DELTA.notes(loader))


def test_files_that_delta_rs_compacted_come_as_they_were_appended_in_the_newest_columns(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    for at in range(3):
        write_deltalake(uri, pa.table({"x": range(10 * at, 10 * at + 10)}), mode="append")
    DeltaTable(uri).optimize.compact()
    more = pa.table({"x": range(30, 40), "y": [0.5] * 10})
    write_deltalake(uri, more, mode="append", schema_mode="merge")
    loader = make(uri, start_version=0, columns=["x", "y"], output_format="dict", filters=pc.field("x") < 35)
    rows = sorted((x, y) for batch in loader for x, y in zip(batch["x"], batch["y"], strict=True))
    assert [x for x, _ in rows] == list(range(10, 35))
    assert [y for _, y in rows] == [None] * 20 + [0.5] * 5
    assert any("from versions 3, which replace files" in note for note in DELTA.notes(loader))


def test_deletes_of_delta_rs_in_between_are_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_deltalake(uri, pa.table({"x": range(10)}))
    DeltaTable(uri).delete("x < 5")
    write_deltalake(uri, pa.table({"x": range(10, 20)}), mode="append")
    with pytest.raises(ConfigError, match=r"version 1 of .*, between 0 and 2, removes or changes rows") as found:
        make(uri, start_version=0)
    assert "end_version=0" in str(found.value)
    assert sorted(rows_of(make(uri, start_version=1))) == list(range(10, 20))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"start_version": 2, "end_version": 1}, "version 2 of .* must be one of 0 to 1"),
        ({"start_version": -1}, "version -1 of .* must be one of 0 to 2"),
        ({"start_version": 0, "end_version": 77}, "version 77 cannot be read"),
    ],
)
def test_versions_that_the_table_has_not_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    table = DeltaWriter(tmp_path / "t")
    for at in range(3):
        table.append(some(10 * at, 10 * at + 10))
        table.commit()
    with pytest.raises(ConfigError, match=said):
        make(table.uri, **options)


def test_commits_that_were_cleaned_up_or_are_torn_are_errors(tmp_path: Path) -> None:
    uri = tmp_path / "t"
    for at in range(4):
        write_deltalake(uri, pa.table({"x": range(10 * at, 10 * at + 10)}), mode="append")
    DeltaTable(uri).create_checkpoint()
    commit = uri / "_delta_log" / f"{1:020}.json"
    kept = commit.read_text()
    commit.unlink()
    with pytest.raises(ConfigError, match=r"the commit of version 1 of .* is not there: it was cleaned up"):
        make(str(uri), start_version=0)
    assert sorted(rows_of(make(str(uri), start_version=1))) == list(range(20, 40))
    commit.write_text(kept[:-9])
    with pytest.raises(TableError, match="must hold the actions of a commit"):
        make(str(uri), start_version=0)


def test_a_commit_that_replaces_files_may_append_others(tmp_path: Path) -> None:
    table = DELTA.new(tmp_path)
    table.append(some(0, 10))
    table.commit()
    table.append(some(10, 20))
    table.commit()
    table.compact(table.files)
    table.append(some(20, 30))
    table.commit()
    table.append(some(30, 40))
    table.commit()
    assert sorted(rows_of(make(table.where, start_version=0))) == list(range(10, 40))
    log = DELTA.changes(DELTA.changelog(table.where, start_version=0))
    assert sorted(log) == [(x, "insert", x // 10) for x in range(10, 40)]
