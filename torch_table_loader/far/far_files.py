"""Files of remote stores, read with few requests for ranges: the listing says their sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow.ranged_file import BufferedRanges, open_ranges
from torch_table_loader.contracts import Storage
from torch_table_loader.errors import StorageError, TableError
from torch_table_loader.ranges import LEAST_TAIL_BYTES
from torch_table_loader.read.failures import changed_error
from torch_table_loader.sizes import sizes
from torch_table_loader.translating import translating

if TYPE_CHECKING:
    from torch_table_loader.contracts import RangeStorage
    from torch_table_loader.records import DataFile, FileVersion

_MOST_TAIL_BYTES = 1024 * 1024
_TAIL_SHARE = 1000
"""A footer is about a thousandth of its file, where row groups are large."""

WHOLE_BYTES = 8 * 1024 * 1024
"""The largest file of deletes that is read with one request."""


class _FarFile:
    """Reads bytes of a file, and keeps those of its end and the last that came."""

    def __init__(self, storage: RangeStorage, file: DataFile, ahead: int, tail_bytes: int = 0) -> None:
        def fetch(start: int, stop: int) -> Any:
            return storage.read_range(file.path, start, stop, file.version)

        size = file.version.num_bytes
        self._tail_start = max(0, size - tail_bytes)
        self._tail = memoryview(fetch(self._tail_start, size)) if tail_bytes and size else None
        self._ranges = BufferedRanges(fetch, size, ahead)

    def read(self, start: int, stop: int) -> Any:
        """Return bytes that are kept, or request them and what comes next."""
        if self._tail is not None and start >= self._tail_start:
            return self._tail[start - self._tail_start : stop - self._tail_start]
        return self._ranges.read(start, stop)


@translating
def open_at_end(storage: RangeStorage, file: DataFile, least: int) -> Iterator[pa.NativeFile]:
    """Open a file whose end is read first; from a remote store, one request brings that, and a small file whole.

    The request is for `DataFile.tail_bytes`, if the file has any; else for `least` bytes, or more of a large file.

    Raises:
        TableError: the file has another size, or is no longer what was listed. A store that checks versions finds
            that out at each request; any other is asked for the version when reading fails.
    """
    size = file.version.num_bytes
    try:
        tail_bytes = max(least, _tail_bytes(size)) if file.tail_bytes is None else file.tail_bytes
        far = _FarFile(storage, file, LEAST_TAIL_BYTES, min(tail_bytes, size))
        with open_ranges(far.read, size) as source:
            yield source
    except Exception as error:
        if not isinstance(error, StorageError | FileNotFoundError):
            _explain(storage, file, error)
        raise


def open_at_start(storage: RangeStorage, file: DataFile) -> pa.NativeFile:
    """Open a file that is read from its start; from a remote store, some MiB at a time."""
    return open_ranges(_FarFile(storage, file, sizes().far_request_bytes).read, file.version.num_bytes)


@dataclass(frozen=True, slots=True)
class FetchedFile(Storage):
    """A storage of one file whose bytes are in memory; it is not local: what fails may be the store."""

    inner: Storage
    data: Any

    @property
    @override
    def is_local(self) -> bool:
        return False

    @override
    def open(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self.data)

    @override
    def version(self, path: str) -> FileVersion:
        return self.inner.version(path)

    @override
    def close(self) -> None:
        pass


def fetched(storage: RangeStorage, file: DataFile) -> Storage:
    """Return a storage for reading a whole file; a small one of a remote store is fetched with one request."""
    size = file.version.num_bytes
    if not 0 < size <= WHOLE_BYTES:
        return storage
    return FetchedFile(storage, storage.read_range(file.path, 0, size, file.version))


def _tail_bytes(size: int) -> int:
    """Return how many bytes of a file's end to request.

    >>> _tail_bytes(100_000_000), _tail_bytes(1000)
    (100000, 65536)
    """
    return min(max(LEAST_TAIL_BYTES, size // _TAIL_SHARE), _MOST_TAIL_BYTES)


def _explain(storage: RangeStorage, file: DataFile, error: Exception) -> None:
    """Raise an error that says so if the file is not what was listed."""
    if storage.checks(file.version) and not file.version.immutable:
        return  # the request itself has found out
    now = storage.version(file.path)
    if file.version.immutable and file.version.num_bytes != now.num_bytes:
        raise TableError(
            f"{file.name} must have {file.version.num_bytes} bytes, as the table's metadata says, got {now.num_bytes}; "
            "the file or the metadata is damaged: restore it, or write the file again"
        ) from error
    if not file.version.holds(now):
        raise changed_error(file, now) from error
