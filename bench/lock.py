"""How much of the CPU time of an epoch holds Python's lock, in a process of its own; prints JSON.

While a thread holds the lock, no other one runs Python. So the CPU seconds of an epoch over those of them that hold the
lock are the number of cores at which more threads stop to help, and two cores are enough to find it.

Linux interrupts each of our threads whenever it has used a little CPU, and a signal handler in C asks Python whether
that thread holds the lock. What other processes do to the machine changes how long an epoch takes, not these shares.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import ours
from bench.pairing import ROUNDS
from bench.tables import BenchTable, build

_PERIOD_NS = 100_003
"""CPU time of a thread between two interruptions; a prime, so that it keeps step with nothing."""

_REMEDY = "be root, or set kernel.perf_event_paranoid to 1 or less"

_SOURCE = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int PyGILState_Check(void);
static volatile long held;

static void ask(int number, siginfo_t *info, void *context) {
    int error = errno;
    if (PyGILState_Check())
        __atomic_add_fetch(&held, 1, __ATOMIC_RELAXED);
    errno = error;
}

long samples_held(void) { return held; }

int watch(int thread, long period) {
    struct sigaction action = {.sa_sigaction = ask, .sa_flags = SA_SIGINFO | SA_RESTART};
    if (sigaction(SIGRTMIN + 5, &action, 0))
        return -errno;
    struct perf_event_attr what = {
        .type = PERF_TYPE_SOFTWARE, .size = sizeof what, .config = PERF_COUNT_SW_TASK_CLOCK,
        .sample_period = period, .wakeup_events = 1, .disabled = 1,
    };
    int event = syscall(SYS_perf_event_open, &what, thread, -1, -1, PERF_FLAG_FD_CLOEXEC);
    struct f_owner_ex owner = {F_OWNER_TID, thread};
    if (event < 0 || fcntl(event, F_SETFL, O_ASYNC) || fcntl(event, F_SETSIG, SIGRTMIN + 5)
        || fcntl(event, F_SETOWN_EX, &owner) || ioctl(event, PERF_EVENT_IOC_ENABLE, 0))
        return -errno;
    return event;
}
"""


@dataclass(frozen=True, slots=True)
class Held:
    """What an epoch took.

    Args:
        rows: how many it had.
        cpu: CPU seconds of all threads.
        held: those of them in which the thread held the lock.
        seconds: how long it took.
    """

    rows: int
    cpu: float
    held: float
    seconds: float


class Probe:
    """Counts the CPU time in which threads hold the lock."""

    def __init__(self, folder: Path) -> None:
        """Compile the probe into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        source, library = folder / "lock_probe.c", folder / f"lock_probe.{os.getpid()}.so"
        source.write_text(_SOURCE)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)  # noqa: S607
        self._library = ctypes.CDLL(str(library))
        self._library.watch.argtypes = [ctypes.c_int, ctypes.c_long]
        self._library.samples_held.restype = ctypes.c_long
        library.unlink()  # it is loaded

    def held(self, run: Callable[[], int]) -> Held:
        """Run an epoch with the threads of Python that there are.

        Raises:
            OSError: Linux does not let us watch them; see `_REMEDY`.
            RuntimeError: the epoch started another thread, which nobody watched.
        """
        known = set(threading.enumerate())
        events = [self._library.watch(thread.native_id, _PERIOD_NS) for thread in known]
        try:
            if (worst := min(events)) < 0:
                raise OSError(-worst, f"cannot watch threads ({os.strerror(-worst)}); {_REMEDY}")
            before, cpu, began = self._library.samples_held(), time.process_time(), time.perf_counter()
            rows = run()
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
            samples = self._library.samples_held() - before
        finally:
            for event in events:
                if event >= 0:
                    os.close(event)
        if more := set(threading.enumerate()) - known:
            raise RuntimeError(f"the epoch must start no thread, got {more}; run it once before it is watched")
        return Held(rows, cpu, samples * _PERIOD_NS / 1e9, seconds)


def measure(table: BenchTable, batch_size: int, rounds: int) -> list[Held]:
    """Watch epochs of a table, behind two that start the threads."""
    probe, run = Probe(table.folder.parent), ours.epochs(table, batch_size)
    for _ in range(2):
        run()
    return [probe.held(run) for _ in range(rounds)]


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", default="A-zstd")
    parser.add_argument("--root", type=Path, default=Path("build/bench"))
    parser.add_argument("--batch-size", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    epochs = measure(build(options.table, options.root), options.batch_size, options.rounds)
    told = {
        "saturation": statistics.median(each.cpu / each.held for each in epochs),
        "held": statistics.median(each.held / each.rows * 1e6 for each in epochs),
        "cpu": statistics.median(each.cpu / each.rows * 1e6 for each in epochs),
        "busy": statistics.median(each.cpu / each.seconds for each in epochs),
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
