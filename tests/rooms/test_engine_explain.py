"""`explain()` and `metrics()` agree with what happens."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.plain import deliver_all, key, meant_warnings
from tests.tables.small_groups import GROUPS, make, write_groups
from torch_table_loader import StructuredDataset
from torch_table_loader.engine.explanation import Explanation
from torch_table_loader.engine.jobs.stream_job import StreamJob
from torch_table_loader.engine.sizing import CHUNK_BYTES
from torch_table_loader.records import ReadTask
from torch_table_loader.units import Size

TOTAL = sum(map(sum, GROUPS))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_groups(tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": "splits", "split_size": 1},
        {"drop_last": True},
        {"num_ranks": 3, "rank": 1, "split_size": 1},
        {"num_ranks": 3, "rank": 2, "even_ranks": "pad"},
        {"num_ranks": 2, "rank": 0, "even_ranks": "balance", "filters": pc.field("k") < 5},
        {"split_strategy": "round_robin", "num_ranks": 2, "rank": 1},
        {"num_workers": 0},
    ],
)
@daily(3)
def test_the_explained_plan_is_the_plan_that_runs(table: Path, options: dict[str, Any]) -> None:
    loader, dataset = make(table, **options)
    for epoch in (0, 1):
        loader.set_epoch(epoch)
        told = dataset.explain()
        assert told.epoch == epoch
        batches = list(loader)
        assert told.steps == len(batches)
        assert told.schema == tuple((name, str(kind)) for name, kind in zip(*_columns(dataset), strict=True))
        assert [name for name, _ in told.schema] == list(batches[0])
        metrics = loader.metrics()
        assert [worker.steps for worker in told.workers] == [worker.batches for worker in metrics.workers]
        assert metrics.batches == told.steps
        assert metrics.rows == sum(len(batch["x"]) for batch in batches)
        padding = sum(int(batch["padding"].sum()) for batch in batches if "padding" in batch)
        assert sum(worker.rows for worker in metrics.workers) in (metrics.rows, metrics.rows - padding)
        ranks, rank = options.get("num_ranks", 1), options.get("rank", 0)
        with meant_warnings():
            jobs = deliver_all(table, ranks, epoch=epoch, batch_size=4, **_without(options, "num_ranks", "rank"))
        assert told.steps_per_rank == tuple(len(batches) for batches in jobs)
        assert told.rows_per_rank is not None
        if "drop_last" not in options:
            assert told.rows_per_rank[rank] == sum(worker.rows for worker in told.workers)
            assert sum(told.rows_per_rank) == told.live_rows if told.live_rows is not None else TOTAL


def _columns(dataset: StructuredDataset) -> tuple[list[str], list[Any]]:
    return dataset.schema.names, dataset.schema.types


def _without(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {"num_workers": 3} | {name: value for name, value in options.items() if name not in names}


def test_it_counts_files_row_groups_rows_and_bytes(table: Path) -> None:
    told = make(table)[1].explain()
    assert (told.files, told.row_groups, told.rows, told.live_rows) == (7, 9, TOTAL, TOTAL)
    assert told.stored_bytes == sum(path.stat().st_size for path in table.iterdir())
    assert (told.pruned_files, told.pruned_row_groups) == (0, 0)
    assert told.footer_bytes > 0
    # Encoded bytes before compression: of the order of 20 bytes a row, and all rows are some worker's.
    assert 10 * TOTAL < sum(worker.num_bytes for worker in told.workers) < 300 * TOTAL


def test_it_reports_what_was_pruned_and_why(table: Path) -> None:
    told = make(table, filters=pc.field("x") >= 46)[1].explain()
    assert told.pruned_files == 2
    assert told.pruned_row_groups == 3, "those of 9, 7 and 30 rows"
    assert told.live_rows == TOTAL - 46
    assert "prunes 3 of 9 row groups by partition values and statistics" in told.notes[0]


def test_it_tells_how_batches_are_mixed(table: Path) -> None:
    loader, dataset = make(table, shuffle="mixed")
    assert any("each batch draws on up to 16 splits" in note for note in dataset.explain().notes)
    assert sum(len(batch["x"]) for batch in loader) > 0


def test_fewer_splits_are_open_where_row_groups_are_large(tmp_path: Path) -> None:
    """The pages of 60 columns of four row groups are more than splits may hold; how well that mixes is said."""
    rng = np.random.default_rng(0)
    columns = {f"x{number}": pa.array(rng.random(100_000)) for number in range(60)}
    for number in range(2):
        pq.write_table(pa.table(columns), tmp_path / f"{number}.parquet", row_group_size=100_000)
    _, dataset = StructuredDataset.create_dataloader(str(tmp_path), shuffle=True)
    [note] = [note for note in dataset.explain().notes if "draws on" in note]
    assert "up to 4 splits that are read side by side" in note
    assert 'smaller ones, or shuffle="rows", mix better' in note
    assert dataset.explain().memory_bound < 900 << 20


def test_uncounted_numbers_are_none_rather_than_zero(table: Path) -> None:
    told = make(table, filters=pc.field("k") < 5, count_filtered=False)[1].explain()
    assert (told.steps, told.steps_per_rank, told.live_rows, told.rows_per_rank) == (None,) * 4
    assert any("count_filtered=False" in note for note in told.notes)
    assert re.search("steps of this rank +unknown", str(told))
    told = make(table, filters=pc.field("k") < 5, num_ranks=2, rank=0, even_ranks=False)[1].explain()
    assert told.steps is not None
    assert (told.steps_per_rank, told.rows_per_rank, told.live_rows) == (None,) * 3


def test_it_prints_every_number(table: Path) -> None:
    loader, dataset = make(table, num_ranks=2, rank=1, shuffle="splits")
    told = dataset.explain()
    assert told.steps_per_rank is not None
    assert told.rows_per_rank is not None
    text = [" ".join(line.split()) for line in str(told).splitlines()]
    for line in (
        f"Epoch 0 as rank 1 of 2 reads it: {told.splits} splits by TargetSizeStrategy",
        f"rows {TOTAL} {TOTAL} live",
        "files 7",
        "row groups 9",
        f"stored {Size(told.stored_bytes)}",
        f"steps of this rank {len(loader)} of 4 rows",
        f"memory {Size(told.memory_expected)} of rows in flight; the bound is {Size(told.memory_bound)}",
        f"footers that are held {Size(told.footer_bytes)}",
        *(f"after {step.name} {step.files} {step.row_groups} {step.rows}" for step in told.pruning[1:]),
        *(f"worker {w.worker} {w.splits} {w.rows} {Size(w.num_bytes)} {w.steps}" for w in told.workers),
        *(f"rank {rank} {rows} {told.steps_per_rank[rank]}" for rank, rows in enumerate(told.rows_per_rank)),
        *(f"{name} {kind}" for name, kind in told.schema),
    ):
        assert line in text
    assert len(told.workers) == 3


def test_the_memory_bound_grows_with_the_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_table_loader.engine.jobs.modes.rows_of_a_read", lambda *_: 100)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.arange(60_000), "y": np.zeros(60_000)}), path, row_group_size=1000)

    def bound(**options: Any) -> int:
        return make(path, batch_size=100, split_size=1000, **options)[1].explain().memory_bound

    assert bound(num_workers=6) == 2 * bound(num_workers=3)
    windows, read = 7 * 1000, 100
    assert bound(shuffle_buffer_size=1000) == bound() + 3 * 16 * (windows + read - 5 * 100)
    assert bound(prefetch_batches=50) > bound()
    assert bound(worker_type="process", prefetch_batches=1) < bound(worker_type="process")
    assert bound(shuffle_buffer_size=10**6) == bound(shuffle_buffer_size=10**9)  # a lane has only so many rows


def test_a_small_table_is_said_to_need_little_memory_and_a_large_one_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows of a rank are the most that it can hold, and a lane holds no more than a few reads."""

    def told(rows: int, **options: Any) -> Explanation:
        path = tmp_path / f"{rows}.parquet"
        if not path.exists():
            pq.write_table(pa.table({"x": np.arange(rows), "y": np.zeros(rows)}), path, row_group_size=1000)
        return make(path, batch_size=100, **options)[1].explain()

    by_row: dict[str, Any] = {"shuffle": "rows", "row_store": "memory"}
    ways: list[dict[str, Any]] = [
        {},
        {"worker_type": "process"},
        {"shuffle": "splits", "shuffle_buffer_size": 500},
        by_row,
    ]
    for options in ways:
        held = 16 * 4000 if options is by_row else 0
        small = told(4000, **options)
        assert small.memory_expected == held + 16 * 4000 < small.memory_bound, options
        ranks = [told(4000, num_ranks=2, rank=rank, **options).memory_expected - held for rank in range(2)]
        assert sum(ranks) == 16 * 4000, options
    monkeypatch.setattr("torch_table_loader.engine.jobs.modes.rows_of_a_read", lambda *_: 100)
    large = told(4000, split_size=1000)
    lanes = 3 * 5 * 100 * 16
    assert large.memory_expected == lanes
    decoding = 256 * (16 + 2 * 2) + 2 * large.group_sizes.most  # room for twice 100 rows, their levels, and pages
    assert lanes < large.memory_bound <= lanes + 3 * decoding


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@pytest.mark.parametrize("collate_fn", [None, dict])
def test_metrics_report_what_was_taken_so_far(table: Path, worker_type: str, collate_fn: Any) -> None:
    loader, dataset = make(table, worker_type=worker_type, collate_fn=collate_fn)
    before = loader.metrics()
    assert before == dataset.metrics()
    assert dataset.worker_metrics() == before.workers
    assert [worker.worker for worker in before.workers] == [0, 1, 2]
    assert not any(before.as_dict()[name] for name in ("epoch", "batches", "rows", "seconds_total", "worker_2/rows"))
    assert (before.limit, before.share_waiting, before.rows_per_second) == ("training", 0, 0)
    assert "epoch 0: 0 rows in 0 batches" in str(before)
    batches = iter(loader)
    for taken in range(1, 6):
        next(batches)
        so_far = dataset.metrics()
        assert (so_far.batches, so_far.rows, so_far.epoch) == (taken, 4 * taken, 0)
    assert sum(1 for _ in batches) == len(loader) - 5
    done = loader.metrics()
    assert done.rows == sum(worker.rows for worker in done.workers) == TOTAL
    assert done.num_bytes == sum(worker.num_bytes for worker in done.workers) == TOTAL * 20
    assert [worker.worker for worker in done.workers] == [0, 1, 2]
    assert f"epoch 0: {TOTAL} rows in {len(loader)} batches" in str(done)


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_metrics_count_rows_that_were_not_counted_before(table: Path, worker_type: str, drop_last: bool) -> None:
    options = {"filters": pc.field("k") < 5, "count_filtered": False, "worker_type": worker_type, "batch_size": 7}
    loader, _ = make(table, drop_last=drop_last, **options)
    rows = sum(len(batch["x"]) for batch in loader)
    live = sum(key(row) < 5 for row in range(TOTAL))
    assert rows == (live // 7 * 7 if drop_last else live)
    assert loader.metrics().rows == rows


def test_metrics_describe_the_newest_iterator(table: Path) -> None:
    loader, _ = make(table)
    old = iter(loader)
    next(old)
    new = iter(loader)
    assert loader.metrics().batches == 0
    next(new)
    next(old)
    assert loader.metrics().batches == 1


class Clock:
    """A clock that stands still until something takes time; fractions of seconds that add up without rounding."""

    COLLATES, TRAINS = 1 / 64, 3 / 64

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self._now)

    def collated(self, batch: Any) -> Any:
        """Take some time for a batch."""
        self._now += self.COLLATES
        return batch

    def trained(self) -> None:
        """Take three times as much for a step."""
        self._now += self.TRAINS


