"""Asks the system for the pages of a store that are needed next, if the store is larger than memory.

One page fault at a time leaves a disk idle. So the pages of a window of the order are sorted, neighbors are joined, and
all are requested at once, while the window before is being read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from torch_table_loader.local_files import open_regular
from torch_table_loader.planning.distinct import distinct
from torch_table_loader.planning.requests import coalesce, in_windows
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

T = TypeVar("T")

PAGE = 4096
GAP_PAGES = 4
"""Unneeded pages that are read to avoid a second request: 16 KiB."""
REQUEST_PAGES = 1024


class ReadAhead:
    """Reads the files of one store ahead."""

    def __init__(self, files: Sequence[tuple[Path, int]], window_bytes: int) -> None:
        """Open files of records, each with the bytes of a record; a window may ask for `window_bytes` of pages."""
        self._files = [(open_regular(path), width) for path, width in files]
        self._window_rows = max(sizes().window_rows, window_bytes // PAGE)

    def windows(self, blocks: Iterator[tuple[Ints, T]], most_blocks: int | None = None) -> Iterator[tuple[Ints, T]]:
        """Pass blocks on (see `StoredRows.windows`); while one window is read, the pages of the next are requested."""
        current: list[tuple[Ints, T]] = []
        for window in in_windows(blocks, sizes().window_rows, self._window_rows, most_blocks):
            self.expect(np.concatenate([places for places, _ in window]))
            yield from current
            current = window
        yield from current

    def expect(self, places: Ints) -> int:
        """Request the pages of some rows; return how many requests that took."""
        requests = 0
        for file, width in self._files:
            begin = places * width
            pages = distinct(np.concatenate((begin // PAGE, (begin + width - 1) // PAGE)))
            if not len(pages):
                continue
            parts = coalesce(pages, GAP_PAGES, REQUEST_PAGES)
            starts, lengths = parts.first * PAGE, (parts.stop - parts.first) * PAGE
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
                os.posix_fadvise(file, start, length, os.POSIX_FADV_WILLNEED)
            requests += len(parts.first)
        return requests

    def __del__(self) -> None:
        """Close the files."""
        for file, _ in self._files:
            os.close(file)
