"""Promises 1, 5 and 6 under fire: a job is killed at random moments and goes on with other ranks and workers."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.torch.tables import write_table

ROOT = Path(__file__).parents[2]
GROUPS = [[130, 170, 60], [400], [], [90] * 7, [1], [333, 333], [250] * 3]
TOTAL = sum(map(sum, GROUPS))
SHARED: dict[str, Any] = {"shuffle": True, "split_rows": 150}
MOST_SECONDS = 60.0
"""How long a run may take to begin or to end; two cores start five interpreters with torch in about ten seconds."""


class Run:
    """A torchrun job with all its processes, found by a mark in their environment, whoever their parent is."""

    def __init__(self, table: Path, work: Path, rng: random.Random) -> None:
        self._mark = f"TORTURE_RUN={uuid.uuid4().hex}"
        self._work = work
        (work / "started").unlink(missing_ok=True)
        self.world = rng.randint(1, 4)
        options = SHARED | {
            "batch_size": rng.choice([7, 16, 33]),
            "num_workers": rng.choice([0, 1, 2, 3]),
            "worker_type": rng.choice(["thread", "process"]),
            "shuffle_buffer_size": rng.choice([None, 20, 200]),
            "even_ranks": rng.choice([None, "balance", "pad"]),
            "prefetch_batches": rng.choice([None, 1, 9]),
            "every": rng.randint(1, 6),
        }
        name, value = self._mark.split("=")
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.world)]
        script = str(ROOT / "tests/torch/scripts/torture.py")
        self.log = (work / "log").open("wb+")
        self._launcher = subprocess.Popen(
            [*launcher, script, str(table), str(work), json.dumps(options)],
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), name: value},
            cwd=ROOT,
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )

    def has_started(self) -> bool:
        """Say whether a batch was trained on, or there will be none."""
        return (self._work / "started").exists() or self._launcher.poll() is not None

    def processes(self) -> dict[int, str]:
        """Give the processes that live, with their roles."""
        found: dict[int, tuple[int, str]] = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):  # it may be gone
                if entry.name.isdigit() and self._mark in (entry / "environ").read_text():
                    stat = (entry / "stat").read_text().rpartition(")")[2].split()
                    if stat[0] != "Z":
                        found[int(entry.name)] = (int(stat[1]), (entry / "cmdline").read_text())
        return {pid: self._role(pid, parent, command, found) for pid, (parent, command) in found.items()}

    def _role(self, pid: int, parent: int, command: str, found: dict[int, tuple[int, str]]) -> str:
        if pid == self._launcher.pid:
            return "launcher"
        if "torture.py" not in command:
            return "helper"
        return "worker" if parent in found and parent != self._launcher.pid else "rank"

    def finish(self, seconds: float) -> int | None:
        """Wait for the launcher; give its exit code, None where it goes on."""
        with suppress(subprocess.TimeoutExpired):
            return self._launcher.wait(seconds)
        return None

    def clear(self) -> None:
        """Kill what is left of the job, as a scheduler does before it starts the job again."""
        wait_until(lambda: not [self._kill(pid) for pid in self.processes()], "its processes are gone")
        self._launcher.wait()
        self.log.close()

    def kill_one(self, rng: random.Random) -> str:
        """Kill any process of the job; gives its role."""
        processes = self.processes()
        role = rng.choice(sorted(set(processes.values()) - {"launcher"}) or ["launcher"])
        role = "launcher" if rng.random() < 0.15 else role
        self._kill(rng.choice(sorted(pid for pid, each in processes.items() if each == role)))
        return role

    @staticmethod
    def _kill(pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_until(happens: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + MOST_SECONDS
    while not happens():
        assert time.monotonic() < end, f"waited {MOST_SECONDS} s until {what}"
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.kills
@pytest.mark.timeout(1500)
def test_a_job_killed_at_fifty_random_moments_trains_every_row_once_an_epoch(tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # it would speak up after 100 s
    assert write_table(tmp_path / "table", GROUPS) == TOTAL
    rng, killed, worlds = random.Random(1), Counter[str](), Counter[int]()
    began = time.monotonic()
    while killed.total() < 50:
        run = Run(tmp_path / "table", tmp_path, rng)
        if rng.random() < 0.15:
            time.sleep(rng.uniform(0, 4))  # while interpreters start and the table is planned
        else:
            wait_until(run.has_started, "a batch is trained on")
            time.sleep(rng.uniform(0, 1.2))
        assert run.finish(0) is None, f"the job must go on until it is killed:\n{said(run)}"
        killed[run.kill_one(rng)] += 1
        worlds[run.world] += 1
        run.finish(10)
        run.clear()
    (tmp_path / "stop").touch()
    run = Run(tmp_path / "table", tmp_path, rng)
    code = run.finish(180)
    output = said(run)
    run.clear()
    assert code == 0, output
    saved = json.loads((tmp_path / "checkpoint.json").read_text())
    trained = saved["trained"]
    print(
        f"{time.monotonic() - began:.0f} s, killed: {dict(killed)}, worlds: {dict(worlds)}, epochs: {len(trained)}",
        file=sys.stderr,
    )
    assert len(trained) >= 2
    assert {"rank", "worker"} <= set(killed)
    for epoch, rows in trained.items():
        often = Counter(rows)
        wrong = {row: often[row] for row in range(TOTAL) if often[row] != 1}
        assert not wrong, f"epoch {epoch} trained {wrong}; it went {saved['story'][epoch]}"


def said(run: Run) -> str:
    """Give the end of what the job printed."""
    run.log.flush()
    run.log.seek(0)
    return run.log.read().decode(errors="replace")[-6000:]
