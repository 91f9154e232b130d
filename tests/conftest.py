"""Settings of all tests: laws draw the same examples each time, unless they are asked to explore."""

from __future__ import annotations

import gc
import multiprocessing
import os

import pytest
from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
# Examples as they come, for who asks only whether a law fails (tools/plant.py); to find the smallest takes minutes.
settings.register_profile("unshrunk", settings.get_profile("repeatable"), phases=[Phase.explicit, Phase.generate])
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("explore" if os.environ.get("LAWS_EXPLORE") else "repeatable")


def pytest_collection_finish() -> None:
    """Leave what was imported out of the collections of garbage that tests ask for."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def wide_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands print lines of any length: where a table is folded depends on numbers that a machine measured."""
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.fixture
def earlier_loaders_gone() -> None:
    """Collect the loaders of earlier tests, with the threads that wait for another epoch, and wait for processes.

    What is left was imported meanwhile: no later collection looks at it.
    """
    gc.collect()
    gc.freeze()
    for process in multiprocessing.active_children():
        process.join(20)
