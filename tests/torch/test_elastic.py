"""Ranks that are killed in the middle of an epoch: torchrun starts them again, and every row is trained on once."""

from __future__ import annotations

import faulthandler
import json
from pathlib import Path
from typing import Any

import pytest

from tests.launchers.killed_jobs import MarkedJob, Saved, kill, wait_until
from tests.tables.plain import write_table

GROUPS = [[130, 170, 60], [400], [], [90] * 7, [1], [333, 333], [250] * 3]
OPTIONS: dict[str, Any] = {
    "shuffle": "splits",
    "split_size": 150,
    "batch_size": 7,
    "num_workers": 2,
    "every": 5,
    "pause": 0.03,
    "patience": 30,
}


@pytest.mark.kills
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "options",
    [{"worker_type": "thread", "even_ranks": "balance"}, {"worker_type": "process", "shuffle_buffer_size": 50}],
    ids=lambda options: options["worker_type"],
)
def test_torchrun_restarts_killed_ranks_from_the_checkpoint(options: dict[str, Any], tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # it would speak up after 100 s
    total = write_table(tmp_path / "table", GROUPS)
    torchrun = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "3"]
    arguments = [str(tmp_path / "table"), str(tmp_path), json.dumps(OPTIONS | options)]
    job = MarkedJob(torchrun, arguments, tmp_path / "log")

    def ranks() -> list[int]:
        return sorted(pid for pid, role in job.processes().items() if role == "rank")

    def saved_more_than(checkpoints: int) -> bool:
        assert job.finish(0) is None, f"the job must go on until it is killed:\n{job.said()}"
        return Saved(tmp_path).checkpoints > checkpoints

    try:
        for victim in (1, 0):
            before = Saved(tmp_path).checkpoints
            wait_until(lambda before=before: saved_more_than(before + 2), "the job saves")  # type: ignore[misc]
            killed = ranks()
            kill(killed[victim])
            wait_until(lambda killed=killed: not {*killed} & {*ranks()}, "both ranks are gone")  # type: ignore[misc]
        after = Saved(tmp_path).checkpoints
        wait_until(lambda: saved_more_than(after), "the job saves again")
        (tmp_path / "stop").touch()
        assert job.finish(300) == 0, job.said()
        assert Saved(tmp_path).restarts() == [0, 1, 2], "each in the middle of the first epoch"
    finally:
        job.clear()
    Saved(tmp_path).check(total)
