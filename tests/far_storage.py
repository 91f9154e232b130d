"""A folder that answers as an object store does: far away, by ranges, with tags."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from torch_table_loader.arrow.ranged_file import open_ranges
from torch_table_loader.errors import MissingFileError, TableError
from torch_table_loader.records import FileVersion


@dataclass
class Log:
    """What one process asked of a store."""

    counts: Counter[str] = field(default_factory=Counter)
    ranges: list[tuple[str, int, int]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    lock: Any = field(default_factory=threading.Lock)


LOGS: dict[str, Log] = {}


@dataclass(frozen=True)
class FarFolder:
    """Implements `contracts.RangeStorage` over a folder; paths are relative to it.

    Args:
        root: the folder.
        seconds: that each request takes.
        tagged: whether files have tags, which requests for ranges check.
    """

    root: str
    seconds: float = 0.0
    tagged: bool = True
    is_local = False
    fork_safe = True

    @property
    def place(self) -> str:
        return f"far:{self.root}"

    @property
    def log(self) -> Log:
        return LOGS.setdefault(self.root, Log())

    def open(self, path: str) -> pa.NativeFile:
        self.log.counts["open"] += 1
        return open_ranges(lambda start, stop: self.read_range(path, start, stop), self.version(path).num_bytes)

    def version(self, path: str) -> FileVersion:
        self.log.counts["version"] += 1
        return self._version(path)

    def _version(self, path: str) -> FileVersion:
        try:
            status = (Path(self.root) / path).stat()
        except FileNotFoundError:
            raise MissingFileError(f"{path} is gone", path) from None
        return FileVersion(status.st_size, None, f"{status.st_mtime_ns:x}" if self.tagged else None)

    def read_range(self, path: str, start: int, stop: int, version: FileVersion | None = None) -> Any:
        log = self.log
        with log.lock:
            log.counts["range"] += 1
            log.ranges.append((path, start, stop))
            log.in_flight += 1
            log.most_in_flight = max(log.most_in_flight, log.in_flight)
        try:
            if self.seconds:
                time.sleep(self.seconds)
            if version is not None and version.etag is not None and version.etag != self._version(path).etag:
                raise TableError(f"{path} changed under us")
            with (Path(self.root) / path).open("rb") as file:
                file.seek(start)
                data = file.read(stop - start)
            assert len(data) == stop - start > 0
            return data
        finally:
            with log.lock:
                log.in_flight -= 1

    def checks(self, version: FileVersion) -> bool:
        return version.etag is not None

    def close(self) -> None:
        pass
