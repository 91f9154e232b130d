"""What goes wrong in a worker reaches the caller at once, with the place and the cause."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from tests.effort import daily
from tests.leaks import children, lane_threads
from tests.tables.plain import Batch, as_values, make, write_table
from tests.waiting import PATIENCE_S
from torch_table_loader import ConfigError, TableError, TableLoader, WorkerError
from torch_table_loader.engine.work.lane_work import LaneBatches

pytestmark = pytest.mark.usefixtures("earlier_loaders_gone")

ENGINES = ["thread", "process"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_table(tmp_path / "table", [[30, 30, 30]] * 4)
    return tmp_path / "table"


def tear(path: Path, group: int, column: int) -> None:
    """Write over the data pages of one column chunk; size and time stay as they were."""
    chunk = pq.read_metadata(path).row_group(group).column(column)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    stamp = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def drain(loader: TableLoader) -> list[Batch]:
    """Take batches until the epoch ends or fails; those before a failure are in its `delivered`."""
    batches: list[Batch] = []
    try:
        batches.extend(as_values(batch) for batch in loader)
    except Exception as error:
        error.delivered = batches  # type: ignore[attr-defined]
        raise
    return batches


@pytest.mark.parametrize("worker_type", [*ENGINES, "caller"])
def test_a_torn_row_group_is_named_with_its_file_and_column(table: Path, worker_type: str) -> None:
    tear(table / "002.parquet", group=1, column=2)
    options = {"num_workers": 0} if worker_type == "caller" else {"worker_type": worker_type}
    with pytest.raises(TableError) as caught:
        drain(make(table, split_size=1, **options))
    text = str(caught.value)
    assert "002.parquet, row group 1, column 'f'" in text
    assert "damaged" in text
    del caught
    assert not lane_threads()
    assert not children()


def test_batches_before_the_torn_row_group_came(table: Path) -> None:
    tear(table / "002.parquet", group=1, column=0)
    with pytest.raises(TableError) as caught:
        drain(make(table, num_workers=1, split_size=1))
    delivered = [row for batch in caught.value.delivered for row in batch.rows]  # type: ignore[attr-defined]
    assert delivered == list(range(len(delivered)))
    assert 150 < len(delivered) <= 210


def test_a_torn_row_group_that_is_not_asked_for_does_no_harm(table: Path) -> None:
    tear(table / "002.parquet", group=1, column=2)
    assert len(drain(make(table, columns=["x"]))) == 45


def raises(batch: Any) -> Any:
    raise ZeroDivisionError("by the caller's own collate_fn")


@pytest.mark.parametrize("worker_type", ENGINES)
def test_an_error_of_the_collate_fn_comes_with_its_traceback(table: Path, worker_type: str) -> None:
    with pytest.raises(ZeroDivisionError, match="by the caller's own collate_fn") as caught:
        drain(make(table, worker_type, collate_fn=raises))
    if worker_type == "thread":
        assert "raises" in [entry.name for entry in caught.traceback]
    else:
        assert "in raises" in "".join(caught.value.__notes__)
    del caught
    assert not lane_threads()
    assert not children()


@pytest.mark.parametrize("worker_type", ENGINES)
def test_after_an_error_the_epoch_is_over_and_the_next_can_begin(table: Path, worker_type: str) -> None:
    tear(table / "002.parquet", group=1, column=2)
    loader = make(table, worker_type)
    batches = iter(loader)
    with pytest.raises(TableError):
        list(batches)
    assert next(batches, None) is None
    with pytest.raises(TableError):
        drain(loader)


@pytest.mark.parametrize("prefetch", [None, 1, 1000])
def test_after_an_error_no_lane_tells_it_again(table: Path, prefetch: int | None) -> None:
    tear(table / "002.parquet", group=1, column=2)
    batches = iter(make(table, prefetch_batches=prefetch))
    with pytest.raises(TableError):
        list(batches)
    for _ in range(3):  # each lane would be asked once
        assert next(batches, None) is None


@pytest.fixture
def nothing_is_polled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hold a test to it: torch, which looks for dead workers after seconds without a message, always finds one."""
    missed, look = list[object](), _MultiProcessingDataLoaderIter._try_get_data

    def noted(self: Any, *timeout: float) -> Any:
        try:
            found = look(self, *timeout)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            missed.extend([error] if isinstance(error.__cause__, Empty) else [])
            raise
        missed.extend([] if found[0] else ["nothing came"])
        return found

    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_try_get_data", noted)
    yield
    assert missed == []


