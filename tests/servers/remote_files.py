"""Local files as a remote store serves them: requests for ranges, each recorded."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from tests.waiting import PATIENCE_S
from torch_table_loader.arrow.ranged_file import open_ranges
from torch_table_loader.errors import MissingFileError, StorageError, TableError
from torch_table_loader.records import FileVersion, Traffic
from torch_table_loader.source.table_storage import TableStorage

OWN = {"retry_seconds", "read_ahead_bytes", "cache_dir", "cache_bytes", "verify_checksums"}
"""What this library takes of ``storage_options``; the rest is the store's."""


def in_storage_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a dataset in which the library's own of ``storage_options`` stand where they belong."""
    own = {name: value for name, value in options.items() if name in OWN}
    if not own:
        return dict(options)
    rest = {name: value for name, value in options.items() if name not in OWN}
    return rest | {"storage_options": {**(options.get("storage_options") or {}), **own}}


class Request(NamedTuple):
    """A request: "range", "open" or "version", the file, and the bytes."""

    kind: str
    name: str
    start: int = 0
    stop: int = 0


def local(path: str) -> Path:
    return Path(path.removeprefix("file://"))


@dataclass
class FarStore:
    """Serves ranges (implements `contracts.RangeStorage`).

    Args:
        tags: whether files have tags, which requests for ranges check.
        together: requests that are held until as many are in flight.
    """

    tags: bool = True
    together: int = 0
    requests: list[Request] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    is_local: bool = False
    place: str = "far"
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def kinds(self, kind: str) -> list[Request]:
        return [request for request in self.requests if request.kind == kind]

    def open(self, path: str) -> pa.NativeFile:
        self._ask(Request("open", local(path).name))
        if not local(path).exists():
            raise MissingFileError(f"{path} is gone", path)
        return pa.BufferReader(local(path).read_bytes())

    def version(self, path: str) -> FileVersion:
        self._ask(Request("version", local(path).name))
        return self.version_of(path)

    def version_of(self, path: str) -> FileVersion:
        if not local(path).exists():
            raise MissingFileError(f"{path} is gone", path)
        stat = os.stat(local(path))  # noqa: PTH116
        tag = hashlib.sha256(local(path).read_bytes()).hexdigest() if self.tags else None
        return FileVersion(stat.st_size, stat.st_mtime_ns, tag)

    def read_range(self, path: str, start: int, stop: int, version: FileVersion | None = None) -> bytes:
        self._ask(Request("range", local(path).name, start, stop))
        if version is not None and self.checks(version) and version.etag != self.version_of(path).etag:
            raise TableError(f"{path} is no longer that version")
        data = local(path).read_bytes()[start:stop]
        if len(data) != stop - start or start >= stop:
            raise StorageError(f"{stop - start} bytes of {path} were asked for, and {len(data)} came")
        return data

    def checks(self, version: FileVersion) -> bool:
        return self.tags and version.etag is not None

    def traffic(self) -> Traffic:
        return Traffic()

    def close(self) -> None:
        return

    def _ask(self, request: Request) -> None:
        with self._changed:
            self.requests.append(request)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self._changed.notify_all()
            met = self._changed.wait_for(lambda: self.most_in_flight >= self.together, PATIENCE_S)
            self.in_flight -= 1
        assert met, f"of {self.together} requests {self.most_in_flight} are sent at once"


@dataclass
class View:
    """Serves bytes, and records which were requested (implements `contracts.Storage`)."""

    asked: list[tuple[int, int]] = field(default_factory=list)
    opened: int = 0
    versions: int = 0
    is_local: bool = False

    def open(self, path: str) -> pa.NativeFile:
        data = local(path).read_bytes()
        self.opened += 1

        def read(start: int, stop: int) -> memoryview:
            self.asked.append((start, stop))
            return memoryview(data)[start:stop]

        return open_ranges(read, len(data))

    def version(self, path: str) -> FileVersion:
        self.versions += 1
        stat = os.stat(local(path))  # noqa: PTH116
        return FileVersion(stat.st_size, stat.st_mtime_ns)

    def close(self) -> None:
        return


@dataclass(frozen=True, eq=False)
class Served(TableStorage):
    """A table whose files another storage serves, wherever they are."""

    location: str = ""
    inner: Any = field(kw_only=True)

    @property
    def is_local(self) -> bool:
        return bool(self.inner.is_local)

    def _at(self, path: str) -> tuple[Any, str]:
        return self.inner, path
