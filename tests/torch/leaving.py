"""Ways to leave an epoch early."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest

from tests.launchers.small_disks import ROOT
from torch_table_loader import TableLoader


def leave_by_break(loader: TableLoader) -> None:
    for _ in loader:
        break


def leave_by_error(loader: TableLoader) -> None:
    def train() -> None:
        for _ in loader:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()


def leave_by_del(loader: TableLoader) -> None:
    batches = iter(loader)
    next(batches)
    gone = weakref.ref(batches)
    del batches
    assert gone() is None


def leave_by_close(loader: TableLoader) -> None:
    batches = iter(loader)
    next(batches)
    batches.close()


def leave_to_the_collector(loader: TableLoader) -> None:
    batches = iter(loader)
    next(batches)
    batches.cycle = batches
    gone = weakref.ref(batches)
    del batches
    gc.collect()
    assert gone() is None


LEAVE = [leave_by_break, leave_by_error, leave_by_del, leave_by_close, leave_to_the_collector]


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in an interpreter of its own, which must end by itself."""
    command = [sys.executable, "-W", "error", "-c", script, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
