"""Ray Train on two nodes: ranks by its context, a worker that is killed, and going on from the checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launchers.frameworks import ROOT, run_job
from tests.tables.plain import write_clicks, write_table

pytestmark = [pytest.mark.kills, pytest.mark.timeout(300)]
GROUPS = [[20, 5], [31], [13, 13, 13], [40], [1], [0, 6], [50], [17]]
TOTAL = sum(map(sum, GROUPS))
EVERY = 3


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Give what the workers wrote down, by the names of their files."""
    table, out = tmp_path_factory.mktemp("table"), tmp_path_factory.mktemp("out")
    write_table(table, GROUPS)
    run_job([sys.executable, str(ROOT / "tests/launchers/scripts/ray_jobs.py"), str(table), str(out)], seconds=250)
    return {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}


def test_the_rank_comes_from_ray_trains_context(seen: dict[str, Any]) -> None:
    workers = [seen["found-0"], seen["found-1"]]
    assert [worker["found"] for worker in workers] == [[0, 2, "Ray Train"], [1, 2, "Ray Train"]]
    assert [worker["environment"] for worker in workers] == [[], []]


def test_the_workers_are_on_two_nodes(seen: dict[str, Any]) -> None:
    for scene in ("found", "attempt-0", "attempt-1"):
        assert seen[f"{scene}-0"]["node"] != seen[f"{scene}-1"]["node"]


def test_a_job_with_a_killed_worker_goes_on_from_its_checkpoint(seen: dict[str, Any]) -> None:
    """Every row once an epoch: those up to the checkpoint by the first attempt, the others by the second."""
    before = [seen["attempt-0-0"], seen["attempt-0-1"]]
    after = [seen["attempt-1-0"], seen["attempt-1-1"]]
    assert [worker["began"] for worker in after] == [[1, 2 * EVERY]] * 2
    assert all(worker["rows"][-1][:2] == [1, 2 * EVERY + 2] for worker in before)
    kept = [
        [epoch, rows] for worker in before for epoch, step, rows in worker["rows"] if (epoch, step) <= (1, 2 * EVERY)
    ]
    redone = [[epoch, rows] for worker in after for epoch, _, rows in worker["rows"]]
    for epoch in range(2):
        rows = sorted(row for each, batch in kept + redone if each == epoch for row in batch)
        assert rows == list(range(TOTAL))


def test_the_example_trains_to_its_end(tmp_path: Path) -> None:
    write_clicks(tmp_path / "clicks", rows=1800)
    example = [
        sys.executable,
        str(ROOT / "examples" / "train_ray.py"),
        str(tmp_path / "clicks"),
        str(tmp_path / "runs"),
    ]
    assert "{'epoch': 1, 'loss': 0." in run_job(example, 200)
