"""Splits partition by partition."""

from __future__ import annotations

import datetime as dt
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch_table_strategies import ByPartition

from torch_table_loader import ConfigError
from torch_table_loader.extend import DataFileInfo
from torch_table_loader.testing import data_file, zoo

DAYS = st.none() | st.dates(dt.date(2024, 1, 1), dt.date(2024, 1, 4))
FILES = st.lists(
    st.tuples(DAYS, st.sampled_from(["eu", "us", None]), st.lists(st.integers(0, 9), max_size=4)), max_size=12
).map(
    lambda drawn: [
        data_file(f"{at}.parquet", rows, partition={"day": day, "region": region})
        for at, (day, region, rows) in enumerate(drawn)
    ]
)


@given(files=FILES, target_rows=st.none() | st.integers(1, 20), descending=st.booleans())
def test_each_row_once_partition_by_partition(
    files: list[DataFileInfo], target_rows: int | None, descending: bool
) -> None:
    splits = ByPartition(descending=descending, target_rows=target_rows)(files)
    rows = sorted(
        (split.file.path, row)
        for split in splits
        if split.row_range
        for row in range(split.row_range.offset, split.row_range.row_stop)
    )
    assert rows == sorted((file.path, row) for file in files for row in range(file.record_count or 0))
    days = [split.file.partition["day"] for split in splits]
    known = [day for day in days if isinstance(day, dt.date)]
    assert known == sorted(known, reverse=descending)
    nulls = [None] * (len(days) - len(known))
    assert days == (nulls + known if descending else known + nulls)
    pairs = [tuple(split.file.partition.values()) for split in splits]
    changes = sum(one != other for one, other in itertools.pairwise(pairs))
    assert changes == max(0, len(set(pairs)) - 1), "a partition was left and entered again"


@given(files=FILES, target_rows=st.integers(1, 20))
def test_splits_end_at_row_groups_and_are_as_large_as_the_target_allows(
    files: list[DataFileInfo], target_rows: int
) -> None:
    for split in ByPartition(target_rows=target_rows)(files):
        assert split.row_range is not None
        edges = [0]
        for group in split.file.row_groups:
            edges.append(edges[-1] + group.num_rows)
        assert {split.row_range.offset, split.row_range.row_stop} <= set(edges)
        inside = [edge for edge in edges if split.row_range.offset < edge < split.row_range.row_stop]
        assert split.row_range.length <= target_rows or not inside


def test_columns_choose_the_order() -> None:
    files = zoo()["hive partitions"]
    regions = [split.file.partition["region"] for split in ByPartition(columns=("region",))(files)]
    assert regions == ["eu"] * regions.count("eu") + ["us"] * regions.count("us") + [None] * regions.count(None)


def test_an_unknown_column_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"partitioned by day, region, not by hour; those of files are"):
        ByPartition(columns=("hour",))(zoo()["hive partitions"])


@pytest.mark.parametrize("option", ["target_bytes", "target_rows"])
def test_targets_below_one_are_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} >= 1, got 0"):
        ByPartition(**{option: 0})  # type: ignore[arg-type]  # one option by its name
