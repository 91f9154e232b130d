"""A node of two dies and comes back: torchrun goes on with 4, 2 and 4 ranks, and every row is trained on once."""

from __future__ import annotations

import faulthandler
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launchers.killed_jobs import ENVIRONMENT, SCRIPT, Saved, wait_until
from tests.launchers.nodes import Node, two_nodes
from tests.tables.plain import write_table

GROUPS = [[530, 170, 60], [400], [], [190] * 9, [1], [733, 333], [550] * 9, [1009]]
OPTIONS: dict[str, Any] = {
    "shuffle": "splits",
    "split_size": 150,
    "batch_size": 7,
    "num_workers": 2,
    "even_ranks": "balance",
    "every": 4,
    "pause": 0.05,
    "patience": 15,
}
LONG = 120.0
"""Seconds that a new world may take to form: a dead node is missed after 15, and the last call takes 10."""


def start(node: Node, table: Path, work: Path) -> subprocess.Popen[bytes]:
    """Start torchrun on a node; the first has the rendezvous."""
    conf = "last_call_timeout=10,keep_alive_interval=3,keep_alive_max_attempt=5,join_timeout=300"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "2"]
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "node-a:29400", "--rdzv-id", "job", "--rdzv-conf", conf]
    script = ["--max-restarts", "20", str(SCRIPT)]
    return node.start([*launcher, *rendezvous, *script, str(table), str(work), json.dumps(OPTIONS)], ENVIRONMENT)


@pytest.mark.kills
@pytest.mark.timeout(600)
def test_a_node_that_dies_and_comes_back_changes_nothing_of_what_is_trained(tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # it would speak up after 100 s
    total = write_table(tmp_path / "table", GROUPS)
    with two_nodes(tmp_path) as (first, second):
        job = start(first, tmp_path / "table", tmp_path)
        start(second, tmp_path / "table", tmp_path)

        def world_is(size: int) -> bool:
            assert job.poll() is None, f"the job ended with {job.returncode}"
            return Saved(tmp_path).worlds()[-1:] == [size]

        wait_until(lambda: world_is(4), "four ranks train", LONG)
        second.lose_power()
        wait_until(lambda: world_is(2), "the two ranks of the node that lives train", LONG)
        second.plug(is_in=True)
        back = start(second, tmp_path / "table", tmp_path)
        wait_until(lambda: world_is(4), "four ranks train again", LONG)
        (tmp_path / "stop").touch()
        wait_until(lambda: job.poll() is not None and back.poll() is not None, "both nodes end", LONG)
        assert (job.returncode, back.returncode) == (0, 0)
    saved = Saved(tmp_path)
    saved.check(total)
    assert saved.worlds()[-3:] == [4, 2, 4], "within one epoch"
    assert sorted(saved.hosts()[-1]) == ["node-a", "node-a", "node-b", "node-b"]
    assert ["node-a", "node-a"] in saved.hosts()
