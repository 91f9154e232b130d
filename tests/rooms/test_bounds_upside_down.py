"""A lower bound above the upper one, as broken writers write: it says nothing of a file's rows, and none is lost."""

from __future__ import annotations

import datetime as dt
import struct
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.filtered import canonical, filters, rows
from tests.tables.delta import DeltaWriter, field_of, stats_of
from tests.tables.iceberg import IcebergWriter, column
from torch_table_loader import DeltaDataset, IcebergDataset, StructuredDataset
from torch_table_loader.iceberg.manifests import Entry, Manifest
from torch_table_loader.iceberg.metadata import SpecField, read_schema
from torch_table_loader.iceberg.pruning import Pruner

SCHEMA = pa.schema([("x", "int64"), ("k", "int32"), ("f", "float64"), ("s", "string")])
ICEBERG = (column(1, "x", "long"), column(2, "k", "int"), column(3, "f", "double"), column(4, "s", "string"))
DELTA = [field_of("x", "long"), field_of("k", "integer"), field_of("f", "double"), field_of("s", "string")]
files = st.lists(st.lists(rows, min_size=1, max_size=5), min_size=1, max_size=4)
law = settings(deadline=None, max_examples=examples(24), suppress_health_check=list(HealthCheck))


def read(kind: Any, *table: Any, **options: Any) -> list[dict[str, Any]]:
    loader, _ = kind.create_dataloader(*table, output_format="arrow", num_workers=0, **options)
    return [row for batch in loader for row in batch.to_pylist()]


