"""Leaving an epoch early, in whatever way, stops every thread and process; iterators do not disturb each other."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import pickle
import signal
import threading
import weakref
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from tests.effort import daily
from tests.leaks import children, lane_threads, open_files
from tests.torch.leaving import leave_by_del, leave_by_error, run_script
from tests.torch.modes import MIXTURE, SPLITS, Mode, write_rows
from tests.waiting import PATIENCE_S, until
from torch_table_loader import TableLoader
from torch_table_loader.engine.workers.processes import ProcessExecutor
from torch_table_loader.engine.workers.threads import ThreadExecutor
from torch_table_loader.read.tasks import TaskReader

pytestmark = pytest.mark.filterwarnings("ignore:epoch . is iterated again")

ENGINES = ["thread", "process"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_rows(tmp_path / "table" / "a", [[40, 40]] * 6)
    write_rows(tmp_path / "table" / "b", [[40, 40]] * 3)
    return tmp_path / "table"


@pytest.fixture(params=[SPLITS, MIXTURE], ids=str)
def mode(request: pytest.FixtureRequest) -> Mode:
    """Where lanes read, and where they gather: there a mixture does all that a table alone does."""
    found: Mode = request.param
    return found


@pytest.fixture(autouse=True)
def nothing_is_left_behind(table: Path, earlier_loaders_gone: None) -> Iterator[None]:
    """Hold every test of this file to it."""
    assert not lane_threads()
    assert not children(), multiprocessing.active_children()
    yield
    gc.collect()  # a loader and its dataset know each other, and threads that wait for another epoch go with them
    assert not lane_threads()
    assert not children()
    assert not open_files(table)


def make(mode: Mode, table: Path, worker_type: str = "thread", **options: Any) -> TableLoader:
    stop = {"stop": "first_exhausted"} if mode is MIXTURE else {}
    return mode.make(table, **{"batch_size": 4, "worker_type": worker_type} | stop | options)


def is_quiet(table: Path) -> bool:
    return not lane_threads() and not children() and not open_files(table)


@pytest.mark.parametrize("worker_type", ENGINES)
@pytest.mark.parametrize(
    ("mode", "options"), [(SPLITS, {}), (SPLITS, {"count_filtered": False}), (MIXTURE, {})], ids=str
)
@daily(2)
def test_break_stops_the_workers_though_the_loader_lives(
    mode: Mode, table: Path, worker_type: str, options: dict[str, Any]
) -> None:
    loader = make(mode, table, worker_type, filters=pc.field("k") < 7, **options)
    gc.disable()  # leaving alone must do it, not a collection of cycles some time later
    try:
        for _ in loader:
            assert not is_quiet(table)
            break
        assert is_quiet(table)
    finally:
        gc.enable()
    assert loader.metrics().batches == 1


@pytest.mark.parametrize("worker_type", ENGINES)
@daily(2)
def test_an_exception_in_the_loop_stops_the_workers(mode: Mode, table: Path, worker_type: str) -> None:
    loader = make(mode, table, worker_type)
    leave_by_error(loader)
    gc.collect()
    assert is_quiet(table)


@pytest.mark.parametrize("worker_type", ENGINES)
@daily(2)
def test_forgetting_the_iterator_stops_the_workers(mode: Mode, table: Path, worker_type: str) -> None:
    loader = make(mode, table, worker_type)
    leave_by_del(loader)
    assert is_quiet(table)


@pytest.mark.parametrize("worker_type", ENGINES)
@daily(2)
def test_forgetting_the_loader_leaves_its_iterator_alone(mode: Mode, table: Path, worker_type: str) -> None:
    loader = make(mode, table, worker_type)
    batches, steps = iter(loader), len(loader)
    del loader
    gc.collect()
    assert sum(1 for _ in batches) == steps


@pytest.mark.parametrize("worker_type", ENGINES)
@daily(2)
def test_close_stops_the_workers_and_ends_the_epoch(mode: Mode, table: Path, worker_type: str) -> None:
    batches = iter(make(mode, table, worker_type))
    next(batches)
    batches.close()
    assert is_quiet(table)
    batches.close()
    assert list(batches) == []


def as_it_is(batch: Any) -> Any:
    return batch


def test_the_end_of_the_epoch_stops_processes_in_which_functions_run(mode: Mode, table: Path) -> None:
    batches = iter(make(mode, table, "process", collate_fn=as_it_is))
    steps = len(batches)
    assert len(list(batches)) == steps >= 120
    assert is_quiet(table)
    assert next(batches, "ended") == "ended"


def test_processes_wait_for_the_next_epoch_and_end_with_the_loader(mode: Mode, table: Path) -> None:
    loader = make(mode, table, "process")
    workers = []
    for _ in range(3):
        batches = iter(loader)
        assert len(list(batches)) == len(loader)
        assert next(batches, "ended") == "ended"
        workers.append(children())
    assert workers == [workers[0]] * 3
    assert 1 <= len(workers[0]) <= 2
    del loader, batches
    gc.collect()
    assert is_quiet(table)


def test_threads_wait_for_the_next_epoch_and_end_with_the_loader(mode: Mode, table: Path) -> None:
    loader = make(mode, table)
    workers = []
    for _ in range(3):
        batches = iter(loader)
        assert len(list(batches)) == len(loader)
        assert next(batches, "ended") == "ended"
        assert not open_files(table)
        workers.append({thread.ident for thread in lane_threads()})
    assert workers == [workers[0]] * 3
    assert len(workers[0]) <= 2
    del loader, batches
    gc.collect()
    assert is_quiet(table)


@pytest.mark.parametrize("worker_type", ENGINES)
@daily(2)
def test_leaving_a_later_epoch_ends_the_workers_of_the_first(mode: Mode, table: Path, worker_type: str) -> None:
    loader = make(mode, table, worker_type)
    assert len(list(loader)) == len(loader)
    for _ in loader:
        break
    assert is_quiet(table)
    assert len(list(loader)) == len(loader)


def test_two_epochs_at_once_keep_no_more_threads_than_they_had(table: Path) -> None:
    loader = make(SPLITS, table, num_workers=1)
    assert [len(list(zip(loader, loader, strict=True))) for _ in range(3)] == [120] * 3
    assert len(lane_threads()) == 2
    copies = [copy.deepcopy(loader._servers), pickle.loads(pickle.dumps(loader._servers))]  # noqa: S301 its own
    assert not any(each.threads._idle for each in copies)


@pytest.mark.parametrize("worker_type", ENGINES)
@daily(2)
def test_a_forked_child_iterates_a_loader_whose_workers_wait(mode: Mode, table: Path, worker_type: str) -> None:
    loader = make(mode, table, worker_type)
    assert len(list(loader)) == len(loader)
    found = get_context("fork").SimpleQueue()
    child = get_context("fork").Process(target=lambda: found.put(len(list(loader))))
    child.start()
    assert found.get() == len(loader)
    child.join()
    assert child.exitcode == 0
    before = children()
    assert len(list(loader)) == len(loader)
    assert children() == before, "the child has left them alone"


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("during", ["its work", "the choice of its work"])
def test_a_collection_in_a_worker_thread_may_end_the_epoch_that_it_works_for(
    table: Path, during: str, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = threading.Event()
    collected = threading.Event()

    def collect() -> None:
        if left.wait(0 if collected.is_set() else PATIENCE_S) and not collected.is_set():
            collected.set()
            gc.collect()

    def collate(batch: Any) -> Any:
        if during == "its work":
            collect()
        return batch

    has_room = ThreadExecutor._has_room  # it is asked while the executor's lock is held

    def has_room_after_collection(self: ThreadExecutor, lane: Any) -> bool:
        if during == "the choice of its work" and lane.ready:
            collect()
        return has_room(self, lane)

    monkeypatch.setattr(ThreadExecutor, "_has_room", has_room_after_collection)
    gc.disable()  # the collector must run in that thread alone
    try:
        batches = iter(make(SPLITS, table, collate_fn=collate, num_workers=num_workers))
        batches.cycle = batches
        gone = weakref.ref(batches)
        del batches
        left.set()
        assert collected.wait(PATIENCE_S)
        until(lambda: is_quiet(table))
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("worker_type", ENGINES)
@daily(2)
def test_the_callers_interrupt_stops_the_workers(mode: Mode, table: Path, worker_type: str) -> None:
    loader = make(mode, table, worker_type)

    def train() -> None:
        for _ in loader:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    gc.collect()
    assert is_quiet(table)


@pytest.mark.parametrize("worker_type", ENGINES)
def test_an_interrupt_while_the_caller_waits_stops_the_workers(
    table: Path, worker_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_read = get_context("fork").Event() if worker_type == "process" else threading.Event()
    executor: Any = ProcessExecutor if worker_type == "process" else ThreadExecutor
    waits, read, take = threading.Event(), TaskReader.read, executor.take

    def wait_and_read(reader: TaskReader, task: Any) -> Any:
        assert may_read.wait(PATIENCE_S)
        return read(reader, task)

    def wait_and_take(self: Any, lane: int) -> Any:
        waits.set()
        return take(self, lane)

    def interrupt() -> None:
        assert waits.wait(PATIENCE_S)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def interrupted(*_: object) -> None:
        may_read.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(TaskReader, "read", wait_and_read)
    monkeypatch.setattr(executor, "take", wait_and_take)
    batches = iter(make(SPLITS, table, {"process": "fork"}.get(worker_type, worker_type)))
    before = signal.signal(signal.SIGINT, interrupted)  # a shell's background job ignores interrupts
    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    finally:
        interrupter.join()
        signal.signal(signal.SIGINT, before)
    assert is_quiet(table)


@pytest.mark.parametrize("worker_type", ENGINES)
@daily(2)
def test_iterating_again_begins_anew(mode: Mode, table: Path, worker_type: str) -> None:
    loader = make(mode, table, worker_type)
    for _ in zip(range(3), loader, strict=False):
        pass
    first = mode.read(loader)
    assert len(first) == len(loader)
    assert mode.read(loader) == first


@pytest.mark.parametrize("worker_type", ENGINES)
@daily(2)
def test_two_iterators_at_once_each_deliver_all(mode: Mode, table: Path, worker_type: str) -> None:
    loader = make(mode, table, worker_type)
    wanted = mode.read(loader)
    one, other = iter(loader), iter(loader)
    pairs = [(mode.rows(a), mode.rows(b)) for a, b in zip(one, other, strict=True)]
    assert [a for a, _ in pairs] == wanted
    assert [b for _, b in pairs] == wanted


def test_two_loaders_of_both_engines_at_once(mode: Mode, table: Path) -> None:
    threads, processes = make(mode, table, "thread"), make(mode, table, "process")
    for a, b in zip(threads, processes, strict=True):
        assert mode.rows(a) == mode.rows(b)


@pytest.mark.parametrize("worker_type", ENGINES)
def test_an_iterator_that_nobody_takes_from_stops_when_forgotten(mode: Mode, table: Path, worker_type: str) -> None:
    iter(make(mode, table, worker_type))
    assert is_quiet(table)


def test_nothing_runs_before_the_first_iterator(mode: Mode, table: Path) -> None:
    loader = make(mode, table)
    assert len(loader) >= 120
    assert is_quiet(table)


@pytest.mark.parametrize("worker_type", ENGINES)
@pytest.mark.parametrize("ending", ["sys.exit(3)", "1 / 0"])
@pytest.mark.parametrize("they", ["work", "wait"])
@daily(lambda worker_type, ending, they: worker_type == "process" and ending == "sys.exit(3)")
def test_the_interpreter_ends_while_workers_wait_or_work(table: Path, worker_type: str, ending: str, they: str) -> None:
    script = (
        "import sys\n"
        "from torch_table_loader import StructuredDataset\n"
        "loader, _ = StructuredDataset.create_dataloader(sys.argv[1], 'parquet', batch_size=4, num_workers=2,\n"
        "    worker_type=sys.argv[2])\n"
        "steps = len(list(loader))\n"
        "batches = iter(loader)\n"
        "print(steps == len(loader))\n"
        "if sys.argv[3] == 'work': next(batches)\n"
        f"{ending}\n"
    )
    done = run_script(script, str(table), worker_type, they)
    assert done.stdout == "True\n"
    assert done.returncode == (1 if ending == "1 / 0" else 3)
    assert done.stderr.count("Traceback") == (ending == "1 / 0"), done.stderr
    assert "Exception ignored" not in done.stderr
