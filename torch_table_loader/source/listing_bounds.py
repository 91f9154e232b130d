"""How long a listing may be: a store may give ever new keys, pages or folders."""

from __future__ import annotations

from torch_table_loader.errors import StorageError
from torch_table_loader.sizes import sizes
from torch_table_loader.source.retrying import patience


class ListingBounds:
    """Counts the pages of a listing, and what they name.

    >>> bounds = ListingBounds("s3://bucket/t")
    >>> bounds.count(1000)
    """

    def __init__(self, shown: str) -> None:
        """Start a listing, which errors call `shown`."""
        self._shown = shown
        self._named = 0
        self._without = 0

    def count(self, named: int) -> None:
        """Count a page that names so many files and folders.

        Raises:
            StorageError: there are too many of them, or too many pages in a row named none.
        """
        self._named += named
        self._without += 1
        if named:
            self._without = 0
        if self._named > (most := sizes().listed_files):
            raise self._endless(f"it names more than {most:,} files and folders")
        if self._without > (pages := sizes().pages_without_files):
            raise self._endless(f"{pages + 1:,} pages or folders in a row name no file")

    def check_page(self, num_bytes: int, seconds: float) -> None:
        """Look at what has come of a page.

        Raises:
            StorageError: it is too long.
            TimeoutError: it comes slower than at the least rate, which may pass.
        """
        if num_bytes > (most := sizes().answer_bytes):
            raise self._endless(f"one of its pages has more than {most:,} bytes")
        if seconds > patience(num_bytes):
            raise TimeoutError(f"{num_bytes:,} bytes of a page came in {seconds:.0f} s")

    def _endless(self, why: str) -> StorageError:
        return StorageError(
            f"{self._shown}: the store's listing does not end: {why}; check the path and the endpoint, or pass the "
            "files themselves as path"
        )
