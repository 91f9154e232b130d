"""Writes chunks: each record at its own position in one file, or in memory."""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import xxhash
from typing_extensions import override

from torch_table_loader.causes import store_error_type
from torch_table_loader.errors import StorageError, TableError
from torch_table_loader.local_files import new_file, open_regular
from torch_table_loader.records import ROW_ID
from torch_table_loader.store.coded_strings import ChunkStrings, EncodedBatches
from torch_table_loader.store.record_layout import (
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

ReadChunk = Callable[[int], Iterable[pa.RecordBatch]]
"""Reads the live rows of a chunk, in row order: the columns, then (if the store keeps ids) the column ``row_id``."""


class Sink(ABC):
    """The destination of a store's chunks; threads may share it."""

    @abstractmethod
    def put(self, name: str, at: int, data: NDArray[np.uint8]) -> None:
        """Write bytes at a position in one of the large files."""

    @abstractmethod
    def heap(self, chunk: int, schema: pa.Schema) -> ChunkFile | _ChunkList:
        """Open a chunk's heap, for record batches."""

    @abstractmethod
    def values(self, chunk: int) -> ChunkFile | _ChunkList:
        """Open the values of a chunk's lists, for records of values."""


def write_chunk(spec: StoreSpec, chunk: int, batches: Iterable[pa.RecordBatch], sink: Sink) -> Part:
    """Write one chunk."""
    layout = spec.layout
    heap: ChunkFile | _ChunkList | None = None
    values: ChunkFile | _ChunkList | None = None
    if layout.heap:
        heap = sink.heap(chunk, layout.heap_schema)
    if layout.flat:
        values = sink.values(chunk)
    with heap or nullcontext(), values or nullcontext():
        shared = _SharedFiles(spec, chunk, sink)
        for batch in batches:
            _check_count(spec, chunk, shared.rows + batch.num_rows, most=True)
            if heap is not None:
                heap.write(layout.heap_of(batch))
            shared.write(batch, values)
        _check_count(spec, chunk, shared.rows, most=False)
    sums = {
        name: checksum.intdigest() for name, checksum in shared.sums.items() if name != NULLS or shared.null_columns
    }
    heap_bytes = num_values = 0
    if heap is not None:
        sums[heap_file(chunk)], heap_bytes = heap.checksum, heap.num_bytes
    if values is not None:
        sums[values_file(chunk)] = values.checksum
        num_values = values.num_bytes // layout.value_dtype.itemsize
    return Part(shared.rows, sums, heap_bytes, num_values, tuple(sorted(shared.null_columns)))


class _SharedFiles:
    """A chunk's part of the files that all chunks are written to."""

    def __init__(self, spec: StoreSpec, chunk: int, sink: Sink) -> None:
        self.rows = 0
        self.sums = {name: xxhash.xxh3_64() for name in spec.row_widths if name != WIDE_LENGTHS}
        self.null_columns: set[int] = set()
        self._spec, self._start, self._sink = spec, spec.chunk_starts[chunk], sink

    def write(self, batch: pa.RecordBatch, values: ChunkFile | _ChunkList | None) -> None:
        """Write the next rows; values of flat lists go to a file of the chunk's own."""
        layout = self._spec.layout
        columns, nulls, null_columns = layout.encode(batch)
        for row, block in layout.blocks(columns, batch.num_rows):
            self._put(RECORDS, row, block)
        if nulls is None:
            self.sums[NULLS].update(bytes(batch.num_rows * layout.null_width))
        else:
            self.null_columns |= null_columns
            self._put(NULLS, 0, nulls)
        if self._spec.keeps_ids:
            ids = batch.column(ROW_ID).to_numpy(zero_copy_only=False).astype("<i8", copy=False)
            self._put(IDS, 0, ids.view(np.uint8).reshape(-1, 8))
        if values is not None:
            lengths, elements = layout.flat_of(batch)
            self._put(WIDE_LENGTHS, 0, lengths)
            values.write(elements)
        self.rows += batch.num_rows

    def _put(self, name: str, row: int, data: NDArray[np.uint8]) -> None:
        if name in self.sums:
            self.sums[name].update(data.data)
        self._sink.put(name, (self._start + self.rows + row) * data.shape[1], data)


def _check_count(spec: StoreSpec, chunk: int, rows: int, *, most: bool) -> None:
    wanted = spec.chunk_rows[chunk]
    if rows > wanted or (rows < wanted and not most):
        raise TableError(
            f"chunk {chunk} of the row store must have {wanted} live rows, as was counted, got {rows}"
            f"{' or more' if most else ''}; the table or its plan_cache changed: build the loader again"
        )


class FileSink(Sink):
    """Writes to the files of a store."""

    def __init__(self, place: Path, spec: StoreSpec) -> None:
        """Open the large files in a store's folder; they have their full length already."""
        self._place = place
        self._files: dict[str, int] = {}
        self._differing: set[str] = set()
        for name in spec.row_widths:
            with suppress(FileNotFoundError):
                self._files[name] = open_regular(place / name, os.O_WRONLY)

    @override
    def put(self, name: str, at: int, data: NDArray[np.uint8]) -> None:
        view = data.reshape(-1).data
        with naming_disk_errors(self._place):
            while view:
                written = os.pwrite(self._files[name], view, at)
                view, at = view[written:], at + written

    @override
    def heap(self, chunk: int, schema: pa.Schema) -> _HeapFile:
        return _HeapFile(self._place, chunk, schema, ChunkStrings(self._differing))

    @override
    def values(self, chunk: int) -> ChunkFile:
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
        what, remedy = "it cannot be written", "pass row_store= a folder that can be written"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what = "the disk is full"
            remedy = "make room, or pass row_store= another folder; what is built stays, and the next build continues"
            remedy += " from there"
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
        """Finish the file and name it, or drop it if the block raised."""
        try:
            if raised is None:
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

    @override
    def write(self, data: Any) -> int:
        if isinstance(data, pa.RecordBatch):
            self._strings.add(data)
        return super().write(data)

    @override
    def __exit__(self, raised: object, *rest: object) -> None:
        super().__exit__(raised, *rest)
        if raised is not None or not (found := self._strings.finish()[0]):
            return
        table = pa.table({name: pa.chunked_array(parts) for name, parts in found.items()})
        with ArrowFile(self._codes_path, table.schema) as file:
            for batch in table.to_batches():
                file.write(batch)


class MemorySink(Sink):
    """Keeps what is written in memory."""

    def __init__(self, spec: StoreSpec) -> None:
        self.files = {
            name: (np.zeros if name == NULLS else np.empty)(width * spec.num_rows, np.uint8)
            for name, width in spec.row_widths.items()
        }
        self.heaps: dict[int, list[pa.RecordBatch]] = {}
        self.flat: dict[int, list[NDArray[Any]]] = {}
        self._differing: set[str] = set()

    @override
    def put(self, name: str, at: int, data: NDArray[np.uint8]) -> None:
        self.files[name][at : at + data.size] = data.reshape(-1)

    @override
    def heap(self, chunk: int, schema: pa.Schema) -> _ChunkList:
        encoded = EncodedBatches(self._differing)
        return _ChunkList(self.heaps, chunk, encoded.add, encoded.finish)

    @override
    def values(self, chunk: int) -> _ChunkList:
        parts: list[NDArray[Any]] = []
        return _ChunkList(self.flat, chunk, parts.append, lambda: parts)


class _ChunkList:
    """What would be a file of a chunk: a list in memory."""

    checksum = num_bytes = 0

    def __init__(
        self,
        chunks: dict[int, list[Any]],
        chunk: int,
        write: Callable[[Any], None],
        finish: Callable[[], list[Any]],
    ) -> None:
        self._chunks, self._chunk, self._finish = chunks, chunk, finish
        self.write = write
        """Keeps a record batch or an array."""

    def __enter__(self) -> Self:
        """Return the list."""
        return self

    def __exit__(self, raised: object, *rest: object) -> None:
        """Bring what was written to its form in memory, and keep it under its chunk's number."""
        if raised is None:
            self._chunks[self._chunk] = parts = self._finish()
            self.num_bytes = sum(part.nbytes for part in parts)
