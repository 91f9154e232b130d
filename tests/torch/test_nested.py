"""The dataset in the caller's own DataLoader: its workers are the lanes."""

from __future__ import annotations

import gc
import itertools
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from torch.utils.data import DataLoader

from tests.effort import daily
from tests.leaks import children, lane_threads
from tests.tables.plain import as_values, deliver, meant_warnings, write_table
from torch_table_loader import ConfigError, StructuredDataset

pytestmark = pytest.mark.usefixtures("earlier_loaders_gone")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_table(tmp_path / "table", [[9, 7], [30], [0], [8, 8, 8], [1], [5]])
    return tmp_path / "table"


def own_loader(table: Path, workers: int, **options: Any) -> tuple[DataLoader[Any], StructuredDataset]:
    loader_options = {name: options.pop(name) for name in ("persistent_workers", "context") if name in options}
    dataset = StructuredDataset(str(table), "parquet", **{"batch_size": 4, "split_size": 1} | options)
    context = loader_options.pop("context", None)
    with meant_warnings():
        return DataLoader(
            dataset, batch_size=None, num_workers=workers, multiprocessing_context=context, **loader_options
        ), dataset


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": "splits", "shuffle_buffer_size": 5},
        {"drop_last": True},
        {"filters": pc.field("k") < 6},
        {"even_ranks": "pad", "num_ranks": 2, "rank": 1, "check_plan": False},
    ],
    ids=["plain", "shuffled", "dropped", "filtered", "padded"],
)
@daily(4)
def test_its_batches_are_those_of_as_many_lanes(table: Path, workers: int, options: dict[str, Any]) -> None:
    loader, _ = own_loader(table, workers, row_id=True, **options)
    with meant_warnings():
        found = [as_values(batch) for batch in loader]
        assert len(loader) == len(found)
    wanted = deliver(table, batch_size=4, split_size=1, num_workers=max(1, workers), **options)
    assert sorted(batch.rows for batch in found) == sorted(batch.rows for batch in wanted)
    if workers < 2:
        assert found == wanted


@pytest.mark.parametrize("workers", [0, 1, 3])
@daily(1)
def test_rows_that_nobody_counted_come_once(table: Path, workers: int) -> None:
    loader, _ = own_loader(table, workers, filters=pc.field("x") >= 7, count_filtered=False)
    with meant_warnings():
        rows = [row for batch in loader for row in as_values(batch).rows]
    assert sorted(rows) == list(range(7, 76))


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_persistent_workers_see_a_new_epoch(table: Path, context: str) -> None:
    loader, dataset = own_loader(table, 1, shuffle="splits", persistent_workers=True, context=context)
    pids = []
    for epoch in (0, 3, 1):
        dataset.set_epoch(epoch)
        found = [as_values(batch).rows for batch in loader]
        wanted = deliver(table, epoch=epoch, batch_size=4, split_size=1, shuffle="splits", num_workers=1)
        assert found == [batch.rows for batch in wanted]
        pids.append(children())
    assert pids[0] == pids[1] == pids[2]
    del loader
    gc.collect()
    assert not children()


@pytest.mark.parametrize("workers", [0, 3])
def test_leaving_it_leaves_nothing(table: Path, workers: int) -> None:
    loader, _ = own_loader(table, workers)
    with meant_warnings():
        for _ in itertools.islice(loader, 2):
            pass
    gc.collect()
    assert not children()
    assert not lane_threads()


def test_the_dataset_can_be_iterated_alone(table: Path) -> None:
    _, dataset = own_loader(table, 0)
    found = [as_values(batch).rows for batch in dataset]
    assert found == [batch.rows for batch in deliver(table, batch_size=4, split_size=1, num_workers=1)]
    assert len(dataset) == len(found)


def test_its_metrics_live_in_workers_that_we_do_not_see(table: Path) -> None:
    _, dataset = own_loader(table, 0)
    with pytest.raises(ConfigError, match="create_dataloader"):
        dataset.metrics()


@pytest.mark.parametrize("epoch", [-1, 1.5, "1", True, None])
def test_an_epoch_that_is_none_is_refused(table: Path, epoch: Any) -> None:
    _, dataset = own_loader(table, 0)
    with pytest.raises(ConfigError, match="epoch must be"):
        dataset.set_epoch(epoch)
    assert dataset.epoch == 0
