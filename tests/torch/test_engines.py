"""What the engines promise beyond order: where a collate_fn runs, start methods, memory, tensors of one's own."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.effort import daily
from tests.leaks import children, lane_threads
from tests.tables.plain import as_values, deliver, make, write_table
from torch_table_loader import StructuredDataset, TableError
from torch_table_loader.engine.sizing import BLOCKS_AHEAD, SPARE_SLOTS
from torch_table_loader.engine.workers import processes
from torch_table_loader.read.tasks import TaskReader

pytestmark = pytest.mark.usefixtures("earlier_loaders_gone")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_table(tmp_path / "table", [[30, 7, 30]] * 4)
    return tmp_path / "table"


def who_and_what(batch: Any) -> tuple[int, str, list[int]]:
    """Say where a collate_fn runs, and what it was given."""
    return os.getpid(), threading.current_thread().name, batch["x"].tolist()


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@pytest.mark.parametrize("form", ["torch", "numpy"])
@daily(2)
def test_a_collate_fn_gets_each_batch_once_in_the_worker(table: Path, worker_type: str, form: Any) -> None:
    plain = [batch.rows for batch in deliver(table, batch_size=8, num_workers=2)]
    found = list(make(table, worker_type, collate_fn=who_and_what, output_format=form))
    assert [rows for _, _, rows in found] == plain
    here = {(pid == os.getpid(), name.startswith("table-loader")) for pid, name, _ in found}
    assert here == {(True, True)} if worker_type == "thread" else {pid for pid, _ in here} == {False}


def test_a_collate_fn_of_no_workers_runs_in_the_callers_thread(table: Path) -> None:
    found = list(make(table, num_workers=0, collate_fn=who_and_what))
    assert {name for _, name, _ in found} == {threading.current_thread().name}


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_whatever_a_collate_fn_returns_comes_out(table: Path, worker_type: str) -> None:
    loader = make(table, worker_type, collate_fn=returns_odd_things)
    assert [kind for kind, *_ in loader] == [type(None)] * len(loader)


def returns_odd_things(batch: Any) -> Any:
    return type(None), None, {"sum": int(batch["x"].sum())}


@pytest.mark.parametrize("form", ["torch", "numpy", "arrow", "dict"])
@pytest.mark.parametrize("worker_type", ["thread", "process"])
@daily(3)
def test_every_output_form_comes_from_both_engines(table: Path, worker_type: str, form: Any) -> None:
    def values(batch: Any) -> list[int]:
        column = batch.column("x").to_pylist() if form == "arrow" else batch["x"]
        return column if isinstance(column, list) else column.tolist()

    plain = [batch.rows for batch in deliver(table, batch_size=8, num_workers=2)]
    batches = list(make(table, worker_type, output_format=form))
    kinds = {"torch": dict, "numpy": dict, "arrow": pa.RecordBatch, "dict": dict}
    assert {type(batch) for batch in batches} == {kinds[form]}
    assert [values(batch) for batch in batches] == plain


def with_a_variable(batch: Any) -> tuple[Any, str | None]:
    return batch, os.environ.get("A_VARIABLE_OF_THIS_TEST")


def test_workers_of_a_fork_server_have_the_environment_of_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(tmp_path, [[10]])
    options: dict[str, Any] = {"worker_type": "forkserver", "num_workers": 1}
    for value in ("first", "second", None):
        if value is None:
            monkeypatch.delenv("A_VARIABLE_OF_THIS_TEST")
        else:
            monkeypatch.setenv("A_VARIABLE_OF_THIS_TEST", value)
        loader, _ = StructuredDataset.create_dataloader(str(tmp_path), collate_fn=with_a_variable, **options)
        assert [found for _, found in loader] == [value]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("mode", [{"shuffle": True}, {"shuffle": "rows"}], ids=str)
@daily(lambda method, mode: method == "fork")
def test_later_epochs_of_processes_that_wait_are_those_of_threads(table: Path, method: str, mode: Any) -> None:
    served, threads = make(table, method, **mode), make(table, **mode)
    pids = []

    def alike(epoch: int, steps: int | None = None) -> None:
        for loader in (served, threads):
            loader.set_epoch(epoch)
        for ours, theirs in islice(zip(served, threads, strict=True), steps):
            assert as_values(ours).rows == as_values(theirs).rows
        pids.append(children())

    for epoch in (0, 1, 7):
        alike(epoch)
    assert pids == [pids[0]] * 3
    alike(8, steps=3)
    state = threads.state_dict()
    gc.collect()
    assert not children(), "an epoch that is left ends them"
    for loader in (served, threads):
        loader.load_state_dict(state)
    assert [as_values(batch).rows for batch in served] == [as_values(batch).rows for batch in threads]
    resumed = children()
    alike(9)
    assert pids[-1] == resumed


def test_what_is_new_in_an_epoch_and_does_not_fit_a_pipe_goes_to_new_processes(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = make(table, "process")
    before = [as_values(batch).rows for batch in loader]
    waiting = children()
    monkeypatch.setattr(processes, "_FITS_A_PIPE", 10)
    assert [as_values(batch).rows for batch in loader] == before
    assert len(children()) == len(waiting)
    assert not children() & waiting


def test_processes_that_wait_have_the_environment_of_today(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = TaskReader.read

    def refused(self: TaskReader, task: Any) -> Any:
        if (value := os.environ.get("A_VARIABLE_OF_THIS_TEST")) is not None:
            raise TableError(value)
        return read(self, task)

    monkeypatch.setattr(TaskReader, "read", refused)
    loader = make(table, "fork")
    steps = len(list(loader))
    monkeypatch.setenv("A_VARIABLE_OF_THIS_TEST", "it is new")
    with pytest.raises(TableError, match="it is new"):
        list(loader)
    monkeypatch.delenv("A_VARIABLE_OF_THIS_TEST")
    assert len(list(loader)) == steps


_NEWEST = [0]


def with_the_newest(batch: Any) -> int:
    return _NEWEST[0]


def test_functions_in_processes_see_what_has_changed_when_an_epoch_begins(table: Path) -> None:
    loader = make(table, "fork", collate_fn=with_the_newest)
    for _NEWEST[0] in (1, 2):
        assert set(loader) == {_NEWEST[0]}


def segments() -> set[str]:
    """List the pieces of shared memory that this process maps."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "/torch_" in line}


