"""Avro files: types, nulls, nested values, and damage."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from tests.tables.reading import LocalStorage, all_batches, data_file, inspect
from torch_table_loader import StructuredDataset
from torch_table_loader.errors import MissingExtraError, TableError
from torch_table_loader.extend import reader_for

UTC = dt.UTC
FIELDS: dict[str, tuple[Any, list[Any], pa.DataType]] = {
    "i": ("int", [1, -2], pa.int32()),
    "n": (["null", "long"], [None, 1 << 40], pa.int64()),
    "f": ("float", [0.5, float("inf")], pa.float32()),
    "s": ("string", ["a", "é"], pa.string()),
    "b": ("bytes", [b"\x00", b""], pa.binary()),
    "day": ({"type": "int", "logicalType": "date"}, [dt.date(1960, 1, 1), dt.date(2020, 2, 29)], pa.date32()),
    "t": ({"type": "long", "logicalType": "time-micros"}, [dt.time(1, 2, 3, 4), dt.time(0)], pa.time64("us")),
    "at": (
        {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
        [dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), dt.datetime(2020, 1, 1, tzinfo=UTC)],
        pa.timestamp("us", "UTC"),
    ),
    "local": (
        {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
        [dt.datetime(2020, 1, 1, tzinfo=UTC), dt.datetime(1, 1, 1, tzinfo=UTC)],
        pa.timestamp("us"),
    ),
    "d": (
        {"type": "fixed", "size": 4, "name": "d", "logicalType": "decimal", "precision": 9, "scale": 2},
        [decimal.Decimal("-1.25"), decimal.Decimal("1234567.89")],
        pa.decimal128(9, 2),
    ),
    "u": (
        {"type": "fixed", "size": 16, "name": "u", "logicalType": "uuid"},
        [uuid.UUID(int=1).bytes, uuid.UUID(int=2**127).bytes],
        pa.binary(16),
    ),
    "l": ({"type": "array", "items": ["null", "int"]}, [[1, None], []], pa.list_(pa.int32())),
    "m": (
        ["null", {"type": "map", "values": ["null", "int"]}],
        [{"k": None, "l": 2}, None],
        pa.map_(pa.string(), pa.int32()),
    ),
    "p": (
        {
            "type": "array",
            "logicalType": "map",
            "items": {
                "type": "record",
                "name": "pair",
                "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": ["null", "string"]}],
            },
        },
        [[{"key": 1, "value": "x"}], []],
        pa.map_(pa.int32(), pa.string()),
    ),
    "r": (
        ["null", {"type": "record", "name": "r", "fields": [{"name": "x", "type": ["null", "int"], "field-id": 7}]}],
        [{"x": 1}, None],
        pa.struct([("x", pa.int32())]),
    ),
}


def write(path: Path, names: list[str], copies: int = 1, codec: str = "deflate") -> Path:
    schema = {
        "type": "record",
        "name": "row",
        "fields": [{"name": name, "type": FIELDS[name][0], "field-id": at} for at, name in enumerate(names)],
    }
    rows = [{name: FIELDS[name][1][at] for name in names} for at in range(2)] * copies
    with path.open("wb") as target:
        fastavro.writer(target, fastavro.parse_schema(schema), rows, codec=codec)
    return path


def read(path: Path, columns: list[str], batch_size: int = 65536) -> pa.Table:
    options: Any = {"columns": columns, "output_format": "arrow", "batch_size": batch_size, "num_workers": 0}
    return pa.Table.from_batches(list(StructuredDataset(path, **options)))


def num_rows(path: Path) -> int:
    """Return how many rows are read without any column."""
    file = data_file(path, "avro")
    return sum(batch.num_rows for batch in all_batches(file, inspect(file), []))


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_every_type_round_trips(tmp_path: Path, name: str) -> None:
    _, values, kind = FIELDS[name]
    column = read(write(tmp_path / "x.avro", [name]), [name]).column(0)
    assert column.type == kind
    plain = values
    if name == "local":
        plain = [value.replace(tzinfo=None) for value in plain]
    elif name == "m":
        plain = [None if value is None else list(value.items()) for value in values]
    elif name == "p":
        plain = [[(pair["key"], pair["value"]) for pair in value] for value in values]
    assert column.to_pylist() == plain


def test_ids_are_kept_and_batches_are_bounded(tmp_path: Path) -> None:
    path = write(tmp_path / "x.avro", ["i", "r", "s"], copies=5000)
    meta = inspect(data_file(path, "avro"))
    assert meta.group_rows == (10_000,)
    assert [field.metadata[b"PARQUET:field_id"] for field in meta.schema] == [b"0", b"1", b"2"]
    assert meta.schema.field("r").type.field(0).metadata == {b"PARQUET:field_id": b"7"}
    assert read(path, ["s", "i"], batch_size=100).column("s").to_pylist() == ["a", "é"] * 5000
    assert num_rows(path) == 10_000


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard"])
def test_every_codec_in_the_iceberg_specification_is_read(tmp_path: Path, codec: str) -> None:
    path = write(tmp_path / "x.avro", ["i", "s"], copies=5000, codec=codec)
    assert read(path, ["s"]).column("s").to_pylist() == ["a", "é"] * 5000


def lacks_cramjam(_: Any) -> None:
    """Raise the error of fastavro for a missing package."""
    raise ValueError("snappy codec is supported but you need to install one of the following libraries: ('cramjam',)")


def test_a_codec_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.avro", ["i"], codec="snappy")
    monkeypatch.setitem(fastavro._read.BLOCK_READERS, "snappy", lacks_cramjam)
    with pytest.raises(MissingExtraError, match=r"x\.avro: snappy codec .* need to install .*cramjam"):
        inspect(data_file(path, "avro"))


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard"])
def test_a_block_that_does_not_decode_is_named(tmp_path: Path, codec: str) -> None:
    path = write(tmp_path / "x.avro", ["s"], copies=5000, codec=codec)
    data = bytearray(path.read_bytes())
    half = len(data) // 2
    data[half : half + 40] = b"\xff" * 40
    path.write_bytes(data)
    with pytest.raises(TableError, match=r"x\.avro"):
        read(path, ["s"])


@pytest.mark.parametrize("bits", [20, 34, 48, 62])
def test_a_length_beyond_the_file_is_damage_and_takes_no_memory(tmp_path: Path, bits: int) -> None:
    path = write(tmp_path / "x.avro", ["s"], copies=50, codec="deflate")
    data = path.read_bytes()
    at = data.index(b"avro.codec") + len(b"avro.codec")
    length = b"\x80" * (bits // 7) + bytes([1 << bits % 7])
    path.write_bytes(data[:at] + length + data[at + 1 :])
    with pytest.raises(TableError, match=r"x\.avro must be an Avro file, got one that does not parse"):
        inspect(data_file(path, "avro"))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.avro", ["i"], copies=5000)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(TableError, match=r"x\.avro must be an Avro file"):
        inspect(data_file(path, "avro"))
    path.write_bytes(b"PAR1")
    with pytest.raises(TableError, match=r"x\.avro must be an Avro file"):
        reader_for("avro").inspect(LocalStorage(), data_file(path, "avro"), None)


def written(path: Path, fields: dict[str, Any], *rows: dict[str, Any], metadata: Any = None) -> Path:
    """Write rows with fields of these types."""
    schema = {
        "type": "record",
        "name": "row",
        "namespace": "of.rows",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }
    with path.open("wb") as target:
        fastavro.writer(target, schema, rows, metadata=metadata)
    return path


POINT = {"type": "record", "name": "point", "fields": [{"name": "x", "type": "int"}]}
STRUCT = pa.struct([pa.field("x", pa.int32(), nullable=False)])
NAMED: dict[str, tuple[Any, list[Any], pa.DataType]] = {
    "record": (POINT, ["point", "of.rows.point"], STRUCT),
    "enum": ({"type": "enum", "name": "e", "symbols": ["a", "b"]}, ["e", "of.rows.e"], pa.string()),
    "fixed": ({"type": "fixed", "name": "f", "size": 2}, ["f", ["null", "f"]], pa.binary(2)),
    "other namespace": ({**POINT, "namespace": "of.points"}, ["of.points.point"], STRUCT),
    "decimal": (
        {"type": "fixed", "name": "d", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2},
        ["d"],
        pa.decimal128(9, 2),
    ),
}
VALUES = {"enum": "b", "fixed": b"xy", "decimal": decimal.Decimal("1.25")}


@pytest.mark.parametrize("name", NAMED)
def test_a_type_is_used_again_by_its_name(tmp_path: Path, name: str) -> None:
    defined, uses, kind = NAMED[name]
    value = VALUES.get(name, {"x": 7})
    fields = {"first": defined, **{f"use{place}": use for place, use in enumerate(uses)}}
    fields["nested"] = {"type": "array", "items": {"type": "map", "values": uses[0]}}
    row = {key: [{"k": value}] if key == "nested" else value for key in fields}
    table = read(written(tmp_path / "x.avro", fields, row), list(fields))
    assert table.schema.types[:-1] == [kind] * (1 + len(uses))
    assert table.to_pylist() == [row | {"nested": [[("k", value)]]}]


def test_a_uuid_on_text_is_its_bytes(tmp_path: Path) -> None:
    value = uuid.UUID(int=5)
    kind = {"type": "string", "logicalType": "uuid"}
    fields = {"u": kind, "n": ["null", kind], "l": {"type": "array", "items": kind}, "x": "int"}
    path = written(tmp_path / "x.avro", fields, {"u": value, "n": None, "l": [value], "x": 1})
    table = read(path, ["u", "n", "l", "x"])
    assert table.schema.types[:2] == [pa.binary(16), pa.binary(16)]
    assert table.to_pylist() == [{"u": value.bytes, "n": None, "l": [value.bytes], "x": 1}]


@pytest.mark.parametrize("kind", ["null", ["null"], {"type": "null"}])
def test_a_field_of_nulls_is_read(tmp_path: Path, kind: Any) -> None:
    table = read(written(tmp_path / "x.avro", {"n": kind, "x": "int"}, {"n": None, "x": 1}), ["n", "x"])
    assert table.to_pylist() == [{"n": None, "x": 1}]


LOOP = {
    "type": "record",
    "name": "node",
    "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "node"]}],
}
WIDE = {"type": "bytes", "logicalType": "decimal", "precision": 80, "scale": 0}
UNREAD: dict[str, tuple[Any, Any, str]] = {
    "union": (["int", "string"], 1, "int or string"),
    "nested union": ({"type": "array", "items": ["null", "int", POINT]}, [None], "int or of.rows.point|int or point"),
    "loop": (LOOP, {"v": 1, "next": {"v": 2, "next": None}}, "'of.rows.node' within itself"),
    "decimal": (WIDE, decimal.Decimal(5), "decimals of 80 digits"),
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_read_is_said_and_other_columns_are_read(tmp_path: Path, name: str) -> None:
    kind, value, words = UNREAD[name]
    path = written(tmp_path / "x.avro", {"bad": kind, "x": "int"}, {"bad": value, "x": 1})
    with pytest.raises(TableError, match=f"x.avro.*'bad' holds.*({words}).*leave it out of columns=") as raised:
        read(path, ["bad", "x"])
    assert "damaged" not in str(raised.value)
    assert read(path, ["x"]).to_pylist() == [{"x": 1}]
    assert num_rows(path) == 1


def test_decimals_beyond_38_digits_are_read(tmp_path: Path) -> None:
    value = decimal.Decimal("1" * 50 + ".5")
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 1}
    table = read(written(tmp_path / "x.avro", {"d": kind}, {"d": value}), ["d"])
    assert table.column("d").type == pa.decimal256(60, 1)
    assert table.to_pylist() == [{"d": value}]


@pytest.mark.parametrize("key", ["of", "avro.sync"])
def test_metadata_need_not_be_text(tmp_path: Path, key: str) -> None:
    path = written(tmp_path / "x.avro", {"x": "int"}, *({"x": x} for x in range(5)), metadata={"_" * len(key): "..."})
    path.write_bytes(path.read_bytes().replace(b"_" * len(key), key.encode()))
    data = path.read_bytes()
    path.write_bytes(data.replace(b"...", b"\xff\xfe\x00"))
    assert read(path, ["x"]).column("x").to_pylist() == [0, 1, 2, 3, 4]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TableError, match="torn"):
        inspect(data_file(path, "avro"))


def test_a_file_of_no_records_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x.avro"
    with path.open("wb") as target:
        fastavro.writer(target, "string", ["a"])
    with pytest.raises(TableError, match=r"an Avro file of records.*'string'") as raised:
        inspect(data_file(path, "avro"))
    assert "torn" not in str(raised.value)


def test_types_that_use_each_other_twice_are_bounded(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"f0": {**POINT, "name": "r0"}}
    for place in range(1, 60):
        inner = [{"name": name, "type": f"r{place - 1}"} for name in "ab"]
        fields[f"f{place}"] = {"type": "record", "name": f"r{place}", "fields": inner}
    with pytest.raises(TableError, match=r"x\.avro.*at most 10000 types"):
        inspect(data_file(written(tmp_path / "x.avro", fields), "avro"))
