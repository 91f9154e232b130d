"""A dataset says what the workers of its loader have made, also those of a DataLoader of the caller's own."""

from __future__ import annotations

import pickle
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from tests.effort import daily
from tests.tables.plain import meant_warnings, write_table
from tests.waiting import until
from torch_table_loader import ConfigError, StructuredDataset
from torch_table_loader.engine.work.lane_work import LaneMetrics
from torch_table_loader.engine.workers.lane_iterator import LaneCounts

ROWS = 198


@pytest.fixture
def table(tmp_path: Path) -> Path:
    assert write_table(tmp_path / "table", [[60, 30], [45], [33, 30]]) == ROWS
    return tmp_path / "table"


def dataset_of(table: Path, **options: Any) -> StructuredDataset:
    return StructuredDataset(str(table), "parquet", **{"batch_size": 7, "split_size": 20} | options)


def own_loader(dataset: StructuredDataset, num_workers: int, **options: Any) -> Any:
    return DataLoader(dataset, batch_size=None, num_workers=num_workers, **options)


@pytest.mark.parametrize("context", ["fork", "spawn"])
@daily(lambda context: context == "fork")
def test_workers_of_an_own_dataloader_are_counted(table: Path, context: str) -> None:
    dataset = dataset_of(table, collate_fn=dict)
    with meant_warnings():
        batches = list(own_loader(dataset, 2, multiprocessing_context=context))
    made = dataset.worker_metrics()
    assert [each.worker for each in made] == [0, 1]
    assert sum(each.rows for each in made) == ROWS
    assert sum(each.batches for each in made) == len(batches)
    assert sum(each.num_bytes for each in made) > ROWS * 8
    assert all(0 < each.seconds_collating < each.seconds_working for each in made)


@pytest.mark.parametrize("options", [{}, {"filters": "k < 7", "count_filtered": False}, {"shuffle": "rows"}])
def test_a_dataloader_without_workers_is_one_worker(table: Path, options: dict[str, Any]) -> None:
    dataset = dataset_of(table, **({"split_size": None} if options.get("shuffle") else {}) | options)
    batches = list(own_loader(dataset, 0))
    [made] = dataset.worker_metrics()
    assert (made.batches, made.rows) == (len(batches), sum(len(batch["x"]) for batch in batches))


def test_the_newest_iterator_is_meant(table: Path) -> None:
    """Fewer workers than before leave none of the old ones behind, and a new epoch counts anew."""
    dataset = dataset_of(table)
    with meant_warnings():
        for num_workers in (3, 2, 2, 0):
            list(own_loader(dataset, num_workers))
            made = dataset.worker_metrics()
            assert len(made) == max(1, num_workers)
            assert sum(each.rows for each in made) == ROWS


def test_it_can_be_read_while_workers_run(table: Path) -> None:
    dataset = dataset_of(table)
    with meant_warnings():
        batches = iter(own_loader(dataset, 2, prefetch_factor=1))
        next(batches)
        until(lambda: all(each.batches >= 1 for each in dataset.worker_metrics()))
        assert sum(each.batches for each in dataset.worker_metrics()) >= 2
        assert sum(1 for _ in batches) + 1 == sum(each.batches for each in dataset.worker_metrics())


def test_a_copy_that_no_worker_gets_counts_by_itself_and_is_small(table: Path) -> None:
    dataset = dataset_of(table)
    list(own_loader(dataset, 0))
    data = pickle.dumps(dataset)
    assert len(data) < 30_000, "the memory that workers share is larger"
    for copy in (pickle.loads(data), deepcopy(dataset)):  # noqa: S301 we wrote it
        with pytest.raises(ConfigError, match="none has begun"):
            copy.worker_metrics()
    assert dataset.worker_metrics()[0].rows == ROWS


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Linux lists open files there")
def test_a_dataset_opens_no_file_for_its_counts() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    kept = [LaneCounts() for _ in range(20)]
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2
    assert len(kept) == 20


def test_a_loader_of_ours_says_the_same_as_its_metrics(table: Path) -> None:
    with meant_warnings():
        loader, dataset = StructuredDataset.create_dataloader(str(table), "parquet", batch_size=7, num_workers=2)
    list(loader)
    assert dataset.worker_metrics() == loader.metrics().workers


def test_before_the_first_iterator_there_is_nothing_to_say(table: Path) -> None:
    with pytest.raises(ConfigError, match="none has begun; iterate the loader first"):
        dataset_of(table).worker_metrics()


def test_more_workers_than_are_counted_are_refused(table: Path) -> None:
    dataset = dataset_of(table)
    for lane in (0, 5000):
        dataset._counts.note(5001, LaneMetrics(lane))
    with pytest.raises(ConfigError, match=r"at most 1,024 workers .* and there are 5,001"):
        dataset.worker_metrics()


def test_metrics_name_it(table: Path) -> None:
    with pytest.raises(ConfigError, match=r"ask worker_metrics\(\) what its workers made, or make the loader with"):
        dataset_of(table).metrics()


def test_what_one_part_of_an_epoch_does_not_know_is_unknown_in_the_sum() -> None:
    first = LaneMetrics(2, rows=5, batches=1, num_bytes=40, seconds_working=0.5, files=1, stored_bytes=10)
    both = first + LaneMetrics(2, rows=3, batches=2, num_bytes=24, seconds_working=0.25, files=2)
    assert both == LaneMetrics(2, rows=8, batches=3, num_bytes=64, seconds_working=0.75, files=3, stored_bytes=None)
