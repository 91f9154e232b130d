"""INT96 in Parquet: nanoseconds where these hold it, microseconds on request, and never another time."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_table_loader import StructuredDataset, TableError
from torch_table_loader.read.int96 import columns_of_instants, unit_of_instants, with_instants
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


@small_sizes(parquet_values=1)
@pytest.mark.parametrize(
    "kind", [pa.list_(pa.timestamp("us")), pa.struct([("t", pa.timestamp("us")), ("x", pa.int8())])]
)
def test_nested_ones_are_looked_at(tmp_path: Path, kind: pa.DataType) -> None:
    listed = pa.types.is_list(kind)
    for far in (False, True):
        times = FAR if far else [DAY, None]
        path = written(tmp_path, pa.array([[each] if listed else {"t": each, "x": 1} for each in times], kind), 3)
        if far:
            with pytest.raises(TableError, match="column 'ts' of"):
                read(path)
        else:
            values = pa.concat_arrays(
                chunk.flatten() if listed else chunk.field(0) for chunk in read(path)["ts"].chunks
            )
            assert values.cast(pa.timestamp("us")).to_pylist() == times * 3


def test_lists_without_a_group_of_their_own_are_no_flat_columns(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("ts", pa.timestamp("us"), nullable=False)])
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"ts": [DAY]}, schema), path, use_deprecated_int96_timestamps=True, store_schema=False)
    data = path.read_bytes()
    assert data.count(b"\x15\x06\x25\0\x18\x02ts") == 1
    path.write_bytes(data.replace(b"\x15\x06\x25\0\x18\x02ts", b"\x15\x06\x25\x04\x18\x02ts"))  # required, repeated
    parsed = pq.read_metadata(path)
    assert columns_of_instants(parsed) == {"ts"}
    found = with_instants(parsed, schema)
    assert pa.types.is_list(found.field("ts").type)
    assert unit_of_instants(parsed, found) is None