@law
@given(files=files, wanted=filters, at=st.integers(0, 3), which=st.integers(0, 3))
def test_of_a_file_in_an_iceberg_manifest(files: list[Any], wanted: pc.Expression, at: int, which: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = IcebergWriter(Path(folder), ICEBERG)
        for own in files:
            table.append(own)
        said = table.data[at % len(files)].entry
        lows, highs = ({pair["key"]: pair for pair in said[name]} for name in ("lower_bounds", "upper_bounds"))
        if which + 1 in lows:
            low, high = lows[which + 1], highs[which + 1]
            low["value"], high["value"] = high["value"], low["value"]
        table.commit()
        live = pa.Table.from_pylist(table.live(), SCHEMA)
        found = read(IcebergDataset, metadata_location=table.metadata, filters=wanted)
        assert canonical(found) == canonical(live.filter(wanted).to_pylist())


@pytest.mark.parametrize("of", ["keys", "files"])
def test_of_the_keys_of_an_equality_delete(tmp_path: Path, of: str) -> None:
    table = IcebergWriter(tmp_path, ICEBERG)
    table.append([{"x": x} for x in range(10)])
    table.commit()
    table.delete_keys([1], [{"x": x} for x in (2, 4, 6)])
    table.commit()
    said = table.deletes[0].entry if of == "keys" else table.data[0].entry
    said["lower_bounds"], said["upper_bounds"] = said["upper_bounds"], said["lower_bounds"]
    table.commit()
    assert [row["x"] for row in read(IcebergDataset, metadata_location=table.metadata)] == [0, 1, 3, 5, 7, 8, 9]


def test_of_the_paths_of_a_position_delete(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path, ICEBERG)
    paths = [table.append([{"x": x} for x in range(start, start + 5)]) for start in (0, 5, 10)]
    table.delete_rows({path: [1] for path in paths})
    ends = [[{"key": 2147483546, "value": path.encode()}] for path in (paths[2], paths[0])]
    for delete in table.deletes:
        delete.entry |= {"lower_bounds": ends[0], "upper_bounds": ends[1]}
    table.commit()
    assert len(read(IcebergDataset, metadata_location=table.metadata)) == len(table.live()) == 12


@law
@given(files=files, wanted=filters, at=st.integers(0, 3), which=st.sampled_from(SCHEMA.names))
def test_of_a_file_in_a_delta_log(files: list[Any], wanted: pc.Expression, at: int, which: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = DeltaWriter(Path(folder) / "t", DELTA)
        for place, own in enumerate(files):
            held = pa.Table.from_pylist(own, SCHEMA)
            said = stats_of(held)
            if place == at % len(files) and which in said["minValues"]:
                low, high = said["minValues"], said["maxValues"]
                low[which], high[which] = high[which], low[which]
            table.append(own, table=held, stats=said)
        table.commit()
        live = pa.Table.from_pylist([row for own in files for row in own], SCHEMA)
        assert canonical(read(DeltaDataset, table.uri, filters=wanted)) == canonical(live.filter(wanted).to_pylist())


def test_of_times_in_a_delta_log_that_are_cut_to_milliseconds(tmp_path: Path) -> None:
    table = DeltaWriter(tmp_path / "t", [field_of("t", "timestamp")], features=())
    when = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    said = {"numRecords": 1, "nullCount": {"t": 0}}
    said |= {"minValues": {"t": "2026-01-01T12:00:00.0015Z"}, "maxValues": {"t": "2026-01-01T12:00:00.001Z"}}
    table.append([{"t": when}], table=pa.table({"t": pa.array([when], pa.timestamp("us", "UTC"))}), stats=said)
    table.commit()
    assert len(read(DeltaDataset, table.uri, filters=pc.field("t") == pa.scalar(when))) == 1


def swap_in_footer(path: Path, low: bytes, high: bytes) -> None:
    """Swap the bounds of one column in the footer of a Parquet file."""
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[start:].replace(low, b"\0" * len(low)).replace(high, low).replace(b"\0" * len(low), high)
    path.write_bytes(data[:start] + footer)


PARQUET: dict[str, tuple[pa.DataType, list[Any], Any]] = {
    "long": (pa.int64(), [10_000_000_019, 10_000_000_033, 10_000_000_061], struct.Struct("<q").pack),
    "int": (pa.int32(), [-1_000_000_007, 5, 1_000_000_009], struct.Struct("<i").pack),
    "double": (pa.float64(), [-1.234567, 0.0, 9.876543], struct.Struct("<d").pack),
    "string": (pa.string(), ["aaaaaaaa", "mmmmmmmm", "zzzzzzzz"], str.encode),
    "timestamp": (
        pa.timestamp("us"),
        [1_000_000_000_019, 1_000_000_000_033, 9_000_000_000_061],
        struct.Struct("<q").pack,
    ),
    "decimal": (pa.decimal128(9, 2), [1111111.11, 2222222.22, 7777777.77], None),
    "uint": (pa.uint32(), [3_000_000_019, 3_500_000_033, 4_000_000_061], struct.Struct("<I").pack),
}


@pytest.mark.parametrize("name", PARQUET)
@daily(3)
def test_of_a_row_group_of_a_parquet_file(tmp_path: Path, name: str) -> None:
    kind, values, pack = PARQUET[name]
    if name == "decimal":
        array = pa.array(values, pa.float64()).cast(kind)
        ends = [round(value * 100).to_bytes(4, "big") for value in (values[0], values[-1])]
    else:
        array = pa.array(values, kind)
        assert pack is not None
        ends = [pack(value) for value in (values[0], values[-1])]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"v": array}), path, use_dictionary=False)
    swap_in_footer(path, *ends)
    found = pq.read_metadata(path).row_group(0).column(0).statistics
    assert found.min > found.max
    for value in array:
        wanted = pc.field("v")
        for each in (wanted == value, wanted <= value, wanted >= value, wanted.isin(pa.array([value]))):
            kept = read(StructuredDataset, str(path), filters=each)
            assert kept == pa.table({"v": array}).filter(each).to_pylist()
    if pa.types.is_signed_integer(kind):
        measured = StructuredDataset(str(path)).statistics(["v"], bounds_only=True)["v"]
        assert (measured.min, measured.max) == (values[0], values[-1])


INTEGERS = {"int": 32, "long": 64}


def wrapped(value: int, bits: int) -> int:
    """Return a whole number as one of so many bits, as Java computes."""
    return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def remainder(value: int, width: int) -> int:
    """Return the remainder that has the sign of the value, as in Java."""
    return abs(value) % width * (-1 if value < 0 else 1)


def truncated(value: int, width: int, bits: int) -> int:
    """Truncate as Java's `value - (((value % width) + width) % width)` does."""
    return wrapped(value - remainder(wrapped(remainder(value, width) + width, bits), width), bits)


def pruner(wanted: pc.Expression, kind: str, transform: str) -> Pruner:
    schema = read_schema({"fields": [column(1, "v", kind)]})
    spec = {0: [SpecField.model_validate({"transform": transform, "source-id": 1})]}
    return Pruner(wanted, schema, pa.schema([("v", schema.columns[0].type)]), spec)


