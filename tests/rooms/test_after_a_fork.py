"""A process that starts by fork waits for no lock that a thread of its parent held, and for no thread that it lacks."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.waiting import PATIENCE_S, ends_in_a_fork
from torch_table_loader import cancellation, forks
from torch_table_loader.arrow.buffers import LargeArrays
from torch_table_loader.engine.jobs.exclusion_state import ExclusionState
from torch_table_loader.engine.newest import Newest
from torch_table_loader.engine.work.indexed_work import PERMUTING
from torch_table_loader.forks import OfProcess, settle, this_process
from torch_table_loader.planning.exclusion import Exclusions
from torch_table_loader.predicates import hash_parts
from torch_table_loader.read.lru_cache import LRUCache
from torch_table_loader.records import Traffic
from torch_table_loader.source.storage import FileStorage

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it has no fork")


@contextmanager
def held(lock: AbstractContextManager[Any]) -> Iterator[None]:
    """Let another thread hold a lock while the block runs."""
    is_held, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            may_go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(PATIENCE_S)
    try:
        yield
    finally:
        may_go.set()
        thread.join()


def test_each_process_makes_its_own() -> None:
    value: OfProcess[list[int]] = OfProcess(list)
    value.own.append(this_process())
    assert value.own == [this_process()]

    def in_child() -> None:
        assert this_process() not in (before, None)
        assert value.own == []
        assert value.own is value.own

    before = this_process()
    ends_in_a_fork(in_child)
    assert value.own == [before]


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 our own


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
@pytest.mark.parametrize("make", [threading.Lock, threading.RLock])
def test_a_copy_has_a_lock_of_its_own(copied: Callable[[Any], Any], make: Any) -> None:
    value = OfProcess(make)
    with held(value.own):
        assert copied(value).own.acquire(blocking=False)


def test_threads_that_ask_at_once_get_the_same() -> None:
    begun = threading.Barrier(2)

    def make() -> object:
        begun.wait(PATIENCE_S)
        return object()

    value, found = OfProcess(make), []
    threads = [threading.Thread(target=lambda: found.append(value.own)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [value.own] * 2


CACHE = LRUCache(1000)
EXCLUDED = ExclusionState()
STORAGE = FileStorage("s3")


def taken(lock: threading.Lock) -> None:
    with lock:
        pass


def filtered() -> pa.Table:
    return pa.table({"user": ["a", "b"]}).filter(hash_parts.part_of("user", {"t": 1, "v": 1}, "t"))


@pytest.mark.parametrize(
    ("lock", "use"),
    [
        (lambda: CACHE._lock.own, lambda: CACHE.get("a", lambda: (1, 1))),
        (lambda: PERMUTING.own, lambda: taken(PERMUTING.own)),
        (lambda: LargeArrays._lock.own, lambda: LargeArrays().close()),
        (lambda: EXCLUDED._lock.own, lambda: EXCLUDED.begin(0, Exclusions())),
        (lambda: hash_parts._REGISTERING.own, filtered),
        (lambda: STORAGE._process.connecting, lambda: taken(STORAGE._process.connecting)),
        (lambda: STORAGE._process.counter._lock, lambda: STORAGE._process.counter.add(Traffic())),
    ],
    ids=["cache", "orders", "large arrays", "exclusions", "parts", "connecting", "traffic"],
)
def test_a_lock_that_a_thread_held_is_free_in_a_forked_process(lock: Any, use: Callable[[], Any]) -> None:
    with held(lock()):
        ends_in_a_fork(use)


def test_a_cached_value_that_a_thread_was_making_is_made_in_a_forked_process() -> None:
    cache, begun, may_end = LRUCache(1000), threading.Event(), threading.Event()

    def make() -> tuple[int, int]:
        begun.set()
        may_end.wait()
        return 1, 1

    thread = threading.Thread(target=lambda: cache.get("a", make))
    thread.start()
    assert begun.wait(PATIENCE_S)
    try:
        ends_in_a_fork(lambda: cache.get("a", lambda: (1, 1)))
    finally:
        may_end.set()
        thread.join()
    assert pickled(cache).num_bytes == 0


def test_a_forked_process_leaves_a_block_whose_threads_it_lacks() -> None:
    may_end = threading.Event()

    def block() -> Generator[Any]:
        with cancellation.Threads(1, "test-fork", joined=True) as threads:
            yield threads.submit(may_end.wait)

    running = block()
    next(running)
    try:
        ends_in_a_fork(running.close)
    finally:
        may_end.set()
        running.close()


@contextmanager
def importing(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let a thread import a module, which ends when the event is set that is yielded, or with the block."""
    begun, may_end = threading.Event(), threading.Event()
    monkeypatch.setattr(threading, "of_this_test", (begun, may_end), raising=False)
    text = "import threading\nbegun, may_end = threading.of_this_test\nbegun.set()\nmay_end.wait()\n"
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    thread = threading.Thread(target=__import__, args=(name,))
    thread.start()
    assert begun.wait(PATIENCE_S)
    try:
        yield may_end
    finally:
        may_end.set()
        thread.join()
        del sys.modules[name]


def test_a_process_waits_for_imports_of_other_threads_before_it_forks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "_IMPORTS_S", PATIENCE_S)
    name = "imported_while_a_process_forks"
    with importing(tmp_path, name, monkeypatch) as may_end:
        waits = threading.Thread(target=settle)
        waits.start()
        assert forks._imported_elsewhere() == {name}
        waits.join(0.2)
        assert waits.is_alive()
        may_end.set()
        waits.join()
        ends_in_a_fork(lambda: __import__(name))


def test_an_import_that_may_be_the_program_itself_is_not_waited_for_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "_IMPORTS_S", 0.0)
    monkeypatch.setattr(forks, "_awaited", set())
    with importing(tmp_path, "imported_for_long", monkeypatch):
        settle()
        assert forks._awaited == {"imported_for_long"}
        monkeypatch.setattr(forks, "_IMPORTS_S", PATIENCE_S)
        settle()


def test_an_import_of_the_same_thread_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_awaited", set())
    text = "from torch_table_loader.forks import settle, _awaited\nsettle()\nassert not _awaited\n"
    (tmp_path / "it_forks.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    __import__("it_forks")
    del sys.modules["it_forks"]


def test_the_newest_values_may_be_asked_for_by_several_threads() -> None:
    newest: Newest[int, int] = Newest(2)

    def make() -> int:  # as if another thread made others meanwhile
        for key in (2, 3):
            newest.of(key, partial(int, key))
        newest.by_key.pop(2)
        return 1

    assert newest.of(1, make) == 1
    assert list(newest.by_key) == [3, 1]
    assert newest.of(4, lambda: 4) == 4
    assert list(newest.by_key) == [1, 4]


def test_the_folder_of_temporary_files_is_known_before_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    settle()
    assert tempfile.tempdir is not None


def test_nothing_of_the_caller_waits_for_the_garbage_collector() -> None:
    class Held:
        pass

    def call() -> weakref.ref[Held]:
        held = Held()
        settle()
        return weakref.ref(held)

    gc.collect()
    gc.disable()
    try:
        assert call()() is None
    finally:
        gc.enable()
