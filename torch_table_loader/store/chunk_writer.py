"""Writes chunks: each record at its own position in one file, or in memory."""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import xxhash

from torch_table_loader.arrow.reserved import ROW_ID
from torch_table_loader.causes import store_error_type
from torch_table_loader.errors import StorageError, TableError
from torch_table_loader.local_files import new_file, open_regular
from torch_table_loader.store.coded_strings import ChunkStrings, StringEncoder
from torch_table_loader.store.spec import (
    IDS,
    NULLS,
    RECORDS,
    WIDE_LENGTHS,
    Part,
    StoreSpec,
    chunk_codes_file,
    heap_file,
    values_file,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.store.record_layout import Encoded

ReadChunk = Callable[[int], Iterable[pa.RecordBatch]]
"""Reads the live rows of a chunk, in row order: the columns, then (if the store keeps ids) the column ``row_id``."""


class Sink(ABC):
    """The destination of a chunk's parts."""

    checked: bool
    """Whether checksums are computed."""

    @abstractmethod
    def records(self, row: int, encoded: Encoded, checksum: xxhash.xxh3_64) -> None:
        """Write records from a row on, and add them to the checksum, if it is computed."""

    @abstractmethod
    def put(self, name: str, at: int, data: NDArray[np.uint8]) -> None:
        """Write bytes at a position in one of the large files."""

    @abstractmethod
    def heap(self, chunk: int, schema: pa.Schema) -> Any:
        """Open a chunk's heap: an object with ``write(batch)``, ``close()``, then ``checksum`` and ``num_bytes``."""

    @abstractmethod
    def values(self, chunk: int) -> Any:
        """Open the values of a chunk's lists: an object as of `heap`, whose ``write`` takes records of values."""


def write_chunk(spec: StoreSpec, chunk: int, batches: Iterable[pa.RecordBatch], sink: Sink) -> Part:
    """Write one chunk.

    Raises:
        TableError: the rows differ from what was counted.
        StorageError: the disk is full.
    """
    writer = _ChunkWriter(spec, chunk, sink)
    try:
        for batch in batches:
            writer.add(batch)
        _check_count(spec, chunk, writer.rows, most=False)
    finally:
        writer.close()
    return writer.part


class _ChunkWriter:
    """Writes one chunk; see `write_chunk`."""

    def __init__(self, spec: StoreSpec, chunk: int, sink: Sink) -> None:
        layout = spec.layout
        self.rows = 0
        self._spec, self._layout, self._chunk, self._sink = spec, layout, chunk, sink
        self._sums = {name: xxhash.xxh3_64() for name in (RECORDS, NULLS, IDS)}
        self._null_columns: set[int] = set()
        self._any_null = False
        self._open = ExitStack()
        self._heap = self._closed_later(sink.heap(chunk, layout.heap_schema)) if layout.heap else None
        self._values = self._closed_later(sink.values(chunk)) if layout.flat else None

    def _closed_later(self, file: Any) -> Any:
        self._open.callback(lambda: file.close(whole=self.rows == self._spec.chunk_rows[self._chunk]))
        return file

    def add(self, batch: pa.RecordBatch) -> None:
        """Write the next rows."""
        layout, count, sums = self._layout, batch.num_rows, self._sums
        _check_count(self._spec, self._chunk, self.rows + count, most=True)
        row = self._spec.chunk_starts[self._chunk] + self.rows
        encoded = layout.encode(batch)
        self._sink.records(row, encoded, sums[RECORDS])
        if encoded.nulls is not None:
            self._any_null = True
            self._null_columns |= encoded.null_columns
            self._put(NULLS, row, encoded.nulls)
        elif self._sink.checked:
            sums[NULLS].update(bytes(count * layout.null_width))
        if self._spec.keeps_ids:
            ids = batch.column(ROW_ID).to_numpy(zero_copy_only=False).astype("<i8", copy=False)
            self._put(IDS, row, ids.view(np.uint8).reshape(count, 8))
        if self._heap is not None:
            self._heap.write(layout.heap_of(batch))
        if self._values is not None:
            lengths, values = layout.flat_of(batch)
            self._put(WIDE_LENGTHS, row, lengths)
            self._values.write(values)
        self.rows += count

    def _put(self, name: str, row: int, data: NDArray[np.uint8]) -> None:
        if self._sink.checked and name in self._sums:
            self._sums[name].update(data.data)
        self._sink.put(name, row * data.shape[1], data)

    def close(self) -> None:
        """Finish the chunk's own files if all its rows were written, else drop them."""
        self._open.close()

    @property
    def part(self) -> Part:
        """The description of what was written."""
        sums = {name: checksum.intdigest() for name, checksum in self._sums.items()}
        heap, values = self._heap, self._values
        return Part(
            self.rows,
            sums[RECORDS],
            sums[NULLS] if self._any_null else None,
            sums[IDS] if self._spec.keeps_ids else None,
            None if heap is None else heap.checksum,
            0 if heap is None else heap.num_bytes,
            tuple(sorted(self._null_columns)),
            None if values is None else values.checksum,
            0 if values is None else values.num_bytes // self._layout.value_dtype.itemsize,
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
        """Start without open files.

        Args:
            place: the store's folder; it contains the large files, at their full length.
        """
        self._place = place
        self._files: dict[str, int] = {}
        self._differing: set[str] = set()
        for name in (RECORDS, NULLS, IDS, WIDE_LENGTHS):
            with suppress(FileNotFoundError):
                self._files[name] = open_regular(place / name, os.O_WRONLY)

    def records(self, row: int, encoded: Encoded, checksum: xxhash.xxh3_64) -> None:
        """Write records; see `Sink`."""
        for at, block in encoded.blocks():
            checksum.update(block.data)
            self.put(RECORDS, (row + at) * block.shape[1], block)

    def put(self, name: str, at: int, data: NDArray[np.uint8]) -> None:
        """Write bytes; see `Sink`."""
        view = data.reshape(-1).data
        with naming_disk_errors(self._place):
            while view:
                written = os.pwrite(self._files[name], view, at)
                view, at = view[written:], at + written

    def heap(self, chunk: int, schema: pa.Schema) -> _HeapFile:
        """Open a heap; see `Sink`."""
        return _HeapFile(self._place, chunk, schema, ChunkStrings(self._differing))

    def values(self, chunk: int) -> ChunkFile:
        """Open a file of values; see `Sink`."""
        return ChunkFile(self._place / values_file(chunk))

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
    """Turn disk errors into errors that name the store's folder and a remedy."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = (
            "make room, or pass row_store= another folder; what is built stays, and the next build continues from there"
            if full
            else "pass row_store= a folder that can be written"
        )
        what = "the disk is full" if full else "it cannot be written"
        kind = store_error_type(error, missing=StorageError)
        raise kind(f"building the row store in {str(place)!r}: {what} ({error}); {remedy}") from error


class ChunkFile:
    """A file that gets its name when it is complete, such as at the end of a ``with`` block that raises nothing."""

    def __init__(self, path: Path) -> None:
        """Open the file under another name."""
        self._path = path
        self._open = ExitStack()
        self._sum, self.num_bytes = xxhash.xxh3_64(), 0
        with naming_disk_errors(path.parent):
            self._unfinished, self._file = self._open.enter_context(new_file(path))

    def write(self, data: Any) -> int:
        """Write the bytes of an array or of Arrow's writer."""
        view = data.view(np.uint8).data if isinstance(data, np.ndarray) else memoryview(data)
        with naming_disk_errors(self._path.parent):
            self._file.write(view)
        self._sum.update(view)
        self.num_bytes += view.nbytes
        return view.nbytes

    @property
    def checksum(self) -> int:
        """The XXH3 hash of what was written."""
        return int(self._sum.intdigest())

    def __enter__(self) -> Self:
        """Return the file."""
        return self

    def __exit__(self, raised: object, *rest: object) -> None:
        """Finish the file, or drop it if the block raised."""
        self.close(whole=raised is None)

    def close(self, *, whole: bool) -> None:
        """Finish the file and name it, or drop it."""
        try:
            if whole:
                with naming_disk_errors(self._path.parent):
                    self._finish()
                    self._file.flush()
                    os.fsync(self._file.fileno())
                    self._unfinished.replace(self._path)
        finally:
            with suppress(OSError):
                self._open.close()

    def _finish(self) -> None:
        """Write the end of the file."""


class ArrowFile(ChunkFile):
    """An Arrow IPC file."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        """Open the file, for record batches of a schema."""
        super().__init__(path)
        self._writer = pa.ipc.new_file(pa.PythonFile(self, mode="w"), schema)

    closed = False

    def write(self, data: Any) -> int:
        """Write a record batch, or bytes of Arrow's writer."""
        if not isinstance(data, pa.RecordBatch):
            return super().write(data)
        with naming_disk_errors(self._path.parent):
            self._writer.write_batch(data)
        return 0

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.num_bytes

    def flush(self) -> None:
        """Do nothing; Arrow calls this."""
        self._file.flush()

    def _finish(self) -> None:
        self._writer.close()


class _HeapFile(ArrowFile):
    """A chunk's heap, and the codes of the strings in it that repeat."""

    def __init__(self, place: Path, chunk: int, schema: pa.Schema, strings: ChunkStrings) -> None:
        super().__init__(place / heap_file(chunk), schema)
        self._codes_path = place / chunk_codes_file(chunk)
        self._strings = strings

    def write(self, data: Any) -> int:
        """Write a record batch of the store, or bytes of Arrow's writer."""
        if isinstance(data, pa.RecordBatch):
            self._strings.add(data)
        return super().write(data)

    def close(self, *, whole: bool) -> None:
        """Finish the heap, and write the codes beside it; see `ChunkFile`."""
        super().close(whole=whole)
        found = self._strings.finish() if whole else {}
        if not found:
            return
        table = pa.table({name: pa.chunked_array(parts) for name, parts in found.items()})
        with ArrowFile(self._codes_path, table.schema) as file:
            for batch in table.to_batches():
                file.write(batch)


class MemorySink(Sink):
    """Keeps what is written in memory; threads may share it."""

    checked = False

    def __init__(self, spec: StoreSpec) -> None:
        self.memory = np.empty((spec.num_rows, spec.layout.width), dtype=np.uint8)
        self.ids = np.empty(spec.num_rows if spec.keeps_ids else 0, dtype="<i8")
        self.lengths = np.empty(spec.num_rows if spec.flat else 0, dtype="<u4")
        self.nulls = np.zeros(spec.num_rows * spec.layout.null_width, dtype=np.uint8)
        self.heaps: dict[int, list[pa.RecordBatch]] = {}
        self.flat: dict[int, list[NDArray[Any]]] = {}
        self.strings = StringEncoder()

    def records(self, row: int, encoded: Encoded, checksum: xxhash.xxh3_64) -> None:  # noqa: ARG002
        """Write records to their final place; see `Sink`."""
        encoded.fill(self.memory[row : row + encoded.num_rows])

    def put(self, name: str, at: int, data: NDArray[np.uint8]) -> None:
        """Copy bytes; see `Sink`."""
        into = {NULLS: self.nulls, IDS: self.ids.view(np.uint8), WIDE_LENGTHS: self.lengths.view(np.uint8)}[name]
        into[at : at + data.size] = data.reshape(-1)

    def heap(self, chunk: int, schema: pa.Schema) -> _ChunkList:  # noqa: ARG002
        """Open a heap; see `Sink`."""
        self.heaps[chunk] = []
        return _ChunkList(self.heaps[chunk], self.strings.encode)

    def values(self, chunk: int) -> _ChunkList:
        """Open a list of values; see `Sink`."""
        self.flat[chunk] = []
        return _ChunkList(self.flat[chunk], list)


class _ChunkList:
    checksum, num_bytes = 0, 0

    def __init__(self, parts: list[Any], form: Callable[[list[Any]], list[Any]]) -> None:
        self._parts, self._form = parts, form

    def write(self, part: Any) -> None:
        """Keep a record batch or an array."""
        self._parts.append(part)

    def close(self, *, whole: bool) -> None:
        """Convert complete content to its form in memory."""
        if whole:
            self._parts[:] = self._form(self._parts)
            self.num_bytes = sum(part.nbytes for part in self._parts)