@pytest.mark.parametrize("count", [1, 2])
def test_a_killed_worker_process_is_an_error_at_once(table: Path, count: int, nothing_is_polled: None) -> None:
    loader = make(table, "process", batch_size=1, prefetch_batches=1)
    batches = iter(loader)
    next(batches)
    for pid in sorted(children())[:count]:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"worker process \d+ was killed by SIGKILL"):
        list(batches)
    assert not children()
    assert len(drain(loader)) == 360


@pytest.mark.parametrize("count", [1, 2])
def test_processes_that_are_killed_while_they_wait_are_replaced(table: Path, count: int) -> None:
    loader = make(table, "process", batch_size=1)
    assert len(drain(loader)) == 360
    waiting = sorted(children())
    for pid in waiting[:count]:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert len(drain(loader)) == 360
    assert not set(waiting) & children()


@pytest.mark.slow
def test_a_killed_worker_process_is_named_where_another_thread_takes_the_batches(table: Path) -> None:
    def consume() -> None:
        batches = iter(make(table, "process", batch_size=1, prefetch_batches=1))
        next(batches)
        os.kill(min(children()), signal.SIGKILL)
        list(batches)

    with pytest.raises(WorkerError, match="was killed by SIGKILL in the middle of the epoch"):
        in_a_thread(consume)


@pytest.mark.parametrize("worker_type", ENGINES)
@pytest.mark.parametrize("change", ["size", "mtime", "gone"])
@daily(lambda worker_type, change: worker_type != "process" or change == "size")
def test_a_file_that_changes_under_us_is_named(table: Path, worker_type: str, change: str) -> None:
    loader = make(table, worker_type)
    target = table / "003.parquet"
    if change == "size":
        target.write_bytes(target.read_bytes() + b"more")
    elif change == "mtime":
        os.utime(target, ns=(1, 1))
    else:
        target.unlink()
    with pytest.raises(TableError, match=r"003\.parquet") as caught:
        drain(loader)
    wanted = {"size": "size in bytes was", "mtime": "mtime in ns was", "gone": "expected a file, found none"}
    assert wanted[change] in str(caught.value)


