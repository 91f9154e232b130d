"""Files that are opened to be read from their end or their start; the guest of far stores opens those of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_table_loader.contracts import is_far
from torch_table_loader.ranges import LEAST_TAIL_BYTES, far

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile


def open_at_end(
    storage: Storage, file: DataFile, least: int = LEAST_TAIL_BYTES
) -> AbstractContextManager[pa.NativeFile]:
    """Open a file whose end is read first; from a remote store, one request brings that, and a small file whole.

    The request is for `DataFile.tail_bytes`, if the file has any; else for `least` bytes, or more of a large file.

    Raises:
        TableError: the file has another size, or is no longer what was listed. A store that checks versions finds
            that out at each request; any other is asked for the version when reading fails.
    """
    if is_far(storage):
        return far().open_at_end(storage, file, least)
    return storage.open(file.path)  # type: ignore[no-any-return] # pyarrow has no types


def open_at_start(storage: Storage, file: DataFile) -> pa.NativeFile:
    """Open a file that is read from its start; from a remote store, some MiB at a time."""
    if is_far(storage):
        return far().open_at_start(storage, file)
    return storage.open(file.path)


def fetched(storage: Storage, file: DataFile) -> Storage:
    """Return a storage for reading a whole file; a small one of a remote store is fetched with one request."""
    if is_far(storage):
        return far().fetched(storage, file)
    return storage
