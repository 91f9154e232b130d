"""Deletes by the rules of the spec: which file each applies to, how often it is read, and damage."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.tables.iceberg import IcebergWriter, Row, column, some
from tests.tables.reading import open_parquet
from torch_table_loader import IcebergDataset, TableError
from torch_table_loader.iceberg.catalog import TableAddress
from torch_table_loader.iceberg.source import IcebergRequest
from torch_table_loader.read import deletes
from torch_table_loader.read.key_set import KeySet
from torch_table_loader.read.parquet import ParquetFile
from torch_table_loader.read.wide_parquet import WideParquet
from torch_table_loader.records import FileMeta
from torch_table_loader.source.table_storage import TableStorage
from torch_table_loader.testing import small_sizes

FORMS = pytest.mark.parametrize("form", ["parquet", "orc", "avro"])


def read(table: IcebergWriter, **options: Any) -> list[dict[str, Any]]:
    loader, _ = IcebergDataset.create_dataloader(
        metadata_location=table.metadata, output_format="arrow", **{"num_workers": 2, **options}
    )
    return [row for batch in loader for row in batch.to_pylist()]


def agree(table: IcebergWriter, **options: Any) -> list[int]:
    found, expected = read(table, **options), table.live()
    assert Counter(map(repr, found)) == Counter(map(repr, expected))
    return [row["x"] for row in found]


@FORMS
def test_position_deletes_of_every_format(tmp_path: Path, form: str) -> None:
    table = IcebergWriter(tmp_path)
    first, second = table.append(some(0, 30), group=7), table.append(some(30, 50), form)
    table.commit()
    table.delete_rows({first: [0, 6, 7, 29, 6], second: [3]}, form)
    table.commit()
    assert len(agree(table)) == 45
    assert agree(table, filters=pc.field("x") >= 0) == agree(table)


@FORMS
def test_equality_deletes_of_every_format_match_null_and_leave_their_own_commit(tmp_path: Path, form: str) -> None:
    table = IcebergWriter(tmp_path)
    table.append(some(0, 20), form)
    table.commit()
    table.delete_keys([2, 3], [{"k": None, "s": "s0"}, {"k": 1, "s": "s1"}], form)
    table.append(some(20, 40))
    table.commit()
    found = agree(table)
    assert {0, 1} & set(found) == set()
    assert {30, 31} <= set(found)  # written in the commit of the delete


@FORMS
def test_each_of_several_delete_files_counts(tmp_path: Path, form: str) -> None:
    table = IcebergWriter(tmp_path)
    first, second = table.append(some(0, 20), form, group=6), table.append(some(20, 40), group=6)
    table.commit()
    for at in (1, 4, 7):
        table.delete_rows({first: [at], second: [at + 1]}, form)
        table.delete_keys([1], [{"x": at + 10}, {"x": at + 30}], form)
        table.delete_keys([1, 3], [{"x": at + 11, "s": f"s{(at + 11) % 3}"}], form)
        table.commit()
    found = agree(table)
    assert sorted({*range(40)} - {*found}) == [1, 4, 7, 11, 12, 14, 15, 17, 18, 22, 25, 28, 31, 34, 37]


def test_each_of_several_vectors_counts_beside_other_deletes(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path, version=3)
    paths = [table.append(some(start, start + 20), group=6) for start in (0, 20, 40)]
    table.commit()
    table.delete_keys([1], [{"x": 5}, {"x": 25}, {"x": 45}])
    for place, path in enumerate(paths):
        table.delete_vector(path, [place, place + 10])
    table.join_vectors(compressed=False)
    table.commit()
    assert sorted({*range(60)} - {*agree(table)}) == [0, 5, 10, 21, 25, 31, 42, 45, 52]


@FORMS
def test_deletes_of_a_file_are_those_of_all_its_delete_files(tmp_path: Path, form: str) -> None:
    table = IcebergWriter(tmp_path)
    path = table.append(some(0, 20))
    table.commit()
    for at in (2, 9, 9, 13):
        table.delete_rows({path: [at]}, form)
        table.delete_keys([1], [{"x": at + 1}], form)
    table.commit()
    source = IcebergRequest(TableAddress(metadata_location=table.metadata)).open({})
    (file,) = source.files
    read = deletes.Deletes(source.storage)
    assert read.positions(file).tolist() == [2, 9, 13]
    (keys,) = read.equality(file)
    values = pa.array(range(20), pa.int64())
    assert np.flatnonzero(~keys.keys.lacks([values], keys.after)).tolist() == [3, 10, 14]


def test_equality_delete_keys_may_be_renamed_promoted_dropped_or_unread(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path)
    table.append(some(0, 20))
    table.commit()
    table.delete_keys([2], [{"k": 3}])
    table.delete_keys([3], [{"s": "s2"}])
    table.commit()
    table.evolve([column(1, "x", "long"), column(2, "s", "long"), column(4, "k", "int")])
    table.append([{"x": 100, "s": 3, "k": 3}])
    table.commit()
    assert [row["x"] for row in read(table, columns=["x"])] == [x for x in range(20) if x % 5 != 3 and x % 3 != 2] + [
        100
    ]
    agree(table)


def test_a_key_column_that_old_files_lack_is_null_or_its_default(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path, version=3)
    table.append(some(0, 4))
    table.commit()
    table.evolve([*table.columns, column(5, "new", "int", **{"initial-default": 7}), column(6, "none", "int")])
    table.delete_keys([6], [{"none": None}])
    table.append(some(4, 8, new=1, none=2))
    table.commit()
    assert [row["x"] for row in read(table)] == [4, 5, 6, 7]
    table.delete_keys([5], [{"new": 7}])
    table.commit()
    assert {row["new"] for row in read(table)} == {1}


def test_deletes_stay_in_their_partition(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path, partition_by=2)
    for part in (0, 1, None):
        table.append([{"x": x, "k": part, "s": "s"} for x in range(4)], partition=part)
    table.commit()
    table.delete_keys([1], [{"x": 0}], partition=0)
    table.delete_keys([1], [{"x": 1}], partition=None)
    table.commit()
    found = [(row["x"], row["k"]) for row in read(table)]
    assert (0, 0) not in found
    assert (1, None) not in found
    assert {(0, 1), (1, 1), (1, 0), (0, None)} <= set(found)


def test_a_deletion_vector_replaces_position_deletes(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path)
    first = table.append(some(0, 100), group=9)
    table.delete_rows({first: [1, 2]})
    table.commit()
    table.version = 3
    table.delete_vector(first, [2, 50, 99])
    table.commit()
    assert set(range(100)) - set(agree(table)) == {2, 50, 99}


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda data: b"PFA0" + data[4:], "in a Puffin file, which begins and ends"),
        (lambda data: data[:-1] + b"0", "in a Puffin file, which begins and ends"),
        (lambda data: data[:-12] + b"\xff\xff\xff\x7f" + data[-8:], "a footer of 2147483647 bytes"),
        (lambda data: data.replace(b'"blobs"', b'"blubs"'), "whose footer is JSON with blobs"),
        (lambda data: data[:8] + b"\0" + data[9:], "whose checksum holds"),
        (lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:], "whose checksum holds"),
        (lambda data: data[:4] + b"\0\0\0\1" + data[8:], "says its own length"),
    ],
)
def test_a_broken_vector_brings_no_row_back(tmp_path: Path, spoil: Any, said: str) -> None:
    table = IcebergWriter(tmp_path, version=3)
    first = table.append(some(0, 10))
    path = Path(table.delete_vector(first, [1, 2]))
    table.commit()
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(TableError, match=said):
        read(table)


def test_a_vector_of_another_length_than_the_manifest_says(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path, version=3)
    table.delete_vector(table.append(some(0, 10)), [1, 2])
    table.deletes[0].entry["record_count"] = 3
    table.commit()
    with pytest.raises(TableError, match="of 3 rows, as the table's metadata says, got one of 2"):
        read(table)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda entry, other: entry.update(referenced_data_file=other), "got one of '.*parquet'"),
        (lambda entry, _: entry.update(content_offset=5), "at byte 5, as the table's metadata says, got none"),
        (
            lambda entry, _: entry.update(content_size_in_bytes=entry["content_size_in_bytes"] - 1),
            "got one of [0-9]+ bytes",
        ),
    ],
)
def test_a_vector_of_another_file_or_place_than_the_manifest_says(tmp_path: Path, change: Any, said: str) -> None:
    table = IcebergWriter(tmp_path, version=3)
    first, second = table.append(some(0, 10)), table.append(some(10, 20))
    vector = table.delete_vector(first, [1, 2])
    change(table.deletes[0].entry, second)
    table.commit()
    with pytest.raises(TableError, match=rf"the deletion vector in \S*{Path(vector).name} must be .*{said}"):
        read(table)


def test_one_puffin_file_holds_the_vectors_of_many_files(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path, version=3)
    files = [table.append(some(10 * at, 10 * at + 10)) for at in range(3)]
    vectors = [Path(table.delete_vector(file, [at, 7])) for at, file in enumerate(files)]
    table.join_vectors(compressed=False)
    table.commit()
    assert len(agree(table)) == 24
    assert len({each.entry["file_path"] for each in table.deletes}) == 1 < len(vectors)
    table.join_vectors(compressed=True)
    table.commit()
    assert len(agree(table)) == 24


def test_a_delete_beyond_the_file_and_one_that_is_gone(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path)
    first = table.append(some(0, 10))
    path = Path(table.delete_rows({first: [10]}))
    table.commit()
    with pytest.raises(TableError, match="must lie in its 10 rows, got rows 10 to 10"):
        read(table)
    (tmp_path / "data" / path.name).unlink()
    with pytest.raises(TableError, match=path.name):
        read(table)


def test_each_delete_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = IcebergWriter(tmp_path)
    files = [table.append(some(10 * at, 10 * at + 10)) for at in range(6)]
    table.commit()
    positions = table.delete_rows({path: [at] for at, path in enumerate(files)})
    keys = table.delete_keys([1], [{"x": 10 * at + 9} for at in range(6)])
    table.commit()
    opened: Counter[str] = Counter()
    real = TableStorage.open

    def counting(self: TableStorage, path: str) -> pa.NativeFile:
        opened[path] += 1
        return real(self, path)

    monkeypatch.setattr(TableStorage, "open", counting)
    assert len(agree(table)) == 48
    for path in (positions, keys):  # the footer, the rows, and of keys the footer that says their schema
        assert 1 <= opened[path if path.startswith("file://") else f"file://{path}"] <= 3


def upserts(root: Path, commits: int) -> IcebergWriter:
    """Build a table like a change stream: each commit deletes the keys of the rows that it writes."""
    table = IcebergWriter(root, partition_by=2)
    for commit in range(commits):
        for part in (1, 2):
            rows = [{"x": x, "k": part, "s": f"s{x % 3}"} for x in range(commit, commit + 8)]
            table.append(rows, partition=part)
            table.delete_keys([1], [{"x": row["x"]} for row in rows], partition=part)
        table.delete_keys([1, 3], [{"x": commit - 3, "s": f"s{commit % 3}"}], partition=1)
        table.commit()
    return table


def test_rows_that_replace_others_outlive_a_later_delete_of_other_keys(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path)
    table.append(some(0, 20))
    table.commit()
    table.delete_keys([1], [{"x": x} for x in range(5)])
    table.append(some(0, 5))
    table.commit()
    table.delete_keys([1], [{"x": 2}])
    table.commit()
    assert sorted(agree(table)) == [x for x in range(20) if x != 2]


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"split_deletes": True, "split_size": 5}])
def test_one_set_of_keys_serves_the_files_of_all_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    table = upserts(tmp_path, 12)
    made: list[int] = []

    class Counted(KeySet):
        def __init__(self, *arguments: Any) -> None:
            made.append(1)
            super().__init__(*arguments)

    monkeypatch.setattr(deletes, "KeySet", Counted)
    loader, _ = IcebergDataset.create_dataloader(
        metadata_location=table.metadata, output_format="arrow", **{"num_workers": 2, **options}
    )
    counted = len(made)
    assert counted >= 3
    found = [row for _ in range(2) for batch in loader for row in batch.to_pylist()]
    assert Counter(map(repr, found)) == Counter(map(repr, 2 * table.live()))
    assert len(made) == counted  # what counting asked for last serves every file


key_rows = st.lists(
    st.fixed_dictionaries(
        {"x": st.integers(-9, 9), "k": st.sampled_from([None, *range(6)]), "s": st.sampled_from([None, "", *"abcd"])}
    ),
    min_size=1,
    max_size=3,
)


@given(data=st.lists(key_rows, max_size=3), keys=st.lists(key_rows, max_size=3), bounds=st.booleans())
def test_statistics_exempt_only_files_without_a_deleted_key(
    tmp_path_factory: pytest.TempPathFactory, data: list[Any], keys: list[Any], bounds: bool
) -> None:
    table = IcebergWriter(tmp_path_factory.mktemp("spans"))
    for rows in data:
        table.append(rows)
    table.commit()
    for place, rows in enumerate(keys):
        table.delete_keys([[2], [3], [2, 3]][place], rows, bounds=bounds)
    table.commit()
    agree(table, num_workers=0)


def test_a_file_with_values_outside_the_keys_range_has_no_deletes(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path)
    for start in (0, 100, 200):
        table.append(some(start, start + 40), group=5)
    table.commit()
    table.delete_keys([1], [{"x": 110}, {"x": 111}])
    table.commit()
    dataset = IcebergDataset(metadata_location=table.metadata, split_size=5, output_format="arrow")
    assert dataset.explain().splits == 8 + 1 + 8
    assert len(agree(table)) == 118


def test_files_with_deletes_are_cut_on_request(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path)
    first = table.append(some(0, 40), group=5)
    table.append(some(40, 80), group=5)
    table.delete_rows({first: range(0, 40, 3)})
    table.commit()

    def splits(**options: Any) -> int:
        dataset = IcebergDataset(metadata_location=table.metadata, split_size=5, **options)
        return dataset.explain().splits

    assert splits() == 1 + 8
    assert splits(split_deletes=True) == 16
    assert agree(table, split_deletes=True, split_size=5, shuffle="splits")


def test_row_ids_and_sequence_numbers(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path, version=3)
    first = table.append(some(0, 5))
    table.delete_rows({first: [1]})
    table.commit()
    found = read(table, columns=["x", "_row_id", "_last_updated_sequence_number"])
    assert [row["x"] for row in found] == [0, 2, 3, 4]
    assert {row["_row_id"] for row in found} == {None}  # the snapshot counts none


@pytest.fixture
def thinned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record each row group that is read without its deleted rows."""
    groups: list[int] = []
    real = open_parquet().thinned

    def noting(self: Any, group: int, *arguments: Any) -> pa.RecordBatch:
        groups.append(group)
        return real(self, group, *arguments)

    monkeypatch.setattr(open_parquet(), "thinned", noting)
    return groups


