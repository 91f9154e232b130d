"""`dataset.statistics` and `dataset.fit_vocabulary`: what live rows hold, the same on every rank, kept by the cache."""

from __future__ import annotations

import datetime as dt
import decimal
import logging
import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from tests.tables.iceberg import IcebergWriter, column
from torch_table_loader import (
    ColumnStatistics,
    ConfigError,
    ConfigTypeError,
    IcebergDataset,
    StructuredDataset,
    TableLoaderError,
    Vocabulary,
)
from torch_table_loader.arrow.datatypes import ElementType
from torch_table_loader.read.tasks import TaskReader
from torch_table_loader.testing import small_sizes

ROWS = 300
RNG = np.random.default_rng(5)
PRICES = RNG.lognormal(3, 2, ROWS).astype(np.float32)
AGES = [None if row % 11 == 0 else int(RNG.integers(0, 90)) for row in range(ROWS)]
COUNTRIES = [None if row % 13 == 0 else f"c{int(RNG.zipf(1.6)) % 40}" for row in range(ROWS)]
TAGS = [[f"t{row % at}" for at in range(1, row % 4 + 1)] for row in range(ROWS)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    whole = pa.table(
        {
            "x": pa.array(range(ROWS), pa.int64()),
            "price": PRICES,
            "age": pa.array(AGES, pa.int16()),
            "country": COUNTRIES,
            "tags": TAGS,
            "ids": pa.array([list(range(row % 5)) for row in range(ROWS)], pa.list_(pa.int32())),
            "raw": [name.encode() if name else None for name in COUNTRIES],
            "day": [dt.date(2026, 1, 1 + row % 28) for row in range(ROWS)],
            "debt": pa.array([decimal.Decimal(row).scaleb(-2) for row in range(ROWS)]),
            "seen": [row % 3 == 0 for row in range(ROWS)],
        }
    )
    root = tmp_path / "table"
    root.mkdir()
    for number, (start, size) in enumerate([(0, 100), (100, 17), (117, 183)]):
        pq.write_table(whole.slice(start, size), root / f"{number}.parquet", row_group_size=29)
    return root


def open_table(path: Path, **options: Any) -> StructuredDataset:
    return StructuredDataset(path, **{"check_plan": False, "output_format": "arrow", **options})


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note each file that is decoded."""
    files: list[int] = []
    read = TaskReader.read

    def noted(reader: TaskReader, task: Any, storage: Any = None) -> Any:
        files.append(task.file_index)
        return read(reader, task, storage)

    monkeypatch.setattr(TaskReader, "read", noted)
    return files


# ---- statistics ----------------------------------------------------------------------------------------------


def test_they_are_those_of_the_live_values(table: Path) -> None:
    found = open_table(table).statistics(["price", "age"])
    prices = PRICES.astype(np.float64)
    assert found["price"].mean == pytest.approx(prices.mean(), rel=1e-14)
    assert found["price"].std == pytest.approx(prices.std(), rel=1e-13)
    assert (found["price"].count, found["price"].nulls) == (ROWS, 0)
    assert (found["price"].min, found["price"].max) == (prices.min(), prices.max())
    for share, value in found["price"].quantiles.items():
        assert value == np.quantile(prices, share, method="inverted_cdf")
    ages = [age for age in AGES if age is not None]
    assert (found["age"].count, found["age"].nulls) == (len(ages), ROWS - len(ages))
    assert (found["age"].min, found["age"].max) == (min(ages), max(ages))
    assert type(found["age"].min) is int
    assert list(found) == ["price", "age"]


@pytest.mark.parametrize(
    "options", [{"shuffle": "rows"}, {"shuffle": "splits", "split_size": 7, "num_workers": 1, "even_ranks": "drop"}]
)
@pytest.mark.parametrize("rank", [0, 2])
def test_they_are_the_same_to_the_last_bit_on_every_rank_and_in_every_mode(
    table: Path, options: dict[str, Any], rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = ["price", "age", "debt"]
    alone = open_table(table).statistics(columns)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)))
    shared = open_table(table, num_ranks=3, rank=rank, batch_size=3, columns=["x"], **options)
    assert shared.statistics(columns) == alone


def test_they_do_not_depend_on_how_rows_lie_in_files(table: Path, tmp_path: Path) -> None:
    whole = pq.read_table(table)
    order = np.random.default_rng(9).permutation(ROWS)
    pq.write_table(whole.take(pa.array(order)), tmp_path / "one.parquet", row_group_size=50)
    columns = ["price", "age", "ids"]
    assert open_table(tmp_path / "one.parquet").statistics(columns) == open_table(table).statistics(columns)


def test_filters_apply(table: Path) -> None:
    found = open_table(table, filters=pc.field("x") >= 250).statistics(["price"], quantiles=[0.5])["price"]
    assert found.count == 50
    assert found.max == PRICES[250:].max()
    assert list(found.quantiles) == [0.5]
    none = open_table(table, filters=pc.field("x") > ROWS).statistics(["price"])["price"]
    assert (none.count, none.min) == (0, None)
    assert none.mean is not None
    assert np.isnan(none.mean)


def test_deletes_apply(tmp_path: Path) -> None:
    lake = IcebergWriter(tmp_path / "lake", columns=[column(1, "x", "long"), column(2, "s", "string")])
    path = lake.append([{"x": row, "s": f"s{row % 3}"} for row in range(30)], "parquet", group=7)
    lake.commit()
    lake.delete_rows({path: range(9)})
    lake.delete_keys([1], [{"x": 29, "s": "s2"}], "parquet")
    lake.commit()
    for footers in ("eager", "lazy"):
        dataset = IcebergDataset(metadata_location=lake.metadata, footers=footers, check_plan=False)
        found = dataset.statistics(["x"])["x"]
        assert (found.count, found.min, found.max, found.mean) == (20, 9, 28, 18.5)
        assert dataset.fit_vocabulary("s") == ["s0", "s1", "s2"]


def test_every_kind_of_number_is_measured(table: Path) -> None:
    found = open_table(table).statistics(["ids", "day", "debt", "seen"])
    assert found["ids"].count == sum(row % 5 for row in range(ROWS))
    assert (found["ids"].min, found["ids"].max) == (0, 3)
    day = open_table(table, columns=["day"], output_format="torch")
    batches = list(day)
    assert found["day"].mean == torch.cat([batch["day"] for batch in batches]).double().mean().item()
    assert found["debt"].max == 2.99
    assert found["seen"].mean == pytest.approx(1 / 3)


def test_a_column_is_standardized_by_its_own_method(table: Path) -> None:
    stats = open_table(table).statistics(["price", "age"])
    transforms = {name: stats[name].standardize for name in stats}
    batches = list(
        open_table(table, output_format="torch", columns=["price", "age"], nulls={"age": 0}, transforms=transforms)
    )
    prices = torch.cat([batch["price"] for batch in batches])
    assert prices.dtype == torch.float32
    assert abs(prices.mean().item()) < 1e-5
    assert prices.std(correction=0).item() == pytest.approx(1, rel=1e-5)
    assert pickle.loads(pickle.dumps(stats["price"].standardize))(np.ones(2)).shape == (2,)  # noqa: S301
    assert ColumnStatistics(3, 0, 0, 2.0, 0.0, 2, 2).standardize(np.full(3, 2)).tolist() == [0, 0, 0]


def bounds(found: dict[str, ColumnStatistics]) -> dict[str, tuple[Any, ...]]:
    """Leave out what bounds alone do not say."""
    return {name: (each.count, each.nulls, each.nans, each.min, each.max) for name, each in found.items()}


def test_bounds_come_from_footers_where_they_say_enough(table: Path, reads: list[int]) -> None:
    found = open_table(table).statistics(["age", "x"], bounds_only=True)
    assert not reads
    assert bounds(found) == bounds(open_table(table).statistics(["age", "x"]))
    assert (found["age"].mean, found["age"].std, found["age"].quantiles) == (None, None, {})
    with pytest.raises(ConfigError, match="bounds alone; measure the column without bounds_only=True"):
        found["age"].standardize(torch.ones(3))
    with pytest.raises(ConfigError, match="bounds_only=True leaves quantiles out"):
        open_table(table).statistics(["x"], bounds_only=True, quantiles=[0.5])


def test_bounds_are_read_where_footers_do_not_say_enough(table: Path, reads: list[int]) -> None:
    nothing = pa.table({"x": pa.array([None, None], pa.int64()), "age": pa.array([None, 3], pa.int16())})
    pq.write_table(nothing, table / "3.parquet")
    unknown = pa.table({"x": pa.array([-5, None], pa.int64()), "age": pa.array([None, -7], pa.int16())})
    pq.write_table(unknown, table / "4.parquet", write_statistics=False)
    pq.write_table(pa.table({"x": [9000]}), table / "5.parquet")
    some = pc.field("x") < 40
    for columns, options, wanted in (
        (["x"], {}, {4}),
        (["x", "age"], {}, {4, 5}),
        (["x"], {"filters": some}, {0, 4}),
        (["price"], {}, set(range(6))),
    ):
        del reads[:]
        found = open_table(table, **options).statistics(columns, bounds_only=True)
        assert set(reads) == wanted, columns
        assert bounds(found) == bounds(open_table(table, **options).statistics(columns))


def test_footers_are_no_proof_of_rows_that_are_deleted(tmp_path: Path) -> None:
    lake = IcebergWriter(tmp_path / "lake", columns=[column(1, "x", "long")])
    path = lake.append([{"x": row} for row in range(30)], "parquet", group=7)
    lake.append([{"x": row} for row in range(100, 130)], "parquet", group=7)
    lake.commit()
    lake.delete_rows({path: range(9)})
    lake.commit()
    for footers in ("eager", "lazy"):
        dataset = IcebergDataset(metadata_location=lake.metadata, footers=footers, check_plan=False)
        found = dataset.statistics(["x"], bounds_only=True)["x"]
        assert (found.count, found.min, found.max) == (51, 9, 129)


@pytest.mark.parametrize("measure", ["statistics", "vocabulary"])
def test_what_was_measured_is_kept_for_one_version_of_the_files(
    table: Path, tmp_path: Path, reads: list[int], measure: str
) -> None:
    def ask(**options: Any) -> Any:
        dataset = open_table(table, plan_cache=str(tmp_path / "cache"), **options)
        del reads[:]
        return dataset.statistics(["price"]) if measure == "statistics" else dataset.fit_vocabulary("raw", min_count=2)

    first = ask()
    assert sorted(reads) == [0, 1, 2]
    assert ask(shuffle="rows", num_ranks=2, rank=1) == first
    assert not reads
    some = ask(filters=pc.field("x") < 100)
    assert some != first
    assert reads
    changed = pq.read_table(table / "0.parquet")
    changed = changed.set_column(1, "price", pa.array(np.zeros(100, np.float32)))
    changed = changed.set_column(6, "raw", pa.array([b"new"] * 100))
    pq.write_table(changed, table / "0.parquet", row_group_size=29)
    assert ask() != first
    assert sorted(reads) == [0, 1, 2]


def test_a_torn_cache_is_read_past(table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = open_table(table, plan_cache=str(tmp_path / "cache"))
    wanted = dataset.statistics(["price"])
    for entry in (tmp_path / "cache").iterdir():
        entry.write_bytes(entry.read_bytes()[:-1])
    with caplog.at_level(logging.ERROR):
        assert dataset.statistics(["price"]) == wanted


# ---- vocabularies --------------------------------------------------------------------------------------------


def most_common(values: list[Any], least: int = 1) -> list[Any]:
    """Order values as the documentation says."""
    counts = Counter(value for value in values if value is not None)
    return sorted((value for value in counts if counts[value] >= least), key=lambda value: (-counts[value], value))


def test_the_most_frequent_values_come_first(table: Path) -> None:
    dataset = open_table(table)
    assert dataset.fit_vocabulary("country") == most_common(COUNTRIES)
    assert dataset.fit_vocabulary("country", max_size=3) == most_common(COUNTRIES)[:3]
    assert dataset.fit_vocabulary("country", min_count=4) == most_common(COUNTRIES, 4)
    assert dataset.fit_vocabulary("raw", max_size=5) == [name.encode() for name in most_common(COUNTRIES)[:5]]
    assert dataset.fit_vocabulary("tags") == most_common([tag for row in TAGS for tag in row])
    some = open_table(table, filters=pc.field("x") < 40)
    assert some.fit_vocabulary("country") == most_common(COUNTRIES[:40])
    assert open_table(table, filters=pc.field("x") > ROWS).fit_vocabulary("country") == []


@small_sizes(joined_values=3)
def test_many_values_are_joined_on_the_way(table: Path) -> None:
    assert open_table(table).fit_vocabulary("country") == most_common(COUNTRIES)


def test_it_is_a_plain_value_for_codes(table: Path) -> None:
    known = open_table(table).fit_vocabulary("country", max_size=4)
    (batch,) = open_table(
        table,
        output_format="torch",
        columns=["country"],
        strings={"country": Vocabulary(known)},
        batch_size=ROWS,
        num_workers=0,
    )
    assert batch["country"].tolist() == [known.index(name) if name in known else -1 for name in COUNTRIES]


# ---- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "error", "said"),
    [
        (lambda d: d.statistics(["prize"]), ConfigError, "no column 'prize'; did you mean price"),
        (lambda d: d.statistics(["country"]), ConfigError, "'country' must hold numbers.*fit_vocabulary is for"),
        (lambda d: d.statistics("price"), ConfigTypeError, "columns must be a list of names"),
        (lambda d: d.statistics([]), ConfigTypeError, "columns must be a list of names, at least one"),
        (lambda d: d.statistics(["price"], quantiles=[50]), ConfigError, "from 0 to 1, got 50; the median is 0.5"),
        (lambda d: d.fit_vocabulary("price"), ConfigError, "'price' must hold strings.*dataset.statistics is for"),
        (lambda d: d.fit_vocabulary("countri"), ConfigError, "no column 'countri'; did you mean country"),
        (lambda d: d.fit_vocabulary("country", max_size=0), ConfigError, "max_size must be at least 1"),
        (lambda d: d.fit_vocabulary("country", min_count=0), ConfigError, "min_count must be at least 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(table: Path, ask: Any, error: type, said: str) -> None:
    with pytest.raises(error, match=said):
        ask(open_table(table))


def test_bits_of_numbers_that_arrow_does_not_have_are_not_taken_for_integers(tmp_path: Path) -> None:
    bits = pa.ExtensionArray.from_storage(ElementType("bfloat16"), pa.array([0x3F80, 0x4000], pa.uint16()))
    pq.write_table(pa.table({"x": bits}), tmp_path / "half.parquet")
    for bounds_only in (False, True):
        with pytest.raises(ConfigError, match="'x' must hold numbers"):
            open_table(tmp_path).statistics(["x"], bounds_only=bounds_only)


def test_a_damaged_file_is_named(table: Path) -> None:
    dataset = open_table(table)
    (table / "1.parquet").unlink()
    with pytest.raises(TableLoaderError, match=r"1\.parquet"):
        dataset.statistics(["price"])
