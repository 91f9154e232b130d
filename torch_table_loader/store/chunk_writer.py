"""Writes chunks: each record at its own place in one file, or in memory."""

from __future__ import annotations

import errno
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow.reserved import ROW_ID
from torch_table_loader.causes import store_error_type
from torch_table_loader.errors import StorageError, TableError
from torch_table_loader.local_files import new_file, open_regular
from torch_table_loader.store.spec import IDS, NULLS, RECORDS, Part, StoreSpec, heap_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.store.record_layout import Encoded

ReadChunk = Callable[[int], Iterable[pa.RecordBatch]]
"""Reads the live rows of a chunk, in row order: the columns, then (where the store keeps ids) the column ``row_id``."""


class Sink(ABC):
    """Where the parts of a chunk go."""

    checked: bool
    """Whether checksums are wanted."""

    @abstractmethod
    def records(self, row: int, encoded: Encoded, crc: int) -> int:
        """Write records from a row on; return the checksum that goes on from `crc`, where it is wanted."""

    @abstractmethod
    def put(self, name: str, at: int, data: NDArray[np.uint8]) -> None:
        """Write bytes at a place of one of the large files."""

    @abstractmethod
    def heap(self, chunk: int, schema: pa.Schema) -> Any:
        """Open a chunk's heap: an object with ``write(batch)``, ``close()`` and then ``crc`` and ``num_bytes``."""


def write_chunk(spec: StoreSpec, chunk: int, batches: Iterable[pa.RecordBatch], sink: Sink) -> Part:
    """Write one chunk.

    Args:
        spec: of the store.
        chunk: its number.
        batches: its live rows.
        sink: takes them.

    Raises:
        TableError: there are other rows than were counted.
        StorageError: the disk is full.
    """
    layout, start = spec.layout, spec.chunk_starts[chunk]
    crcs = {RECORDS: 0, NULLS: 0, IDS: 0}
    null_columns: set[int] = set()
    rows, any_null = 0, False
    heap = sink.heap(chunk, layout.heap_schema) if layout.heap else None

    def put(name: str, row: int, data: NDArray[np.uint8]) -> None:
        if sink.checked:
            crcs[name] = zlib.crc32(data.data, crcs[name])
        sink.put(name, row * data.shape[1], data)

    try:
        for batch in batches:
            count = batch.num_rows
            _check_count(spec, chunk, rows + count, most=True)
            encoded = layout.encode(batch)
            crcs[RECORDS] = sink.records(start + rows, encoded, crcs[RECORDS])
            if encoded.nulls is not None:
                any_null = True
                null_columns |= encoded.null_columns
                put(NULLS, start + rows, encoded.nulls)
            elif sink.checked:
                crcs[NULLS] = zlib.crc32(bytes(count * layout.null_width), crcs[NULLS])
            if spec.keeps_ids:
                ids = batch.column(ROW_ID).to_numpy(zero_copy_only=False).astype("<i8", copy=False)
                put(IDS, start + rows, ids.view(np.uint8).reshape(count, 8))
            if heap is not None:
                heap.write(layout.heap_of(batch))
            rows += count
        _check_count(spec, chunk, rows, most=False)
    finally:
        if heap is not None:
            heap.close(whole=rows == spec.chunk_rows[chunk])
    return Part(
        rows,
        crcs[RECORDS],
        crcs[NULLS] if any_null else None,
        crcs[IDS] if spec.keeps_ids else None,
        None if heap is None else heap.crc,
        0 if heap is None else heap.num_bytes,
        tuple(sorted(null_columns)),
    )


def _check_count(spec: StoreSpec, chunk: int, rows: int, *, most: bool) -> None:
    wanted = spec.chunk_rows[chunk]
    if rows > wanted or (rows < wanted and not most):
        raise TableError(
            f"chunk {chunk} of the row store must have {wanted} live rows, as was counted, got {rows}"
            f"{' or more' if most else ''}; the table or its plan_cache changed: build the loader again"
        )


