"""What tests of killed jobs share: waiting with a limit, and what `scripts/torture.py` has written down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""For torchrun; without the last, restarted gloo ranks find the addresses of dead ones in the launcher's store."""

SCRIPT = ROOT / "tests/launchers/scripts/torture.py"


def wait_until(happens: Callable[[], bool], what: str, seconds: float = 300.0) -> None:
    """Look again and again, for so many seconds at most."""
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, f"waited {seconds} s until {what}"
        time.sleep(0.01)


def kill(pid: int) -> bool:
    """Kill a process; says whether it still lived."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


class MarkedJob:
    """A torchrun job with all its processes, found by a mark in their environment, whoever their parent is."""

    def __init__(self, torchrun: Sequence[str], arguments: Sequence[str], log: Path) -> None:
        self._mark = f"TORTURE_RUN={uuid.uuid4().hex}"
        name, value = self._mark.split("=")
        self._log = log.open("wb+")
        self._launcher = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *torchrun, str(SCRIPT), *arguments],
            env=os.environ | ENVIRONMENT | {name: value},
            cwd=ROOT,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def processes(self) -> dict[int, str]:
        """Give the processes that live, with their roles: launcher, rank, worker (its rank may be dead) or helper."""
        found: dict[int, tuple[int, str]] = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):  # it may be gone
                if entry.name.isdigit() and self._mark in (entry / "environ").read_text():
                    stat = (entry / "stat").read_text().rpartition(")")[2].split()
                    if stat[0] != "Z":
                        found[int(entry.name)] = (int(stat[1]), (entry / "cmdline").read_text())
        return {pid: self._role(pid, parent, command) for pid, (parent, command) in found.items()}

    def _role(self, pid: int, parent: int, command: str) -> str:
        if pid == self._launcher.pid:
            return "launcher"
        if SCRIPT.name not in command:
            return "helper"
        return "rank" if parent == self._launcher.pid else "worker"

    def finish(self, seconds: float) -> int | None:
        """Wait for the launcher; give its exit code, None where it goes on."""
        with suppress(subprocess.TimeoutExpired):
            return self._launcher.wait(seconds)
        return None

    def clear(self) -> None:
        """Kill what is left of the job, as a scheduler does before it starts the job again."""
        wait_until(lambda: not any(map(kill, self.processes())), "its processes are gone")
        self._launcher.wait()
        self._log.close()

    def said(self) -> str:
        """Give the end of what the job printed."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-6000:]


class Saved:
    """The checkpoint of a job, as it is now."""

    def __init__(self, work: Path) -> None:
        path = work / "checkpoint.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"trained": {}, "story": {}}
        self._trained: dict[str, list[int]] = found["trained"]
        self._story: dict[str, list[Any]] = found["story"]

    @property
    def epochs(self) -> list[str]:
        """The epochs that were begun."""
        return list(self._trained)

    @property
    def checkpoints(self) -> int:
        """How often the job has saved."""
        return sum(map(len, self._story.values()))

    def worlds(self, epoch: str = "0") -> list[int]:
        """Give how many ranks the epoch was trained on, one after the other, repetitions left out."""
        return [world for world, _ in groupby(len(trained) for _, trained, _ in self._story.get(epoch, []))]

    def hosts(self, epoch: str = "0") -> list[list[str]]:
        """Give the hosts of the ranks, by rank, one after the other, repetitions left out."""
        named = ([host for host, _ in trained] for _, trained, _ in self._story.get(epoch, []))
        return [hosts for hosts, _ in groupby(named)]

    def restarts(self, epoch: str = "0") -> list[int]:
        """Give how often torchrun had restarted the ranks, one after the other, repetitions left out."""
        return [restarts for restarts, _ in groupby(restarts for _, _, restarts in self._story.get(epoch, []))]

    def check(self, total: int, least_epochs: int = 2) -> None:
        """Refuse any epoch in which a row was not trained on exactly once, counted from checkpoint to checkpoint."""
        assert len(self._trained) >= least_epochs
        for epoch, rows in self._trained.items():
            often = Counter(rows)
            wrong = {row: often[row] for row in sorted({*range(total), *often}) if often[row] != (row < total)}
            assert not wrong, f"epoch {epoch} trained {wrong}; it went {self._story[epoch]}"