def summary(low: bytes | None, high: bytes | None, *, nulls: bool = False) -> Manifest:
    said = {"contains_null": nulls, "contains_nan": False, "lower_bound": low, "upper_bound": high}
    return Manifest("m", 0, partitions=({key: value for key, value in said.items() if value is not None},))


@pytest.mark.parametrize(("written", "now"), [("int", "int"), ("int", "long"), ("long", "long")])
def test_integers_whose_truncation_overflows_are_found(written: str, now: str) -> None:
    bits = INTEGERS[written]
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    edges = st.integers(least, least + 3000) | st.integers(most - 3000, most) | st.integers(-30, 30)
    widths = st.integers(1, 1000) | st.sampled_from([2**30, 2**30 + 1, 2**31 - 1])
    compares = st.sampled_from(["__eq__", "__le__", "__ge__"])

    @settings(deadline=None, max_examples=examples(100))
    @given(values=st.lists(edges, min_size=1, max_size=3), width=widths, compare=compares)
    def holds(values: list[int], width: int, compare: str) -> None:
        parts = [truncated(value, width, bits) for value in values]
        low, high = (struct.pack("<i" if bits == 32 else "<q", end(parts)) for end in (min, max))
        for value, part in zip(values, parts, strict=True):
            rules = pruner(getattr(pc.field("v"), compare)(pa.scalar(value)), now, f"truncate[{width}]")
            assert rules.keeps(Entry("a", 0, "PARQUET", 0, (part,), 1, None, 1, 9), {"record_count": 1})
            assert rules.keeps_manifest(summary(low, high))

    holds()


@pytest.mark.parametrize(
    ("kind", "transform", "low", "high"),
    [
        ("long", "identity", struct.pack("<q", 10), struct.pack("<q", 1)),
        ("int", "truncate[10]", struct.pack("<i", 10), struct.pack("<i", 0)),
        ("long", "bucket[8]", struct.pack("<i", 7), struct.pack("<i", 0)),
        ("string", "identity", b"b", b"a"),
        ("string", "truncate[1]", b"b", b"a"),
        ("binary", "truncate[1]", b"b", b"a"),
        ("decimal(9, 2)", "truncate[10]", b"\x20", b"\x10"),
        ("date", "day", struct.pack("<i", 0), struct.pack("<i", -1)),
        ("date", "month", struct.pack("<i", 0), struct.pack("<i", -1)),
        ("timestamp", "year", struct.pack("<i", 5), struct.pack("<i", 4)),
        ("timestamp", "hour", struct.pack("<i", 0), struct.pack("<i", -1)),
        ("double", "identity", struct.pack("<d", 1.5), struct.pack("<d", -1.5)),
        ("boolean", "identity", b"\1", b"\0"),
    ],
)
def test_of_the_partitions_of_a_manifest(kind: str, transform: str, low: bytes, high: bytes) -> None:
    arrow = read_schema({"fields": [column(1, "v", kind)]}).columns[0].type
    times = pa.types.is_date32(arrow) or pa.types.is_timestamp(arrow)
    some: list[Any] = (
        [b"a", b"zz", b""] if kind == "binary" else ["a", "zz", ""] if kind == "string" else [0, 1, -9, 99]
    )
    if kind == "boolean":
        some = [False, True]
    for value in some:
        number = pa.scalar(value, pa.int32() if pa.types.is_date32(arrow) else pa.int64()) if times else value
        literal = number.cast(arrow) if times else pa.scalar(value, arrow)
        for compare in ("__eq__", "__le__", "__ge__"):
            rules = pruner(getattr(pc.field("v"), compare)(literal), kind, transform)
            assert rules.keeps_manifest(summary(low, high))
            assert rules.keeps_manifest(summary(None, high, nulls=True))


def test_of_two_that_contradict_each_other() -> None:
    """A file's partition value and its statistics lie apart: one of them is wrong."""
    rules = pruner(pc.field("v") == 5, "long", "identity")
    entry = Entry("a", 0, "PARQUET", 0, (5,), 1, None, 1, 9)
    bound = [{"key": 1, "value": struct.pack("<q", 9)}]
    assert rules.keeps(entry, {"record_count": 1, "lower_bounds": bound, "upper_bounds": bound})
