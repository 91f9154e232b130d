"""The data files that deletes name: one of the snapshot, one that a later commit removed, or one that never was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from tests.effort import daily
from tests.tables.iceberg import IcebergWriter, some
from torch_table_loader import IcebergDataset, TableError

OPTIONS = pytest.mark.parametrize("options", [{}, {"filters": pc.field("x") >= 0}, {"footers": "lazy"}], ids=repr)


def read(table: IcebergWriter, **options: Any) -> tuple[list[int], str]:
    loader, dataset = IcebergDataset.create_dataloader(
        metadata_location=table.metadata, output_format="arrow", **{"num_workers": 0, **options}
    )
    return sorted(row["x"] for batch in loader for row in batch.to_pylist()), str(dataset.explain())


def respelled(table: IcebergWriter, spell: Callable[[str], str], *, vector: bool) -> IcebergWriter:
    """Fill a table of which two rows are deleted by the path of their file, spelled another way."""
    path = table.append(some(0, 5))
    if vector:
        table.delete_vector(path, [1, 2])
        table.deletes[0].entry["referenced_data_file"] = spell(path)
    else:
        table.delete_rows({spell(path): [1, 2]})
        bound = [{"key": 2147483546, "value": spell(path).encode()}]
        table.deletes[0].entry |= {"lower_bounds": bound, "upper_bounds": bound}
    table.commit()
    return table


@OPTIONS
@pytest.mark.parametrize("vector", [True, False], ids=["vector", "positions"])
@pytest.mark.parametrize(
    "spell",
    [
        lambda path: path.replace("file:///", "file:/"),
        lambda path: path.replace("file:///", "/"),
        lambda path: path.replace("file:///", "FILE:///"),
        lambda path: path.replace("/data/", "/data//"),
        lambda path: path.replace("/data/", "/./data/"),
        lambda path: path.replace("/data/", "/d%61ta/"),
    ],
)
@daily(8)
def test_a_delete_that_spells_its_file_otherwise_is_refused(
    tmp_path: Path, spell: Callable[[str], str], vector: bool, options: dict[str, Any]
) -> None:
    table = respelled(IcebergWriter(tmp_path, version=3 if vector else 2), spell, vector=vector)
    with pytest.raises(TableError, match=r"(vector in|file) \S+ must name its data file as the snapshot does"):
        read(table, **options)


def test_a_delete_of_appended_rows_that_spells_their_file_otherwise_is_refused(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path, version=3)
    table.append(some(10, 20))
    start = table.commit()
    respelled(table, lambda path: path.replace("/data/", "/data//"), vector=True)
    with pytest.raises(TableError, match="must name its data file as the snapshot does"):
        read(table, start_snapshot_id=start)


@OPTIONS
def test_a_vector_of_a_file_that_no_snapshot_has_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    table = IcebergWriter(tmp_path, version=3)
    table.append(some(0, 5))
    table.commit()
    gone = str(tmp_path / "data" / "never.parquet")
    table.delete_vector(f"file://{gone}", [1, 2])
    table.commit()
    with pytest.raises(TableError, match=rf"must be of a data file of the table, got \S+{gone}, which no snapshot has"):
        read(table, **options)


def compacted(table: IcebergWriter) -> IcebergWriter:
    """Fill a table whose writer left a vector behind when it replaced the data file."""
    path = table.append(some(0, 5))
    table.commit()
    table.delete_vector(path, [1, 2])
    table.commit()
    table.data.pop()
    table.append([*some(0, 1), *some(3, 5)])
    table.commit(operation="replace")
    return table


@OPTIONS
@pytest.mark.parametrize("expired", range(3))
@daily(4)
def test_a_vector_of_a_file_that_was_replaced_is_told(tmp_path: Path, expired: int, options: dict[str, Any]) -> None:
    table = compacted(IcebergWriter(tmp_path, version=3))
    table.snapshots[:] = table.snapshots[expired:]
    rows, told = read(table, **options)
    assert rows == [0, 3, 4]
    assert "1 deletion vectors delete nothing: their data files, such as data/0001.parquet, are not in" in told


def test_a_snapshot_that_is_gone_does_not_keep_a_later_one_from_being_read(tmp_path: Path) -> None:
    table = compacted(IcebergWriter(tmp_path, version=3))
    for snapshot in table.snapshots[:2]:
        Path(snapshot["manifest-list"].removeprefix("file://")).unlink()
    assert read(table)[0] == [0, 3, 4]


def test_a_snapshot_without_its_vectors_files_is_read_though_others_have_them(tmp_path: Path) -> None:
    table = compacted(IcebergWriter(tmp_path, version=3))
    table.append(some(7, 9))
    table.commit()
    rows, told = read(table, plan_cache=str(tmp_path / "cache"))
    again, told_again = read(table, plan_cache=str(tmp_path / "cache"))
    assert rows == again == [0, 3, 4, 7, 8]
    assert told.count("delete nothing") == told_again.count("delete nothing") == 1


def test_a_vector_that_is_older_than_its_file_is_refused(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path, version=3)
    table.append(some(10, 20))
    table.commit()
    path = table.append(some(0, 5))
    table.delete_vector(path, [1, 2])
    table.deletes[0].sequence = 1
    table.commit()
    with pytest.raises(TableError, match="must be as new as the file, which is of the sequence number 2, got 1"):
        read(table)
