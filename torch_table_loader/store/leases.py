"""Who builds which chunk: a file with a heartbeat, so that several processes and nodes share the work.

A lease only spares double work. Two builders of one chunk write the same bytes to the same place, so a builder that was
taken for dead and goes on does no harm.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

BEAT = 2.0
"""Seconds between two heartbeats."""

DEAD_AFTER = 30.0
"""Seconds without a heartbeat after which a builder is taken for dead."""


class Leases:
    """The leases of one builder, kept alive by a thread while the block runs."""

    def __init__(self, folder: Path, *, beat: float = BEAT, dead_after: float = DEAD_AFTER) -> None:
        """Take nothing yet.

        Args:
            folder: where all builders of the store keep theirs; it exists.
            beat: seconds between two heartbeats.
            dead_after: seconds without one after which another's lease is taken over.
        """
        self._folder = folder
        self._beat = beat
        self._dead_after = dead_after
        self._clock = folder / f"clock-{uuid.uuid4().hex}"
        self._held: set[Path] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="table-loader-lease", daemon=True)

    def __enter__(self) -> Self:
        """Start the heartbeat."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give every lease back."""
        self._stop.set()
        self._thread.join()
        for path in (*self._held, self._clock):
            path.unlink(missing_ok=True)

    @property
    def holds_any(self) -> bool:
        """Whether this builder is at a chunk itself."""
        return bool(self._held)

    def claim(self, chunk: int) -> bool:
        """Take a chunk that nobody who lives is at.

        Args:
            chunk: its number.
        """
        path = self._folder / f"{chunk:06}"
        with self._lock:
            if path in self._held:
                return False
            if not self._create(path):
                if self._lives(path):
                    return False
                self._write(fresh := self._folder / f"{path.name}.{uuid.uuid4().hex}")
                fresh.replace(path)
            self._held.add(path)
            return True

    def release(self, chunk: int) -> None:
        """Give a chunk back."""
        path = self._folder / f"{chunk:06}"
        with self._lock:
            self._held.discard(path)
            path.unlink(missing_ok=True)

    def _create(self, path: Path) -> bool:
        try:
            with path.open("x", encoding="ascii") as file:
                file.write(_own_name())
        except FileExistsError:
            return False
        return True

    def _write(self, path: Path) -> None:
        path.write_text(_own_name(), encoding="ascii")

    def _lives(self, path: Path) -> bool:
        """Judge by the process where that can be seen from here, else by the heartbeat and the file system's clock."""
        try:
            holder, beaten = path.read_text(encoding="ascii"), path.stat().st_mtime
        except FileNotFoundError:
            return False
        if (lives := _process_lives(holder)) is not None:
            return lives
        self._clock.touch()
        return self._clock.stat().st_mtime - beaten < self._dead_after

    def _run(self) -> None:
        while not self._stop.wait(self._beat):
            with self._lock:
                for path in self._held:
                    with suppress(FileNotFoundError):
                        os.utime(path)


def _own_name() -> str:
    return json.dumps([_machine(), os.getpid(), _started(os.getpid())])


def _process_lives(holder: str) -> bool | None:
    """Say whether a process of this machine lives; None where it cannot be seen from here, or was not written out."""
    try:
        machine, pid, started = json.loads(holder)
    except ValueError:
        return None
    if machine != _machine() or started is None:
        return None
    return bool(_started(pid) == started)


def _machine() -> str:
    """Name this boot of this machine and its space of process numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return f"{socket.gethostname()} {time.monotonic_ns()}"
    return f"{boot} {space}"


def _started(pid: int) -> str | None:
    """Say when a process started, in the kernel's ticks; None if there is none, or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


__all__ = ["BEAT", "DEAD_AFTER", "Leases"]
