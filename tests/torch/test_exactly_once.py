"""Promises 1, 3 and 4 through the real loader, on real files."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.tables.plain import SUFFIX, Batch, deliver_all, key, meant_warnings, write_table
from torch_table_loader import RowBalancedStrategy, SizeBalancedStrategy, StructuredDataset

pytestmark = pytest.mark.filterwarnings("ignore:drop_last=True leaves rank . no step")

tables = st.lists(st.lists(st.integers(0, 12), max_size=4), min_size=1, max_size=6)

jobs = st.fixed_dictionaries(
    {
        "num_ranks": st.integers(1, 5),
        "num_workers": st.integers(0, 5),
        "batch_size": st.integers(1, 9),
        "shuffle": st.booleans(),
        "even_ranks": st.sampled_from([None, False, "balance", "drop", "pad"]),
        "drop_last": st.booleans(),
        "shuffle_buffer_size": st.sampled_from([None, 1, 4, 30]),
        "prefetch_batches": st.sampled_from([None, 1, 3]),
        "filters": st.sampled_from([None, pc.field("k") < 5, pc.field("x") >= 13, pc.field("k") < 0]),
        "split_strategy": st.sampled_from(
            [None, "target_size", "size_balanced", RowBalancedStrategy(target_rows=5), SizeBalancedStrategy(100)]
        ),
        "split_size": st.sampled_from([None, 1, 10]),
    }
)


def passes(filters: Any, row: int) -> bool:
    """Judge a row by the filters of `jobs`, which pyarrow compares by their text."""
    judges: dict[str, Callable[[], bool]] = {
        "None": lambda: True,
        str(pc.field("k") < 5): lambda: key(row) < 5,
        str(pc.field("x") >= 13): lambda: row >= 13,
        str(pc.field("k") < 0): lambda: False,
    }
    return judges[str(filters)]()


def check(ranks: list[list[Batch]], total: int, options: dict[str, Any]) -> None:
    """Hold what a job delivered against what it was to deliver."""
    size = options["batch_size"]
    own: Counter[int] = Counter()
    for batches in ranks:
        assert all(len(batch.rows) == size for batch in batches[:-1])
        assert not batches or 0 < len(batches[-1].rows) <= size
        assert not (options["drop_last"] and batches and len(batches[-1].rows) < size)
        for batch in batches:
            assert batch.ids == batch.rows, "row_id is the ordinal among all physical rows"
            marks = batch.padding or [False] * len(batch.rows)
            own.update(row for row, padding in zip(batch.rows, marks, strict=True) if not padding)
    live = [row for row in range(total) if passes(options["filters"], row)]
    assert max(own.values(), default=0) <= 1
    lossy = options["drop_last"] or options["even_ranks"] == "drop"
    assert set(own) <= set(live) if lossy else set(own) == set(live)
    if options["even_ranks"]:
        assert len({len(batches) for batches in ranks}) == 1
    if options["even_ranks"] == "pad":
        assert all(batch.padding is not None for batches in ranks for batch in batches)
    if options["even_ranks"] in (False, "drop"):
        assert all(batch.padding is None for batches in ranks for batch in batches)


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(groups=tables, options=jobs, epoch=st.integers(0, 2))
def test_threads_deliver_every_row_once(groups: list[list[int]], options: dict[str, Any], epoch: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        total = write_table(Path(root), groups)
        check(deliver_all(Path(root), epoch=epoch, **options), total, options)


@settings(max_examples=examples(4), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(groups=tables, options=jobs, epoch=st.integers(0, 2))
def test_processes_deliver_every_row_once(groups: list[list[int]], options: dict[str, Any], epoch: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        total = write_table(Path(root), groups)
        found = deliver_all(Path(root), epoch=epoch, worker_type="process", **options)
        check(found, total, options)
        assert found == deliver_all(Path(root), epoch=epoch, **options)


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(groups=tables, options=jobs, worker_type=st.sampled_from(["thread", "thread", "thread", "process"]))
def test_rows_that_nobody_counted_come_once_too(
    groups: list[list[int]], options: dict[str, Any], worker_type: str
) -> None:
    options |= {
        "even_ranks": None,
        "filters": options["filters"] if options["filters"] is not None else pc.field("k") < 5,
    }
    with tempfile.TemporaryDirectory() as root:
        total = write_table(Path(root), groups)
        found = deliver_all(Path(root), worker_type=worker_type, count_filtered=False, **options)
        check(found, total, options)


row_jobs = st.fixed_dictionaries(
    {
        "num_ranks": st.integers(1, 5),
        "num_workers": st.integers(0, 5),
        "batch_size": st.integers(1, 9),
        "even_ranks": st.sampled_from([None, False, "balance", "pad"]),
        "drop_last": st.booleans(),
        "prefetch_batches": st.sampled_from([None, 1, 3]),
        "filters": st.sampled_from([None, pc.field("k") < 5, pc.field("k") < 0]),
    }
)


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(groups=tables, options=row_jobs, epoch=st.integers(0, 2), on_disk=st.booleans())
def test_rows_of_a_store_are_delivered_once(
    groups: list[list[int]], options: dict[str, Any], epoch: int, on_disk: bool
) -> None:
    with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as stores:
        total = write_table(Path(root), groups)
        place: dict[str, Any] = {"row_store": stores} if on_disk else {}
        ranks = deliver_all(Path(root), epoch=epoch, shuffle="rows", **options, **place)
        check(ranks, total, options)
        if options["drop_last"]:
            live = sum(passes(options["filters"], row) for row in range(total))
            step = options["batch_size"] * options["num_ranks"]
            assert sum(len(batch.rows) for batches in ranks for batch in batches) == live // step * step
        if options["drop_last"] or options["even_ranks"] == "pad":
            assert len({tuple(len(batch.rows) for batch in batches) for batches in ranks}) == 1


@pytest.mark.parametrize("form", sorted(SUFFIX))
@pytest.mark.parametrize("worker_type", ["thread", "process"])
@daily(3)
def test_every_format_delivers_every_row_once(tmp_path: Path, form: str, worker_type: str) -> None:
    total = write_table(tmp_path, [[5, 3], [], [1], [0, 4], [7], [2, 2]], form)
    options = {"batch_size": 4, "drop_last": False, "filters": None, "even_ranks": False, "num_workers": 2}
    found = deliver_all(tmp_path, 2, form=form, worker_type=worker_type, **options)
    check(found, total, options)
    filtered = options | {"filters": pc.field("k") < 5}
    check(deliver_all(tmp_path, 2, form=form, worker_type=worker_type, **filtered), total, filtered)


@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(groups=tables, options=jobs)
def test_the_length_is_exact_before_the_first_batch(groups: list[list[int]], options: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as root, meant_warnings():
        write_table(Path(root), groups)
        options["num_ranks"], options["rank"] = 2, 1
        loader, dataset = StructuredDataset.create_dataloader(root, "parquet", check_plan=False, **options)
        for epoch in (0, 1):
            loader.set_epoch(epoch)
            told = len(loader)
            assert told == len(dataset) == len(iter(loader))
            assert told == sum(1 for _ in loader)


def test_the_length_of_rows_that_nobody_counted_is_a_type_error(tmp_path: Path) -> None:
    write_table(tmp_path, [[10]])
    loader, dataset = StructuredDataset.create_dataloader(
        str(tmp_path), "parquet", filters=pc.field("k") < 5, count_filtered=False
    )
    for sized in (loader, dataset, iter(loader)):
        with pytest.raises(TypeError, match="count_filtered=False"):
            len(sized)


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_table_of_no_rows_is_an_epoch_of_no_batches(tmp_path: Path, worker_type: Any) -> None:
    write_table(tmp_path, [[], [0]])
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), "parquet", worker_type=worker_type)
    assert len(loader) == 0
    assert list(loader) == []


def test_more_ranks_than_splits_leave_ranks_without_rows(tmp_path: Path) -> None:
    write_table(tmp_path, [[3], [3]])
    steps = [len(batches) for batches in deliver_all(tmp_path, 5, batch_size=2, even_ranks=False)]
    assert steps == [2, 2, 0, 0, 0]


def test_seven_splits_on_three_ranks_are_three_two_two(tmp_path: Path) -> None:
    write_table(tmp_path, [[4]] * 7)
    ranks = deliver_all(tmp_path, 3, batch_size=4, even_ranks=False)
    assert [[batch.rows[0] // 4 for batch in batches] for batches in ranks] == [[0, 3, 6], [1, 4], [2, 5]]


def test_one_lane_in_table_order_is_file_order(tmp_path: Path) -> None:
    total = write_table(tmp_path, [[5, 3], [], [1], [0, 4], [7]])
    for workers in (0, 1):
        found = deliver_all(tmp_path, 1, num_workers=workers, batch_size=3)[0]
        assert [row for batch in found for row in batch.rows] == list(range(total))


@pytest.mark.parametrize(
    "shuffle", [{"shuffle": "rows"}, {"shuffle": "splits", "shuffle_buffer_size": 1 << 20}], ids=str
)
def test_rows_that_are_too_many_for_an_order_by_hashes_come_once(tmp_path: Path, shuffle: dict[str, Any]) -> None:
    total = (1 << 16) + 4321
    pq.write_table(pa.table({"row": range(total)}), tmp_path / "rows.parquet")
    options = {"num_workers": 1, "batch_size": 10_000, **shuffle}
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), "parquet", **options)
    found = np.concatenate([batch["row"].numpy() for batch in loader])
    assert (found[:-1] > found[1:]).any()
    assert np.array_equal(np.sort(found), np.arange(total))
