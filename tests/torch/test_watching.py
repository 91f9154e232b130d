"""What a loader says while it runs: log lines, metrics under flat names, spans for profilers, and a warning."""

from __future__ import annotations

import logging
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tables.plain import write_table
from torch_table_loader import StructuredDataset, TableLoader, metrics
from torch_table_loader.metrics import Progress
from torch_table_loader.read.tasks import TaskReader
from torch_table_loader.testing import small_sizes

ROWS = 24


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Write three files of two row groups."""
    assert write_table(tmp_path / "table", [[5, 3]] * 3) == ROWS
    return tmp_path / "table"


def loader_of(table: Path, **options: Any) -> TableLoader:
    chosen: dict[str, Any] = {"batch_size": 4, "num_workers": 2} | options
    return StructuredDataset.create_dataloader(str(table), "parquet", **chosen)[0]


def slowly(batch: Any) -> Any:
    time.sleep(0.02)
    return batch


def test_logging_is_silent_unless_asked_for(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    list(loader_of(table))
    assert capsys.readouterr() == ("", "")


def test_info_tells_of_the_plan_the_first_batch_and_the_end(table: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "torch_table_loader"):
        loader = loader_of(table, filters="x >= 8")
        list(loader)
    ours = [entry for entry in caplog.records if entry.name.startswith("torch_table_loader.")]
    told = [(entry.name.removeprefix("torch_table_loader."), entry.getMessage()) for entry in ours]
    assert [room for room, _ in told] == ["engine.survey", "engine.counting", "metrics", "metrics"]
    assert "3 files" in told[0][1]
    assert "1 files and 2 row groups are pruned" in told[0][1]
    assert "epoch 0: first batch after" in told[2][1]
    assert f"epoch 0 ends: {ROWS - 8} rows in 4 batches" in told[3][1]


def test_info_tells_of_counting_and_of_a_row_store(table: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "torch_table_loader"):
        list(loader_of(table, filters="k < 5", shuffle="rows"))
    rooms = {entry.name.removeprefix("torch_table_loader.") for entry in caplog.records}
    assert {"engine.counting", "engine.row_store"} <= rooms


def test_debug_names_each_file_that_is_read(table: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "torch_table_loader.read"):
        list(loader_of(table))
    told = [entry.getMessage() for entry in caplog.records if entry.name == "torch_table_loader.read.tasks"]
    assert {text.split(":")[0] for text in told} == {f"00{n}.parquet" for n in range(3)}


def test_each_epoch_of_an_iteration_has_an_end(table: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "torch_table_loader.metrics"):
        list(loader_of(table, epochs=2, shuffle="splits"))
    ends = [text for entry in caplog.records if " ends: " in (text := entry.getMessage())]
    assert [text.split(",")[0] for text in ends] == [
        f"epoch 0 ends: {ROWS} rows in 6 batches",
        f"epoch 1 ends: {2 * ROWS} rows in 12 batches",
    ]


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_metrics_under_flat_names_are_numbers_that_add_up(table: Path, worker_type: str) -> None:
    loader = loader_of(table, collate_fn=slowly, worker_type=worker_type)
    list(loader)
    metrics = loader.metrics()
    told = metrics.as_dict()
    assert all(type(value) in (int, float) for value in told.values())
    assert told["rows"] == told["worker_0/rows"] + told["worker_1/rows"] == ROWS
    assert told["rows_per_second"] == pytest.approx(ROWS / told["seconds_total"])
    assert told["share_waiting"] == pytest.approx(min(1, told["seconds_waiting"] / told["seconds_total"]))
    for worker in metrics.workers:
        assert 0.02 * worker.batches <= worker.seconds_collating <= worker.seconds_working


def test_what_limits_the_speed_is_found(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, read = [0.0], TaskReader.read
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def takes(seconds: float) -> None:
        now[0] += seconds

    def slowly_read(reader: TaskReader, task: Any) -> Any:
        takes(1)
        return read(reader, task)

    monkeypatch.setattr(TaskReader, "read", slowly_read)
    loader = loader_of(table, collate_fn=lambda batch: takes(2), num_workers=0)
    list(loader)
    assert loader.metrics().limit == "collate_fn"
    assert "collate_fn) are the limit" in loader.metrics().advice()
    loader = loader_of(table, num_workers=0)
    for _ in loader:
        takes(2)
    assert loader.metrics().limit == "decoding"
    for _ in loader:
        takes(100)
    assert loader.metrics().limit == "training"


def test_training_that_waits_is_told_once(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LEAST_SECONDS", "_WARNED_SHARE", "_LEAST_TRAINED"):
        monkeypatch.setattr(metrics, name, 0.0)
    loader = loader_of(table, collate_fn=slowly, num_workers=0)
    told = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            list(loader)
        told += [(Path(entry.filename).name, str(entry.message)) for entry in caught]
    [(file, message)] = told
    assert file == Path(__file__).name
    assert message.startswith("training waited for data in ")


@pytest.mark.parametrize(
    ("waited", "total", "expected"), [(50, 100, True), (20, 100, False), (99, 100, False), (30, 59, False)]
)
def test_who_waits_for_data(waited: float, total: float, expected: bool) -> None:
    """A short run says nothing, and a loop that does nothing but wait is no training."""
    assert metrics.waits_for_data(waited, total) == expected


@small_sizes(watched_batches=2)
def test_a_look_at_who_waits_costs_no_metrics(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are computed from the plan of all steps taken, which takes longer than many small batches."""
    computed, metrics = [], Progress.metrics

    def counted(progress: Progress) -> Any:
        computed.append(progress)
        return metrics(progress)

    monkeypatch.setattr(Progress, "metrics", counted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader_of(table, batch_size=1))
    assert not computed


@pytest.mark.parametrize("epochs", [1, 2])
def test_seconds_are_those_of_the_metrics(table: Path, epochs: int) -> None:
    loader = loader_of(table, epochs=epochs)
    list(loader)
    progress = loader._position.newest
    assert progress is not None
    waiting, total = progress.seconds
    metrics = progress.metrics()
    assert waiting == metrics.seconds_waiting
    assert 0 < waiting < total < metrics.seconds_total


def test_profilers_find_the_time_that_data_takes(table: Path) -> None:
    loader = loader_of(table)
    with torch.profiler.profile() as profile:
        list(loader)
    spans = {entry.key: entry.count for entry in profile.key_averages()}
    assert spans["enumerate(DataLoader)#TableLoader.__next__"] == 6 + 1


def test_a_loader_and_its_dataset_say_what_they_read(table: Path) -> None:
    loader = loader_of(table, drop_last=True)
    assert repr(loader.dataset) == (
        "<StructuredDataset: 3 files, 24 rows; rank 0 of 1, batch_size=4, shuffle=False, epoch 0>"
    )
    assert repr(loader) == repr(loader.dataset).replace("<", "<TableLoader of ")
    assert (loader.options.batch_size, loader.options.num_workers, loader.options.drop_last) == (4, 2, True)
