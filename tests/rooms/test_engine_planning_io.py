"""What construction and epochs read: footers once, needed columns only, files that can contain a passing row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.tables.plain import key, write_table
from tests.tables.reading import open_parquet
from torch_table_loader import StructuredDataset
from torch_table_loader.extend import FileStorage

GROUPS = [[10, 10], [10, 10], [10], [0]]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_table(tmp_path / "table", GROUPS)
    return tmp_path / "table"


class Watch:
    """Counts the opens of each file, and the columns that are decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opens: Counter[str] = Counter()
        self.columns: set[str] = set()
        open_file, decode = FileStorage.open, open_parquet().batches

        def watched_open(storage: FileStorage, path: str) -> Any:
            self.opens[Path(path).name] += 1
            return open_file(storage, path)

        def watched_decode(handle: Any, groups: range, columns: Any, max_rows: int) -> Iterator[Any]:
            self.columns |= set(columns)
            yield from decode(handle, groups, columns, max_rows)

        monkeypatch.setattr(FileStorage, "open", watched_open)
        monkeypatch.setattr(open_parquet(), "batches", watched_decode)

    def forget(self) -> None:
        self.opens.clear()
        self.columns.clear()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def make(table: Path, **options: Any) -> Any:
    chosen: dict[str, Any] = {"num_workers": 2, "batch_size": 8} | options
    return StructuredDataset.create_dataloader(str(table), "parquet", **chosen)[0]


def test_each_footer_is_read_once_and_never_again(table: Path, watch: Watch) -> None:
    loader = make(table)
    assert watch.opens == dict.fromkeys(["000.parquet", "001.parquet", "002.parquet", "003.parquet"], 1)
    for epoch in (0, 1):
        watch.forget()
        loader.set_epoch(epoch)
        len(loader)
        loader.dataset.explain()
        assert not watch.opens, "nothing is read before the first batch"
        assert sum(len(batch["x"]) for batch in loader) == 50
        # One open for each split (a file here) or part of one that is a tail batch; none of the file without rows.
        assert "003.parquet" not in watch.opens
        assert watch.opens["000.parquet"] <= 2


def test_a_plan_cache_holds_every_footer(table: Path, tmp_path: Path, watch: Watch) -> None:
    make(table, plan_cache=str(tmp_path / "cache"))
    assert watch.opens.total() == 4
    watch.forget()
    second = make(table, plan_cache=str(tmp_path / "cache"))
    assert not watch.opens
    assert sum(len(batch["x"]) for batch in second) == 50


