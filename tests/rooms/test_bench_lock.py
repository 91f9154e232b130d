"""The bench tells the CPU time that holds Python's lock from that which does not."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench.lock import Probe


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    probe = Probe(tmp_path)
    try:
        probe.held(lambda: 1)
    except OSError as error:
        pytest.skip(str(error))
    return probe


def during(work: Callable[[], object]) -> int:
    began = time.thread_time()
    while time.thread_time() - began < 0.05:
        work()
    return 1


def test_time_that_holds_the_lock_is_told_from_other_time(probe: Probe) -> None:
    values = np.full(200_000, 0.5)
    for work, least, most in ((lambda: sum(range(1000)), 0.8, 1.1), (lambda: np.sin(values, out=values), 0.0, 0.2)):
        held = probe.held(lambda work=work: during(work))  # type: ignore[misc]
        assert held.cpu >= 0.05
        assert least <= held.held / held.cpu <= most


def test_a_thread_that_nobody_watches_is_refused(probe: Probe) -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)

    def run() -> int:
        thread.start()
        return 1

    with pytest.raises(RuntimeError, match="must start no thread"):
        probe.held(run)
    over.set()
    thread.join()
