"""Threads of a block: what they give, and what becomes of them when an error ends the block."""

from __future__ import annotations

import threading
import weakref
from _thread import start_new_thread
from contextvars import copy_context
from typing import Any

import pytest

from tests import waiting
from tests.leaks import requests_end
from tests.waiting import PATIENCE_S, until
from torch_table_loader.cancellation import Threads, cancellable, cancelled, check_wanted, interruptibly, wait_for
from torch_table_loader.engine.work.split_reads import SplitReads
from torch_table_loader.errors import StorageError


class LeftError(Exception):
    """Ends a block."""


def leave(pool: Threads) -> None:
    with pool:
        raise LeftError


def test_results_come_in_order_and_errors_where_they_belong() -> None:
    with Threads(3, "test") as pool:
        assert list(pool.map(pow, range(100), [2] * 100)) == [number**2 for number in range(100)]
        late = pool.submit(check_timeout)
        with pytest.raises(TimeoutError, match="of the call itself"):
            list(pool.map(lambda _: late.result(), [0]))
    assert not [thread for thread in threading.enumerate() if thread.name == "test"]


def begin(thread: Any) -> None:
    """Begin a thread as Python's own `Thread.start` does."""
    joinable = getattr(threading, "_start_joinable_thread", None)  # from 3.13 on
    if joinable is None:
        start_new_thread(thread._bootstrap, ())
    else:
        joinable(thread._bootstrap, handle=thread._handle, daemon=True)


def check_timeout() -> None:
    raise TimeoutError("of the call itself")


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("begins", [False, True])
def test_an_interrupt_in_the_start_of_a_thread_ends_the_block(
    monkeypatch: pytest.MonkeyPatch, begins: bool, joined: bool
) -> None:
    def interrupted(thread: threading.Thread) -> None:
        if begins:  # as Thread.start does, before it waits
            threading._limbo[thread] = thread  # type: ignore[attr-defined]
            begin(thread)
        raise KeyboardInterrupt

    def leave_early() -> None:
        with Threads(2, "begins", joined=joined) as pool:
            pool.submit(abs, -1)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        leave_early()
    monkeypatch.undo()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "begins"])


def test_a_block_that_fails_leaves_behind_who_only_asks() -> None:
    asked, answer, seen = threading.Event(), threading.Event(), list[bool]()

    def ask() -> None:
        asked.set()
        answer.wait()
        seen.append(cancelled())

    pool = Threads(1, "left behind")
    stuck, never = pool.submit(ask), pool.submit(seen.append, False)
    assert asked.wait(PATIENCE_S)
    with pytest.raises(LeftError):
        leave(pool)
    assert not stuck.done()
    answer.set()
    until(stuck.done)
    assert seen == [True]
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "left behind"])
    assert not never.done()


def test_a_block_that_fails_waits_for_who_writes() -> None:
    begun, wrote = threading.Event(), list[str]()

    def write() -> None:
        begun.set()
        while not cancelled():
            threading.Event().wait(0.01)
        with pytest.raises(StorageError, match="nobody waits"):
            interruptibly(lambda: wrote.append("asked though nobody waits"))
        threading.Event().wait(0.5)
        wrote.append("closed")

    pool = Threads(1, "joined", joined=True)
    pool.submit(write)
    assert begun.wait(PATIENCE_S)
    with pytest.raises(LeftError):
        leave(pool)
    assert wrote == ["closed"]


def test_a_call_that_hangs_is_left_once_nobody_wants_it() -> None:
    hangs, left = threading.Event(), threading.Event()
    threading.Timer(0.2, left.set).start()
    with cancellable(left.is_set), pytest.raises(StorageError, match="nobody waits"):
        interruptibly(hangs.wait)
    hangs.set()
    assert interruptibly(lambda: "answer") == "answer"
    with pytest.raises(KeyError):
        interruptibly(lambda: {"here": 1}["missing"])


def test_what_is_not_wanted_around_a_block_is_not_wanted_inside() -> None:
    with cancellable(lambda: True), cancellable(lambda: False):
        assert cancelled()
        with pytest.raises(StorageError):
            check_wanted()
        with Threads(1, "inner") as pool:
            assert list(pool.map(lambda _: cancelled(), [0])) == [True]
    check_wanted()


def test_a_wait_for_a_condition_ends_with_what_it_is_for() -> None:
    condition, left = threading.Condition(), threading.Event()
    threading.Timer(0.2, left.set).start()
    with condition:
        assert wait_for(condition, lambda: True)
        assert not wait_for(condition, lambda: False, 0.01)
        with cancellable(left.is_set), pytest.raises(StorageError, match="nobody waits"):
            wait_for(condition, lambda: False)


def test_a_copy_of_a_context_does_not_hold_what_a_block_asked_once_it_ended() -> None:
    """Clients of stores keep one with each idle connection."""

    class Loader:
        def is_left(self) -> bool:
            return False

    loader = Loader()
    with cancellable(loader.is_left):
        copied = copy_context()
    gone = weakref.ref(loader)
    del loader
    assert gone() is None
    assert copied.run(cancelled), "what runs on in it is not wanted any longer"


def test_a_read_whose_turn_never_comes_ends_with_the_block() -> None:
    """A call that had not begun when an error ended the block leaves those after it waiting."""
    reads, began, over = SplitReads.__new__(SplitReads), threading.Event(), threading.Event()

    def take() -> None:
        began.set()
        reads._take_after(threading.Event(), over, [])

    def leave_early() -> None:
        with Threads(1, "test", joined=True) as pool:
            pool.submit(take)
            assert began.wait(PATIENCE_S)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave_early()
    assert over.is_set()


def test_a_file_of_tests_whose_request_does_not_end_fails_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()
    with pytest.raises(TimeoutError):
        interruptibly(hangs.wait, 0.0)
    with monkeypatch.context() as impatient:
        impatient.setattr(waiting, "PATIENCE_S", 0.05)
        with pytest.raises(pytest.fail.Exception, match=r"(?s)table-loader-request lives on:.*in _answer\n"):
            requests_end()
    requests_end()  # no later file waits for it
    hangs.set()