@pytest.mark.parametrize("worker_type", ["caller", "thread", "process"])
def test_seconds_are_of_the_trainer_that_waits_and_of_the_worker_that_works(
    table: Path, worker_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    # A worker process that was forked has a copy of the clock.
    started = {"process": "fork"}.get(worker_type, worker_type)
    engine = {"num_workers": 0} if worker_type == "caller" else {"worker_type": started, "num_workers": 1}
    loader, _ = make(table, collate_fn=clock.collated, **engine)
    for _ in loader:
        if worker_type != "thread":  # which would see the time that the trainer takes
            clock.trained()
    done = loader.metrics()
    (worker,) = done.workers
    collating, training = len(loader) * clock.COLLATES, len(loader) * clock.TRAINS
    assert worker.seconds_collating == worker.seconds_working == collating
    if worker_type == "caller":
        assert (done.seconds_waiting, done.seconds_total) == (collating, collating + training)
    elif worker_type == "process":
        assert (done.seconds_waiting, done.seconds_total) == (0, training)
    else:
        assert 0 <= done.seconds_waiting <= done.seconds_total == collating


def test_progress_is_drawn_on_request(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader, _ = make(table, show_progress=True, filters=pc.field("k") < 5)
    assert len(list(loader)) == len(loader)
    drawn = capsys.readouterr().err
    assert "counting" in drawn
    assert "epoch 0: 100%" in drawn
    assert f"{len(loader)}/{len(loader)}" in drawn
    make(table)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("shuffle", [False, "rows"])
def test_a_read_is_sized_by_what_the_footers_say_of_the_columns_that_are_read(
    tmp_path: Path, shuffle: Literal["rows", False]
) -> None:
    rows, length = 6_000, 1_000
    values = pa.array(np.random.default_rng(7).integers(0, 1 << 31, rows * length, np.int32))
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * length)
    tokens = pa.ListArray.from_arrays(offsets, values)
    columns = {"k": pa.array(np.arange(rows)), "tokens": tokens, "name": pa.array(["a", "b", "c"] * (rows // 3))}
    path = tmp_path / "lists.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=200, use_dictionary=False, compression="none")

    def row_bytes(*names: str) -> int:
        return make(path, batch_size=64, columns=list(names), shuffle=shuffle)[1].job.row_bytes

    assert row_bytes("k", "tokens") == pytest.approx(4 * length + 8, rel=0.05)
    assert row_bytes("k") == 8
    assert row_bytes("name") < 100, "what is not read weighs nothing"


@pytest.mark.slow
def test_large_values_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    """A row group is as large as a writer made it, and nobody cuts it by rows of a guessed width."""
    path = tmp_path / "images.parquet"
    images = [bytes([number % 256]) * 100_000 for number in range(3_000)]
    table = pa.table({"image": pa.array(images, pa.binary()), "label": pa.array(range(3_000))})
    pq.write_table(table, path, row_group_size=250, use_dictionary=False, compression="none")
    dataset = make(path, batch_size=64)[1]
    job = dataset.job
    assert isinstance(job, StreamJob)
    assert CHUNK_BYTES <= job.read_rows * 100_000 <= 8 * CHUNK_BYTES
    task = ReadTask(0, job.table.layout.kept_segments(0))
    assert max(batch.num_rows for batch in job.reader.read(task)) <= job.read_rows
    assert dataset.explain().memory_bound <= 2 * 4 * 8 * CHUNK_BYTES


@pytest.mark.parametrize("first", [None, [], [None] * 40, [b""] * 40], ids=["lacking", "empty", "nulls", "short"])
def test_files_without_large_values_do_not_hide_those_of_others(tmp_path: Path, first: list[Any] | None) -> None:
    images = pa.array([bytes([number]) * 100_000 for number in range(40)], pa.binary())
    parts = {"b": pa.table({"image": images, "label": pa.array(range(40))})}
    columns = {"label": pa.array(range(40 if first is None else len(first)))}
    parts["a"] = pa.table(columns if first is None else {"image": pa.array(first, pa.binary()), **columns})
    for name, part in parts.items():
        pq.write_table(part, tmp_path / f"{name}.parquet", row_group_size=10, use_dictionary=False, compression="none")
    dataset = make(tmp_path, batch_size=64, columns=["image"], schema=parts["b"].schema)[1]
    assert dataset.job.row_bytes == pytest.approx(100_000, rel=0.05)
