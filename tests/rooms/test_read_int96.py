"""INT96 in Parquet: nanoseconds where these hold it, microseconds on request, and never another time."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_table_loader import StructuredDataset, TableError
from torch_table_loader.read.int96 import columns_of_instants, parse_as_bytes, unit_of_instants, with_instants
from torch_table_loader.testing import small_sizes

DAY = dt.datetime.fromisoformat("2020-01-01T12:30:15.123456")
FAR = [dt.datetime.fromisoformat("9999-12-31T23:59"), DAY, None, dt.datetime.fromisoformat("0001-01-01T00:00:01")]
EDGES = [-(1 << 63) + 1, -1_000_001, -1, 0, 1, 999_999, 1_577_836_800_123_456_789, (1 << 63) - 1, None]
"""Nanoseconds; the last and the first that there are."""


def written(folder: Path, times: pa.Array, repeat: int = 1, **options: Any) -> str:
    path = str(folder / "a.parquet")
    table = pa.table({"ts": times, "v": range(len(times))})
    table = pa.concat_tables([table] * repeat)
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, **options)
    return path


def read(path: str, **options: Any) -> pa.Table:
    given = {"output_format": "arrow", "num_workers": 0, "batch_size": 3, **options}
    return pa.Table.from_batches(list(StructuredDataset.create_dataloader(path, "parquet", **given)[0]))


@pytest.mark.parametrize("shuffle", [False, "rows"])
def test_nanoseconds_are_kept_to_the_last(tmp_path: Path, shuffle: Any) -> None:
    path = written(tmp_path, pa.array(EDGES, pa.timestamp("ns")))
    found = read(path, shuffle=shuffle).sort_by("v")
    assert found["ts"].cast(pa.int64()).to_pylist() == EDGES


@pytest.mark.parametrize("rows", [2, 1000])
@pytest.mark.parametrize("options", [{}, {"shuffle": "rows"}, {"filters": "ts > 2021-01-01"}, {"filters": "v >= 0"}])
def test_times_that_nanoseconds_do_not_hold_are_refused_by_column(
    tmp_path: Path, options: dict[str, Any], rows: int
) -> None:
    path = written(tmp_path, pa.array(FAR, pa.timestamp("us")), row_group_size=rows)
    with pytest.raises(TableError, match=r"column 'ts' of a\.parquet .*INT96.*schema= with pyarrow\.timestamp\('us'\)"):
        read(path, **options)
    assert read(path, columns=["v"])["v"].to_pylist() == [0, 1, 2, 3]


@pytest.mark.parametrize("unit", ["us", "ms", "s"])
@pytest.mark.parametrize("rows", [1, 4])
def test_other_units_hold_them_under_filters_too(tmp_path: Path, unit: str, rows: int) -> None:
    path = written(tmp_path, pa.array(FAR, pa.timestamp("us")), row_group_size=rows)
    schema = pa.schema([("ts", pa.timestamp(unit)), ("v", pa.int64())])
    expected = pa.array(FAR, pa.timestamp("us")).cast(pa.timestamp(unit), safe=False)
    for shuffle in (False, "rows"):
        assert read(path, schema=schema, shuffle=shuffle).sort_by("v")["ts"].combine_chunks().equals(expected)
    for text, kept in (
        ("ts > 2021-01-01", [0]),
        ("ts < 2000-01-01", [3]),
        ("ts is null", [2]),
        ("ts < 3000-01-01", [1, 3]),
    ):
        assert read(path, schema=schema, filters=text)["v"].to_pylist() == kept


TIME = pa.timestamp("us")
NESTED: dict[str, tuple[pa.DataType, Any]] = {
    "list": (pa.list_(TIME), lambda time: [time, DAY]),
    "large list": (pa.large_list(TIME), lambda time: [DAY, time]),
    "fixed-size list": (pa.list_(TIME, 2), lambda time: [time, time]),
    "struct": (pa.struct([("t", TIME), ("x", pa.int8())]), lambda time: {"t": time, "x": 1}),
    "map": (pa.map_(pa.string(), TIME), lambda time: [("a", time), ("b", DAY)]),
    "both": (pa.list_(pa.struct([("t", pa.list_(TIME))])), lambda time: [{"t": [time]}, None, {"t": []}]),
}
"""Types with times inside, and how a value of them is made of a time."""


@small_sizes(parquet_values=1)
@pytest.mark.parametrize("rows", [1, 2, 1000])
@pytest.mark.parametrize("kind", NESTED)
def test_nested_ones_are_looked_at(tmp_path: Path, kind: str, rows: int) -> None:
    nested, made = NESTED[kind]
    unread = kind == "fixed-size list" and int(pa.__version__.partition(".")[0]) < 26  # a null among them
    for times in ([DAY, None], FAR):
        values = pa.array([*map(made, times)] if unread else [None, *map(made, times)], nested)
        path = written(tmp_path, values, 3, row_group_size=rows)
        if times is FAR:
            with pytest.raises(TableError, match=r"column 'ts' of .*schema= with pyarrow\.timestamp\('us'\)"):
                read(path)
        schema = pa.schema([("ts", nested), ("v", pa.int64())])
        assert read(path, schema=schema)["ts"].to_pylist() == values.to_pylist() * 3
    assert read(path, columns=["v"])["v"].to_pylist() == [*range(len(values))] * 3


DAY_NS = 86_400_000_000_000
ODD = {"day 0": (0, 0), "before its day": (2_440_588, -1), "after its day": (2_440_588, 90_000_000_000_000)}
ODD |= {"far": (2_440_588 + 10**7, 0), "beyond microseconds": (2_440_588 + 10**9, 0)}
"""Days and nanoseconds of a day, as they may stand in files."""

MARK = dt.datetime.fromisoformat("2001-02-03T04:05:06")


def stored(day: int, nanos: int) -> bytes:
    return nanos.to_bytes(8, "little", signed=True) + day.to_bytes(4, "little")


def with_bytes(folder: Path, kind: str, *, nested: bool = False, **options: Any) -> str:
    """Write a file that holds bytes which pyarrow does not write."""
    times: list[Any] = [DAY, MARK, None, DAY]
    if nested:
        times = [[each] for each in times]
    path = Path(written(folder, pa.array(times, pa.list_(pa.timestamp("us")) if nested else None), **options))
    days, seconds = divmod(int(MARK.replace(tzinfo=dt.UTC).timestamp()), 86_400)
    mark = stored(2_440_588 + days, seconds * 10**9)
    assert path.read_bytes().count(mark) == 1
    path.write_bytes(path.read_bytes().replace(mark, stored(*ODD[kind])))
    return str(path)


PLAIN: dict[str, Any] = {"compression": "none", "write_page_checksum": False}


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("kind", ODD)
def test_any_bytes_are_the_time_that_they_say(tmp_path: Path, kind: str, rows: int, dictionary: bool) -> None:
    path = with_bytes(tmp_path, kind, row_group_size=rows, use_dictionary=dictionary, **PLAIN)
    day, nanos = ODD[kind]
    usual = int(pa.scalar(DAY, pa.timestamp("ns")).value)
    exact = [usual, (day - 2_440_588) * DAY_NS + nanos, None, usual]
    for unit, step in (("ns", 1), ("us", 1000), ("ms", 10**6), ("s", 10**9)):
        schema = pa.schema([("ts", pa.timestamp(unit)), ("v", pa.int64())])
        expected = [each and each // step for each in exact]
        if all(each is None or -(2**63) <= each < 2**63 for each in expected):
            assert read(path, schema=schema)["ts"].cast(pa.int64()).to_pylist() == expected
        else:
            with pytest.raises(
                TableError, match=r"column 'ts' of a\.parquet holds times \(INT96\) (outside|that micro)"
            ):
                read(path, schema=schema)


@pytest.mark.parametrize("kind", ODD)
def test_any_bytes_inside_of_lists_are_the_time_that_they_say(tmp_path: Path, kind: str) -> None:
    path = with_bytes(tmp_path, kind, nested=True, **PLAIN)
    day, nanos = ODD[kind]
    exact = (day - 2_440_588) * DAY_NS + nanos
    for unit, step in (("ns", 1), ("us", 1000)):
        schema = pa.schema([("ts", pa.list_(pa.timestamp(unit))), ("v", pa.int64())])
        if abs(exact // step) < 2**63:
            found = pa.concat_arrays(chunk.flatten() for chunk in read(path, schema=schema)["ts"].chunks)
            assert found.cast(pa.int64())[1].as_py() == exact // step
        else:
            with pytest.raises(TableError, match=r"column 'ts' .* times \(INT96\) (outside|that micro)"):
                read(path, schema=schema)


def test_a_parse_as_bytes_is_one_of_many_columns(tmp_path: Path) -> None:
    columns = {f"ts{number}": pa.array([DAY, None], pa.timestamp("us")) for number in range(20)}
    table = pa.table({"a": ["x", "y"], **columns, "b": [[1.5], None]})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True, row_group_size=1)
    data = (tmp_path / "a.parquet").read_bytes()
    length = int.from_bytes(data[-8:-4], "little") + 8
    parsed = parse_as_bytes("a", b"PAR1" + data[-length:])
    found = pq.ParquetFile(tmp_path / "a.parquet", metadata=parsed).read()
    assert found.select(["a", "b"]).equals(table.select(["a", "b"]))
    assert {found.schema.field(name).type for name in columns} == {pa.binary(12)}
    assert all(found[name].null_count == 1 for name in columns)


def test_a_torn_footer_is_damage(tmp_path: Path) -> None:
    data = Path(written(tmp_path, pa.array([DAY], pa.timestamp("us")))).read_bytes()
    footer = data[-int.from_bytes(data[-8:-4], "little") - 8 :]
    for length in (1, 20, 60, len(footer) - 20):
        with pytest.raises(TableError, match=r"a\.parquet must have a Parquet footer .* damaged"):
            parse_as_bytes("a.parquet", b"PAR1" + footer[:length])


def test_lists_without_a_group_of_their_own_are_no_flat_columns(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("ts", pa.timestamp("us"), nullable=False)])
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"ts": [DAY]}, schema), path, use_deprecated_int96_timestamps=True, store_schema=False)
    data = path.read_bytes()
    assert data.count(b"\x15\x06\x25\0\x18\x02ts") == 1
    path.write_bytes(data.replace(b"\x15\x06\x25\0\x18\x02ts", b"\x15\x06\x25\x04\x18\x02ts"))  # required, repeated
    parsed = pq.read_metadata(path)
    assert columns_of_instants(parsed) == {"ts"}
    assert with_instants(parsed, None).field("ts").type.value_type == pa.timestamp("ns")
    found = with_instants(parsed, schema)
    assert found.field("ts").type.value_type == pa.timestamp("us")
    assert unit_of_instants(parsed, found) == "us"