def named(pids: set[int]) -> list[str]:
    """List the pieces of shared memory of some processes that have a name, and so could outlive them."""
    return [path.name for pid in pids for path in Path("/dev/shm").glob(f"torch_{pid}_*")]  # noqa: S108


@pytest.mark.parametrize("killed", [False, True])
def test_kept_batches_stay_as_they_are_in_few_pieces_of_shared_memory(table: Path, killed: bool) -> None:
    gc.collect()
    before = segments()
    loader = make(table, "process", batch_size=1)
    kept = [list(loader) for _ in range(3)]
    pids = children() | {os.getpid()}
    assert 0 < len(segments() - before) <= 2 + (len(pids) - 1) * (SPARE_SLOTS + BLOCKS_AHEAD)
    if killed:
        for pid in children():
            os.kill(pid, signal.SIGKILL)
    kept.append(list(loader))
    pids |= children()
    assert named(pids) == []
    wanted = list(make(table, batch_size=1))
    for epoch in kept:
        assert [batch["x"].tolist() for batch in epoch] == [batch["x"].tolist() for batch in wanted]
        assert [batch["f"].tolist() for batch in epoch] == [batch["f"].tolist() for batch in wanted]
    kept.clear()
    del loader, epoch
    gc.collect()
    assert segments() == before
    assert named(pids) == []


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@daily(lambda method: method != "spawn")
def test_every_start_method_gives_the_same_batches(table: Path, method: str) -> None:
    options: dict[str, Any] = {"batch_size": 8, "num_workers": 1}
    found = deliver(table, worker_type=method, **options)
    assert found == deliver(table, **options)
    context = torch.multiprocessing.get_context(method)
    if method == "fork":
        assert deliver(table, worker_type=context, **options) == found


def test_no_workers_start_neither_thread_nor_process(table: Path) -> None:
    for worker_type in ("thread", "process"):
        batches = iter(make(table, worker_type, num_workers=0))
        next(batches)
        assert not lane_threads()
        assert not children()


