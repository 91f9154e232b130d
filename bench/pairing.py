"""Interleaved pairs: on a shared machine only a ratio of two neighbours in time means something."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROUNDS = 9
"""Paired ratios behind every median, at least."""

_LEAST_SECONDS = 8.0
"""What both sides run together, at least: a median of a few short runs says little on a shared machine."""

_MOST_ROUNDS = 60


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed run.

    Args:
        seconds: wall time.
        cpu_seconds: user and system time of this process and its children.
        rows: rows that came out.
    """

    seconds: float
    cpu_seconds: float
    rows: int


@dataclass(frozen=True, slots=True)
class Pairs:
    """What a number of rounds of two contenders measured.

    Args:
        left: the contender's samples, one a round.
        right: the reference's samples, one a round.
    """

    left: tuple[Sample, ...]
    right: tuple[Sample, ...]

    @property
    def ratios(self) -> list[float]:
        """Speed of the left over speed of the right, round by round; above one, the left is faster."""
        return [
            (mine.rows / mine.seconds) / (other.rows / other.seconds)
            for mine, other in zip(self.left, self.right, strict=True)
        ]

    @property
    def median_of_times(self) -> float:
        """The median ratio of times, that of the right over that of the left, whatever rows came out."""
        return statistics.median(
            other.seconds / mine.seconds for mine, other in zip(self.left, self.right, strict=True)
        )

    @property
    def median(self) -> float:
        """The median ratio."""
        return statistics.median(self.ratios)

    @property
    def median_by_cpu(self) -> float:
        """The median ratio of speeds by CPU: that of the CPU seconds a row, the right's over the left's."""
        return statistics.median(
            (other.cpu_seconds / other.rows) / (mine.cpu_seconds / mine.rows)
            for mine, other in zip(self.left, self.right, strict=True)
        )


def measure(run: Callable[[], int]) -> Sample:
    """Time one run, which returns the rows that it delivered."""
    gc.collect()
    cpu, wall = cpu_seconds(), time.perf_counter()
    rows = run()
    return Sample(time.perf_counter() - wall, cpu_seconds() - cpu, rows)


def interleave(
    left: Callable[[], int], right: Callable[[], int], rounds: int = ROUNDS, *, same_rows: bool = True
) -> Pairs:
    """Run both in turn, each first in every second round, after one run of each that does not count.

    Args:
        left: the contender: one epoch, returns its rows.
        right: the reference.
        rounds: pairs to take at least; more where runs are short.
        same_rows: whether both must deliver equally many rows; not where one side's table has deletes.
    """
    if left() != right() and same_rows:
        raise RuntimeError("the two sides of a pair delivered different numbers of rows; they are no pair")
    mine: list[Sample] = []
    other: list[Sample] = []
    for turn in range(max(rounds, _MOST_ROUNDS)):
        if turn >= rounds and sum(sample.seconds for sample in (*mine, *other)) >= _LEAST_SECONDS:
            break
        if turn % 2:
            other.append(measure(right))
            mine.append(measure(left))
        else:
            mine.append(measure(left))
            other.append(measure(right))
    return Pairs(tuple(mine), tuple(other))


def peak_mib() -> float:
    """Give this process's peak resident set in MiB, since it began or was last reset; ru_maxrss knows the parent's."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024  # type: ignore[index]


def reset_peak() -> None:
    """Set the peak to what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def best_rate(samples: tuple[Sample, ...]) -> float:
    """Give the best rows per second."""
    return max(sample.rows / sample.seconds for sample in samples)


def cpu_micros(samples: tuple[Sample, ...]) -> float:
    """Give the median CPU microseconds a row."""
    return statistics.median(sample.cpu_seconds / sample.rows for sample in samples) * 1e6


def cpu_seconds() -> float:
    """Give the user and system time of this process and of its children, of those that still run too."""
    running = sum(_seconds_of(child.pid) for child in multiprocessing.active_children())  # this waits for the others
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return running + sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _seconds_of(process: int | None) -> float:
    try:
        numbers = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):  # it ended just now
        return 0.0
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


__all__ = [
    "ROUNDS",
    "Pairs",
    "Sample",
    "best_rate",
    "cpu_micros",
    "cpu_seconds",
    "interleave",
    "measure",
    "peak_mib",
    "reset_peak",
]
