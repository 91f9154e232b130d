"""Scattered parts of files, such as those of a row store: requested before they are taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from torch_table_loader.fetch.fetcher import Fetcher
from torch_table_loader.fetch.planned_read import Requests
from torch_table_loader.planning.requests import Piece

if TYPE_CHECKING:
    from torch_table_loader.contracts import RangeStorage
    from torch_table_loader.fetch.settings import FetchSettings
    from torch_table_loader.records import FileNeeds


class FileParts:
    """Parts of one file, taken in order; taking a part releases those before it."""

    def __init__(self, fetcher: Fetcher, requests: Requests, rows_before: int) -> None:
        """Request the parts.

        Args:
            fetcher: sends the requests, as far as its budget reaches.
            rows_before: rows that are delivered before those of these parts.
        """
        self._fetcher = fetcher
        self._requests = requests
        self._task = fetcher.add(requests, rows_before)

    def read(self, start: int, stop: int) -> Any:
        """Wait for bytes of the parts, and return them.

        Raises:
            TableError: the file is missing or changed.
            StorageError: the store failed, or nobody wants the parts any more.
        """
        return self._fetcher.read(self._requests, start, stop)

    def close(self) -> None:
        """Release what they hold, and cancel queued requests; threads that wait for them get a StorageError."""
        self._fetcher.remove(self._task)


class PartsAhead:
    """Requests parts of a store's files (implements `store.remote_window.PartsReader`); threads share it."""

    def __init__(self, fetcher: Fetcher, storage: RangeStorage) -> None:
        """Start without requests.

        Args:
            fetcher: the epoch's fetcher; it may also fetch files of other stores.
        """
        self._fetcher = fetcher
        self._storage = storage

    def expect(self, needs: FileNeeds, rows_before: int) -> FileParts:
        """Request parts of a file, with one request each.

        Args:
            needs: the parts; each of its groups has one range, and they are taken in this order.
            rows_before: rows that are delivered before them: earlier rows are fetched earlier.

        Raises:
            StorageError: the epoch was abandoned meanwhile.
        """
        pieces = [Piece(tuple(group), range(number, number + 1)) for number, group in enumerate(needs.groups)]
        return FileParts(self._fetcher, Requests(needs, pieces, self._storage), rows_before)


def begin_parts(storage: RangeStorage, settings: FetchSettings) -> Fetcher:
    """Return a fetcher for parts of files, without planned reads.

    Args:
        storage: the storage of most of the files.
        settings: how many bytes to fetch ahead, besides what is waited for; and what is cached.
    """
    return Fetcher(storage, iter(()), settings)


@contextmanager
def reading_parts(storage: RangeStorage, settings: FetchSettings) -> Iterator[PartsAhead]:
    """Yield a reader of parts of a store's files, and close it at the end of the block."""
    with closing(begin_parts(storage, settings)) as fetcher:
        yield PartsAhead(fetcher, storage)
