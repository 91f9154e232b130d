"""Threads that outlive an epoch: reused, ended when idle, and never waited for forever."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, cast

import pytest

from tests.waiting import PATIENCE_S, ends_in_a_fork
from torch_table_loader.engine.workers.processes import IdleProcesses
from torch_table_loader.engine.workers.threads import ThreadPool


def test_a_thread_is_reused() -> None:
    pool, ran = ThreadPool(), list[int]()
    for _ in range(3):
        pool.begin(lambda: ran.append(threading.get_ident()))()
    assert len(set(ran)) == 1


def test_concurrent_jobs_have_separate_threads() -> None:
    pool, meet = ThreadPool(), threading.Barrier(3, timeout=PATIENCE_S)
    for wait in [pool.begin(lambda: (meet.wait(), None)[1]) for _ in range(3)]:
        wait()
    assert not meet.broken


def test_a_finished_job_releases_what_it_held() -> None:
    class Held:
        pass

    held = Held()
    gone = weakref.ref(held)
    pool = ThreadPool()
    pool.begin(lambda held=held: None)()  # type: ignore[misc]
    del held
    assert gone() is None


def test_an_error_ends_its_thread_and_blocks_no_waiter(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: SimpleQueue[type[BaseException]] = SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", lambda told: heard.put(told.exc_type))

    def fail() -> None:
        raise ZeroDivisionError

    pool = ThreadPool()
    pool.begin(fail)()
    assert heard.get(timeout=PATIENCE_S) is ZeroDivisionError
    ran = list[int]()
    pool.begin(lambda: ran.append(1))()
    assert ran == [1]


def test_threads_end_on_shutdown_and_with_the_pool() -> None:
    pool, ran = ThreadPool(), list[threading.Thread]()
    pool.begin(lambda: ran.append(threading.current_thread()))()
    pool.shut_down()
    assert not ran[0].is_alive()
    pool.begin(lambda: ran.append(threading.current_thread()))()
    assert ran[1].is_alive()
    del pool
    gc.collect()
    assert not ran[1].is_alive()


def test_a_job_may_wait_for_itself_and_shut_down_its_own_pool() -> None:
    pool, told, done = ThreadPool(), threading.Event(), list[bool]()
    waits: list[Callable[[], None]] = []

    def job() -> None:
        assert told.wait(PATIENCE_S)
        pool.shut_down()
        waits[0]()
        done.append(True)

    waits.append(pool.begin(job))
    told.set()
    waits[0]()
    assert done == [True]


def test_a_forked_child_does_not_wait_for_threads_of_its_parent() -> None:
    pool, may_end, ran = ThreadPool(), threading.Event(), list[int]()
    wait = pool.begin(lambda: (may_end.wait(PATIENCE_S), None)[1])

    def in_child() -> None:
        wait()
        pool.begin(lambda: ran.append(1))()
        assert ran == [1]

    ends_in_a_fork(in_child)
    may_end.set()
    wait()
    assert not ran


class TakenMeanwhile(list[Any]):
    """A list of which another thread takes the last value right after somebody looked whether it has one."""

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return 1


def test_two_threads_may_take_the_last_idle_thread_at_once() -> None:
    pool = ThreadPool()
    pool._idle = TakenMeanwhile()
    done = threading.Event()
    pool.begin(done.set)()
    assert done.is_set()
    pool.shut_down()


def test_two_threads_may_take_the_last_idle_processes_at_once() -> None:
    idle = IdleProcesses()
    idle._idle = TakenMeanwhile()
    assert idle.following(cast("Any", None), []) is None
    idle.shut_down()
