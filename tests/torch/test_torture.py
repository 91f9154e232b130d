"""Promises 1, 5 and 6 under fire: a job is killed at random moments and goes on with other ranks and workers."""

from __future__ import annotations

import faulthandler
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.launchers.killed_jobs import MarkedJob, Saved, kill, wait_until
from tests.tables.plain import write_table

GROUPS = [[130, 170, 60], [400], [], [90] * 7, [1], [333, 333], [250] * 3]
TOTAL = sum(map(sum, GROUPS))
SHARED: dict[str, Any] = {"shuffle": "splits", "split_size": 150}


class Run(MarkedJob):
    """A torchrun job with options and a number of ranks by chance."""

    def __init__(self, table: Path, work: Path, rng: random.Random) -> None:
        (work / "started").unlink(missing_ok=True)
        self._work = work
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
        torchrun = ["--standalone", "--nproc-per-node", str(self.world)]
        super().__init__(torchrun, [str(table), str(work), json.dumps(options)], work / "log")

    def has_started(self) -> bool:
        """Say whether a batch was trained on, or there will be none."""
        return (self._work / "started").exists() or self.finish(0) is not None

    def kill_one(self, rng: random.Random) -> str:
        """Kill any process of the job; gives its role."""
        processes = self.processes()
        role = rng.choice(sorted(set(processes.values()) - {"launcher"}) or ["launcher"])
        role = "launcher" if rng.random() < 0.15 else role
        kill(rng.choice(sorted(pid for pid, each in processes.items() if each == role)))
        return role


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
        assert run.finish(0) is None, f"the job must go on until it is killed:\n{run.said()}"
        killed[run.kill_one(rng)] += 1
        worlds[run.world] += 1
        run.finish(10)
        run.clear()
    (tmp_path / "stop").touch()
    run = Run(tmp_path / "table", tmp_path, rng)
    code = run.finish(180)
    output = run.said()
    run.clear()
    assert code == 0, output
    saved = Saved(tmp_path)
    print(
        f"{time.monotonic() - began:.0f} s, killed: {dict(killed)}, worlds: {dict(worlds)}, epochs: {saved.epochs}",
        file=sys.stderr,
    )
    assert {"rank", "worker"} <= set(killed)
    saved.check(TOTAL)
