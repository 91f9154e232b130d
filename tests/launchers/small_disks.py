"""Runs a script in a separate mount namespace in which one folder is a file system that is too small."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_with_small(folder: str, size: str, script: str, *words: str) -> str:
    """Run a Python script with a tmpfs mounted at a folder; return its output.

    Args:
        folder: where it is mounted.
        size: of the tmpfs, as mount takes it.
        script: Python source.
        words: its arguments.
    """
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rm", "true"], check=False).returncode:
        pytest.skip("this machine lets nobody mount a tmpfs in a namespace of their own")
    mount = 'mount -t tmpfs -o "size=$0" none "$1" && shift && exec "$@"'
    done = subprocess.run(
        [unshare, "-rm", "sh", "-c", mount, size, folder, sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
