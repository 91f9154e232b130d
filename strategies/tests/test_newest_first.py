"""Newest file first, in turn."""

from __future__ import annotations

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st
from torch_table_strategies import NewestFirst

from torch_table_loader.testing import data_file

DAYS = st.lists(st.none() | st.dates(dt.date(2024, 1, 1), dt.date(2024, 1, 9)), max_size=20)


@given(days=DAYS, num_workers=st.integers(1, 8), epoch=st.integers(0, 20), oldest_first=st.booleans())
def test_files_are_dealt_in_the_order_of_time(
    days: list[dt.date | None], num_workers: int, epoch: int, oldest_first: bool
) -> None:
    files = [data_file(f"{at}.parquet", [at], partition={"day": day}) for at, day in enumerate(days)]
    shards = NewestFirst("day", oldest_first=oldest_first).generate(files, num_workers, epoch)
    assert [shard.id for shard in shards] == list(range(num_workers))
    first = epoch % num_workers
    turns = [shards[(first + turn) % num_workers].splits[turn // num_workers] for turn in range(len(files))]
    assert {split.file.path for split in turns} == {file.path for file in files}
    dealt = [split.file.partition["day"] for split in turns]
    known = sorted((day for day in days if day is not None), reverse=not oldest_first)
    assert dealt == known + [None] * days.count(None)
    assert sum(shard.row_count or 0 for shard in shards) == sum(range(len(days)))


def test_without_a_column_the_path_says_the_time() -> None:
    files = [data_file(f"2024-01-0{day}.parquet", [1]) for day in (2, 9, 5)]
    (shard,) = NewestFirst().generate(files, 1, 0)
    assert [split.file.path[:10] for split in shard.splits] == ["2024-01-09", "2024-01-05", "2024-01-02"]
