"""Tokens in files that others own: read by position, and compared with the listing before they are given out.

A file that is mapped ends the process if somebody cuts it, and shows whatever is written into it.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
from typing_extensions import override

from torch_table_loader.arrow.buffers import new_array
from torch_table_loader.errors import TableError
from torch_table_loader.forks import OfProcess
from torch_table_loader.planning.record_ranges import joined
from torch_table_loader.read.failures import changed_error, reading
from torch_table_loader.read.lru_cache import LRUCache
from torch_table_loader.sizes import sizes
from torch_table_loader.source.local_client import found_here
from torch_table_loader.store.gather import ListValues, Spans, StoredRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.contracts import Storage
    from torch_table_loader.planning.lists import ListLengths
    from torch_table_loader.records import DataFile
    from torch_table_loader.store.record_layout import RecordLayout
    from torch_table_loader.text.placed_documents import PlacedDocuments

    Ints: TypeAlias = NDArray[np.int64]

T = TypeVar("T")

Run: TypeAlias = tuple[int, int, int]
"""Where bytes begin in a file, and where they come to be in memory: from one place to before another."""

_TO_READ = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY"))

_moving = OfProcess(threading.Lock)


def _read_at(descriptor: int, into: Sequence[memoryview], start: int) -> int:
    """Read bytes of a file from one on where there is no `preadv`; return how many there were."""
    with _moving.own:
        os.lseek(descriptor, start, os.SEEK_SET)
        found = os.read(descriptor, len(into[0]))
    into[0][: len(found)] = found
    return len(found)


_preadv = getattr(os, "preadv", _read_at)


class _OpenFile:
    """An open file, which is closed when nothing refers to it."""

    def __init__(self, storage: Storage, file: DataFile) -> None:
        self._storage, self._file = storage, file
        self._seen: tuple[int, int, int] | None = None
        self._descriptor = os.open(file.path, os.O_RDONLY | _TO_READ)

    def read(self, target: memoryview, runs: Iterable[Run]) -> None:
        """Read runs of bytes into memory, and see that they are of the file that was listed."""
        descriptor = self._descriptor
        for start, begin, end in runs:
            # Short reads are rare: a signal came, or the file was cut.
            if (count := _preadv(descriptor, (target[begin:end],), start)) != end - begin:
                self._read_on(target[begin:end], start, count)
        self.check()

    def _read_on(self, target: memoryview, start: int, at: int) -> None:
        while at < len(target):
            count = _preadv(self._descriptor, (target[at:],), start + at)
            if not count:
                self.check()
                raise TableError(
                    f"{self._file.name} must have {start + len(target)} bytes or more, as was planned, and ends at "
                    f"byte {start + at}; it was cut: restore it, or write it again, and build the loader again"
                )
            at += count

    def check(self) -> None:
        """Refuse what is no longer the file that was listed. A file that was removed or replaced has another ctime."""
        status = os.fstat(self._descriptor)
        seen = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if seen == self._seen:
            return
        now, wanted = found_here(self._file.path, status).file_version(), self._file.version
        if not wanted.holds(now):
            there = self._storage.version(self._file.path)  # it may be gone, or another file
            raise changed_error(self._file, now if wanted.holds(there) else there)
        self._seen = seen

    def __del__(self) -> None:
        """Close the file."""
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


class ReadTokens(StoredRows):
    """Documents whose tokens are read from files when they are wanted; threads share it, and a fork may use it."""

    def __init__(
        self,
        layout: RecordLayout,
        storage: Storage,
        files: Sequence[tuple[DataFile, int, int]],
        lengths: ListLengths,
        placed: PlacedDocuments | None,
        *,
        row_ids: Ints | None = None,
    ) -> None:
        """Open nothing yet.

        Args:
            files: each with the number of values that it has room for, and the byte of the first.
            lengths: of all documents, as they come out.
            placed: as in `ListValues`.
            row_ids: of the documents; None: their places.
        """
        super().__init__(layout, lengths.count, {}, frozenset(), [], lengths=lengths)
        self.row_ids = row_ids
        self._storage, self._placed = storage, placed
        some = [entry for entry in files if entry[1]]
        self._files = [file for file, _, _ in some]
        self._starts = np.cumsum([0, *(count for _, count, _ in some)], dtype=np.int64)[:-1]
        self._begins = np.array([begin for _, _, begin in some], dtype=np.int64)
        self._open = LRUCache(sizes().open_files)

    @override
    def windows(
        self,
        blocks: Iterator[tuple[Ints, T]],
        most_blocks: int | None = None,
        spans: Callable[[T], Spans] | None = None,
    ) -> Iterator[tuple[StoredRows, Ints, T]]:
        try:
            for places, note in blocks:
                yield self.fetch(places, None if spans is None else spans(note))[0], places, note
        finally:
            self._open = LRUCache(sizes().open_files)  # a lane that still reads opens its files again

    @override
    def fetch(self, places: Ints, spans: Spans | None = None) -> tuple[StoredRows, Ints]:
        """Read parts of documents.

        Raises:
            TableError: a file has changed since it was listed.
            StorageError: a file cannot be read.
        """
        rows = copy.copy(self)
        rows.values = None
        if spans is not None:
            rows.values = self._read(spans)
        return rows, places

    def _read(self, spans: Spans) -> ListValues:
        if self._placed is not None:
            at, length = self._placed.stored(spans.start, spans.stop - spans.start)
            spans = Spans(at, at + length)
        some = spans.start < spans.stop
        start, stop = spans.start[some], spans.stop[some]
        files = np.searchsorted(self._starts, start, side="right") - 1
        first, stop = joined(start, stop, 0, files)
        files, counts = np.searchsorted(self._starts, first, side="right") - 1, stop - first
        dtype = self.layout.value_dtype
        width, total = dtype.itemsize, int(counts.sum())
        found = new_array((total * width,), np.uint8)
        target = found.data
        ends = np.cumsum(counts) * width
        runs = list(
            zip(
                ((first - self._starts[files]) * width + self._begins[files]).tolist(),
                (ends - counts * width).tolist(),
                ends.tolist(),
                strict=True,
            )
        )
        bounds = np.flatnonzero(np.diff(files, prepend=-1, append=-1)).tolist()
        for low, high in pairwise(bounds):
            file = self._files[files[low]]
            with reading(self._storage, file):
                opened = self._open.get(file.path, partial(self._opened, file))
                opened.read(target, runs[low:high])
        return ListValues(first, [found.view(dtype)], self._placed, counts=counts)

    def _opened(self, file: DataFile) -> tuple[_OpenFile, int]:
        return _OpenFile(self._storage, file), 1
