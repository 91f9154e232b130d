"""Jobs of several ranks on this machine, by the real torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def torchrun(ranks: int, *command: str | Path, timeout: float = 110) -> str:
    """Run a command on so many ranks, one thread each; gives what it printed.

    Args:
        ranks: how many.
        command: a script and its arguments, or ``"-m", module``.
        timeout: seconds.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*launcher, *map(str, command)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def play_scenes(ranks: int, script: str, root: Path) -> dict[str, Any]:
    """Let ranks play the scenes of a script of `tests/torch/scripts`; gives what each rank saw of each.

    Args:
        ranks: how many.
        script: its name.
        root: a folder that they share.
    """
    torchrun(ranks, ROOT / "tests/torch/scripts" / script, root, root / "seen.json")
    found: dict[str, Any] = json.loads((root / "seen.json").read_text())
    return found


def values(ranks: list[dict[str, Any]]) -> list[Any]:
    """Give what the ranks returned from a scene; none may have failed."""
    assert [rank["error"] for rank in ranks] == [None] * len(ranks)
    return [rank["value"] for rank in ranks]
