"""Leaving an epoch of a far table early: nothing more is asked for, threads end, and memory comes back."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.leaks import children, lane_threads
from tests.servers.faults import serving_faults
from tests.torch.leaving import LEAVE, leave_by_break, run_script
from tests.waiting import PATIENCE_S, fetching, until
from torch_table_loader import StructuredDataset, TableLoader
from torch_table_loader.extend import FileStorage

pytestmark = pytest.mark.filterwarnings("ignore:epoch . is iterated again")

ROWS, FILES, GROUP = 400, 12, 100


def write_table(root: Path) -> None:
    root.mkdir()
    for number in range(FILES):
        x = pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())
        pq.write_table(pa.table({"x": x}), root / f"{number:02}.parquet", row_group_size=GROUP)


class Bytes(bytearray):
    """Bytes that came; counts how many of these live."""

    alive = 0

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        Bytes.alive += 1

    def __del__(self) -> None:
        Bytes.alive -= 1


class Gate:
    """Holds requests for the later half of the files, unless it is open."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.asked: list[str] = []
        self.held = 0

    def pass_through(self, path: str) -> None:
        self.asked.append(path)
        if Path(path).name >= f"{FILES // 2:02}" and not self.open.is_set():
            self.held += 1
            assert self.open.wait(PATIENCE_S)


@pytest.fixture
def gate(far: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Make files of this machine those of a store behind a gate."""
    gate, read = Gate(), FileStorage.read_range

    def held(storage: FileStorage, path: str, start: int, stop: int, version: Any = None) -> Any:
        gate.pass_through(path)
        return Bytes(read(storage, path, start, stop, version))

    monkeypatch.setattr(FileStorage, "read_range", held)
    with far():
        yield gate
        gate.open.set()


@pytest.fixture
def table(tmp_path: Path, earlier_loaders_gone: None) -> Iterator[Path]:
    """Write a table, and hold the test to leaving nothing behind."""
    write_table(tmp_path / "t")
    assert not lane_threads()
    yield tmp_path / "t"
    gc.collect()
    until(lambda: not lane_threads())
    assert not children()
    until(lambda: Bytes.alive == 0)


def make(table: Path, **options: Any) -> TableLoader:
    chosen = {"batch_size": 50, "num_workers": 2, "check_plan": False} | options
    return StructuredDataset.create_dataloader(str(table), "parquet", **chosen)[0]


@pytest.mark.parametrize("leave", LEAVE, ids=lambda leave: str(leave.__name__))
@pytest.mark.parametrize("workers", [0, 2])
@daily(4)
def test_what_is_in_flight_ends_and_nothing_more_is_sent(
    table: Path, gate: Gate, leave: Callable[[TableLoader], None], workers: int
) -> None:
    loader = make(table, num_workers=workers)
    gate.open.clear()
    leave(loader)
    gc.collect()
    until(lambda: fetching() == gate.held)  # only threads that wait for the store are left
    asked = len(gate.asked)
    gate.open.set()
    until(lambda: fetching() == 0)
    assert len(gate.asked) == asked
    until(lambda: Bytes.alive == 0)
    assert len(list(loader)) == len(loader)


def test_epochs_that_are_left_early_do_not_pile_up(table: Path, gate: Gate) -> None:
    loader = make(table)
    most = 0
    for _ in range(50):
        leave_by_break(loader)
        most = max(most, fetching())
    assert most <= 5 * FILES, "some may be about to end"
    until(lambda: fetching() == 0)
    until(lambda: Bytes.alive == 0)
    assert len(list(loader)) == len(loader)


def test_the_end_of_an_epoch_ends_its_threads_and_gives_all_back(table: Path, gate: Gate) -> None:
    loader = make(table)
    for _ in range(3):
        assert sum(len(batch["x"]) for batch in loader) == FILES * ROWS
        until(lambda: fetching() == 0)
        until(lambda: Bytes.alive == 0)


def test_a_resumed_loader_gives_back_what_was_read_ahead(table: Path, gate: Gate) -> None:
    loader = make(table)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    batches.close()
    loader.load_state_dict(state)
    assert sum(len(batch["x"]) for batch in loader) == FILES * ROWS - 50
    until(lambda: fetching() == 0)


def test_a_process_that_is_forked_while_bytes_are_fetched_reads_for_itself(table: Path, gate: Gate) -> None:
    loader = make(table)
    batches = iter(loader)
    next(batches)
    assert fetching()
    found = get_context("fork").SimpleQueue()
    child = get_context("fork").Process(target=lambda: found.put(len(list(loader))))
    child.start()
    assert found.get() == len(loader)
    child.join()
    assert child.exitcode == 0
    assert sum(1 for _ in batches) == len(loader) - 1


def test_worker_processes_begin_after_epochs_on_threads(table: Path, gate: Gate) -> None:
    threads, processes = make(table), make(table, worker_type="fork")
    batches = iter(threads)
    next(batches)
    assert sum(len(batch["x"]) for batch in processes) == FILES * ROWS
    for _ in processes:
        break
    assert not children()
    assert sum(1 for _ in batches) == len(threads) - 1


EXIT = """
import sys, time
from torch_table_loader import StructuredDataset
from tests.servers.faults import FaultyStore
store = FaultyStore(sys.argv[1])
loader, _ = StructuredDataset.create_dataloader("s3://bucket/t", "parquet", batch_size=50, num_workers=2,
    storage_options=store.options | {"request_timeout": 3600, "connect_timeout": 3600},
    columns=["x"], worker_type=sys.argv[2])
store.fail("hang", methods=("GET",), suffix="11.parquet")
batches = iter(loader)
while not store.seen().get("faults"):
    time.sleep(0.01)
print("in the middle", flush=True)
"""


@pytest.mark.parametrize("worker_type", ["thread", pytest.param("process", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_the_interpreter_ends_while_the_store_does_not_answer(tmp_path: Path, worker_type: str) -> None:
    write_table(tmp_path / "t")
    with serving_faults(tmp_path) as store:
        done = run_script(EXIT, store.url, worker_type)  # which ends, though no answer ever comes
        assert store.seen().get("faults", 0) > 0
    assert (done.stdout, done.stderr, done.returncode) == ("in the middle\n", "", 0)
