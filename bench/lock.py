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
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import ours
from bench.tables import build

_PERIOD_NS = 100_003
"""CPU time of a thread between two interruptions; a prime, so that it keeps step with nothing."""

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
static volatile long taken, held;

static void ask(int number, siginfo_t *info, void *context) {
    int error = errno;
    __atomic_add_fetch(&taken, 1, __ATOMIC_RELAXED);
    if (PyGILState_Check())
        __atomic_add_fetch(&held, 1, __ATOMIC_RELAXED);
    errno = error;
}

long samples_taken(void) { return taken; }
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

    @property
    def saturation(self) -> float:
        """Return how many cores its threads can use at most."""
        return self.cpu / self.held


class Probe:
    """Counts the CPU time in which threads hold the lock."""

    def __init__(self, folder: Path) -> None:
        """Compile the probe into a folder, unless it is there."""
        library = folder / "lock_probe.so"
        source = folder / "lock_probe.c"
        if not library.exists() or source.read_text() != _SOURCE:
            folder.mkdir(parents=True, exist_ok=True)
            source.write_text(_SOURCE)
            subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)  # noqa: S607
        self._library = ctypes.CDLL(str(library))
        for name in ("samples_taken", "samples_held"):
            getattr(self._library, name).restype = ctypes.c_long
        self._library.watch.argtypes = [ctypes.c_int, ctypes.c_long]

    def held(self, run: Callable[[], int]) -> Held:
        """Run an epoch with the threads of Python that there are; those that it starts are not watched.

        Raises:
            OSError: Linux does not let us watch; root may, and all where `kernel.perf_event_paranoid` is 1 or less.
        """
        import os

        events = [self._library.watch(thread.native_id, _PERIOD_NS) for thread in threading.enumerate()]
        try:
            if (worst := min(events)) < 0:
                raise OSError(-worst, f"cannot watch threads ({os.strerror(-worst)}); be root, or set kernel.perf_event_paranoid to 1")
            before, cpu, began = self._library.samples_held(), time.process_time(), time.perf_counter()
            rows = run()
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
            return Held(rows, cpu, (self._library.samples_held() - before) * _PERIOD_NS / 1e9, seconds)
        finally:
            for event in events:
                if event >= 0:
                    os.close(event)
