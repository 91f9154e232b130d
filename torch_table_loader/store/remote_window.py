"""Rows of a remote store that are wanted together: the bytes of all its files are requested, then gathered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from torch_table_loader.planning.ranges import coalesce, joined
from torch_table_loader.planning.requests import Range
from torch_table_loader.records import DataFile, FileNeeds, FileVersion
from torch_table_loader.sizes import sizes
from torch_table_loader.store.coded_strings import CodedStrings
from torch_table_loader.store.gather import StoredRows
from torch_table_loader.store.list_values import ListValues, StoredLists
from torch_table_loader.store.opened import compare, heap_batches
from torch_table_loader.store.spec import CODES, IDS, NULLS, RECORDS, heap_file, values_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.document_lengths import DocumentLengths
    from torch_table_loader.store.list_values import Spans
    from torch_table_loader.store.manifest import Manifest
    from torch_table_loader.store.origin import Origin

    Ints: TypeAlias = NDArray[np.int64]


_NO_BYTES = np.empty(0, dtype=np.uint8)


class FileParts(Protocol):
    """Parts of a file that were requested, and are taken in order."""

    def read(self, start: int, stop: int) -> Any:
        """Wait for bytes of the parts, and return them. Raises TableError or StorageError."""
        ...

    def close(self) -> None:
        """Release them, and cancel pending requests; `read` raises from now on."""
        ...


class PartsReader(Protocol):
    """Requests parts of the files of a store; threads share it."""

    def expect(self, needs: FileNeeds, rows_before: int) -> FileParts:
        """Request parts of a file.

        Args:
            needs: the parts; each of its groups has one range, which is one request.
            rows_before: rows that are delivered before them: earlier rows are fetched earlier.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class RemoteFiles:
    """The files of a store at a URL.

    Args:
        root: its folder, as the storage names it.
        versions: versions of its files when the store was opened.
    """

    root: str
    manifest: Manifest
    versions: Mapping[str, FileVersion]
    origin: Origin

    def come_whole(self, rows: int) -> bool:
        """Return whether so many scattered rows take nearly all of the store, so that more rows would cost no more."""
        layout = self.manifest.layout
        if self.manifest.heap_names:
            return rows >= len(self.manifest.parts)
        values = int(self.manifest.value_starts[-1]) * layout.value_dtype.itemsize
        return rows * sizes().far_gap_bytes >= max(self.manifest.files[RECORDS][0], values)

    def whole(self, reader: PartsReader, name: str) -> FileParts:
        """Request a whole file, before everything else."""
        return self.expect(reader, name, _requests(0, self.manifest.files[name][0]), 0)

    def expect(self, reader: PartsReader, name: str, parts: Sequence[Range], rows_before: int) -> FileParts:
        """Request parts of a file."""
        path = f"{self.root}/{name}"
        file = DataFile(path, path, self.versions[name], "row store")
        return reader.expect(FileNeeds(file, tuple((part,) for part in parts)), rows_before)


class Records:
    """Requested records of one file; neighbors share a request."""

    def __init__(
        self, files: RemoteFiles, name: str, width: int, wanted: Ints, reader: PartsReader, before: int
    ) -> None:
        """Request the records.

        Args:
            width: bytes of a record.
            wanted: int64[n], n ≥ 1, ascending.
            before: rows that are delivered before them.
        """
        self._wanted, self._width = wanted, width
        gap, most = sizes().far_gap_bytes // width, max(1, sizes().far_request_bytes // width)
        self._ranges = coalesce(wanted, gap, most)
        starts, stops = (self._ranges.first * width).tolist(), (self._ranges.stop * width).tolist()
        self._ends: list[Range] = list(zip(starts, stops, strict=True))
        self._parts = files.expect(reader, name, self._ends, before)

    def take(self) -> NDArray[np.uint8]:
        """Wait for the records, part by part, and release each part: uint8[n, width]."""
        ranges = self._ranges
        out = np.empty((len(self._wanted), self._width), dtype=np.uint8)
        flat = out.view(f"V{self._width}").reshape(-1)
        with closing(self):
            for number, (begin, end) in enumerate(pairwise(ranges.bounds.tolist())):
                data = np.frombuffer(self._parts.read(*self._ends[number]), dtype=flat.dtype)
                np.take(data, self._wanted[begin:end] - ranges.first[number], out=flat[begin:end], mode="clip")
        return out

    def close(self) -> None:
        """Release them."""
        self._parts.close()


class _Heap:
    """Rows of a chunk's heap: the whole file is requested and checked, and the wanted rows are kept."""

    def __init__(self, files: RemoteFiles, chunk: int, rows: Ints, reader: PartsReader, before: int) -> None:
        self._rows, self._chunk, self._files = rows, chunk, files
        self._size = files.manifest.parts[chunk].heap_bytes
        self._parts = files.expect(reader, heap_file(chunk), _requests(0, self._size), before)

    def take(self) -> list[pa.RecordBatch]:
        manifest, origin, chunk = self._files.manifest, self._files.origin, self._chunk
        with closing(self):
            data = self._parts.read(0, self._size)
            compare([manifest.heap_sum(chunk)], {heap_file(chunk): data}, origin)
            table = pa.Table.from_batches(heap_batches(manifest, chunk, data, origin))
            batches: list[pa.RecordBatch] = table.take(pa.array(self._rows)).combine_chunks().to_batches()
            return batches

    def close(self) -> None:
        self._parts.close()


