"""Delta Lake tables, feature by feature: written by delta-rs, or by hand where delta-rs does not write them."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.effort import daily
from tests.launchers.sandbox import Sandbox
from tests.services.delta_reader import read
from tests.states import table_of
from tests.tables.delta import COLUMNS, DeltaWriter, Row, field_of, some
from torch_table_loader import ConfigError, DeltaDataset, MissingPathError, TableError
from torch_table_loader.options import LoaderOptions

whenever_footers_are_read = pytest.mark.parametrize("footers", ["eager", "lazy"])


def rows(table: pa.Table) -> list[Row]:
    return sorted(table.to_pylist(), key=repr)


def same(uri: str | Path, expected: Sequence[Row], **options: Any) -> None:
    assert rows(read(str(uri), **options)) == sorted(expected, key=repr)


# Tables of delta-rs


def numbers(start: int, stop: int) -> pa.Table:
    return pa.table({"x": list(range(start, stop)), "s": [f"s{i % 3}" for i in range(start, stop)]})


@whenever_footers_are_read
def test_appends_deletes_merges_checkpoints_and_overwrites(tmp_path: Path, footers: str) -> None:
    uri = str(tmp_path / "t")
    write_deltalake(uri, numbers(0, 10))
    write_deltalake(uri, numbers(10, 20), mode="append")
    same(uri, numbers(0, 20).to_pylist(), footers=footers)
    DeltaTable(uri).delete("x < 5")
    same(uri, numbers(5, 20).to_pylist(), footers=footers)
    source = pa.table({"x": [19, 30], "s": ["new", "new"]})
    merge = DeltaTable(uri).merge(source, "t.x = s.x", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    merged = [*numbers(5, 19).to_pylist(), *source.to_pylist()]
    same(uri, merged, footers=footers)
    DeltaTable(uri).create_checkpoint()
    write_deltalake(uri, numbers(40, 41), mode="append")
    same(uri, [*merged, *numbers(40, 41).to_pylist()], footers=footers)
    DeltaTable(uri).optimize.compact()
    same(uri, [*merged, *numbers(40, 41).to_pylist()], footers=footers)
    write_deltalake(uri, numbers(0, 3), mode="overwrite")
    same(uri, numbers(0, 3).to_pylist(), footers=footers)
    same(uri, numbers(0, 20).to_pylist(), footers=footers, version=1)


def test_columns_that_came_later_are_null_in_older_files(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_deltalake(uri, numbers(0, 3))
    write_deltalake(uri, pa.table({"x": [3], "y": [0.5]}), mode="append", schema_mode="merge")
    same(uri, [{**row, "y": None} for row in numbers(0, 3).to_pylist()] + [{"x": 3, "s": None, "y": 0.5}])
    same(uri, numbers(0, 3).to_pylist(), version=0)


PARTITIONS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (pa.string(), ["a b/%=é", "__HIVE_DEFAULT_PARTITION_", "2020-01-01 00:00:00", ":?#&+", None]),
    "binary": (pa.binary(), [b"\x01\xff", b"abc", None]),
    "byte": (pa.int8(), [1, -128, None]),
    "short": (pa.int16(), [1, -(2**15), None]),
    "integer": (pa.int32(), [1, -(2**31), None]),
    "long": (pa.int64(), [1, -(2**63), None]),
    "float": (pa.float32(), [1.5, float("inf"), None]),
    "double": (pa.float64(), [1e30, -0.1, None]),
    "boolean": (pa.bool_(), [True, False, None]),
    "date": (pa.date32(), [dt.date(1500, 1, 1), dt.date(9999, 1, 2), None]),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(1960, 1, 1, 1, 2, 3, 4567, tzinfo=dt.UTC), None],
    ),
    "timestamp_ntz": (pa.timestamp("us"), [dt.datetime(2020, 1, 1), dt.datetime(1960, 1, 1, 1, 2, 3, 4567), None]),  # noqa: DTZ001
    "decimal": (pa.decimal128(38, 2), [Decimal("1.50"), Decimal("12345678901234567890.12"), None]),
}


@whenever_footers_are_read
@pytest.mark.parametrize("kind", PARTITIONS)
@daily(4)
def test_partition_values_of_every_type(tmp_path: Path, kind: str, footers: str) -> None:
    arrow, values = PARTITIONS[kind]
    table = pa.table({"x": list(range(len(values))), "p": pa.array(values, arrow)})
    write_deltalake(str(tmp_path / "t"), table, partition_by=["p"])
    found = read(str(tmp_path / "t"), footers=footers)
    assert found.schema.field("p").type == arrow
    assert rows(found) == rows(table)
    for value in values:
        passes = pc.field("p").is_null() if value is None else pc.field("p") == pa.scalar(value, arrow)
        for filters in (passes, ~passes, passes & (pc.field("x") >= 0)):
            expected = table.filter(filters)
            assert rows(read(str(tmp_path / "t"), filters=filters, footers=footers)) == rows(expected)


DIGITS = {"1.5": "1.50", "2": "2.00", "-0.5": "-0.50", "1E+1": "10.00", "3.500": "3.50", "0": "0.00", "+4.25": "4.25"}
"""Decimals as writers put them into the log, and with the digits of decimal(10,2)."""


@pytest.mark.parametrize("form", ["commits", "one file", "parts", "sidecars", "sidecars, json"])
@daily(2)
def test_decimals_of_partitions_need_not_have_all_digits(tmp_path: Path, form: str) -> None:
    columns = [field_of("x", "long"), field_of("p", "decimal(10,2)", id=2, physicalName="col-p")]
    columns[0]["metadata"] = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "x"}
    features = ("deletionVectors", "columnMapping", *(("v2Checkpoint",) if "sidecars" in form else ()))
    mapped = {"delta.columnMapping.mode": "name"}
    table = DeltaWriter(tmp_path / "t", columns, ["p"], features, mapped)
    expected: list[Row] = []
    for number, (written, value) in enumerate([*DIGITS.items(), (None, None)]):
        path = table.append([{"x": number}, {"x": -1}], {"col-p": written})
        table.delete(path, [1])
        expected.append({"x": number, "p": value and Decimal(value)})
    table.commit()
    if form != "commits":
        table.checkpoint(form)
    table.append([{"x": 99}], {"col-p": "9.9"})
    os.utime(tmp_path / "t/_delta_log" / f"{table.commit():020}.json", (2_000_000_000, 2_000_000_000))
    now = [*expected, {"x": 99, "p": Decimal("9.90")}]
    same(table.uri, now)
    same(table.uri, expected, version=0)
    same(table.uri, expected, timestamp=dt.datetime(2030, 1, 1, tzinfo=dt.UTC))
    for text in ("p = 1.5", "p > 3", "p is null", "not (p < 2.0)", "x < 3 and p < 2"):
        plain = read(table.uri, filters=text, version=1)
        assert rows(plain) == rows(pa.Table.from_pylist(now, plain.schema).filter(ONLY[text]))


def _price(digits: str) -> pa.Scalar:
    return pa.scalar(Decimal(digits), pa.decimal128(10, 2))  # pyarrow 21 compares with no decimal of another scale


ONLY = {
    "p = 1.5": pc.field("p") == _price("1.5"),
    "p > 3": pc.field("p") > _price("3"),
    "p is null": pc.field("p").is_null(),
    "not (p < 2.0)": ~(pc.field("p") < _price("2")),
    "x < 3 and p < 2": (pc.field("x") < 3) & (pc.field("p") < _price("2")),
}


@pytest.mark.parametrize("written", ["1.505", "x", "1e-99999999", "1" * 5000, "NaN"])
def test_what_is_no_such_decimal_is_an_error_that_names_it(tmp_path: Path, written: str) -> None:
    table = DeltaWriter(tmp_path / "t", [field_of("x", "long"), field_of("p", "decimal(10,2)")], ["p"])
    table.append([{"x": 1}], {"p": written})
    table.commit()
    with pytest.raises(TableError, match=f"Failed to parse value '{written[:30]}"):
        read(table.uri)


def test_an_empty_partition_value_is_null_and_nan_is_nan(tmp_path: Path) -> None:
    table = pa.table({"x": [1, 2], "p": ["", "a"], "f": [float("nan"), 1.0]})
    write_deltalake(str(tmp_path / "t"), table, partition_by=["p", "f"])
    found = read(str(tmp_path / "t")).sort_by("x")
    assert found["p"].to_pylist() == [None, "a"]
    assert str(found["f"].to_pylist()) == "[nan, 1.0]"
    passing = read(str(tmp_path / "t"), filters=~(pc.field("f") < 3))
    assert passing["x"].to_pylist() == [1]


def test_files_lose_a_filter_that_partitions_decide(tmp_path: Path) -> None:
    table = pa.table({"x": list(range(20)), "p": [i % 4 for i in range(20)]})
    write_deltalake(str(tmp_path / "t"), table, partition_by=["p"])
    loader, dataset = DeltaDataset.create_dataloader(tmp_path / "t", filters=pc.field("p") < 2, batch_size=4)
    assert len(dataset.table.files) == 2
    assert len(loader) == 3
    assert "prunes 2 of 4 files" in str(dataset.explain())


def test_time_travel_by_version_and_time(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    for version in range(3):
        write_deltalake(uri, numbers(10 * version, 10 * version + 10), mode="append")
        log = tmp_path / "t" / "_delta_log" / f"{version:020}.json"
        os.utime(log, (1_000_000 * (version + 1),) * 2)
    for version, seconds in ((0, 1_000_000), (0, 1_999_999), (1, 2_000_000), (2, 9_000_000)):
        expected = numbers(0, 10 * version + 10).to_pylist()
        when = dt.datetime.fromtimestamp(seconds, dt.UTC)
        same(uri, expected, version=version)
        same(uri, expected, timestamp=when)
        same(uri, expected, timestamp=when.astimezone(dt.timezone(dt.timedelta(hours=5))).isoformat())
    with pytest.raises(ConfigError, match=r"had no version at 1970-01-10T.*its first version is newer"):
        read(uri, timestamp=dt.datetime(1970, 1, 10, tzinfo=dt.UTC))
    with pytest.raises(ConfigError, match="version 3 cannot be read"):
        read(uri, version=3)


def test_time_travel_by_the_times_that_commits_hold(tmp_path: Path) -> None:
    table = DeltaWriter(tmp_path / "t", features=(), settings={"delta.enableInCommitTimestamps": "true"})
    for version in range(3):
        info = {"inCommitTimestamp": 1_000_000 * (version + 1), "timestamp": 1, "operation": "WRITE"}
        table.actions.insert(0, {"commitInfo": {**info, "operationParameters": {}}})
        table.append(some(version, version + 1))
        table.commit()
        os.utime(tmp_path / "t" / "_delta_log" / f"{version:020}.json", (5_000_000,) * 2)
    for seconds, rows in ((1_000, 1), (1_999.9, 1), (2_000, 2), (9_000, 3)):
        assert read(table.uri, timestamp=dt.datetime.fromtimestamp(seconds, dt.UTC)).num_rows == rows
    with pytest.raises(ConfigError, match=r"the first is from 1970-01-01T00:16:40\+00:00: pass version="):
        read(table.uri, timestamp=dt.datetime.fromtimestamp(999, dt.UTC))


def test_a_version_whose_files_were_vacuumed_is_refused_by_the_file(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_deltalake(uri, numbers(0, 10))
    write_deltalake(uri, numbers(10, 20), mode="overwrite")
    DeltaTable(uri).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    same(uri, numbers(10, 20).to_pylist())
    with pytest.raises(TableError, match=r"part-00000\S*\.parquet"):
        read(uri, version=0)


def test_a_table_without_rows(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_deltalake(uri, numbers(0, 10))
    DeltaTable(uri).delete()
    assert read(uri).num_rows == 0
    assert read(uri).schema.names == ["x", "s"]
    table = DeltaWriter(tmp_path / "none", partition_by=["k"])
    table.commit()
    assert read(table.uri, filters=pc.field("k") > 3).num_rows == 0


# Tables as the protocol says, written by hand


@whenever_footers_are_read
@pytest.mark.parametrize("stored", ["u", "p", "i"])
def test_deletion_vectors(tmp_path: Path, stored: str, footers: str) -> None:
    table = DeltaWriter(tmp_path / "a b#é")
    first, second = table.append(some(0, 20)), table.append(some(20, 40), name="k=a%20b/%41 é.parquet")
    table.commit()
    same(table.uri, table.live(), footers=footers)
    table.delete(first, [0, 4, 5, 19], stored)
    table.delete(second, range(20), stored)
    table.commit()
    table.delete(first, [0, 1, 4, 5, 18, 19], stored)
    table.append(some(40, 50))
    table.commit()
    for options in ({}, {"split_deletes": True, "split_size": 3}, {"filters": pc.field("k") < 5}):
        live = [row for row in table.live() if "filters" not in options or (row["k"] is not None and row["k"] < 5)]
        same(table.uri, live, footers=footers, **options)
    same(table.uri, some(0, 40), footers=footers, version=0)


def test_a_deletion_vector_of_many_rows(tmp_path: Path) -> None:
    table = DeltaWriter(tmp_path / "t")
    path = table.append(some(0, 70_000), group=30_000)
    table.delete(path, range(0, 70_000, 3))
    table.commit()
    assert read(table.uri, columns=["x"])["x"].to_pylist() == [x for x in range(70_000) if x % 3]


def test_a_deletion_vector_that_is_gone_or_torn_is_an_error(tmp_path: Path) -> None:
    table = DeltaWriter(tmp_path / "t")
    table.delete(table.append(some(0, 20)), [3])
    table.commit()
    [vector] = (tmp_path / "t").glob("deletion_vector_*")
    whole = vector.read_bytes()
    vector.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    with pytest.raises(TableError, match=r"deletion_vector_\S*\.bin must be a blob whose checksum holds"):
        read(table.uri)
    vector.write_bytes(whole[:-9])
    with pytest.raises(TableError, match=r"deletion_vector_\S*\.bin must be a blob inside its"):
        read(table.uri)
    vector.unlink()
    with pytest.raises(TableError, match=r"deletion_vector_\S*\.bin"):
        read(table.uri)


@whenever_footers_are_read
@pytest.mark.parametrize(
    ("positions", "said"),
    [
        (range(15, 25), "must lie in its 20 rows, got rows 15 to 24"),
        (range(25), "must delete at most its 20 rows, as the log of .* got 25"),
    ],
)
def test_deletes_that_contradict_the_count_of_rows_are_refused(
    tmp_path: Path, positions: range, said: str, footers: str
) -> None:
    table = DeltaWriter(tmp_path / "t")
    table.delete(table.append(some(0, 20)), positions)
    table.commit()
    with pytest.raises(TableError, match=said):
        read(table.uri, footers=footers)


@pytest.mark.slow
def test_a_vector_that_deletes_far_beyond_its_file_takes_little_memory(tmp_path: Path) -> None:
    table = DeltaWriter(tmp_path / "t")
    table.delete(table.append(some(0, 40)), [3, 1 << 40])
    table.commit()
    with Sandbox() as sandbox:  # which bounds memory and time
        outcome = sandbox.run(read, table.uri)
    assert (outcome.kind, outcome.error) == ("ours", "TableError"), outcome
    assert f"parquet must lie in its 40 rows, got rows 3 to {1 << 40}" in outcome.text


def test_deletes_without_a_count_of_rows_are_those_of_the_footer(tmp_path: Path) -> None:
    table = DeltaWriter(tmp_path / "t")
    table.delete(table.append(some(0, 20), stats=None), range(15, 20))
    table.commit()
    same(table.uri, table.live())


VECTORS: list[tuple[dict[str, Any], str]] = [
    ({"pathOrInlineDv": ""}, r"json must say what is deleted .*pathOrInlineDv .* must be a text that is not empty"),
    ({"pathOrInlineDv": "a b"}, "' ' is no letter of base 85"),
    ({"pathOrInlineDv": "abcdef"}, "five letters for four bytes"),
    ({"pathOrInlineDv": "00000" * 8}, "sizeInBytes of a deletion vector is 36, and its inline text has 32"),
    ({"pathOrInlineDv": "00000" * 9}, r"parquet must be a blob with the magic"),
    ({"storageType": "x"}, "storageType of a deletion vector must be 'u', 'p' or 'i', got 'x'"),
    ({"cardinality": 1}, "must be the 1 positions that the table's metadata says, got 2"),
    ({"cardinality": 0}, "must be the 0 positions"),
    ({"cardinality": 1 << 62}, "must delete at most its 20 rows"),
    ({"cardinality": -2}, "cardinality of a deletion vector must be a whole number"),
    ({"storageType": "p", "pathOrInlineDv": "s3://elsewhere/x.bin"}, "which lies elsewhere and is not opened"),
]


@whenever_footers_are_read
@pytest.mark.parametrize(("change", "said"), VECTORS)
def test_a_deletion_vector_that_is_not_as_described(
    tmp_path: Path, change: dict[str, Any], said: str, footers: str
) -> None:
    table = DeltaWriter(tmp_path / "t")
    table.delete(table.append(some(0, 20)), [3, 1 << 10], "i")
    table.actions[-1]["add"]["deletionVector"].update(change)
    table.commit()
    with pytest.raises(TableError, match=said):
        read(table.uri, footers=footers)


ADDS: list[tuple[dict[str, Any], str]] = [
    ({"size": 1 << 62}, r"size_bytes of part-\S*parquet must be a number from 0 to"),
    ({"size": -5}, r"size_bytes of part-\S*parquet must be"),
    ({"stats": json.dumps({"numRecords": (1 << 63) - 1})}, r"num_records of part-\S*parquet must be"),
    ({"stats": json.dumps({"numRecords": -3})}, r"num_records of part-\S*parquet must be"),
    ({"path": "a\0b.parquet"}, r"must name files by paths without NUL, got .*a\\x00b\.parquet"),
]


@whenever_footers_are_read
@pytest.mark.parametrize(("change", "said"), ADDS)
def test_an_add_that_no_file_can_be(tmp_path: Path, change: dict[str, Any], said: str, footers: str) -> None:
    table = DeltaWriter(tmp_path / "t")
    table.append(some(0, 20))
    table.actions[-1]["add"].update(change)
    table.commit()
    with pytest.raises(TableError, match=said):
        read(table.uri, footers=footers)


@pytest.mark.parametrize("form", ["one file", "parts", "sidecars", "sidecars, json"])
def test_deletion_vectors_of_a_checkpoint(tmp_path: Path, form: str) -> None:
    v2 = ("v2Checkpoint",) if "sidecars" in form else ()
    table = DeltaWriter(tmp_path / "t", features=("deletionVectors", *v2))
    paths = [table.append(some(20 * at, 20 * at + 20)) for at in range(4)]
    table.delete(paths[0], [1, 2])
    table.delete(paths[1], [3], "i")
    table.commit()
    table.delete(paths[2], [4, 5])
    table.commit()
    table.checkpoint(form)
    same(table.uri, table.live())
    table.append(some(80, 90))
    table.delete(paths[0], [2, 1, 7])  # newer than that of the checkpoint
    table.restore(paths[2])
    table.commit()
    same(table.uri, table.live())
    for version in (0, 1):  # only the checkpoint has them
        (tmp_path / "t" / "_delta_log" / f"{version:020}.json").unlink()
    same(table.uri, table.live())


# The log


TORN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "blank": lambda data: b"\n" * len(data),
    "long and blank": lambda _: b" \n" * 40_000,
    "without actions": lambda _: b"{}\n",
    "of nothing": lambda _: b'{"add": null}\n',
    "cut": lambda data: data[:-30],
    "zeros": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("how", TORN)
@pytest.mark.parametrize("version", [1, 2])
def test_a_torn_commit_is_refused_by_its_name(tmp_path: Path, how: str, version: int) -> None:
    table = DeltaWriter(tmp_path / "t", features=())
    for start in range(0, 30, 10):
        table.append(some(start, start + 10))
        table.commit()
    same(table.uri, table.live())
    commit = tmp_path / "t" / "_delta_log" / f"{version:020}.json"
    commit.write_bytes(TORN[how](commit.read_bytes()))
    named = "cannot be read as a Delta Lake table" if how in ("cut", "zeros") else rf"{version:020}\.json must hold"
    with pytest.raises(TableError, match=named):
        read(table.uri)
    same(table.uri, some(0, 10 * version), version=version - 1)


def test_a_long_commit_is_looked_at_by_its_head(tmp_path: Path) -> None:
    table = DeltaWriter(tmp_path / "t", features=())
    table.actions.insert(0, {"commitInfo": {"operation": "WRITE", "note": "x" * 100_000}})
    table.append(some(0, 10))
    table.commit()
    same(table.uri, table.live())


def mapped(mode: str) -> dict[str, Any]:
    return {"settings": {"delta.columnMapping.mode": mode}, "features": ("columnMapping", "deletionVectors")}


NESTED, INNER = ({"type": "struct", "fields": [field_of("a", "long", id=at, physicalName="col-a")]} for at in (4, 7))
MAPPED = [
    field_of("x", "long", id=1, physicalName="col-x"),
    field_of("p", "string", id=2, physicalName="col-p"),
    field_of("n", NESTED, id=3, physicalName="col-n"),
    field_of("late", "string", id=5, physicalName="col-late"),
    field_of("list", {"type": "array", "elementType": INNER, "containsNull": True}, id=6, physicalName="col-list"),
]


def with_id(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})


@whenever_footers_are_read
def test_columns_mapped_by_name_whatever_ids_files_hold(tmp_path: Path, footers: str) -> None:
    table = DeltaWriter(tmp_path / "t", MAPPED, ["p"], **mapped("name"))
    struct = pa.struct([with_id("col-a", pa.int64(), 9)])
    wrong = pa.schema(
        [with_id("col-x", pa.int64(), 3), with_id("x", pa.int64(), 1), with_id("col-n", struct, 1), ("p", pa.string())]
    )
    held = [{"col-x": 1, "x": -1, "col-n": {"col-a": 7}, "p": "in the file"}]
    row = {"x": 1, "p": "v", "n": {"a": 7}, "late": None, "list": None}
    table.append(
        [row],
        {"col-p": "v"},
        table=pa.Table.from_pylist(held, wrong),
        stats=None if footers == "eager" else {"numRecords": 1},
    )
    plain = pa.table({"col-x": [2], "col-list": [[{"col-a": 3}, None]]})
    later = {"x": 2, "p": None, "n": None, "late": None, "list": [{"a": 3}, None]}
    path = table.append([later], {"col-p": None}, table=plain)
    table.commit()
    same(table.uri, table.live(), footers=footers)
    same(table.uri, [later], footers=footers, filters=pc.field("x") > 1)
    same(table.uri, [row], footers=footers, filters=pc.field("p") == "v")
    table.delete(path, [0])
    table.columns = [{**MAPPED[0], "name": "renamed"}, *MAPPED[1:]]
    table.metadata()
    table.commit()
    same(table.uri, [{"renamed": 1, **{key: value for key, value in row.items() if key != "x"}}], footers=footers)


@whenever_footers_are_read
def test_columns_mapped_by_id_whatever_files_call_them(tmp_path: Path, footers: str) -> None:
    table = DeltaWriter(tmp_path / "t", MAPPED, ["p"], **mapped("id"))
    struct = pa.struct([with_id("any", pa.int64(), 4)])
    schema = pa.schema([with_id("p", pa.int64(), 1), with_id("y", struct, 3), with_id("x", pa.string(), 99)])
    held = [{"p": 1, "y": {"any": 7}, "x": "other"}, {"p": 2, "y": None, "x": "other"}]
    made = [{"x": x, "p": "v", "n": n, "late": None, "list": None} for x, n in ((1, {"a": 7}), (2, None))]
    table.append(made, {"col-p": "v"}, table=pa.Table.from_pylist(held, schema), stats={"numRecords": 2})
    table.commit()
    same(table.uri, made, footers=footers)
    same(table.uri, made[1:], footers=footers, filters=pc.field("x") > 1)
    table.append([], {"col-p": "v"}, table=pa.table({"col-x": [1]}))
    table.commit()
    with pytest.raises(TableError, match="was written without field ids"):
        read(table.uri, footers=footers)


def test_ids_in_files_of_a_table_without_a_mapping_mean_nothing(tmp_path: Path) -> None:
    table = DeltaWriter(tmp_path / "t", features=())
    schema = pa.schema([with_id("k", pa.int32(), 1), with_id("x", pa.int64(), 2), with_id("s", pa.string(), -1)])
    table.append(some(0, 9), table=pa.Table.from_pylist(some(0, 9), schema))
    table.commit()
    same(table.uri, some(0, 9))
    same(table.uri, some(4, 9), filters=pc.field("x") > 3)


WIDENED: dict[str, tuple[str, pa.DataType, Any, Any]] = {
    "byte to long": ("long", pa.int8(), 5, 5),
    "integer to double": ("double", pa.int32(), 5, 5.0),
    "float to double": ("double", pa.float32(), 0.5, 0.5),
    "date to timestamp": ("timestamp_ntz", pa.date32(), dt.date(2020, 1, 2), dt.datetime(2020, 1, 2)),  # noqa: DTZ001
    "decimal to decimal": ("decimal(12,3)", pa.decimal128(9, 2), Decimal("1.25"), Decimal("1.250")),
    "integer to decimal": ("decimal(12,2)", pa.int32(), 5, Decimal("5.00")),
}


@whenever_footers_are_read
@pytest.mark.parametrize("name", WIDENED)
def test_types_that_were_widened(tmp_path: Path, name: str, footers: str) -> None:
    kind, stored, written, expected = WIDENED[name]
    table = DeltaWriter(
        tmp_path / "t", [field_of("x", "long"), field_of("v", kind)], features=("typeWidening", "timestampNtz")
    )
    held = pa.table({"x": [1, 2], "v": pa.array([written, None], stored)})
    table.append([{"x": 1, "v": expected}, {"x": 2, "v": None}], table=held)
    table.commit()
    same(table.uri, table.live(), footers=footers)
    arrow = read(table.uri).schema.field("v").type
    same(table.uri, table.live()[:1], footers=footers, filters=pc.field("v") == pa.scalar(expected, arrow))


def test_years_that_nanoseconds_do_not_hold(tmp_path: Path) -> None:
    table = DeltaWriter(tmp_path / "t", [field_of("t", "timestamp")], features=())
    when = dt.datetime(1, 2, 3, tzinfo=dt.UTC)
    table.append([{"t": when}], table=pa.table({"t": pa.array([when], pa.timestamp("us", "UTC"))}))
    table.commit()
    path = next((tmp_path / "t").glob("*.parquet"))
    pq.write_table(pq.read_table(path), path, use_deprecated_int96_timestamps=True)
    table.remove(table.data[0].add["path"])
    table.append([{"t": when}], table=pa.table({"t": pa.array([when], pa.timestamp("us", "UTC"))}))
    table.commit()
    same(table.uri, [{"t": when}])


def test_files_elsewhere_come_where_the_caller_allows_it(tmp_path: Path) -> None:
    table = DeltaWriter(tmp_path / "t")
    (tmp_path / "other").mkdir()
    table.append(some(0, 9), name=str(tmp_path / "other" / "1 %41.parquet"))
    table.commit()
    same(table.uri, some(0, 9))  # of one machine all folders are one place
    hosted = DeltaWriter(tmp_path / "h")
    hosted.append(some(0, 9))
    hosted.actions[-1]["add"]["path"] = "s3://elsewhere/key%20.parquet"
    hosted.commit()
    with pytest.raises(TableError, match=r"names 's3://elsewhere/key .parquet'.*allow_locations=\['s3://elsewhere'\]"):
        read(hosted.uri)


# What is refused


@pytest.mark.parametrize(
    ("features", "reader", "said"),
    [
        (["catalogManaged"], 3, "catalog"),
        (["fancyReader"], 3, "fancyReader"),
        ([], 4, "reader version|minimum reader|Minimum reader"),
    ],
)
def test_what_the_protocol_asks_beyond_is_refused_by_name(
    tmp_path: Path, features: list[str], reader: int, said: str
) -> None:
    table = DeltaWriter(tmp_path / "t", features=features, reader=reader)
    table.append(some(0, 9))
    table.commit()
    with pytest.raises(TableError, match=f"(?s){said}"):
        read(table.uri)


def test_a_feature_that_deltalake_knows_and_this_library_does_not(tmp_path: Path) -> None:
    from torch_table_loader.delta.log import check_protocol, mapping_mode

    with pytest.raises(TableError, match="needs the reader features another, fancy of Delta Lake"):
        check_protocol(3, ["fancy", "timestampNtz", "another"], "t")
    with pytest.raises(TableError, match="needs reader version 4"):
        check_protocol(4, [], "t")
    with pytest.raises(TableError, match="must be one of none, name, id, got 'new'"):
        mapping_mode(2, [], {"delta.columnMapping.mode": "new"}, "t")


def test_a_variant_is_refused_where_it_is_read(tmp_path: Path) -> None:
    table = DeltaWriter(tmp_path / "t", [*COLUMNS, field_of("v", "variant")], features=("variantType",))
    table.append(some(0, 9), table=pa.Table.from_pylist(some(0, 9)))
    table.commit()
    with pytest.raises(TableError, match=r"column 'v' is of the type variant, .*columns="):
        read(table.uri)
    same(table.uri, [{"x": x} for x in range(9)], columns=["x"])


def test_a_log_that_names_a_file_twice_is_refused(tmp_path: Path) -> None:
    table = DeltaWriter(tmp_path / "t")
    path = table.append(some(0, 9))
    table.commit()
    table.delete(path, [1])
    table.actions = [each for each in table.actions if "remove" not in each]
    table.commit()
    with pytest.raises(TableError, match="twice"):
        read(table.uri)


@whenever_footers_are_read
def test_other_rows_than_the_log_says_are_refused(tmp_path: Path, footers: str) -> None:
    table = DeltaWriter(tmp_path / "t")
    table.append(some(0, 9), stats={"numRecords": 8})
    table.commit()
    with pytest.raises(TableError, match=r"must have 8 rows, as the table's metadata says, got 9"):
        read(table.uri, footers=footers)


def test_a_log_without_counts_takes_footers(tmp_path: Path) -> None:
    table = DeltaWriter(tmp_path / "t")
    table.append(some(0, 9), stats=None)
    table.commit()
    same(table.uri, some(0, 9))
    with pytest.raises(TableError, match=r"must say how many rows .* read footers"):
        read(table.uri, footers="lazy")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"version": -1}, "version must be 0 or more, got -1"),
    ({"version": True}, "version must be a whole number, got bool"),
    ({"version": 0, "timestamp": "2020-01-01T00:00:00Z"}, "version and timestamp each choose"),
    ({"timestamp": "yesterday"}, "timestamp must look like"),
    ({"timestamp": dt.datetime(2020, 1, 1)}, "timestamp must say its time zone"),  # noqa: DTZ001
    ({"timestamp": 3}, "timestamp must be a datetime or ISO text, got int"),
    ({"schema": pa.schema([])}, "schema= is for tables of plain files; a Delta Lake table has its own"),
    ({"files": ["a"]}, "pass version= to pin the table"),
    ({"footers": "none"}, "footers must be one of"),
    ({"columns": ["nope"]}, "nope"),
    ({"filters": pc.field("nope") > 3}, "nope"),
    ({"storage_options": 3}, "storage_options must be a mapping"),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    write_deltalake(str(tmp_path / "t"), numbers(0, 3))
    with pytest.raises(ConfigError, match=said):
        read(str(tmp_path / "t"), **options)


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingPathError, match="must be the folder of a Delta Lake table"):
        read(str(tmp_path / "nothing"))
    pq.write_table(numbers(0, 3), tmp_path / "a.parquet")
    with pytest.raises(MissingPathError, match="name the folder that holds _delta_log"):
        read(str(tmp_path))
    with pytest.raises(ConfigError, match="must be a local folder, or on s3://"):
        read("https://host/table")
    with pytest.raises(ConfigError, match="Unity catalog is named by its storage location"):
        read("uc://main.db.orders")
    with pytest.raises(ConfigError, match="table_uri must be the path or URL"):
        DeltaDataset(3)  # type: ignore[arg-type]


def test_a_torn_log_is_a_table_error(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), numbers(0, 3))
    log = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text()[:-30])
    with pytest.raises(TableError, match="cannot be read as a Delta Lake table"):
        read(str(tmp_path / "t"))


def test_a_plan_cache_keeps_the_names_of_a_schema_apart(tmp_path: Path) -> None:
    table = DeltaWriter(
        tmp_path / "t",
        [field_of("a", "long", id=1, physicalName="p"), field_of("b", "long", id=2, physicalName="q")],
        **mapped("name"),
    )
    held = pa.table({"p": list(range(9)), "q": [0] * 9})
    table.append([], table=held)
    table.commit()
    options: dict[str, Any] = {"filters": pc.field("a") > 3, "plan_cache": str(tmp_path / "plans")}
    assert read(table.uri, **options).num_rows == 5
    table.columns = [{**table.columns[0], "name": "b"}, {**table.columns[1], "name": "a"}]
    table.metadata()
    table.commit()
    assert read(table.uri, **options).num_rows == 0
    assert read(table.uri, version=0, **options).num_rows == 5


def test_states_and_descriptions_hold_no_path_or_secret(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), numbers(0, 9))
    loader, dataset = DeltaDataset.create_dataloader(tmp_path / "t", batch_size=2)
    next(iter(loader))
    state = json.dumps(loader.state_dict())
    assert str(tmp_path) not in state
    assert table_of(json.loads(state))["snapshot_id"] == dataset.version == 0


def test_ranks_read_the_version_that_the_first_of_them_saw(tmp_path: Path) -> None:
    from torch_table_loader.delta.delta_options import find_table
    from torch_table_loader.delta.delta_source import DeltaRequest

    for version in range(3):
        write_deltalake(str(tmp_path / "t"), numbers(10 * version, 10 * version + 10), mode="append")
    request = DeltaRequest(find_table(tmp_path / "t", None))
    asked: list[tuple[str, Any]] = []

    def agree(name: str, value: Any) -> Any:
        asked.append((name, value))
        return 1

    source = request.open({}, agree)
    assert asked == [("snapshot", 2)]
    assert (source.snapshot_id, len(source.files), source.pinned) == (1, 2, False)


def test_a_copy_of_a_table_is_the_same_table(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), numbers(0, 9))
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    loader, _ = DeltaDataset.create_dataloader(tmp_path / "t", batch_size=2)
    next(iter(loader))
    other, _ = DeltaDataset.create_dataloader(tmp_path / "copy", batch_size=2)
    other.load_state_dict(loader.state_dict())
    assert sum(len(batch["x"]) for batch in other) == 7


def test_options_are_those_of_every_table() -> None:
    import inspect

    named = set(inspect.signature(DeltaDataset).parameters)
    assert set(LoaderOptions.__dataclass_fields__) <= named


@pytest.mark.parametrize(
    ("uri", "options", "expected"),
    [
        (
            "s3://bucket/t",
            {"key": "K", "secret": "S", "endpoint_url": "http://h:9", "force_virtual_addressing": True},
            {
                "aws_access_key_id": "K",
                "aws_secret_access_key": "S",
                "aws_endpoint_url": "http://h:9",
                "aws_virtual_hosted_style_request": "true",
                "aws_allow_http": "true",
                "proxy_url": "http://127.0.0.1:0",  # for all other hosts, to which a redirect would take the login
                "proxy_excludes": "h",
            },
        ),
        (
            "gs://bucket/t",
            {"token": "anon", "proxy_options": {"host": "p", "port": 1}, "request_timeout": 5},
            {"skip_signature": "true", "proxy_url": "http://p:1", "timeout": "5s"},
        ),
        ("abfss://box@lake/t", {"sas_token": "sig=x"}, {"account_name": "lake", "sas_key": "sig=x"}),
    ],
)
def test_deltalake_is_told_what_the_caller_said_in_its_own_words(
    uri: str, options: dict[str, Any], expected: dict[str, str]
) -> None:
    from torch_table_loader.delta.delta_options import find_table

    assert find_table(uri, options).for_deltalake(4.0) == {"retry_timeout": "4s", **expected}


DEEP = "[" * 30_000 + "]" * 30_000


@pytest.mark.parametrize("where", ["statistics", "escaped", "torn", "a line", "checkpoint", "sidecar"])
def test_a_log_that_nests_too_deep_is_refused_before_it_ends_the_process(tmp_path: Path, where: str) -> None:
    uri = tmp_path / "t"
    write_deltalake(uri, numbers(0, 3))
    stats = '{"minValues": ' + (DEEP[:30_000] if where == "torn" else DEEP) + "}"
    path = uri / "_delta_log" / "00000000000000000000.json"
    if where == "a line":
        path.write_text(path.read_text() + '{"add": {"tags": ' + DEEP + "}}\n")
    elif where in ("statistics", "escaped", "torn"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line.get("add", {})["stats"] = stats
        text = "\n".join(map(json.dumps, lines))
        path.write_text(text.replace("[[", "\\u005b\\u005b") if where == "escaped" else text)
    else:
        DeltaTable(uri).create_checkpoint()
        path = checkpoint = next(path.parent.glob("*.checkpoint.parquet"))
        table = pq.read_table(path)
        rows = table.to_pylist()
        for row in rows:
            row["add"] = row["add"] and {**row["add"], "stats": stats}
        if where == "sidecar":
            path = path.parent / "_sidecars" / "a.parquet"
            path.parent.mkdir()
            pq.write_table(pa.Table.from_pylist([row for row in rows if row["add"]], schema=table.schema), path)
            rows = [row for row in rows if not row["add"]]
            rows[0]["sidecar"] = {"path": path.name, "sizeInBytes": path.stat().st_size, "modificationTime": 0}
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), checkpoint)
    options: dict[str, Any]
    for options in ({}, {"version": 0}, {"timestamp": "2100-01-01T00:00:00Z"}):
        with pytest.raises(TableError, match=f"{path.name} must nest"):
            DeltaDataset(uri, **options)
