"""Promise 2 through the real loader: who reads, how many read, and when, never changes a batch."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from tests.effort import daily
from tests.tables.plain import Batch, deliver, write_table
from tests.waiting import PATIENCE_S
from torch_table_loader.read.tasks import TaskReader

GROUPS = [[7, 5], [11], [], [3, 3, 3], [20], [1], [0, 6], [9, 2]]
OPTIONS: dict[str, Any] = {"batch_size": 4, "num_workers": 4, "shuffle": "splits", "split_size": 1}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "windows": {"shuffle_buffer_size": 6},
    "filtered": {"filters": pc.field("k") < 7},
    "uncounted": {"filters": pc.field("k") < 7, "count_filtered": False},
    "padded": {"even_ranks": "pad", "num_ranks": 3, "rank": 2},
    "balanced": {"even_ranks": "balance", "num_ranks": 3, "rank": 1, "drop_last": True},
}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_table(tmp_path / "table", GROUPS)
    return tmp_path / "table"


@pytest.fixture
def cpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Give a function that sets on how many CPUs this process may run, and with them the servers."""
    return lambda count: monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)))


@pytest.mark.parametrize("variant", sorted(VARIANTS))
@daily(2)
def test_threads_and_processes_of_any_number_give_the_same_batches(
    table: Path, variant: str, cpus: Callable[[int], None]
) -> None:
    options = OPTIONS | VARIANTS[variant]
    cpus(1)
    wanted = deliver(table, epoch=1, **options)
    assert wanted
    for worker_type, servers in [("thread", 2), ("thread", 3), ("thread", 4), ("process", 1), ("process", 3)]:
        cpus(servers)
        assert deliver(table, epoch=1, worker_type=worker_type, **options) == wanted, (worker_type, servers)


@pytest.mark.parametrize("prefetch", [1, 2, 5, 1000])
@daily(2)
def test_prefetching_never_changes_a_batch(table: Path, prefetch: int) -> None:
    for worker_type in ("thread", "process"):
        found = deliver(table, worker_type=worker_type, prefetch_batches=prefetch, **OPTIONS)
        assert found == deliver(table, **OPTIONS)


def test_slow_lanes_never_change_a_batch(
    table: Path, monkeypatch: pytest.MonkeyPatch, cpus: Callable[[int], None]
) -> None:
    cpus(4)
    wanted = deliver(table, **OPTIONS)
    read = TaskReader.read
    others_read = threading.Event()

    def one_file_waits(reader: TaskReader, task: Any) -> Any:
        if task.file_index == 0:
            assert others_read.wait(PATIENCE_S)
        yield from read(reader, task)
        if task.file_index == 4:
            others_read.set()

    monkeypatch.setattr(TaskReader, "read", one_file_waits)
    assert deliver(table, **OPTIONS) == wanted


def test_zero_workers_deliver_the_batches_of_one(table: Path) -> None:
    for variant in VARIANTS.values():
        options = OPTIONS | variant
        assert deliver(table, **options | {"num_workers": 0}) == deliver(table, **options | {"num_workers": 1})


def test_four_lanes_are_the_default_everywhere(table: Path) -> None:
    assert deliver(table, **OPTIONS | {"num_workers": None}) == deliver(table, **OPTIONS)
    assert deliver(table, **OPTIONS | {"num_workers": 3}) != deliver(table, **OPTIONS)


def test_epochs_differ_under_shuffle_and_only_there(table: Path) -> None:
    orders = [ids(deliver(table, epoch=epoch, **OPTIONS)) for epoch in (0, 1, 2)]
    assert len({tuple(order) for order in orders}) == 3
    seeded = ids(deliver(table, **OPTIONS | {"shuffle_seed": 7}))
    assert seeded not in orders
    unshuffled = OPTIONS | {"shuffle": False}
    assert deliver(table, epoch=0, **unshuffled) == deliver(table, epoch=3, **unshuffled)


def test_splits_is_another_word_for_true(table: Path) -> None:
    assert deliver(table, **OPTIONS | {"shuffle": "splits"}) == deliver(table, **OPTIONS)


@pytest.mark.parametrize("window", [1, 3, 8, 500])
@daily(2)
def test_windows_permute_rows_inside_a_lane_and_batches_hold_them_so(table: Path, window: int) -> None:
    options = OPTIONS | {"shuffle": False, "num_workers": 1}
    plain = ids(deliver(table, **options))
    found = deliver(table, shuffle_buffer_size=window, **options)
    permuted = ids(found)
    body = len(plain) // 4 * 4
    for start, stop in [*((at, min(at + window, body)) for at in range(0, body, window)), (body, len(plain))]:
        assert sorted(permuted[start:stop]) == plain[start:stop]
    assert (permuted == plain) == (window == 1)
    if window == 500:
        assert any(batch.rows != sorted(batch.rows) for batch in found)


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_windows_are_permuted_anew_in_each_epoch(table: Path, worker_type: str) -> None:
    options = OPTIONS | {"shuffle": False, "num_workers": 1, "worker_type": worker_type}
    plain = ids(deliver(table, **options))
    epochs = [ids(deliver(table, epoch=epoch, shuffle_buffer_size=8, **options)) for epoch in range(3)]
    for start in range(0, len(plain) // 8 * 8, 8):
        windows = [epoch[start : start + 8] for epoch in epochs]
        assert all(sorted(window) == plain[start : start + 8] for window in windows)
        assert len(set(map(tuple, windows))) == 3


def ids(batches: list[Batch]) -> list[int]:
    return [row for batch in batches for row in batch.rows]
