"""Starts the jobs of other launchers, with everything of this machine's own jobs taken out of their environment."""

from __future__ import annotations

import faulthandler
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
AT_EXIT = Path(__file__).parent / "at_exit"
_OTHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE", "RAY_ADDRESS")


def clean_environment(**own: str) -> dict[str, str]:
    """Give the environment of a job that is nobody's part; `own` wins."""
    kept = {name: value for name, value in os.environ.items() if name not in _OTHERS}
    path = os.pathsep.join(filter(None, (str(ROOT), str(AT_EXIT), os.environ.get("PYTHONPATH"))))
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path} | own


def run_job(command: Sequence[str], seconds: float = 110, **environment: str) -> str:
    """Run a job to its end; give what it printed.

    Args:
        command: of the launcher.
        seconds: how long it may take.
        environment: variables that it gets beside the machine's.

    Raises:
        AssertionError: it failed; the message is what it printed.
    """
    if seconds > 100:
        faulthandler.cancel_dump_traceback_later()  # it would speak up after 100 s
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=clean_environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


__all__ = ["ROOT", "clean_environment", "run_job"]
