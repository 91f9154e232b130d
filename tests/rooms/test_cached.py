"""Values that are computed once and kept take no lock, which a worker that starts by fork could find held."""

from __future__ import annotations

import ast
import multiprocessing
import threading
from pathlib import Path

import torch_table_loader
from tests.waiting import PATIENCE_S
from torch_table_loader.cached import cached_property


class Slow:
    """Computes its value when it may."""

    def __init__(self, begun: threading.Event, may_end: threading.Event) -> None:
        self._begun, self._may_end = begun, may_end

    @cached_property
    def value(self) -> int:
        """Wait, and return a number."""
        self._begun.set()
        self._may_end.wait()
        return 7


def freed() -> Slow:
    may_end = threading.Event()
    may_end.set()
    return Slow(threading.Event(), may_end)


def test_a_value_is_computed_once() -> None:
    one = freed()
    assert one.value == 7
    vars(one)["value"] = 8
    assert one.value == 8
    assert isinstance(vars(Slow)["value"], cached_property)
    assert Slow.value is vars(Slow)["value"]


def test_a_forked_worker_computes_while_a_thread_of_its_parent_was_computing() -> None:
    one = Slow(threading.Event(), threading.Event())
    thread = threading.Thread(target=lambda: one.value)
    thread.start()
    assert one._begun.wait(PATIENCE_S)
    child = multiprocessing.get_context("fork").Process(target=lambda: freed().value)
    child.start()
    child.join(PATIENCE_S)
    ended = child.exitcode
    child.kill()
    one._may_end.set()
    thread.join()
    assert ended == 0


def test_no_module_takes_the_one_with_a_lock() -> None:
    root = Path(torch_table_loader.__file__).parent
    found = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "functools"
        if "cached_property" in [alias.name for alias in node.names]
    ]
    assert set(found) == {"cached.py"}
