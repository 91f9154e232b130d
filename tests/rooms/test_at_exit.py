"""The jobs of the tests end when the threads of gloo have dropped what they hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.launchers.frameworks import clean_environment

SCRIPT = """
import ctypes, sys, threading, zlib

begun = threading.Event()

def work():
    ctypes.CDLL(None).prctl(15, b"pt_gloo_runloop")
    begun.set()
    for _ in range(20):
        zlib.compress(bytes(10_000_000), 9)  # without Python's lock
    open(sys.argv[1], "w").close()

threading.Thread(target=work, daemon=True).start()
begun.wait()
"""


def test_a_job_waits_for_the_busy_threads_of_gloo(tmp_path: Path) -> None:
    """A thread that drops tensors while Python ends aborts the process (pytorch/pytorch#190489)."""
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "over")]
    subprocess.run(words, env=clean_environment(), timeout=110, check=True)
    assert (tmp_path / "over").exists()
    subprocess.run([*words[:-1], str(tmp_path / "left")], timeout=110, check=True)
    assert not (tmp_path / "left").exists()  # without the wait: the test can fail
