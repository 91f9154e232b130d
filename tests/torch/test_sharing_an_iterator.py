"""One iterator that several threads use gives each batch to exactly one of them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.effort import daily
from tests.torch.modes import MIXTURE, SPLITS, Mode, write_rows
from tests.waiting import PATIENCE_S
from torch_table_loader import TableLoader
from torch_table_loader.engine.workers.pickling import twin_of

pytestmark = [
    pytest.mark.usefixtures("earlier_loaders_gone"),
    pytest.mark.filterwarnings("ignore:epoch . is iterated again"),
]

ENGINES = ["thread", "process", "caller"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_rows(tmp_path / "a", [[100, 75]] * 4)
    write_rows(tmp_path / "b", [[20, 10]] * 2)
    return tmp_path


@pytest.fixture(params=[SPLITS, MIXTURE], ids=str)
def mode(request: pytest.FixtureRequest) -> Mode:
    """Where lanes read, and where they gather: there a mixture does all that a table alone does."""
    found: Mode = request.param
    return found


@pytest.fixture(autouse=True)
def threads_change_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def share(batches: Iterator[Any], num_threads: int = 4) -> tuple[list[Any], list[BaseException]]:
    """Take all batches in several threads; gives them, and what ended each thread but the end of the epoch."""
    taken: list[list[Any]] = []
    errors: list[BaseException] = []

    def consume() -> None:
        own: list[Any] = []
        taken.append(own)
        try:
            own.extend(batches)
        except Exception as error:  # noqa: BLE001 whatever it is, the test looks at it
            errors.append(error)

    in_threads(consume, num_threads)
    return [batch for each in taken for batch in each], errors


def in_threads(work: Callable[[], None], num_threads: int) -> None:
    threads = [threading.Thread(target=work, daemon=True) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a thread hangs"


def made(mode: Mode, table: Path, worker_type: str, **options: Any) -> TableLoader:
    workers = {"num_workers": 0} if worker_type == "caller" else {"worker_type": worker_type}
    rare = {"weights": {"a": 10, "b": 1}} if mode is MIXTURE else {}
    return mode.make(table, batch_size=2, **workers, **rare, **options)


@pytest.mark.parametrize("worker_type", ENGINES)
@pytest.mark.parametrize(
    ("mode", "options"),
    [(SPLITS, {}), (SPLITS, {"collate_fn": dict}), (SPLITS, {"prefetch_batches": 1}), (MIXTURE, {})],
    ids=str,
)
@daily(2)
def test_each_batch_goes_to_one_thread(mode: Mode, table: Path, worker_type: str, options: dict[str, Any]) -> None:
    loader = made(mode, table, worker_type, **options)
    expected = sorted(mode.read(loader))
    taken, errors = share(iter(loader))
    assert not errors
    assert sorted(mode.read(taken)) == expected
    assert loader.metrics().batches == len(taken) == len(loader)


def stops(batch: Any) -> Any:
    if 350 in batch["x"].tolist():
        raise ZeroDivisionError("of the caller's")
    return batch


@pytest.mark.parametrize("worker_type", ENGINES)
@daily(2)
def test_an_error_reaches_every_thread_once(mode: Mode, table: Path, worker_type: str) -> None:
    batches = iter(made(mode, table, worker_type, collate_fn=stops))
    _, errors = share(batches)
    assert [str(error) for error in errors] == ["of the caller's"] * 4
    assert all(type(error) is ZeroDivisionError for error in errors)
    assert len(set(map(id, errors))) == 4, "each has a traceback of its own"
    with pytest.raises(ZeroDivisionError):
        next(batches)
    assert next(batches, "over") == "over"


def test_a_state_that_another_thread_takes_is_one_that_was(mode: Mode, table: Path) -> None:
    loader = made(mode, table, "thread")
    expected = mode.read(loader)
    batches, states, over = iter(loader), [], threading.Event()

    def watch() -> None:
        states.append(loader.state_dict())
        while not over.is_set():
            time.sleep(0.0005)
            states.append(loader.state_dict())

    watcher = threading.Thread(target=watch)
    watcher.start()
    taken, _ = share(batches, 2)
    over.set()
    watcher.join(PATIENCE_S)
    assert not watcher.is_alive()
    assert len(taken) == len(expected)
    for state in (states[0], states[len(states) // 2], states[-1]):
        loader.load_state_dict(state)
        left = mode.read(loader)
        assert left == expected[len(expected) - len(left) :]


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_close_ends_the_epoch_of_a_thread_that_waits(table: Path, worker_type: str) -> None:
    batches: Any = iter(made(SPLITS, table, worker_type, collate_fn=waits))
    threading.Timer(0.5, batches.close).start()
    _, errors = share(batches, 2)
    assert not errors
    assert next(batches, "over") == "over"


def waits(batch: Any) -> Any:
    time.sleep(0.7)
    return batch


def test_a_twin_of_an_error_says_the_same() -> None:
    class StrangeError(ValueError):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} and {two}")
            self.one = one

    strange = StrangeError(1, 2)
    strange.add_note("noted")
    for error in (strange, FileNotFoundError(2, "gone", "a.parquet"), UnicodeDecodeError("utf-8", b"a", 0, 1, "bad")):
        twin: Any = twin_of(error)
        assert (type(twin), str(twin), twin.args, vars(twin)) == (type(error), str(error), error.args, vars(error))
        assert twin is not error
