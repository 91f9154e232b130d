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

from tests.tables.reading import LocalStorage, as_table, data_file, inspect, whole_task
from torch_table_loader.errors import MissingExtraError, TableError
from torch_table_loader.extend import reader_for
from torch_table_loader.read.tasks import TaskReader

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


def read(path: Path, columns: list[str], max_rows: int = 65536) -> pa.Table:
    file = data_file(path, "avro")
    meta = inspect(file)
    reader = TaskReader(LocalStorage(), [file], [meta], meta.schema, columns, max_rows=max_rows)
    return as_table(reader.read(whole_task(meta)), reader.schema)


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
    assert read(path, ["s", "i"], max_rows=100).column("s").to_pylist() == ["a", "é"] * 5000
    assert read(path, []).num_rows == 10_000


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