class FileSink(Sink):
    """Writes to the files of a store; threads may share it."""

    checked = True

    def __init__(self, place: Path) -> None:
        """Open nothing yet.

        Args:
            place: the store's folder; its large files are there, at their full length.
        """
        self._place = place
        self._files: dict[str, int] = {}
        for name in (RECORDS, NULLS, IDS):
            with suppress(FileNotFoundError):
                self._files[name] = open_regular(place / name, os.O_WRONLY)

    def records(self, row: int, encoded: Encoded, crc: int) -> int:
        """Write records; see `Sink`."""
        for at, block in encoded.blocks():
            crc = zlib.crc32(block.data, crc)
            self.put(RECORDS, (row + at) * block.shape[1], block)
        return crc

    def put(self, name: str, at: int, data: NDArray[np.uint8]) -> None:
        """Write bytes; see `Sink`."""
        view = data.reshape(-1).data
        with naming_disk_errors(self._place):
            while view:
                written = os.pwrite(self._files[name], view, at)
                view, at = view[written:], at + written

    def heap(self, chunk: int, schema: pa.Schema) -> _HeapFile:
        """Open a heap; see `Sink`."""
        return _HeapFile(self._place / heap_file(chunk), schema)

    def sync(self) -> None:
        """Flush what was written to the disk."""
        for file in self._files.values():
            with naming_disk_errors(self._place):
                os.fsync(file)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()


@contextmanager
def naming_disk_errors(place: Path) -> Iterator[None]:
    """Turn errors of the disk into ones that name the store's folder, and what can be done."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = (
            "make room, or pass row_store= another folder; what is built stays, and the next build goes on there"
            if full
            else "pass row_store= a folder that can be written"
        )
        what = "the disk is full" if full else "it cannot be written"
        kind = store_error_type(error, missing=StorageError)
        raise kind(f"building the row store in {str(place)!r}: {what} ({error}); {remedy}") from error


class _HeapFile:
    """A chunk's heap: an Arrow IPC file that gets its name when it is whole."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._open = ExitStack()
        self.crc, self.num_bytes = 0, 0
        with naming_disk_errors(path.parent):
            self._unfinished, self._file = self._open.enter_context(new_file(path))
        self._writer = pa.ipc.new_file(pa.PythonFile(self, mode="w"), schema)

    closed = False

    def write(self, data: Any) -> int:
        """Write a record batch of the store's, or bytes of Arrow's writer."""
        if isinstance(data, pa.RecordBatch):
            with naming_disk_errors(self._path.parent):
                self._writer.write_batch(data)
            return 0
        self.crc = zlib.crc32(data, self.crc)
        self.num_bytes += len(data)
        return self._file.write(data)

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self.num_bytes

    def flush(self) -> None:
        """Arrow calls this."""
        self._file.flush()

    def close(self, *, whole: bool) -> None:
        """Finish the file and name it, or drop it."""
        try:
            if whole:
                with naming_disk_errors(self._path.parent):
                    self._writer.close()
                    self._file.flush()
                    os.fsync(self._file.fileno())
                    self._unfinished.replace(self._path)
        finally:
            with suppress(OSError):
                self._open.close()


class MemorySink(Sink):
    """Keeps what it is given; threads may share it."""

    checked = False

    def __init__(self, spec: StoreSpec) -> None:
        """Reserve memory for the records.

        Args:
            spec: of the store.
        """
        self.memory = np.empty((spec.num_rows, spec.layout.width), dtype=np.uint8)
        self.ids = np.empty(spec.num_rows if spec.keeps_ids else 0, dtype="<i8")
        self.nulls: NDArray[np.uint8] | None = None
        self.heaps: dict[int, list[pa.RecordBatch]] = {}
        self._null_bytes = spec.num_rows * spec.layout.null_width

    def records(self, row: int, encoded: Encoded, crc: int) -> int:
        """Write records where they stay; see `Sink`."""
        encoded.fill(self.memory[row : row + encoded.num_rows])
        return crc

    def put(self, name: str, at: int, data: NDArray[np.uint8]) -> None:
        """Copy bytes; see `Sink`."""
        if name == NULLS and self.nulls is None:
            self.nulls = np.zeros(self._null_bytes, dtype=np.uint8)
        into = self.nulls if name == NULLS else self.ids.view(np.uint8)
        assert into is not None  # noqa: S101 made above
        into[at : at + data.size] = data.reshape(-1)

    def heap(self, chunk: int, schema: pa.Schema) -> _HeapList:  # noqa: ARG002
        """Open a heap; see `Sink`."""
        self.heaps[chunk] = []
        return _HeapList(self.heaps[chunk])


class _HeapList:
    crc, num_bytes = 0, 0

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        self._batches = batches

    def write(self, batch: pa.RecordBatch) -> None:
        """Keep a record batch."""
        self._batches.append(batch)
        self.num_bytes += batch.nbytes

    def close(self, *, whole: bool) -> None:
        """Nothing to do."""
