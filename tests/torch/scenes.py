"""Plays the scenes of a script on real ranks under torchrun, and reads what each rank saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.torch.tables import write_table

ROOT = Path(__file__).parents[2]
GROUPS = [[20, 5], [31], [], [13, 13, 13], [40], [1], [0, 6]]
TOTAL = sum(map(sum, GROUPS))

Seen = dict[str, list[dict[str, Any]]]


def play(script: str, root: Path, num_ranks: int) -> Seen:
    """Run a script's scenes over ``root/table``; gives what each rank saw in each."""
    write_table(root / "table", GROUPS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    done = subprocess.run(
        [*launcher, str(ROOT / "tests/torch/scripts" / script), str(root), str(root / "seen.json")],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: Seen = json.loads((root / "seen.json").read_text())
    return found


def values(ranks: list[dict[str, Any]]) -> list[Any]:
    """Give what ranks delivered; none may have failed."""
    assert [rank["error"] for rank in ranks] == [None] * len(ranks)
    return [rank["value"] for rank in ranks]


def own_rows(epochs: list[dict[str, Any]]) -> list[int]:
    """Give all rows but padding, sorted."""
    return sorted(row for each in epochs for row, pads in zip(each["rows"], each["padding"], strict=True) if not pads)
