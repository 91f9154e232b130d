"""Small files that come whole with their ends, where one process reads all of a table: none of their bytes comes twice.

What came while planning is handed to the epoch that follows. One listing says before which of the
files are still what was planned; any other is asked for again, and the store refuses it if it changed.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from torch_table_loader.cached import cached_property
from torch_table_loader.contracts import RangeStorage
from torch_table_loader.errors import MissingPathError, StorageError
from torch_table_loader.forks import OfProcess
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_table_loader.ranges import FetchSettings, Found
    from torch_table_loader.records import FileVersion, Traffic


class SmallFiles(RangeStorage):
    """A storage that asks for a small file whole where its end is asked for, and keeps it for the first epoch.

    A file is small up to `Sizes.far_gap_bytes`, which are read anywhere to avoid a second request. Threads share it;
    it pickles as the storage itself.

    Args:
        inner: where the files are.
        folder: what is listed to find out whether files are still the same.
        most_bytes: bytes of files that are kept; others come as they are asked for.
    """

    def __init__(self, inner: RangeStorage, folder: str, most_bytes: int) -> None:
        self._inner = inner
        self._folder = folder
        self._left = most_bytes
        self._kept: dict[tuple[str, FileVersion], Any] = {}
        self._lock = OfProcess(threading.Lock)

    def __getattr__(self, name: str) -> Any:
        """Return what the storage has beyond the contract."""
        return getattr(self._inner, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the storage itself."""
        return _itself, (self._inner,)

    @property
    @override
    def is_local(self) -> bool:
        return self._inner.is_local

    @cached_property
    @override
    def place(self) -> str:
        return self._inner.place

    @override
    def open(self, path: str) -> pa.NativeFile:
        return self._inner.open(path)

    @override
    def version(self, path: str) -> FileVersion:
        return self._inner.version(path)

    @override
    def traffic(self) -> Traffic:
        return self._inner.traffic()

    @override
    def checks(self, version: FileVersion) -> bool:
        return self._inner.checks(version)

    @override
    def close(self) -> None:
        self._inner.close()

    @property
    def brought_bytes(self) -> int:
        """Bytes of the files that are kept."""
        with self._lock.own:
            return sum(version.num_bytes for _, version in self._kept)

    @override
    def read_range(self, path: str, start: int, stop: int, version: FileVersion | None = None) -> Any:
        if version is None or stop != version.num_bytes:
            return self._inner.read_range(path, start, stop, version)
        kept, whole = self._kept, self._kept.get((path, version))
        if whole is not None:
            return memoryview(whole)[start:]
        if not self._has_room(version):
            return self._inner.read_range(path, start, stop, version)
        try:
            whole = self._inner.read_range(path, 0, stop, version)
        finally:
            self._keep(kept, (path, version), whole)
        return memoryview(whole)[start:]

    def let_go(self) -> None:
        """Keep nothing any more."""
        with self._lock.own:
            self._kept, self._left = {}, 0

    def handed_to(self, settings: FetchSettings) -> FetchSettings:
        """Return how the next epoch is fetched: without what is kept, and as much less ahead of decoding."""
        kept = self._kept
        self.let_go()
        if not kept:
            return settings
        now: dict[str, FileVersion | None] = {}
        with suppress(StorageError, MissingPathError):  # requests for the files themselves will say so
            found = cast("list[Found]", self._inner.walk(self._folder))  # type: ignore[attr-defined]
            now = {entry.path: entry.version for entry in found}
        same = {(path, version): data for (path, version), data in kept.items() if now.get(path) == version}
        num_bytes = sum(version.num_bytes for _, version in same)
        return replace(settings, ahead_bytes=settings.ahead_bytes - num_bytes, kept=same)

    def _has_room(self, version: FileVersion) -> bool:
        """Return whether a file is kept when it comes, and take its room."""
        with self._lock.own:
            if version.num_bytes > min(self._left, sizes().far_gap_bytes) or not self._inner.checks(version):
                return False
            self._left -= version.num_bytes
            return True

    def _keep(self, kept: dict[tuple[str, FileVersion], Any], file: tuple[str, FileVersion], whole: Any) -> None:
        """Keep a file that came, unless all was let go meanwhile; leave its room to others if it did not, or again."""
        with self._lock.own:
            if kept is not self._kept:
                return
            if whole is None or file in kept:
                self._left += file[1].num_bytes
            else:
                kept[file] = whole


def _itself(storage: RangeStorage) -> RangeStorage:
    return storage
