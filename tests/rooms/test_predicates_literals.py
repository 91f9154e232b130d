"""Filters whose literals are of other types than the columns, through datasets of every kind of table."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.effort import daily
from tests.tables.iceberg import IcebergWriter
from tests.tables.iceberg import column as iceberg_column
from torch_table_loader import ConfigError, DeltaDataset, IcebergDataset, StructuredDataset
from torch_table_loader.predicates.filter_form import filter_key
from torch_table_loader.predicates.filter_text import filter_of

TEN = dt.datetime.fromisoformat("2026-07-01T10:00")
FIRST = dt.datetime.fromisoformat("1970-01-01")
NUMBERS = pa.table(
    {
        "row": range(4),
        "i": pa.array([-5, 1, 100_000_001, None]),
        "u": pa.array([2**64 - 1, 5, 2**63, None], pa.uint64()),
        "f": pa.array([0.1, 0.5, float("nan"), None], pa.float32()),
        "d": pa.array([Decimal("1.10"), Decimal("2.50"), Decimal("-3.00"), None], pa.decimal128(9, 2)),
        "naive": pa.array([TEN, TEN + dt.timedelta(microseconds=1), FIRST, None]),
        "at": pa.array([TEN, TEN + dt.timedelta(microseconds=1), FIRST, None], pa.timestamp("us", "UTC")),
        "day": pa.array([dt.date(2026, 7, 1), dt.date(2026, 7, 2), dt.date(1970, 1, 1), None]),
        "b": pa.array([True, False, True, None]),
        "s": pa.array(["a", "b", "", None]),
    }
)
HELD: list[tuple[Any, list[int]]] = [
    ("i > 1e8", [2]),
    ("i > 0.5", [1, 2]),
    ("i = 1.5", []),
    ("not (i = 1.5)", [0, 1, 2]),
    ("i != 1.5 or i is null", [0, 1, 2, 3]),
    ("i between 0.5 and 1.5", [1]),
    (f"i < {10**30}", [0, 1, 2]),
    ([("i", ">", -(10**30))], [0, 1, 2]),
    ([("i", "in", [1.0, 2.5, None])], [1, 3]),
    ([("i", "not in", [1, 2**70])], [0, 2, 3]),
    (pc.field("i") < float("inf"), [0, 1, 2]),
    (pc.scalar(2.5) > pc.field("i"), [0, 1]),
    (pc.field("i") + 1 > 1.5, [1, 2]),
    ("u > 5", [0, 2]),
    (f"u = {2**64 - 1}", [0]),
    ([("u", "in", [5, 2**64 - 1])], [0, 1]),
    ("u >= -1", [0, 1, 2]),
    ("u < 1e19", [1, 2]),
    ("f > 0.1", [0, 1]),
    ("f = 0.1", []),
    ("not (f = 0.1)", [0, 1, 2]),
    ("f != 1e300", [0, 1, 2]),
    ("f < 1e300", [0, 1]),
    ([("f", "in", [0.1, 0.5])], [1]),
    (pc.field("f") == Decimal("0.5"), [1]),
    ("d < 2.5", [0, 2]),
    ("d < 2", [0, 2]),
    ("d = 1.1", [0]),
    ("d in (1.10, -3)", [0, 2]),
    (pc.field("d") == 1.1, []),  # the float is no decimal of two places
    ([("d", "<=", Decimal("1.105"))], [0, 2]),
    ("at >= 2026-07-01", [0, 1]),
    ("at >= 2026-07-01 10:00", [0, 1]),
    ("at > 2026-07-01 10:00Z", [1]),
    ("at > 2026-07-01 12:00+02:00", [1]),
    ("at > 2026-07-01 10:00:00.0000009", [1]),
    ([("at", "<", TEN)], [2]),
    ([("at", "in", [TEN])], [0]),
    ("naive > 2026-07-01 10:00", [1]),
    ("naive <= 2026-07-01 10:00:00.000000999", [0, 2]),
    ("day > 2026-07-01 10:00", [1]),
    ("day >= 2026-07-01 00:00", [0, 1]),
    ("b = true", [0, 2]),
    ([("s", "in", ["a", "z"])], [0]),
]


def rows(where: Any, wanted: Any, kind: Any = StructuredDataset) -> list[int]:
    dataset = kind(where, columns=["row"], filters=wanted, num_workers=0, batch_size=10)
    found = [row for batch in dataset.loader() for row in batch["row"].tolist()]
    assert dataset.explain().live_rows == len(found)
    return sorted(found)


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    pq.write_table(NUMBERS, folder / "a.parquet", row_group_size=1)
    return folder


@pytest.mark.parametrize(("wanted", "held"), HELD, ids=str)
@daily(15)
def test_every_form_of_a_filter_keeps_the_rows_that_exact_values_keep(
    parquet: Path, wanted: Any, held: list[int]
) -> None:
    assert rows(parquet, wanted) == held


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("i = true", "a number such as 3"),
        ("i = 'a'", "a number such as 3"),
        ([("i", "in", ["1"])], "a number such as 3"),
        ([("i", "in", [True])], "a number such as 3"),
        ("b = 1", "true or false"),
        (pc.field("b") == 1.0, "true or false"),
        ("s = 1", "text such as 'Oslo'"),
        ("at > '2026-07-01'", "2026-01-03 10:30, without quotes"),
        ("at > 5", "2026-01-03 10:30, without quotes"),
        ("naive > 2026-07-01 10:00Z", "without one"),
        (pc.field("i") + 2 < "a", "a number such as 3"),
    ],
    ids=str,
)
@pytest.mark.parametrize("counted", [True, False])
def test_what_cannot_be_compared_is_refused_before_anything_is_read(
    parquet: Path, wanted: Any, says: str, counted: bool
) -> None:
    with pytest.raises(ConfigError, match=says):
        StructuredDataset(parquet, filters=wanted, num_workers=0, count_filtered=counted)


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["a", "b" * 20, None, "a"]).cast(pa.string_view()),
        pa.array([b"a", b"b" * 20, None, b"a"]).cast(pa.binary_view()),
        pa.array(["a", "b", None, "a"]).dictionary_encode(),
        pc.run_end_encode(pa.array(["a", "b", None, "a"])),
        pc.run_end_encode(pa.array([1, 2, None, 1], pa.uint64())),
        pa.array(np.array([1, 2, 9, 1], np.float16), mask=np.array([False, False, True, False])),
    ],
    ids=lambda values: str(values.type),
)
def test_encoded_columns_are_compared_by_their_values(tmp_path: Path, values: pa.Array) -> None:
    table = pa.table({"row": range(4), "x": values})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as file:
        file.write_table(table)
    number = pa.types.is_floating(values.type) or "uint64" in str(values.type)
    least, most = (1, 2) if number else ("'a'", "'b'")
    assert rows(tmp_path, f"x = {least}") == [0, 3]
    assert rows(tmp_path, f"x > {least}") == [1]
    assert rows(tmp_path, f"not x >= {most}") == [0, 3]
    assert rows(tmp_path, [("x", "not in", [1 if number else "a"])]) == [1, 2]
    assert rows(tmp_path, "x is null") == [2]
    dataset = StructuredDataset(tmp_path, filters=f"x = {least}", num_workers=0, output_format="arrow")
    [batch] = dataset.loader()
    assert batch.column("x").to_pylist() == [values[0].as_py()] * 2


def test_partition_values_row_groups_and_masks_take_the_same_filter(tmp_path: Path) -> None:
    for number in range(1, 4):
        folder = tmp_path / f"k={number}"
        folder.mkdir()
        pq.write_table(
            pa.table({"row": [number, -number], "u": pa.array([number, 2**64 - number], pa.uint64())}),
            folder / "a.parquet",
            row_group_size=1,
        )
    assert rows(tmp_path, "k > 1.5") == [-3, -2, 2, 3]
    assert rows(tmp_path, "k = 1.5") == []
    assert rows(tmp_path, "not k = 1.5 and u < 2.5") == [1, 2]
    told = StructuredDataset(tmp_path, filters="k > 1.5 and u > 1e10", num_workers=0).explain()
    assert (told.pruned_files, told.live_rows) == (1, 2)
    assert told.pruned_row_groups == 4


def test_times_without_a_zone_are_utc_in_delta_and_iceberg(tmp_path: Path) -> None:
    table = pa.table({"row": [0, 1], "at": pa.array([TEN, TEN + dt.timedelta(hours=1)], pa.timestamp("us", "UTC"))})
    write_deltalake(tmp_path / "delta", table)
    ice = IcebergWriter(tmp_path / "ice", (iceberg_column(1, "row", "long"), iceberg_column(2, "at", "timestamptz")))
    ice.append(table.to_pylist())
    ice.commit()
    for wanted, held in (
        ("at > 2026-07-01 10:30", [1]),
        ("at > 2026-07-01", [0, 1]),
        ([("at", "<=", TEN)], [0]),
        ("at < 2026-07-01 10:00:00.0000001", [0]),
    ):
        assert rows(str(tmp_path / "delta"), wanted, DeltaDataset) == held
        assert (
            rows(None, wanted, lambda _, **options: IcebergDataset(metadata_location=ice.metadata, **options)) == held
        )
    for opened in (
        lambda: DeltaDataset(str(tmp_path / "delta"), filters="at > 1"),
        lambda: IcebergDataset(metadata_location=ice.metadata, filters="at > 1"),
    ):
        with pytest.raises(ConfigError, match="without quotes"):
            opened()


def test_the_key_of_a_filter_is_of_what_the_caller_wrote() -> None:
    schema = pa.schema([("f", pa.float32()), ("i", pa.int8())])
    for text, expression in (
        ("f > 0.1", pc.field("f") > 0.1),
        ("i > 1.5", pc.field("i") > 1.5),
        ("i in (1, 2.7)", (pc.field("i") == 1) | (pc.field("i") == 2.7)),
    ):
        assert filter_key(filter_of(text), schema) == filter_key(expression, schema)
    assert filter_key(pc.field("i") > 1.5, schema) != filter_key(pc.field("i") >= 2, schema)