def test_a_file_that_changes_while_it_is_read_is_named(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_table_loader.engine.jobs.modes.rows_of_a_read", lambda *_: 8)
    batches = iter(make(table, num_workers=1, prefetch_batches=1))
    next(batches)
    os.utime(table / "000.parquet", ns=(1, 1))
    with pytest.raises(TableError, match=r"000\.parquet changed while it was in use: mtime"):
        list(batches)


def test_an_error_reaches_a_caller_who_takes_batches_in_another_thread(table: Path) -> None:
    tear(table / "000.parquet", group=0, column=0)
    loader = make(table)
    with pytest.raises(TableError):
        in_a_thread(lambda: list(loader))
    assert not lane_threads()


def in_a_thread(job: Callable[[], object]) -> None:
    """Run a job in another thread, and raise its error here."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(job).result(PATIENCE_S)


def test_a_lane_that_ends_before_its_plan_is_an_error_and_no_short_epoch(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LaneBatches, "next_block", lambda *_: None)
    with pytest.raises(TableError, match="worker 0 must deliver as many batches"):
        list(make(table, batch_size=6))


@pytest.mark.parametrize("worker_type", [*ENGINES, "caller"])
@pytest.mark.parametrize("torn", ["000.parquet", "001.parquet", "002.parquet"])
@daily(lambda worker_type, torn: worker_type != "process" or torn == "001.parquet")
def test_an_error_in_the_last_rows_of_any_lane_is_no_hang(
    tmp_path: Path, worker_type: str, torn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch_table_loader.engine.jobs.modes.rows_of_a_read", lambda *_: 4)
    write_table(tmp_path, [[8, 3]] * 3)
    tear(tmp_path / torn, group=1, column=0)
    options = {"num_workers": 0} if worker_type == "caller" else {"worker_type": worker_type, "num_workers": 3}
    with pytest.raises(TableError, match=rf"{torn}, row group 1, column 'x'"):
        drain(make(tmp_path, batch_size=4, **options))


def sends_much(batch: Any) -> Any:
    """Make a result that does not fit a pipe."""
    return bytes(3_000_000)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGBUS"])
@pytest.mark.parametrize("collate_fn", [None, sends_much])
@daily(lambda method, name, collate_fn: (method, name, collate_fn) == ("fork", "SIGSEGV", sends_much))
def test_whatever_ends_a_worker_is_a_worker_error(
    table: Path, method: str, name: str, collate_fn: Any, nothing_is_polled: None
) -> None:
    options = {"batch_size": 1, "prefetch_batches": 1, "collate_fn": collate_fn}
    loader = make(table, method, **options)
    for pause in (0.0, 0.003, 0.05) if method == "fork" else (0.003,):  # others start slowly
        batches: Any = iter(loader)
        next(batches)
        time.sleep(pause)
        os.kill(min(children()), signal.Signals[name])
        time.sleep(pause)  # torch's handler of SIGCHLD would raise in here
        with pytest.raises(WorkerError, match=rf"worker process \d+ was killed by {name} in the middle of the epoch"):
            list(batches)
        del batches
    assert method != "fork" or sum(1 for _ in loader) == 360


class Dies:
    """A collate_fn that ends its process."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __call__(self, batch: Any) -> Any:
        if self.how == "exits":
            sys.exit("by the caller's own collate_fn")
        if self.how == "is interrupted":
            raise KeyboardInterrupt("by the caller's own collate_fn")
        if self.how == "has no memory":
            raise MemoryError("by the caller's own collate_fn")
        if self.how == "stops":
            raise StopIteration("by the caller's own collate_fn")
        if self.how.startswith("ends with "):
            os._exit(int(self.how.removeprefix("ends with ")))
        return batch


@pytest.mark.parametrize("worker_type", [*ENGINES, "caller"])
@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("exits", SystemExit),
        ("is interrupted", KeyboardInterrupt),
        ("has no memory", MemoryError),
        ("stops", RuntimeError),
    ],
)
@daily(lambda worker_type, how: worker_type != "process" or how in ("exits", "stops"))
def test_whatever_a_collate_fn_raises_reaches_the_caller(
    table: Path, worker_type: str, how: str, kind: type[BaseException]
) -> None:
    options = {"num_workers": 0} if worker_type == "caller" else {"worker_type": worker_type}
    with pytest.raises(kind) as caught:
        list(make(table, collate_fn=Dies(how), **options))
    assert type(caught.value) is kind
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "by the caller's own collate_fn" in told or how == "stops"
    assert "rank 0, epoch 0, batch 0 of worker 0, which is step 0" in told


@pytest.mark.parametrize("code", [0, 1, 3])
@daily(1)
def test_a_worker_that_leaves_is_a_worker_error(table: Path, code: int) -> None:
    with pytest.raises(WorkerError, match=rf"ended with code {code} in the middle of the epoch"):
        list(make(table, "process", collate_fn=Dies(f"ends with {code}")))
    assert not children()


class OnlyThere:
    """A collate_fn that a worker cannot unpickle."""

    def __init__(self) -> None:
        self.home = os.getpid()

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["home"] != os.getpid():
            raise ZeroDivisionError("while it was unpickled")
        self.__dict__.update(state)

    def __call__(self, batch: Any) -> Any:
        return batch


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@daily(lambda method: method == "forkserver")
def test_a_worker_that_cannot_start_is_a_worker_error(table: Path, method: str) -> None:
    loader = make(table, method, collate_fn=OnlyThere())
    with pytest.raises(WorkerError, match=r"ended with code 1 .*its own message is on stderr"):
        list(loader)
    assert not children()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@daily(lambda method: method == "forkserver")
