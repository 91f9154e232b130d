"""The law of resident memory: it grows by little more than `explain()` states, if Arrow's allocator gives back."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest

from bench.resident import ALLOCATORS, TIMES, Resident, own_peak, peak_of_family, resident
from bench.shapes import COUNT, IN_PROCESSES, shape_of

_DAILY = {(20, "jemalloc"), (43, "system")}
"""A job in threads, and one in processes."""

_CI = {5, 14, 22, 32, 39, 42, 46}

_HOARD = 96 << 20


def _marks(number: int, allocator: str) -> list[pytest.MarkDecorator]:
    if (number, allocator) in _DAILY:
        return []
    return [pytest.mark.slow if number in _CI else pytest.mark.rare]


@pytest.mark.parametrize(
    ("number", "allocator"),
    [
        pytest.param(number, allocator, marks=_marks(number, allocator))
        for number in range(COUNT + IN_PROCESSES)
        for allocator in ALLOCATORS
    ],
)
def test_resident_memory_grows_by_little_more_than_the_bound(tmp_path: Path, number: int, allocator: str) -> None:
    """What an allocator keeps, what planning takes and what crosses processes is within half of the bound more."""
    found = resident(shape_of(number), tmp_path, allocator)
    assert found.holds, f"{shape_of(number)}: {found}"


def test_a_job_that_keeps_more_than_its_word_is_found() -> None:
    """From a bound of 128 MiB on, half of it more is too much."""
    assert Resident(200 << 20, int(TIMES * 200) << 20).holds
    assert not Resident(200 << 20, (int(TIMES * 200) + 1) << 20).holds
    assert not Resident(1 << 20, 193 << 20).holds


def test_the_peak_of_a_process_is_measured_after_its_memory_is_free() -> None:
    """No sample has to be taken in time."""
    with own_peak() as before:
        pass
    with own_peak() as found:
        assert len(b"x" * _HOARD) == _HOARD
    assert found[0] - before[0] > _HOARD * 3 // 4


def _hoard(done: multiprocessing.synchronize.Event) -> None:
    kept = b"x" * _HOARD
    done.wait(60)
    assert len(kept) == _HOARD


def test_the_memory_of_worker_processes_is_measured() -> None:
    """It is theirs, and not their parent's."""
    context = multiprocessing.get_context("fork")
    done = context.Event()
    with peak_of_family() as before:
        time.sleep(0.5)
    child = context.Process(target=_hoard, args=(done,))
    child.start()
    try:
        with peak_of_family() as found:
            deadline = time.monotonic() + 60
            while found[0] - before[0] < _HOARD * 3 // 4 and time.monotonic() < deadline:
                time.sleep(0.05)
    finally:
        done.set()
        child.join()
    assert found[0] - before[0] >= _HOARD * 3 // 4
