"""Plays the scenes of a script on real ranks, and reads what each rank saw."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.multiprocessing.spawn import start_processes

from tests.tables.plain import write_table

ROOT = Path(__file__).parents[2]
GROUPS = [[20, 5], [31], [], [13, 13, 13], [40], [1], [0, 6]]
TOTAL = sum(map(sum, GROUPS))

LAUNCHERS = ["fork server", pytest.param("torchrun", marks=pytest.mark.slow)]
"""How ranks start: torchrun's each import torch."""

Seen = dict[str, list[dict[str, Any]]]


def play(script: str, root: Path, num_ranks: int, launcher: str = "torchrun") -> Seen:
    """Run a script's scenes over ``root/table``; gives what each rank saw in each."""
    write_table(root / "table", GROUPS)
    words = [str(ROOT / "tests/launchers/scripts" / script), str(root), str(root / "seen.json")]
    if launcher == "torchrun":
        _run_under_torchrun(words, num_ranks)
    else:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        arguments = (words, num_ranks, store.port)
        start_processes(_run_rank, arguments, nprocs=num_ranks, start_method="forkserver")  # type: ignore[no-untyped-call]
    found: Seen = json.loads((root / "seen.json").read_text())
    return found


def _run_rank(rank: int, words: list[str], num_ranks: int, port: int) -> None:
    """Run a script as torchrun would, with its store in the process that started the ranks."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks}
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True}
    os.environ |= {name: str(value) for name, value in (numbers | store).items()}
    torch.set_num_threads(1)
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


def _run_under_torchrun(words: list[str], num_ranks: int) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    done = subprocess.run(
        [*launcher, *words],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def values(ranks: list[dict[str, Any]]) -> list[Any]:
    """Give what ranks delivered; none may have failed."""
    errors = [rank["error"] for rank in ranks]
    assert errors == [None] * len(ranks), errors
    return [rank["value"] for rank in ranks]


def own_rows(epochs: list[dict[str, Any]]) -> list[int]:
    """Give all rows but padding, sorted."""
    return sorted(row for each in epochs for row, pads in zip(each["rows"], each["padding"], strict=True) if not pads)