def test_a_collate_fn_that_does_not_pickle_is_refused_at_construction(table: Path, method: str) -> None:
    for collate_fn in (lambda batch: batch, Holder(threading.Lock())):
        with pytest.raises(
            ConfigError, match=rf"collate_fn must pickle to reach worker processes that start by {method}"
        ):
            make(table, method, collate_fn=collate_fn)
        make(table, "thread", collate_fn=collate_fn)
    counter = get_context(method).Value("i")  # pickles, but only while a process starts
    assert list(make(table, method, collate_fn=Holder(counter), batch_size=100))


class Holder:
    """A collate_fn that has something."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __call__(self, batch: Any) -> Any:
        return batch


def returns_a_lambda(batch: Any) -> Any:
    return lambda: batch


def test_a_result_that_does_not_pickle_is_no_hang(table: Path) -> None:
    with pytest.raises(ConfigError, match=r"what collate_fn, .* decode return must pickle .*worker_type=\"thread\""):
        list(make(table, "process", collate_fn=returns_a_lambda))


class StrangeError(Exception):
    """An error that its own arguments do not make again."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row}: {reason}")
        self.row = row


class RaisesAt:
    """A collate_fn that refuses the batch with a row."""

    def __init__(self, row: int, *, local: bool = False) -> None:
        self.row, self.local = row, local

    def __call__(self, batch: Any) -> Any:
        if self.row not in batch["x"].tolist():
            return batch
        if self.local:

            class LocalError(StrangeError):
                pass

            raise LocalError(self.row, "refused")
        raise StrangeError(self.row, "refused")


@pytest.mark.parametrize("worker_type", [*ENGINES, "caller"])
@pytest.mark.parametrize("order", [{}, {"shuffle": "splits"}, {"shuffle": "rows", "row_store": "memory"}])
@daily(3)
def test_an_error_of_the_collate_fn_says_which_batch(table: Path, worker_type: str, order: dict[str, Any]) -> None:
    workers = {"num_workers": 0} if worker_type == "caller" else {"worker_type": worker_type}
    options = {"num_ranks": 2, "rank": 1, "check_plan": False, "even_ranks": "pad", **order, **workers}
    rows = [as_values(batch).rows for batch in make(table, **options)]
    for step in (0, 5, len(rows) - 1):
        loader = make(table, collate_fn=RaisesAt(rows[step][0]), **options)
        with pytest.raises(StrangeError, match=rf"row {rows[step][0]}: refused") as caught:
            list(loader)
        assert caught.value.row == rows[step][0]
        told = re.search(
            r"rank 1, epoch 0, batch \d+ of worker \d, which is step (\d+)", "".join(caught.value.__notes__)
        )
        assert told is not None
        assert int(told[1]) == step
        if worker_type == "process":
            assert "in __call__" in caught.value.__notes__[-1]


def test_an_error_of_a_batch_that_nobody_counted_says_which(table: Path) -> None:
    options: dict[str, Any] = {"filters": pc.field("k") < 7, "count_filtered": False}
    rows = [as_values(batch).rows for batch in make(table, **options)]
    for row, said in ((rows[0][0], "batch 0 of worker 0"), (rows[-1][-1], "of what all workers left over")):
        with pytest.raises(StrangeError) as caught:
            list(make(table, collate_fn=RaisesAt(row), **options))
        assert said in "".join(caught.value.__notes__)


def test_an_error_of_a_type_that_does_not_cross_is_told_by_its_name(table: Path) -> None:
    with pytest.raises(RuntimeError, match="LocalError: row 7: refused"):
        list(make(table, "process", collate_fn=RaisesAt(7, local=True)))
