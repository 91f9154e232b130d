"""What the system refuses is one of our errors; threads need no shared memory, and workers no parent that lives on."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

from tests.effort import daily
from tests.launchers.scenes import ROOT
from tests.waiting import PATIENCE_S, until
from torch_table_loader import OutOfMemoryError, StructuredDataset, WorkerError
from torch_table_loader.system import as_out_of_memory

SCRIPTS = ROOT / "tests/launchers/scripts"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
TABLE = pa.table({"x": range(100)})


@daily(1)
@pytest.mark.parametrize("options", [{}, {"shuffle": "rows"}, {"worker_type": "fork", "num_workers": 1}], ids=str)
@pytest.mark.parametrize("limit", ["address space", "threads", "processes"])
def test_a_limit_of_the_system_is_our_error(limit: str, options: dict[str, Any]) -> None:
    words = [sys.executable, str(SCRIPTS / "limited.py"), limit, json.dumps(options)]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    needed = "worker_type" in options or limit != "processes"
    assert done.stdout.startswith("WorkerError " if needed else "read 1000"), done.stdout
    assert "Traceback" not in done.stderr


def test_threads_need_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise RuntimeError("unable to open shared memory object </torch_1> in read-write mode: Read-only file system")

    monkeypatch.setattr(torch.Tensor, "share_memory_", refused)
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", refused)
    loader, _ = StructuredDataset.create_dataloader(source=TABLE, batch_size=10)
    assert sum(len(batch["x"]) for batch in loader) == 100


def test_worker_processes_still_see_the_epoch_that_is_set() -> None:
    dataset = StructuredDataset(source=TABLE, batch_size=50, shuffle="rows")
    loader = DataLoader(
        dataset, batch_size=None, num_workers=1, persistent_workers=True, multiprocessing_context="fork"
    )
    seen = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        seen.append([batch["x"].tolist() for batch in loader])
    assert seen[0] == seen[2] != seen[1]


def test_an_epoch_can_be_read_after_the_system_gave_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    loader, _ = StructuredDataset.create_dataloader(source=TABLE, batch_size=10)
    name = "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread"
    start: Callable[..., Any] = getattr(threading, name)
    left = [1]

    def some(*words: Any, **named: Any) -> Any:
        if left.pop() if left else 0:
            return start(*words, **named)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading, name, some)
        with pytest.raises(WorkerError, match="expected one more thread"):
            next(iter(loader))
    assert sum(len(batch["x"]) for batch in loader) == 100


def test_memory_that_is_refused_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise MemoryError("Unable to allocate 8 EiB")

    monkeypatch.setattr("torch_table_loader.batching.codec.TensorCodec.decode", refused)
    loader, _ = StructuredDataset.create_dataloader(source=TABLE, batch_size=10, num_workers=0)
    with pytest.raises(OutOfMemoryError, match="too little memory for the next batch"):
        next(iter(loader))
    assert as_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "it") is not None
    assert as_out_of_memory(RuntimeError("another"), "it") is None


def test_shared_memory_that_is_refused_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", refused)
    with pytest.raises(OutOfMemoryError, match="too little memory for what processes share"):
        StructuredDataset.create_dataloader(source=TABLE, batch_size=10)


ORPHANS = """
import os, sys, time, pyarrow as pa
import torch_table_loader.engine.workers.processes as processes
from torch_table_loader import StructuredDataset
begin = processes._begin_worker
def slowly(environment, worker):  # the parent ends before its workers begin, or while they do
    open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
    time.sleep(float(sys.argv[2]))
    begin(environment, worker)
processes._begin_worker = slowly
options = {"num_workers": 2, "worker_type": "fork", "batch_size": 1, "prefetch_batches": 1}
loader, _ = StructuredDataset.create_dataloader(source=pa.table({"x": range(10_000)}), **options)
batches = iter(loader)
time.sleep(60)
"""


@daily(1)
@pytest.mark.parametrize("asleep", ["1.0", "0"])
def test_no_worker_outlives_a_parent_that_was_killed(tmp_path: Path, asleep: str) -> None:
    words = [sys.executable, "-c", ORPHANS, str(tmp_path), asleep]
    with subprocess.Popen(words, env=ENVIRONMENT, start_new_session=True) as parent:
        try:
            until(lambda: len(list(tmp_path.iterdir())) == 2)
            os.kill(parent.pid, signal.SIGKILL)
            parent.wait(PATIENCE_S)
            workers = [int(path.name) for path in tmp_path.iterdir()]
            until(lambda: not any(map(_lives, workers)))
        finally:
            for path in tmp_path.iterdir():
                if _lives(int(path.name)):
                    os.kill(int(path.name), signal.SIGKILL)
            parent.kill()


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
