"""Workers start by fork while threads of their parent read, plan, import, and hold every lock that they ever hold."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.torch.all_modes import MODES, write_all_tables
from tests.torch.modes import SPLITS, Mode
from tests.waiting import PATIENCE_S, ends_in_a_fork
from torch_table_loader.errors import WorkerError
from torch_table_loader.forks import OfProcess

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it has no fork")

KINDS = (type(threading.Lock()), type(threading.RLock()), threading.Condition)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of all modes."""
    folder = tmp_path_factory.mktemp("tables")
    write_all_tables(folder)
    return folder


def values_of(thing: Any) -> Iterator[Any]:
    """Yield what an object of the package has, and what of that each process makes for itself."""
    names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    values = [*getattr(thing, "__dict__", {}).values(), *(getattr(thing, name, None) for name in names)]
    for value in values:
        yield value
        if isinstance(value, OfProcess):
            yield from values_of(value.own)
            yield value.own


def locks() -> list[Any]:
    """Find the locks of every object, class and module of the package."""
    found: dict[int, Any] = {}
    own = [thing for thing in gc.get_objects() if _is_of_the_package(thing)]
    for thing in own:
        found |= {id(value): value for value in values_of(thing) if isinstance(value, KINDS)}
    return list(found.values())


def _is_of_the_package(thing: Any) -> bool:
    kind = type(thing)
    named = thing if kind in (type, type(sys)) else kind
    return str(vars(named).get("__name__" if kind is type(sys) else "__module__", "")).startswith("torch_table_loader")


class Holder:
    """A thread that holds all locks that nobody holds, while a process forks."""

    def __init__(self) -> None:
        self.held = 0
        self._asks, self._holds, self._may_go = (threading.Semaphore(0) for _ in range(3))
        self.works = True
        threading.Thread(target=self._run, daemon=True).start()

    def before(self) -> None:
        if self.works:
            self._asks.release()
            assert self._holds.acquire(timeout=PATIENCE_S)

    def after(self) -> None:
        if self.works:
            self._may_go.release()
            assert self._holds.acquire(timeout=PATIENCE_S)

    def _run(self) -> None:
        while True:
            self._asks.acquire()
            with ExitStack() as stack:
                for lock in locks():
                    if lock.acquire(blocking=False):
                        stack.callback(lock.release)
                        self.held += 1
                self._holds.release()
                self._may_go.acquire()
            self._holds.release()


@contextmanager
def ended_late() -> Iterator[None]:
    """Kill the workers that the block still waits for after a long time, so that it ends with an error."""

    def end_all() -> None:
        for child in multiprocessing.active_children():
            child.kill()

    late = threading.Timer(PATIENCE_S, end_all)
    late.start()
    try:
        yield
    finally:
        late.cancel()


@contextmanager
def holding() -> Iterator[Holder]:
    """Let a thread hold all locks whenever this process forks inside the block."""
    holder = Holder()
    os.register_at_fork(before=holder.before, after_in_parent=holder.after)
    try:
        yield holder
    finally:
        holder.works = False


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_workers_start_while_a_thread_holds_every_lock(mode: Mode, root: Path) -> None:
    threads = mode.make(root)
    expected = mode.read(threads)
    reading = iter(mode.make(root))
    next(reading)
    forked = mode.make(root, worker_type="fork")
    with ended_late(), holding() as holder:
        found = mode.read(forked)
    assert holder.held > 3
    assert found == expected


class Importing:
    """Imports a module for each batch."""

    def __call__(self, rows: Any) -> Any:
        """Return the rows."""
        __import__("imported_slowly")
        return rows


def test_workers_start_while_a_thread_imports_what_they_import(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = SimpleNamespace(begun=threading.Event(), may_end=threading.Event())
    monkeypatch.setattr(threading, "of_this_test", told, raising=False)
    text = "import threading\nthreading.of_this_test.begun.set()\nthreading.of_this_test.may_end.wait()\n"
    (tmp_path / "imported_slowly.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    loader = SPLITS.make(root, worker_type="fork", collate_fn=Importing())
    thread = threading.Thread(target=__import__, args=("imported_slowly",))
    thread.start()
    assert told.begun.wait(PATIENCE_S)
    threading.Timer(0.3, told.may_end.set).start()
    with ended_late():
        assert len(list(loader)) == len(loader)
    thread.join()
    del sys.modules["imported_slowly"]


@pytest.mark.parametrize("worker_type", ["thread", "fork"])
def test_an_iteration_that_a_fork_copied_is_refused_and_may_be_dropped(root: Path, worker_type: str) -> None:
    loader = SPLITS.make(root, worker_type=worker_type, prefetch_batches=1)
    batches = iter(loader)
    next(batches)

    def in_child() -> None:
        with pytest.raises(WorkerError, match="iterate the loader again here"):
            list(batches)
        assert len(list(SPLITS.make(root))) == len(loader)

    ends_in_a_fork(in_child, holding)
    assert len(list(batches)) == len(loader) - 1
