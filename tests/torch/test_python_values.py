"""``unsupported="list"``: columns without a form as tensors come as Python values, of the right rows, in every mode."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from deltalake import write_deltalake

from tests.effort import daily
from tests.tables.catalogs import load_catalog
from torch_table_loader import (
    ConfigError,
    DeltaDataset,
    IcebergDataset,
    MixedDataset,
    StructuredDataset,
    TableError,
)
from torch_table_loader.arrow.python_values import python_values
from torch_table_loader.arrow.sound import check_times

ROWS = 40

TAGS: list[Any] = [None if row % 7 == 3 else [(f"k{row}", row), ("none", None)][: row % 3] for row in range(ROWS)]
BOXES: list[Any] = [None if row % 5 == 2 else [[row], [], None][: row % 4] for row in range(ROWS)]
DEBT = [None if row % 11 == 1 else Decimal(row) / 4 for row in range(ROWS)]
VALUES = {"tags": TAGS, "boxes": BOXES, "debt": DEBT}


def table() -> pa.Table:
    columns = {
        "x": pa.array(range(ROWS), pa.int64()),
        "tags": pa.array(TAGS, pa.map_(pa.string(), pa.int64())),
        "boxes": pa.array(BOXES, pa.list_(pa.list_(pa.int32()))),
        "debt": pa.array(DEBT, pa.decimal128(9, 2)),
    }
    return pa.table(columns)


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "t").mkdir()
    pq.write_table(table().slice(0, 23), tmp_path / "t" / "0.parquet", row_group_size=5)
    pq.write_table(table().slice(23), tmp_path / "t" / "1.parquet", row_group_size=9)
    return str(tmp_path / "t")


def check(batches: Any, times: int = 1) -> None:
    """Hold every batch against the table, and that each row comes so often."""
    seen: list[int] = []
    for batch in batches:
        assert isinstance(batch["x"], torch.Tensor)
        own = batch["x"].tolist()
        for name, values in VALUES.items():
            assert batch[name] == [values[row] for row in own]
        seen += own
    assert sorted(seen) == sorted([*range(ROWS)] * times)


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": "splits", "num_workers": 2},
        {"shuffle_buffer_size": 16, "split_size": 7},
        {"worker_type": "process", "num_workers": 1},
        {"shuffle": "rows", "row_store": "memory"},
        {"nulls": "mask", "device": "cpu"},
    ],
    ids=str,
)
@daily(2)
def test_each_row_has_its_values(path: str, options: dict[str, Any]) -> None:
    check(StructuredDataset.create_dataloader(path, batch_size=6, unsupported="list", **options)[0])


def test_a_row_store_on_disk_keeps_them(path: str, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    check(StructuredDataset.create_dataloader(path, shuffle="rows", row_store=store, unsupported="list")[0])
    view = StructuredDataset(path, shuffle="rows", row_store=store, unsupported="list").as_map()
    for row in (0, 3, 17, -1):
        assert {name: view[row][name] for name in VALUES} == {name: values[row] for name, values in VALUES.items()}


@pytest.mark.parametrize("shuffle", ["rows", True])
def test_mixtures_hand_it_to_their_sources(path: str, shuffle: Any) -> None:
    sources = {name: partial(StructuredDataset, path, shuffle=shuffle) for name in ("a", "b")}
    loader, _ = MixedDataset.create_dataloader(sources, "rows", batch_size=8, unsupported="list")
    check(loader, times=2)
    sources["b"] = partial(StructuredDataset, path, shuffle=shuffle, unsupported="list", columns=["x", "tags"])
    sources["a"] = partial(StructuredDataset, path, shuffle=shuffle, columns=["x", "tags"])
    with pytest.raises(ConfigError, match=r"column 'tags' is of type map<.*unsupported=\"list\""):
        MixedDataset(sources, "rows")


def test_iceberg_tables_too(tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/lake"}
    made = load_catalog("default", **catalog)
    made.create_namespace("db")
    made.create_table("db.t", table().schema).append(table())
    check(IcebergDataset.create_dataloader("db.t", catalog, unsupported="list", batch_size=9)[0])


def test_delta_tables_too(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), table())
    check(DeltaDataset.create_dataloader(str(tmp_path / "t"), unsupported="list", batch_size=9)[0])


def test_functions_are_called_with_the_values(path: str) -> None:
    functions: dict[str, Any] = {"tags": lambda tags: torch.tensor([len(each or ()) for each in tags])}
    loader, _ = StructuredDataset.create_dataloader(path, unsupported="list", transforms=functions)
    for batch in loader:
        assert batch["tags"].tolist() == [len(TAGS[row] or ()) for row in batch["x"].tolist()]


def test_what_has_no_meaning_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"column 'tags' is of type map<.*take it as Python values with unsupported="):
        StructuredDataset(path)
    with pytest.raises(ConfigError, match='unsupported must be "list" or "float64"'):
        StructuredDataset(path, unsupported="skip")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="delivers every column as it is; leave unsupported out"):
        StructuredDataset(path, unsupported="list", output_format="arrow")
    with pytest.raises(ConfigError, match=r"nulls.*'tags'.*list of Python values"):
        StructuredDataset(path, unsupported="list", nulls={"tags": []})


FAR = pa.array([0, 1 << 60], pa.int64())
TIMES = {
    "timestamp": FAR.cast(pa.timestamp("us")),
    "with a zone": FAR.cast(pa.timestamp("us", tz="UTC")),
    "date": pa.array([0, 1 << 30], pa.int32()).cast(pa.date32()),
    "duration": FAR.cast(pa.duration("ms")),
    "dictionary": FAR.cast(pa.timestamp("us")).dictionary_encode(),
    "list": pa.ListArray.from_arrays([0, 1, 2], FAR.cast(pa.timestamp("us"))),
    "struct": pa.StructArray.from_arrays([FAR.cast(pa.timestamp("us"))], ["t"]),
    "map": pa.MapArray.from_arrays([0, 1, 2], ["a", "b"], FAR.cast(pa.timestamp("us"))),
}


@pytest.mark.parametrize("name", TIMES)
@daily(3)
def test_a_time_that_python_has_no_object_for_names_its_file_and_column(tmp_path: Path, name: str) -> None:
    for number in (0, 1):
        part = pa.table({"x": [number], "v": TIMES[name].slice(number, 1)})
        with pa.ipc.new_file(str(tmp_path / f"{number}.arrow"), part.schema) as writer:
            writer.write_table(part)
    said = r"1\.arrow: each value of column 'v' must be one that Python has an object for"
    chosen: list[dict[str, Any]] = [{"output_format": "dict"}, {"unsupported": "list"}]
    for options in chosen:
        if "unsupported" in options and name != "map":  # the others have forms as tensors
            continue
        job = {"batch_size": 2, "num_workers": 0, **options}
        assert len(list(StructuredDataset.create_dataloader(str(tmp_path / "0.arrow"), "arrow", **job)[0])) == 1
        with pytest.raises(TableError, match=said):
            list(StructuredDataset.create_dataloader(str(tmp_path), "arrow", **job)[0])


NANOSECONDS = [1, None, 1000, -1, -(1 << 63) + 1, (1 << 63) - 1]
ROUND = [1000, None, 2000, 0, -3000, 4000]
"""Whole microseconds, which do not come as another type."""


def with_nanoseconds(values: list[int | None], kind: pa.DataType) -> dict[str, tuple[pa.Array, Any]]:
    """Columns with the same times, and how each row is expected, given the times as numpy has them."""
    times = pa.array(values, pa.int64()).cast(kind)
    some = pa.array(values, pa.int64()).fill_null(5).cast(kind)
    return {
        "plain": (times, lambda time: time),
        "dictionary": (times.dictionary_encode(), lambda time: time),
        "list": (pa.ListArray.from_arrays(range(7), times), lambda time: [time]),
        "vector": (pa.FixedSizeListArray.from_arrays(times, 1), lambda time: [time]),
        "struct": (pa.StructArray.from_arrays([times, ["a"] * 6], ["t", "s"]), lambda time: {"t": time, "s": "a"}),
        "map": (pa.MapArray.from_arrays(range(7), ["k"] * 6, times), lambda time: [("k", time)]),
        "key": (pa.MapArray.from_arrays(range(7), some, ["v"] * 6), lambda time: [(time, "v")]),
        "deep": (
            pa.ListArray.from_arrays(range(7), pa.StructArray.from_arrays([times], ["t"])),
            lambda time: [{"t": time}],
        ),
    }


@pytest.mark.parametrize(
    "kind", [pa.timestamp("ns"), pa.timestamp("ns", "Asia/Tokyo"), pa.duration("ns"), pa.time64("ns")]
)
@pytest.mark.parametrize("values", [NANOSECONDS, ROUND], ids=["any", "whole microseconds"])
@daily(3)
def test_nanoseconds_come_exactly_and_as_one_type(tmp_path: Path, kind: pa.DataType, values: list[int | None]) -> None:
    if pa.types.is_time(kind):
        values = [None if value is None else abs(value) % 86_400_000_000_000 for value in values]
    numpy_type = "M8[ns]" if pa.types.is_timestamp(kind) else "m8[ns]"
    columns = with_nanoseconds(values, kind)
    table = pa.table({name: column for name, (column, _) in columns.items()})
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), table.schema) as writer:
        writer.write_table(table)
    expected = [None if value is None else np.int64(value).view(numpy_type) for value in values]
    found: dict[str, list[Any]] = {name: [] for name in columns}
    for shuffle in (False, "rows"):
        job: dict[str, Any] = {
            "batch_size": 4,
            "num_workers": 0,
            "shuffle": shuffle,
            "shuffle_seed": 1,
            "output_format": "dict",
        }
        batches = list(StructuredDataset.create_dataloader(str(tmp_path / "x.arrow"), **job)[0])
        for name, (_, form) in columns.items():
            found[name] = [value for batch in batches for value in batch[name]]
            times = [np.int64(5).view(numpy_type) if name == "key" and each is None else each for each in expected]
            wanted = [form(time) for time in times]
            # Their forms as text have the types.
            assert sorted(map(repr, found[name])) == sorted(map(repr, wanted)), (name, shuffle)
            if not shuffle:
                assert found[name] == wanted, name


def test_nanoseconds_in_maps_come_exactly_beside_tensors(tmp_path: Path) -> None:
    rows = pa.table({"v": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.timestamp("ns")))})
    loader, _ = StructuredDataset.create_dataloader(source=rows, unsupported="list", num_workers=0)
    assert next(iter(loader))["v"] == [[("a", np.datetime64(1, "ns"))], None]


def test_far_times_inside_unions_name_their_column() -> None:
    column = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [TIMES["timestamp"], pa.array(["x", "y"])])
    near = pa.UnionArray.from_sparse(
        pa.array([0, 1], pa.int8()), [pa.array([1, 2], pa.timestamp("ns")), column.field(1)]
    )
    check_times("v", near)
    assert python_values(near) == [np.datetime64(1, "ns"), "y"]
    with pytest.raises(TableError, match="each value of column 'v'"):
        check_times("v", column)