def test_a_plan_cache_holds_the_counts_of_a_filter(table: Path, tmp_path: Path, watch: Watch) -> None:
    options = {"plan_cache": str(tmp_path / "cache"), "filters": pc.field("k") < 5}
    first = make(table, **options)
    assert watch.columns == {"k"}
    watch.forget()
    second = make(table, **options)
    assert not watch.opens
    assert len(first) == len(second) == -(-sum(key(row) < 5 for row in range(50)) // 8)
    watch.forget()
    make(table, **options | {"filters": pc.field("k") < 6})
    assert watch.opens.total() == 3, "another filter is counted; footers are known"


def test_new_files_are_read_and_cached_files_are_not(table: Path, tmp_path: Path, watch: Watch) -> None:
    make(table, plan_cache=str(tmp_path / "cache"))
    pq.write_table(pq.read_table(table / "000.parquet"), table / "004.parquet")
    watch.forget()
    make(table, plan_cache=str(tmp_path / "cache"))
    assert watch.opens == {"004.parquet": 1}


def test_a_rewritten_file_is_read_again(table: Path, tmp_path: Path, watch: Watch) -> None:
    make(table, plan_cache=str(tmp_path / "cache"))
    pq.write_table(pq.read_table(table / "000.parquet").slice(0, 5), table / "000.parquet")
    watch.forget()
    loader = make(table, plan_cache=str(tmp_path / "cache"))
    assert watch.opens == {"000.parquet": 1}
    assert sum(len(batch["x"]) for batch in loader) == 35


def test_pruned_files_are_never_opened_after_planning(table: Path, watch: Watch) -> None:
    loader = make(table, filters=pc.field("x") >= 40)
    assert watch.opens["000.parquet"] == watch.opens["001.parquet"] == 1, "the footer alone"
    watch.forget()
    assert [row for batch in loader for row in batch["x"].tolist()] == list(range(40, 50))
    assert set(watch.opens) == {"002.parquet"}


def test_pruned_row_groups_are_not_decoded(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = make(table, filters=pc.field("x") >= 30, num_workers=0)
    groups: list[range] = []
    decode = open_parquet().batches

    def watched(handle: Any, wanted: range, columns: Any, max_rows: int) -> Iterator[Any]:
        groups.append(wanted)
        yield from decode(handle, wanted, columns, max_rows)

    monkeypatch.setattr(open_parquet(), "batches", watched)
    assert sum(len(batch["x"]) for batch in loader) == 20
    assert range(1, 2) in groups
    assert not any(0 in wanted and len(wanted) > 1 for wanted in groups)


def test_only_filter_columns_and_projected_columns_are_decoded(table: Path, watch: Watch) -> None:
    loader = make(table, filters=pc.field("k") < 5, columns=["x"])
    watch.forget()
    batches = list(loader)
    assert watch.columns == {"x", "k"}
    assert all(list(batch) == ["x"] for batch in batches)
    watch.forget()
    list(make(table, columns=["f"]))
    assert watch.columns == {"f"}


def test_columns_come_in_the_requested_order(table: Path) -> None:
    for form in ("torch", "numpy", "dict"):
        batch = next(iter(make(table, columns=["f", "x"], row_id=True, output_format=form)))
        assert list(batch) == ["f", "x", "row_id"]
    batch = next(iter(make(table, columns=["f", "x"], output_format="arrow")))
    assert batch.schema.names == ["f", "x"]


def test_row_id_alone_reads_no_column(table: Path, watch: Watch) -> None:
    loader = make(table, columns=[], row_id=True, num_workers=1)
    watch.forget()
    assert [row for batch in loader for row in batch["row_id"].tolist()] == list(range(50))
    assert watch.columns == set()


def test_row_ids_count_rows_that_the_filter_leaves_out(table: Path) -> None:
    loader = make(table, columns=["x"], row_id=True, filters=pc.field("k") < 5)
    for batch in loader:
        assert batch["row_id"].tolist() == batch["x"].tolist()


@pytest.mark.parametrize("num_workers", [0, 3])
def test_partition_columns_filter_files_without_opening_them(tmp_path: Path, watch: Watch, num_workers: int) -> None:
    for day in (1, 2, 3):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(pa.table({"x": [day * 10, day * 10 + 1]}), tmp_path / f"day={day}" / "part.parquet")
    loader = make(tmp_path, filters=pc.field("day") == 2, columns=["x", "day"], num_workers=num_workers)
    assert watch.opens == {"part.parquet": 3}
    watch.forget()
    assert [(batch["x"].tolist(), batch["day"].tolist()) for batch in loader] == [([20, 21], [2, 2])]
    assert watch.opens == {"part.parquet": 1}


def test_a_rank_counts_its_own_splits_or_all_if_ranks_depend_on_each_other(table: Path, watch: Watch) -> None:
    options = {"filters": pc.field("k") < 5, "num_ranks": 3, "rank": 2, "check_plan": False}
    with pytest.warns(UserWarning, match="under a row filter each of 3 ranks counts its own rows"):
        make(table, even_ranks=False, **options)
    assert watch.opens == {"000.parquet": 1, "001.parquet": 1, "002.parquet": 2, "003.parquet": 1}
    watch.forget()
    make(table, **options)
    assert watch.opens == {"000.parquet": 2, "001.parquet": 2, "002.parquet": 2, "003.parquet": 1}


def test_each_row_group_is_counted_once_over_epochs(table: Path, watch: Watch) -> None:
    options = {"filters": pc.field("k") < 5, "num_ranks": 2, "rank": 0, "check_plan": False, "shuffle": "splits"}
    with pytest.warns(UserWarning, match="under a row filter"):
        loader = make(table, even_ranks=False, **options)
    for epoch in range(6):
        loader.set_epoch(epoch)
        len(loader)
    watch.forget()
    for epoch in range(6):
        loader.set_epoch(epoch)
        len(loader)
    assert not watch.opens


def test_planning_leaves_no_client_open(table: Path) -> None:
    loader = make(table)
    assert loader.dataset.table.storage._process.connection is None