class _Values:
    """Stretches of flat lists; stretches near each other share a request."""

    def __init__(self, files: RemoteFiles, spans: Spans, reader: PartsReader, before: int) -> None:
        self._dtype = files.manifest.layout.value_dtype
        starts, size = files.manifest.value_starts, self._dtype.itemsize
        some = spans.start < spans.stop
        start, stop = spans.start[some], spans.stop[some]
        chunks = np.searchsorted(starts, start, side="right") - 1
        self.first, stop = joined(start, stop, sizes().far_gap_bytes // size, chunks)
        chunks = np.searchsorted(starts, self.first, side="right") - 1
        begins, ends = (self.first - starts[chunks]) * size, (stop - starts[chunks]) * size
        self._ends: list[Range] = list(zip(begins.tolist(), ends.tolist(), strict=True))
        self.names = [values_file(chunk) for chunk in chunks.tolist()]
        """The file of each stretch."""
        self._parts: list[FileParts] = []
        bounds = np.flatnonzero(np.diff(chunks, prepend=-1, append=-1)).tolist()
        for first, last in pairwise(bounds):
            asked = [part for ends in self._ends[first:last] for part in _requests(*ends)]
            parts = files.expect(reader, values_file(int(chunks[first])), asked, before)
            self._parts += [parts] * (last - first)

    def take(self) -> list[NDArray[Any]]:
        """Wait for the values, and return those of each stretch."""
        with closing(self):
            return [
                np.frombuffer(parts.read(*ends), dtype=self._dtype).copy()
                for parts, ends in zip(self._parts, self._ends, strict=True)
            ]

    def close(self) -> None:
        """Release them."""
        for parts in self._parts:
            parts.close()


def _requests(start: int, stop: int) -> list[Range]:
    return list(pairwise([*range(start, stop, sizes().far_request_bytes), stop]))


class Window:
    """Rows whose bytes were requested: records, nulls, row ids, codes, heaps and lists together."""

    def __init__(
        self, files: RemoteFiles, places: Ints, reader: PartsReader, rows_before: int, spans: Spans | None = None
    ) -> None:
        """Request the rows.

        Args:
            places: int64[n]; a row may be wanted more than once.
            rows_before: rows that are delivered before them.
            spans: the wanted parts of flat lists; None for nothing.
        """
        self._wanted, self.local = np.unique(places, return_inverse=True)
        """Where each place is among the rows that are gathered."""
        self._files = files
        self._manifest = files.manifest
        self._layout = files.manifest.layout
        widths = {
            RECORDS: self._layout.width,
            NULLS: self._layout.null_width,
            IDS: 8,
            CODES: self._manifest.codes_width,
        }
        self._records = {
            name: Records(files, name, width, self._wanted, reader, rows_before)
            for name, width in widths.items()
            if len(self._wanted) and width and name in files.manifest.files
        }
        self._heaps: list[_Heap] = []
        if self._manifest.heap_names:
            starts = np.cumsum([0, *(part.rows for part in files.manifest.parts)])
            ends = np.searchsorted(self._wanted, starts)
            self._heaps += (
                _Heap(files, chunk, self._wanted[ends[chunk] : ends[chunk + 1]] - starts[chunk], reader, rows_before)
                for chunk in np.flatnonzero(np.diff(ends)).tolist()
            )
        self._values = None if spans is None else _Values(files, spans, reader, rows_before)

    def gather(
        self, lengths: DocumentLengths | None = None, words: Sequence[pa.Array] = (), *, whole: bool = False
    ) -> StoredRows:
        """Wait for the rows, and return them without duplicates, ordered by place.

        Args:
            lengths: the lengths of the lists of all rows of the store, if parts of lists were requested.
            words: the distinct strings of the columns that the store has codes of.
            whole: whether these are all rows and lists of the store, whose checksums are then compared.

        Raises:
            TableError: a file of the store is missing, changed or damaged.
            StorageError: the store failed, or nobody wants the rows any more.
        """
        manifest, coded, origin = self._files.manifest, self._files.manifest.codes, self._files.origin
        with closing(self):
            taken = {name: records.take() for name, records in self._records.items()}
            heap = [batch for chunk in self._heaps for batch in chunk.take()]
            values = [] if self._values is None else self._values.take()
        if whole:
            named = {} if self._values is None else dict(zip(self._values.names, values, strict=True))
            files = {name: data.reshape(-1).view(np.uint8) for name, data in (taken | named).items()}
            compare([part for part in manifest.sums if part.name in files], files, origin)
        width, rows = self._layout.width, len(self._wanted)
        records = taken.get(RECORDS, np.empty((rows, width), dtype=np.uint8)).reshape(-1)
        ids = self._wanted if IDS not in manifest.files else taken.get(IDS, _NO_BYTES).view("<i8").reshape(-1)
        nulls = taken.get(NULLS, np.empty((rows, self._layout.null_width), dtype=np.uint8))
        strings, lists = None, None
        if coded is not None:
            codes = taken.get(CODES, _NO_BYTES).view("<i4").reshape(-1, len(coded.columns))
            strings = CodedStrings(coded.columns, codes, tuple(words), coded.nullable, origin)
        if lengths is not None and self._values is not None:
            lists = StoredLists(lengths, ListValues(self._values.first, values))
        return StoredRows(
            self._layout,
            records.view(f"V{width}") if width else records,
            nulls if NULLS in manifest.files else None,
            manifest.null_columns,
            ids,
            heap,
            rows,
            lists=lists,
            strings=strings,
        )

    def close(self) -> None:
        """Release what is not gathered; `gather` then raises StorageError. Any thread may call it."""
        for records in self._records.values():
            records.close()
        for heap in self._heaps:
            heap.close()
        if self._values is not None:
            self._values.close()
