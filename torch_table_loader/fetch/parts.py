"""Parts of files that are read here and there, such as those of a row store: asked for before they are taken."""

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
    """Parts of one file, taken in their order; what lies before a part that is taken is given back."""

    def __init__(self, fetcher: Fetcher, requests: Requests, rows_before: int) -> None:
        """Ask for them.

        Args:
            fetcher: sends the requests, as far as its budget reaches.
            requests: one for each part.
            rows_before: rows that are delivered before those of these parts.
        """
        self._fetcher = fetcher
        self._requests = requests
        self._task = fetcher.add(requests, rows_before)

    def read(self, start: int, stop: int) -> Any:
        """Wait for bytes of the parts.

        Args:
            start: the first byte.
            stop: the byte after the last.

        Raises:
            TableError: the file is gone or changed.
            StorageError: the store failed, or nobody wants the parts any more.
        """
        return self._fetcher.read(self._requests, start, stop)

    def close(self) -> None:
        """Give back what they hold, and cancel what is queued; whoever waits for them gets a StorageError."""
        self._fetcher.remove(self._task)


class PartsAhead:
    """Asks for parts of a store's files (implements `store.remote_window.PartsReader`); threads share it."""

    def __init__(self, fetcher: Fetcher, storage: RangeStorage) -> None:
        """Ask for nothing yet.

        Args:
            fetcher: of the epoch; others may ask it for files of other stores.
            storage: where the files are.
        """
        self._fetcher = fetcher
        self._storage = storage

    def expect(self, needs: FileNeeds, rows_before: int) -> FileParts:
        """Ask for parts of a file, with one request each.

        Args:
            needs: which; each of its groups has one range, and they are taken in this order.
            rows_before: rows that are delivered before: what comes sooner is fetched sooner.

        Raises:
            StorageError: the epoch was left meanwhile.
        """
        pieces = [Piece(tuple(group), range(number, number + 1)) for number, group in enumerate(needs.groups)]
        return FileParts(self._fetcher, Requests(needs, pieces, self._storage), rows_before)


def begin_parts(storage: RangeStorage, settings: FetchSettings) -> Fetcher:
    """Return what fetches parts of files, of which none is planned yet.

    Args:
        storage: where most of them are.
        settings: how many bytes are fetched ahead, beside what is waited for; and what is kept.
    """
    return Fetcher(storage, iter(()), settings)


@contextmanager
def reading_parts(storage: RangeStorage, settings: FetchSettings) -> Iterator[PartsAhead]:
    """Return what reads parts of a store's files, until the block ends."""
    with closing(begin_parts(storage, settings)) as fetcher:
        yield PartsAhead(fetcher, storage)