@pytest.mark.parametrize(("lanes", "cpus", "servers"), [(2, 8, 2), (6, 2, 2), (3, 1, 1)])
@daily(1)
def test_servers_are_fitted_to_the_machine(
    table: Path, lanes: int, cpus: int, servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch_table_loader.engine.machine.usable_cpus", lambda: cpus)
    threads = iter(make(table, num_workers=lanes))
    assert len(lane_threads()) == servers
    threads.close()
    processes = iter(make(table, "process", num_workers=lanes))
    assert len(children()) == servers
    processes.close()


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@pytest.mark.parametrize("window", [None, 16])
@daily(2)
def test_tensors_may_be_written_without_touching_others(table: Path, worker_type: str, window: int | None) -> None:
    loader = make(table, worker_type, shuffle_buffer_size=window)
    wanted = [as_values(batch).rows for batch in loader]
    kept = list(loader)
    for batch in kept:
        assert batch["x"].is_contiguous()
    for written, batch in enumerate(kept):
        before = [other["x"].clone() for other in kept[written + 1 :]]
        batch["x"].mul_(0).sub_(1)
        batch["f"].zero_()
        assert all(torch.equal(a, b["x"]) for a, b in zip(before, kept[written + 1 :], strict=True))
    assert [as_values(batch).rows for batch in loader] == wanted


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_the_same_row_as_padding_has_memory_of_its_own(tmp_path: Path, worker_type: str) -> None:
    write_table(tmp_path, [[4], [12]])
    loader = make(tmp_path, worker_type, num_ranks=2, rank=0, check_plan=False, even_ranks="pad", batch_size=4)
    batches = list(loader)
    padding = [batch for batch in batches if batch["padding"].any()]
    assert len(padding) == 2
    padding[0]["x"].fill_(-1)
    assert batches[0]["x"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("worker_type", "own"),
    [("thread", {}), ("process", {}), ("process", {"collate_fn": dict})],
    ids=["thread", "process that waits", "process"],
)
@daily(1)
def test_an_epoch_leaves_nothing_behind(tmp_path: Path, worker_type: str, own: dict[str, Any]) -> None:
    """Counted, not weighed: what a process keeps resident is its allocators' affair (`make bench` weighs it)."""
    table = pa.table({name: pa.array(range(20_000), "int64") for name in "abcd"})
    for number in range(4):
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=5_000)
    loader = make(tmp_path, worker_type, batch_size=512, shuffle="splits", **own)
    gc.collect()  # what other tests left
    held = []
    for epoch in range(8 if worker_type == "thread" else 4):
        loader.set_epoch(epoch)
        assert sum(1 for _ in loader) == len(loader)
        for thread in threading.enumerate():
            if own and thread.name.startswith("QueueFeederThread"):  # of processes that end, which closes their pipes
                thread.join(20)
        tensors = sum(type(thing) is torch.Tensor for thing in gc.get_objects())
        held.append((pa.total_allocated_bytes(), tensors, len(list(Path("/proc/self/fd").iterdir()))))
    assert len(set(held[1:])) == 1, held


def test_an_open_epoch_holds_no_more_rows_than_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(tmp_path, [[100] * 30] * 6)
    monkeypatch.setattr("torch_table_loader.engine.jobs.modes.rows_of_a_read", lambda *_: 100)
    read = TaskReader.read
    decoded = [0]

    def counting(reader: TaskReader, task: Any) -> Any:
        for batch in read(reader, task):
            decoded[0] += batch.num_rows
            yield batch

    monkeypatch.setattr(TaskReader, "read", counting)
    variants: tuple[dict[str, Any], ...] = (
        {},
        {"prefetch_batches": 1},
        {"prefetch_batches": 40},
        {"shuffle_buffer_size": 300},
        {"collate_fn": dict},
    )
    for options in variants:
        decoded[0], taken = 0, 0
        loader = make(tmp_path, batch_size=10, num_workers=3, **options)
        dataset: Any = loader.dataset
        bound = dataset.explain().memory_bound // dataset.job.row_bytes
        for _ in loader:
            taken += 10
            assert decoded[0] - taken <= bound < 18_000, options
        assert taken == decoded[0] == 18_000


def test_a_lane_of_short_row_groups_does_not_run_ahead_in_a_process(tmp_path: Path) -> None:
    write_table(tmp_path, [[2000], [4] * 500])
    loader = make(tmp_path, "process", batch_size=2, prefetch_batches=8)
    batches = iter(loader)
    for _ in range(200):
        next(batches)
        workers = batches.progress.metrics().workers
        assert abs(workers[0].batches - workers[1].batches) <= 2 * 8


def test_a_callable_that_does_not_pickle_is_fine_in_threads(table: Path) -> None:
    add: Callable[[Any], Any] = lambda batch: batch["x"] + 1  # noqa: E731 - a lambda is the point
    assert next(iter(make(table, collate_fn=add))).tolist() == list(range(1, 9))
