"""Settings of all tests: laws draw the same examples each time, unless they are asked to explore."""

from __future__ import annotations

import ctypes
import gc
import inspect
import multiprocessing
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.internal.constants_ast import Constants

from tests.effort import examples
from tests.leaks import children, lane_threads, requests_end

LIBC = ctypes.CDLL(None)

# Laws that name no number of examples draw hypothesis' own, times LAWS_EFFORT as all do.
_LAWS: dict[str, Any] = {
    "deadline": None,
    "max_examples": examples(100),
    "suppress_health_check": [HealthCheck.too_slow],
}
settings.register_profile("repeatable", derandomize=True, database=None, **_LAWS)
# Examples as they come, for who asks only whether a law fails (tools/plant.py); to find the smallest takes minutes.
settings.register_profile("unshrunk", settings.get_profile("repeatable"), phases=[Phase.explicit, Phase.generate])
settings.register_profile("explore", **_LAWS)
settings.load_profile("explore" if os.environ.get("LAWS_EXPLORE") else "repeatable")

# hypothesis also draws constants of the modules that happen to be loaded: examples would depend on the order of tests.
pytest.MonkeyPatch().setattr(HypothesisProvider, "_local_constants", Constants())

collect_ignore = ["launchers/scripts"]  # they are run, and import frameworks
multiprocessing.set_forkserver_preload(["torch_table_loader.dataset"])  # or each of its workers would import torch


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Iterator[Any]:
    """Let each of several processes begin with other files: what one has compiled, others find when they come there.

    In a fresh checkout assertions of 350 files are rewritten, which takes longer than all else that collecting does.
    Nothing of what is imported is garbage: to look for some takes a fifth of the time.
    """
    gc.disable()
    try:
        own, here = getattr(session.config, "workerinput", None), Path(__file__).parent
        if own is not None and here in (Path(name).resolve() for name in session.config.args):
            files = sorted(here.rglob("test_*.py"))
            for file in files[int(own["workerid"].removeprefix("gw")) :: own["workercount"]]:
                import_module(".".join((here.name, *file.relative_to(here).with_suffix("").parts)))
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `daily` does not choose of a test's cases: twice as many as it chooses as slow, the others as rare."""
    of_tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        if item.get_closest_marker("daily"):
            assert isinstance(item, pytest.Function)
            of_tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in of_tests.items():
        marker = cases[0].get_closest_marker("daily")
        assert marker is not None
        (choice,) = marker.args
        spread = _spread(cases, 0 if any(map(_is_of_another_day, cases)) else zlib.crc32(name.encode()) / (1 << 32))
        chosen = spread[:choice] if isinstance(choice, int) else [case for case in spread if _holds(choice, case)]
        others = [case for case in spread if case not in chosen]
        for number, case in enumerate(others):
            case.add_marker(pytest.mark.slow if number < 2 * len(chosen) else pytest.mark.rare)


def _is_of_another_day(case: pytest.Function) -> bool:
    return any(map(case.get_closest_marker, ("slow", "rare", "kills", "heavy")))


def _holds(choice: Callable[..., bool], case: pytest.Function) -> bool:
    """Return what a function says of a case, of which it is given parameters by their names."""
    return choice(**{name: case.callspec.params[name] for name in inspect.signature(choice).parameters})


def _spread(cases: list[pytest.Function], start: float) -> list[pytest.Function]:
    """Return cases in an order whose first ones meet all combinations of parameters about equally often.

    The start differs from test to test, so that tests of the same parameters do not all choose the same ones.
    """
    # Multiples of the golden ratio fill an interval evenly.
    return [cases[at] for at in sorted(range(len(cases)), key=lambda at: ((at + 1) * 0.618034 + start) % 1)]


def pytest_collection_finish() -> None:
    """Leave what was imported out of the collections of garbage that tests ask for."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def earlier_files_left_alone() -> Iterator[None]:
    """Leave what earlier files imported and keep out of collections of garbage, those of forked workers too.

    A file whose requests or sizes outlive it fails itself, not a later one that counts threads or has the usual sizes.
    """
    if (catalogs := sys.modules.get("tests.tables.catalogs")) is not None:
        catalogs.forget_catalogs()
    freeze_what_is_left()
    pa.default_memory_pool().release_unused()
    if hasattr(LIBC, "malloc_trim"):  # glibc's
        LIBC.malloc_trim(0)
    sizes = sys.modules.get("torch_table_loader.sizes")
    before = sizes and sizes.sizes()
    yield
    requests_end()
    assert sizes is None or sizes.sizes() == before, "blocks of small_sizes overlapped"


@pytest.fixture(autouse=True)
def wide_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands print lines of any length: where a table is folded depends on numbers that a machine measured."""
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.fixture(autouse=True)
def catalogs_closed() -> Iterator[None]:
    """Close the catalogs that a test opened: a connection that nobody closed is an error from Python 3.13 on."""
    yield
    if (catalogs := sys.modules.get("tests.tables.catalogs")) is not None:
        catalogs.close_catalogs()


@pytest.fixture
def earlier_loaders_gone() -> None:
    """Collect the loaders of earlier tests, with the threads that wait for another epoch, and wait for processes.

    What is left was imported meanwhile: no later collection looks at it.
    """
    if not freeze_what_is_left(1):
        gc.unfreeze()  # a loader that was still held when something was frozen is no garbage until then
        freeze_what_is_left()
    for process in multiprocessing.active_children():
        process.join(20)


def freeze_what_is_left(seconds: float = 5) -> bool:
    """Collect garbage, and leave the rest out of later collections, which take long where they look at all modules.

    Threads and processes that work for a loader end when it is collected: frozen, it would never be. Returns whether
    they all ended in time; else nothing is frozen.
    """
    end = time.monotonic() + seconds
    gc.collect()
    while (lane_threads() or children()) and time.monotonic() < end:
        time.sleep(0.01)
        gc.collect()
    ended = not lane_threads() and not children()
    if ended:
        gc.freeze()
    return ended
