"""The law of resident memory: it grows by little more than `explain()` states, if Arrow's allocator gives back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.resident import ALLOCATORS, TIMES, Resident, resident
from bench.shapes import COUNT, IN_PROCESSES, WIDER, shape_of
from tests.effort import daily

ROOT = Path(__file__).parents[2]

_DAILY = {(20, "jemalloc"), (43, "system")}
"""A job in threads, and one in processes."""

_CI = {5, 14, 22, 32, 39, 42, 46, 100, 117}

_HOARD = 96 << 20


def _marks(number: int, allocator: str) -> list[pytest.MarkDecorator]:
    if (number, allocator) in _DAILY:
        return []
    return [pytest.mark.slow if number in _CI else pytest.mark.rare]


@pytest.mark.parametrize(
    ("number", "allocator"),
    [
        pytest.param(number, allocator, marks=_marks(number, allocator))
        for number in (*range(COUNT + IN_PROCESSES), *WIDER)
        for allocator in ALLOCATORS
    ],
)
@daily(1)
def test_resident_memory_grows_by_little_more_than_the_bound(tmp_path: Path, number: int, allocator: str) -> None:
    """What an allocator keeps, what planning takes and what crosses processes is within half of the bound more."""
    found = resident(shape_of(number), tmp_path, allocator)
    assert found.holds, f"{shape_of(number)}: {found}"


def test_a_job_that_keeps_more_than_its_word_is_found() -> None:
    """From a bound of 128 MiB on, half of it more is too much."""
    assert Resident(200 << 20, int(TIMES * 200) << 20).holds
    assert not Resident(200 << 20, (int(TIMES * 200) + 1) << 20).holds
    assert not Resident(1 << 20, 193 << 20).holds


_PEAK = """
import sys
from bench.resident import own_peak
with own_peak() as before:
    pass
with own_peak() as found:
    assert len(b"x" * int(sys.argv[1])) == int(sys.argv[1])
print(found[0] - before[0])
"""

_PEAK_OF_FAMILY = """
import multiprocessing, sys, time
from bench.resident import peak_of_family
def hoard(done, size):
    kept = b"x" * size
    done.wait(60)
    assert len(kept) == size
size, context = int(sys.argv[1]), multiprocessing.get_context("fork")
done = context.Event()
with peak_of_family() as before:
    time.sleep(0.5)
child = context.Process(target=hoard, args=(done, size))
child.start()
with peak_of_family() as found:
    deadline = time.monotonic() + 60
    while found[0] - before[0] < size * 3 // 4 and time.monotonic() < deadline:
        time.sleep(0.05)
done.set()
child.join()
print(found[0] - before[0])
"""


@pytest.mark.parametrize("program", [_PEAK, _PEAK_OF_FAMILY], ids=["after it is free", "of worker processes"])
@daily(1)
def test_the_peak_of_memory_is_measured(program: str) -> None:
    """Each in a process of its own, which has no other memory that it could give back meanwhile."""
    command = [sys.executable, "-c", program, str(_HOARD)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    assert int(done.stdout) >= _HOARD * 3 // 4
