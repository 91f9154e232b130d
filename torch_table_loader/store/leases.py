"""Who builds which chunk: a file with a heartbeat, so that several processes and nodes share the work.

A lease only avoids duplicate work. Two builders of one chunk write the same bytes to the same place, so a builder that
was presumed dead and continues does no harm.
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
from typing import Self

from torch_table_loader.cancellation import start
from torch_table_loader.local_files import open_regular, read_regular, stat_regular, write_whole
from torch_table_loader.sizes import sizes


class Leases:
    """The leases of one builder, kept alive by a thread while the block runs."""

    def __init__(self, folder: Path) -> None:
        """Start without leases, in an existing folder with those of all builders of the store."""
        self._folder = folder
        self._clock = folder / f"clock-{uuid.uuid4().hex}"
        self._held: set[Path] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="table-loader-lease", daemon=True)

    def __enter__(self) -> Self:
        """Start the heartbeat."""
        start(self._thread)
        return self

    def __exit__(self, *raised: object) -> None:
        """Release every lease."""
        self._stop.set()
        self._thread.join()
        for path in (*self._held, self._clock):
            path.unlink(missing_ok=True)

    @property
    def holds_any(self) -> bool:
        """Whether this builder is working on a chunk."""
        return bool(self._held)

    def claim(self, chunk: int) -> bool:
        """Claim a chunk that no living builder has claimed; return whether that succeeded."""
        path = self._folder / f"{chunk:06}"
        with self._lock:
            if path in self._held:
                return False
            if not self._create(path):
                if self._lives(path):
                    return False
                write_whole(path, _own_name())
            self._held.add(path)
            return True

    def release(self, chunk: int) -> None:
        """Release a chunk."""
        path = self._folder / f"{chunk:06}"
        with self._lock:
            self._held.discard(path)
            path.unlink(missing_ok=True)

    def _create(self, path: Path) -> bool:
        try:
            with os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                file.write(_own_name())
        except FileExistsError:
            return False
        return True

    def _lives(self, path: Path) -> bool:
        """Judge by the process if it is visible from here, else by the heartbeat and the file system's clock."""
        try:
            holder, beaten = read_regular(path), stat_regular(path).st_mtime
        except FileNotFoundError:
            return False
        if (lives := _process_lives(holder)) is not None:
            return lives
        file = open_regular(self._clock, os.O_WRONLY | os.O_CREAT)
        try:
            os.utime(file)
            return os.fstat(file).st_mtime - beaten < sizes().lease_s
        finally:
            os.close(file)

    def _run(self) -> None:
        while not self._stop.wait(sizes().lease_beat_s):
            with self._lock:
                for path in self._held:
                    with suppress(FileNotFoundError):
                        os.utime(path, follow_symlinks=False)


def _own_name() -> bytes:
    return json.dumps([_machine(), os.getpid(), _started(os.getpid())]).encode()


def _process_lives(holder: bytes) -> bool | None:
    """Return whether a process of this machine is alive; None if that is unknown here or was not written."""
    try:
        machine, pid, started = json.loads(holder)
    except ValueError:
        return None
    if machine != _machine() or started is None:
        return None
    return bool(_started(pid) == started)


def _machine() -> str:
    """Identify this boot of this machine, and its namespace of process ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return f"{socket.gethostname()} {time.monotonic_ns()}"
    return f"{boot} {space}"


def _started(pid: int) -> str | None:
    """Return when a process started, in the kernel's ticks; None if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] == "Z":
        return None
    return fields[19]