@given(deleted=st.sets(st.integers(0, 63)), data=st.data())
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_left_out_while_a_group_is_decoded_are_those_left_out_afterwards(
    tmp_path_factory: pytest.TempPathFactory, thinned: list[int], deleted: set[int], data: st.DataObject
) -> None:
    table = IcebergWriter(tmp_path_factory.mktemp("thin"))
    file = table.append(some(0, 64), group=16)
    table.commit()
    whole = data.draw(st.sets(st.integers(0, 3)))  # row groups of which no row is left
    gone = deleted | {row for group in whole for row in range(16 * group, 16 * group + 16)}
    (table.delete_rows({file: sorted(gone)}) if gone else None)
    table.commit()
    thinned.clear()
    options = {"batch_size": 4, "split_deletes": data.draw(st.booleans())}
    left = [row for row in range(64) if row not in gone]
    assert [row["x"] for row in read(table, num_workers=0, **options)] == left
    assert bool(thinned) == bool(gone and left)
    thinned.clear()
    with_ids = read(table, num_workers=0, row_id=True, **options)
    assert [row["row_id"] for row in with_ids] == [row["x"] for row in with_ids] == left
    assert not thinned  # ids are the places of all rows
    agree(table, **options)


KEYED = [["x", "k", "s"], ["s", "x"], ["x"], ["x", "s", "k"]]
"""Columns to deliver: the keys among others, in another order, and not at all."""


