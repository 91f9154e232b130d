"""A file of a store that is opened anew where reading from it failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from torch_table_loader.arrow.ranged_file import open_ranges
from torch_table_loader.errors import TableError
from torch_table_loader.source.retrying import of_length


class ReopenedFile:
    """Reads ranges of a file; whoever repeats a read that failed gets it from the file as it was opened anew."""

    def __init__(self, opened: pa.NativeFile, reopen: Callable[[], pa.NativeFile], shown: str) -> None:
        """Own an open file.

        Args:
            opened: at first.
            reopen: opens the same file again.
            shown: its path, as messages may show it.
        """
        self._file: pa.NativeFile | None = opened
        self._reopen = reopen
        self._shown = shown
        self.size: int = opened.size()

    def read(self, start: int, stop: int) -> Any:
        """Read bytes.

        Args:
            start: the first.
            stop: the byte after the last.

        Raises:
            TableError: the file has another size since.
            OSError: the store failed, or other bytes came.
        """
        if self._file is None:
            self._file = self._reopen()
            if (size := self._file.size()) != self.size:
                raise TableError(
                    f"{self._shown} changed under us: size in bytes was {self.size} and is {size}; build the loader "
                    "again on the table as it is now, and let writers add new files instead of writing over old ones"
                )
        try:
            return of_length(self._file.read_at(stop - start, start), start, stop)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def as_file(self, read: Callable[[int, int], Any]) -> pa.NativeFile:
        """Return it as a file.

        Args:
            read: calls `read` of this one, until it succeeds.
        """
        return open_ranges(read, self.size, self.close)