@given(
    gone=st.sets(st.sampled_from([None, *range(8)]), min_size=1),
    keys=st.sampled_from([["k"], ["k", "s"]]),
    at=st.sets(st.integers(0, 63), max_size=8),
    columns=st.sampled_from(KEYED),
)
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_of_deleted_keys_left_out_while_a_group_is_decoded_are_those_left_out_afterwards(
    tmp_path_factory: pytest.TempPathFactory,
    thinned: list[int],
    gone: set[int | None],
    keys: list[str],
    at: set[int],
    columns: list[str],
) -> None:
    rows: list[Row] = [{"x": row, "k": None if row % 11 == 0 else row // 8, "s": f"s{row % 2}"} for row in range(64)]
    table = IcebergWriter(tmp_path_factory.mktemp("keyed"))
    file = table.append(rows, group=16)
    table.commit()
    table.delete_rows({file: sorted(at)})
    found = [{"k": key, "s": "s1"} for key in gone]
    table.delete_keys([2, 3][: len(keys)], [{name: key[name] for name in keys} for key in found])
    table.commit()
    left = [
        row for row in rows if row["x"] not in at and not (row["k"] in gone and (keys == ["k"] or row["s"] == "s1"))
    ]
    thinned.clear()
    options = {"columns": columns, "batch_size": 4, "num_workers": 0}
    assert read(table, **options) == [{name: row[name] for name in columns} for row in left]
    groups = {row["x"] // 16 for row in left}  # read twice: the keys, then what is beside them
    assert Counter(thinned) == {group: 1 + (group in groups) for group in range(4) if group in {*thinned, *groups}}
    thinned.clear()
    with_ids = read(table, row_id=True, **options)
    assert [row.pop("row_id") for row in with_ids] == [row["x"] for row in left]
    assert with_ids == [{name: row[name] for name in columns} for row in left]
    assert not thinned


def test_a_row_group_with_all_keys_deleted_decodes_no_other_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, list[str], bool]] = []
    real = open_parquet().thinned

    def noting(self: Any, group: int, names: Any, num_rows: int, kept: Any) -> pa.RecordBatch:
        asked.append((group, list(names), kept is None))
        return real(self, group, names, num_rows, kept)

    monkeypatch.setattr(open_parquet(), "thinned", noting)
    table = IcebergWriter(tmp_path)
    table.append([{"x": row, "k": row // 16, "s": "s"} for row in range(48)], group=16)
    table.commit()
    table.delete_keys([2], [{"k": 1}])
    table.commit()
    found = read(table, columns=["x"], batch_size=4, num_workers=0)
    assert [row["x"] for row in found] == [*range(16), *range(32, 48)]
    assert [each for each in asked if each[1] != ["k"]] == [(0, ["x"], True), (2, ["x"], True)]  # all rows: no copy


def test_row_groups_beside_short_ones_leave_their_deleted_rows_out_while_they_are_decoded(
    tmp_path: Path, thinned: list[int]
) -> None:
    table = IcebergWriter(tmp_path)
    file = table.append(some(0, 52), group=16)  # the last row group has four rows
    table.commit()
    gone = {3, 20, 21, 40, 50}
    table.delete_rows({file: sorted(gone)})
    table.commit()
    found = [row["x"] for row in read(table, num_workers=0, batch_size=4)]
    assert found == [row for row in range(52) if row not in gone]
    assert thinned == [0, 1, 2]


@pytest.mark.parametrize("ahead", [1, 20, 33])
def test_live_rows_are_found_for_all_row_groups_read_ahead(tmp_path: Path, thinned: list[int], ahead: int) -> None:
    table = IcebergWriter(tmp_path)
    file = table.append(some(0, 80), group=16)
    table.commit()
    gone = {0, 15, 16, 37, 38, 63, 79}  # the ends of row groups too, and one group without any
    table.delete_rows({file: sorted(gone)})
    table.commit()
    with small_sizes(live_rows_ahead=ahead):
        found = [row["x"] for row in read(table, num_workers=0, batch_size=4)]
    assert found == [row for row in range(80) if row not in gone]
    assert thinned == [0, 1, 2, 3, 4]


def test_a_row_group_that_is_not_what_was_planned_is_never_indexed(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"x": range(10)}), path)
    meta = FileMeta(pa.schema([("x", pa.int64())]), (10,), (80,))
    file = ParquetFile(WideParquet(path), pa.OSFile(str(path)), meta)
    kept = pa.array([0, 11], pa.uint32())
    with pytest.raises(TableError, match="row group 0 must have 12 rows, as was planned, got 10"):
        file.thinned(0, ["x"], 12, kept)
    file.close()
