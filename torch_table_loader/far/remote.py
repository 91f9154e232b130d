"""A store at a URL: the records of a window of the order are sorted, and neighbors are read with one request."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from torch_table_loader.cached import cached_property
from torch_table_loader.cancellation import Threads, result_of
from torch_table_loader.errors import TableError
from torch_table_loader.forks import OfProcess
from torch_table_loader.local_files import make_folder, read_regular
from torch_table_loader.planning.record_ranges import coalesce, in_windows, joined
from torch_table_loader.ranges import FileParts, Range
from torch_table_loader.records import DataFile, FileNeeds
from torch_table_loader.sizes import sizes
from torch_table_loader.store.gather import ListValues, Spans, StoredRows
from torch_table_loader.store.leases import Leases
from torch_table_loader.store.manifest import Manifest, check_fits, parse_manifest, read_manifest
from torch_table_loader.store.opened import compare, heap_batches, lengths_of, stored_rows, words_of
from torch_table_loader.store.record_layout import (
    IDS,
    LENGTHS,
    MANIFEST,
    RECORDS,
    WORDS,
    Origin,
    StoreSpec,
    heap_file,
    values_file,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.contracts import PartStorage
    from torch_table_loader.planning.lists import ListLengths, PlacedLists
    from torch_table_loader.ranges import OpenReader, PartsReader
    from torch_table_loader.store.record_layout import RecordLayout

    Ints: TypeAlias = NDArray[np.int64]

T = TypeVar("T")

_UPLOAD = "upload"
_THREADS = 16
_EXPECTED = 2
"""Windows whose bytes are requested beside the one that is being gathered, or was."""


Ask: TypeAlias = Callable[[str, Sequence[Range]], FileParts]
"""Requests parts of a file of a store, by its name."""


@dataclass(frozen=True, slots=True, eq=False)
class RemoteFiles:
    """The files of a store at a URL, by their names in it, with their versions when it was opened.

    `placed` is as in `ListValues`; `begins`, int64[chunks], has the byte of the first value of each chunk's file.
    """

    manifest: Manifest
    files: Mapping[str, DataFile]
    origin: Origin
    placed: PlacedLists | None = None
    begins: Ints | None = None

    def come_whole(self, rows: int) -> bool:
        """Return whether so many scattered rows take nearly all of the store, so that more rows would cost no more."""
        layout = self.manifest.layout
        if self.manifest.heap_names:
            return rows >= len(self.manifest.parts)
        values = int(self.manifest.value_starts[-1]) * layout.value_dtype.itemsize
        records, *_ = self.manifest.files.get(RECORDS, (0,))
        return rows * sizes().far_gap_bytes >= max(records, values)

    def expect(self, reader: PartsReader, name: str, parts: Sequence[Range], rows_before: int) -> FileParts:
        """Request parts of a file."""
        return reader.expect(FileNeeds(self.files[name], tuple((part,) for part in parts)), rows_before)

    def whole(self, ask: Ask, name: str, made: Callable[[Any], T]) -> Callable[[], T]:
        """Request a whole file; return what waits for it, compares its checksum, and returns what is made of it."""
        stop = self.manifest.files[name][0]
        parts = ask(name, _requests(0, stop))

        def take() -> T:
            with closing(parts):
                data = parts.read(0, stop)
                compare(self.manifest.sums[name], {name: data}, self.origin)
                return made(data)

        return take

    def records(self, ask: Ask, name: str, wanted: Ints) -> Callable[[], NDArray[np.uint8]]:
        """Request records of a file; return what waits for them: uint8[n, width]. Neighbors share a request.

        `wanted` is int64[n], n ≥ 1, ascending.
        """
        width = self.manifest.row_widths[name]
        ranges = coalesce(wanted, sizes().far_gap_bytes // width, max(1, sizes().far_request_bytes // width))
        ends = list(zip((ranges.first * width).tolist(), (ranges.stop * width).tolist(), strict=True))
        parts = ask(name, ends)

        def take() -> NDArray[np.uint8]:
            out = np.empty((len(wanted), width), dtype=np.uint8)
            flat = out.view(f"V{width}").reshape(-1)
            with closing(parts):
                for number, (begin, end) in enumerate(pairwise(ranges.bounds.tolist())):
                    data = np.frombuffer(parts.read(*ends[number]), dtype=flat.dtype)
                    np.take(data, wanted[begin:end] - ranges.first[number], out=flat[begin:end], mode="clip")
            return out

        return take

    def heap(self, ask: Ask, chunk: int, rows: Ints) -> Callable[[], list[pa.RecordBatch]]:
        """Request a chunk's heap; return what waits for it, and keeps some of its rows."""

        def made(data: Any) -> list[pa.RecordBatch]:
            table = pa.Table.from_batches(heap_batches(self.manifest, chunk, data, self.origin))
            batches: list[pa.RecordBatch] = table.take(pa.array(rows)).combine_chunks().to_batches()
            return batches

        return self.whole(ask, heap_file(chunk), made)


class _Values:
    """Stretches of flat lists that were requested; stretches near each other share a request."""

    def __init__(self, manifest: Manifest, ask: Ask, spans: Spans, begins: Ints | None = None) -> None:
        self._dtype = manifest.layout.value_dtype
        starts, size = manifest.value_starts, self._dtype.itemsize
        some = spans.start < spans.stop
        start, stop = spans.start[some], spans.stop[some]
        chunks = np.searchsorted(starts, start, side="right") - 1
        self.first, stop = joined(start, stop, sizes().far_gap_bytes // size, chunks)
        chunks = np.searchsorted(starts, self.first, side="right") - 1
        before = 0 if begins is None else begins[chunks]
        first, last = ((at - starts[chunks]) * size + before for at in (self.first, stop))
        self._ends: list[Range] = list(zip(first.tolist(), last.tolist(), strict=True))
        self.names = [values_file(chunk) for chunk in chunks.tolist()]
        """The file of each stretch."""
        self._parts: list[FileParts] = []
        bounds = np.flatnonzero(np.diff(chunks, prepend=-1, append=-1)).tolist()
        for low, high in pairwise(bounds):
            asked = [part for ends in self._ends[low:high] for part in _requests(*ends)]
            self._parts += [ask(self.names[low], asked)] * (high - low)

    def take(self) -> list[NDArray[Any]]:
        """Wait for the values, and return those of each stretch."""
        found = []
        for number, (parts, ends) in enumerate(zip(self._parts, self._ends, strict=True)):
            found.append(np.frombuffer(parts.read(*ends), dtype=self._dtype).copy())
            if self._parts[number + 1 : number + 2] != [parts]:
                parts.close()
        return found


def _requests(start: int, stop: int) -> list[Range]:
    return list(pairwise([*range(start, stop, sizes().far_request_bytes), stop]))


class _Window:
    """Rows whose bytes were requested: records, nulls, row ids, codes, heaps and lists together."""

    def __init__(
        self, files: RemoteFiles, places: Ints, reader: PartsReader, rows_before: int, spans: Spans | None = None
    ) -> None:
        """Request the rows at some places, int64[n]; a row may be wanted more than once.

        `spans` are the wanted parts of flat lists; `rows_before` is as in `PartsReader.expect`.
        """
        self._wanted, self.local = np.unique(places, return_inverse=True)
        """Where each place is among the rows that are gathered."""
        self._files, self._open = files, list[FileParts]()
        manifest = files.manifest

        def ask(name: str, parts: Sequence[Range]) -> FileParts:
            self._open.append(files.expect(reader, name, parts, rows_before))
            return self._open[-1]

        widths = manifest.row_widths.items() if len(self._wanted) else ()
        self._records = {name: files.records(ask, name, self._wanted) for name, width in widths if width}
        self._heaps: list[Callable[[], list[pa.RecordBatch]]] = []
        if manifest.heap_names:
            starts = np.cumsum([0, *(part.rows for part in manifest.parts)])
            ends = np.searchsorted(self._wanted, starts)
            for chunk in np.flatnonzero(np.diff(ends)).tolist():
                rows = self._wanted[ends[chunk] : ends[chunk + 1]] - starts[chunk]
                self._heaps.append(files.heap(ask, chunk, rows))
        if spans is not None and files.placed is not None:
            at, length = files.placed.stored(spans.start, spans.stop - spans.start)
            spans = Spans(at, at + length)
        self._values = None if spans is None else _Values(manifest, ask, spans, files.begins)

    def gather(
        self, lengths: ListLengths | None = None, words: tuple[pa.Array, ...] = (), *, whole: bool = False
    ) -> StoredRows:
        """Wait for the rows, and return them without duplicates, ordered by place.

        Args:
            lengths: the lengths of the lists of all rows of the store, if parts of lists were requested.
            words: the distinct strings of the columns that the store has codes of.
            whole: whether these are all rows and lists of the store, whose checksums are then compared.
        """
        manifest, origin, values = self._files.manifest, self._files.origin, None
        with closing(self):
            taken = {name: take().reshape(-1) for name, take in self._records.items()}
            heap = [batch for take in self._heaps for batch in take()]
            stretches = [] if self._values is None else self._values.take()
        if self._values is not None:
            values = ListValues(self._values.first, stretches, self._files.placed)
        if whole:
            named = {} if self._values is None else dict(zip(self._values.names, stretches, strict=True))
            files = taken | {name: data.view(np.uint8) for name, data in named.items()}
            compare([part for name in files for part in manifest.sums.get(name, ())], files, origin)
        taken.setdefault(IDS, self._wanted.view(np.uint8))
        rows = len(self._wanted)
        return stored_rows(manifest, rows, taken, heap, words, origin, lengths=lengths, values=values)

    def close(self) -> None:
        """Release what is not gathered; `gather` then raises StorageError. Any thread may call it."""
        for parts in self._open:
            parts.close()


class RemoteRows:
    """All rows of a store at a URL; only the rows of a window stay in memory."""

    def __init__(
        self,
        files: RemoteFiles,
        open_reader: OpenReader,
        window_bytes: int,
        known_lengths: ListLengths | None = None,
        known_ids: Ints | None = None,
    ) -> None:
        """Start without reading; outside an epoch, `open_reader` opens a reader.

        Args:
            known_lengths: of the flat lists; None: a file of the store has them.
            known_ids: of the rows; None: a file of the store has them, or each row's id is its place.
        """
        self._files = files
        self._known_lengths, self._known_ids = known_lengths, known_ids
        self._open_reader = open_reader
        self.layout = files.manifest.layout
        self.num_rows = files.manifest.num_rows
        self._fetching_words = OfProcess(threading.Lock)
        self._found_words: tuple[pa.Array, ...] | None = None
        least = sizes().window_rows
        self._most = max(least, window_bytes // row_width(self.layout))
        self._least = least
        if files.come_whole(least):
            self._least = self._most

    @cached_property
    def row_ids(self) -> Ints | None:
        """int64[rows], ascending; None if each row's id is its place."""
        if self._known_ids is not None:
            return self._known_ids
        if self._keeps_ids:
            return self._ids(np.arange(self.num_rows))
        return None

    def ids(self, places: Ints) -> Ints:
        """Return the row id at each place."""
        if self._known_ids is not None:
            return self._known_ids.take(places)
        if not self._keeps_ids:
            return places.copy()
        wanted, local = np.unique(places, return_inverse=True)
        return self._ids(wanted)[local]

    @cached_property
    def lengths(self) -> ListLengths | None:
        """The lengths of all flat lists, fetched once; None if there are none."""
        manifest = self._files.manifest
        if self._known_lengths is not None:
            return self._known_lengths
        if manifest.flat:
            return lengths_of(self._whole(LENGTHS), manifest, self._files.origin)
        return None

    def _words(self) -> tuple[pa.Array, ...]:
        """Return the distinct strings of the columns that the store has codes of, which one lane fetches for all."""
        manifest = self._files.manifest
        if not manifest.codes:
            return ()
        with self._fetching_words.own:
            if self._found_words is None:
                self._found_words = words_of(self._whole(WORDS), manifest, self._files.origin)
            return self._found_words

    def _whole(self, name: str) -> bytes:
        """Fetch a file whole, before everything else, and compare its checksum."""
        with self._open_reader() as reader:
            return self._files.whole(partial(self._files.expect, reader, rows_before=0), name, bytes)()

    def gather(self, places: Ints) -> list[pa.Array]:
        """Return the rows at some places, as one array a column."""
        rows, local = self.fetch(places)
        return rows.gather(local)

    def fetch(self, places: Ints, spans: Spans | None = None, *, whole: bool = False) -> tuple[StoredRows, Ints]:
        """Read the rows at some places, int64[n], and the wanted parts of flat lists into memory.

        Returns:
            The rows, without duplicates, and the place of each among them.
        """
        lengths = self.lengths
        with self._open_reader() as reader, closing(_Window(self._files, places, reader, 0, spans)) as window:
            return window.gather(lengths, self._words(), whole=whole), window.local

    def fetch_all(self) -> StoredRows:
        """Read all rows into memory, and compare their checksums."""
        manifest = self._files.manifest
        spans, starts = None, manifest.value_starts
        if manifest.flat:
            spans = Spans(starts[:-1], starts[1:])
        return self.fetch(np.arange(self.num_rows), spans, whole=True)[0]

    def windows(
        self,
        blocks: Iterator[tuple[Ints, T]],
        most_blocks: int | None = None,
        reader: PartsReader | None = None,
        spans: Callable[[T], Spans] | None = None,
    ) -> Iterator[tuple[StoredRows, Ints, T]]:
        """Read the rows of blocks into memory, as `StoredRows.windows` does.

        While one window is consumed, the next is gathered, and the bytes of the one after that are requested.

        Args:
            reader: the epoch's reader, which all lanes share; None to open one.
            spans: returns the wanted parts of flat lists for a block, from its note.
        """
        if reader is None:
            with self._open_reader() as own:
                yield from self.windows(blocks, most_blocks, own, spans)
            return
        lengths = self.lengths
        asked = self._asked(blocks, most_blocks, reader, spans)
        expected: deque[tuple[list[tuple[Ints, T]], _Window]] = deque()
        gathered: deque[tuple[list[tuple[Ints, T]], _Window, Future[StoredRows]]] = deque()

        def advance() -> None:
            expected.extend(islice(asked, _EXPECTED - len(expected)))
            if expected:
                window, opened = expected.popleft()
                gathered.append((window, opened, pool.submit(opened.gather, lengths, self._words())))

        with Threads(1, "table-loader-window", joined=True) as pool:
            try:
                advance()
                while gathered:
                    advance()
                    window, opened, future = gathered[0]
                    rows, at = result_of(future), 0
                    gathered.popleft()
                    for places, note in window:
                        yield rows, opened.local[at : at + len(places)], note
                        at += len(places)
            finally:
                for _, opened in [*expected, *(entry[:2] for entry in gathered)]:
                    opened.close()

    def _asked(
        self,
        blocks: Iterator[tuple[Ints, T]],
        most_blocks: int | None,
        reader: PartsReader,
        spans: Callable[[T], Spans] | None,
    ) -> Iterator[tuple[list[tuple[Ints, T]], _Window]]:
        """Yield windows of blocks, each after its bytes were requested."""
        row_bytes, value_bytes = row_width(self.layout), self.layout.value_dtype.itemsize

        def cost(places: Ints, note: T) -> int:
            if spans is None:
                return len(places)
            start, stop = spans(note)
            return len(places) + int((stop - start).sum()) * value_bytes // row_bytes

        before = 0
        for window in in_windows(blocks, self._least, self._most, most_blocks, cost):
            places = np.concatenate([places for places, _ in window])
            wanted = None
            if spans is not None:
                parts = [spans(note) for _, note in window]
                wanted = Spans(*(np.concatenate(each) for each in zip(*parts, strict=True)))
            yield window, _Window(self._files, places, reader, before, wanted)
            before += len(places)

    @property
    def _keeps_ids(self) -> bool:
        return IDS in self._files.manifest.files

    def _ids(self, wanted: Ints) -> Ints:
        if not len(wanted):
            return np.empty(0, dtype=np.int64)
        with self._open_reader() as reader:
            ask = partial(self._files.expect, reader, rows_before=0)
            return self._files.records(ask, IDS, wanted)().view("<i8").reshape(-1)


def row_width(layout: RecordLayout) -> int:
    """Return the bytes that a window holds for a row beside its lists and its strings without codes."""
    return layout.width + layout.null_width + 8 + 4 * len(layout.heap)


def open_remote(
    storage: PartStorage, root: str, spec: StoreSpec, open_reader: OpenReader, window_bytes: int
) -> RemoteRows | None:
    """Open a store at a URL, after checking the lengths of its files; None if there is none, or it is not complete yet.

    The last arguments are those of `RemoteRows`.

    Raises:
        TableError: the store is damaged, or contains something else.
        StorageError: the storage refuses, or does not answer.
    """
    manifest = _remote_manifest(storage, root, spec)
    if manifest is None:
        return None

    origin = Origin(storage.shown(root), "remove that folder, and it is built again")

    def checked(entry: tuple[str, tuple[int, ...]]) -> DataFile:
        name, (length, *_) = entry
        path = f"{root}/{name}"
        found = storage.version(path)
        if found.num_bytes != length:
            raise origin.damaged(name, f"must have {length} bytes, got {found.num_bytes}")
        return DataFile(path, path, found, "row store")

    with Threads(_THREADS, "table-loader-verify") as pool:
        files = dict(zip(manifest.files, pool.map(checked, manifest.files.items()), strict=True))
    if manifest.files[RECORDS][0]:
        storage.read_range(f"{root}/{RECORDS}", 0, 1)  # a server without range support fails here
    return RemoteRows(RemoteFiles(manifest, files, origin), open_reader, window_bytes)


def upload_store(place: Path, storage: PartStorage, root: str, spec: StoreSpec) -> None:
    """Upload a complete store to a URL, its manifest last, unless it is there or another process is uploading it."""
    manifest = read_manifest(place)
    if manifest is None or _remote_manifest(storage, root, spec) is not None:
        return
    claims = place / _UPLOAD
    make_folder(claims)
    with Leases(claims) as leases:
        if not leases.claim(0):
            return
        with Threads(4, "table-loader-upload") as pool:
            list(pool.map(lambda name: storage.put_file(str(place / name), f"{root}/{name}"), manifest.files))
        storage.write_bytes(f"{root}/{MANIFEST}", read_regular(place / MANIFEST))


def _remote_manifest(storage: PartStorage, root: str, spec: StoreSpec) -> Manifest | None:
    path = f"{root}/{MANIFEST}"
    try:
        text = storage.read_bytes(path)
    except TableError:  # no such file
        return None
    manifest = parse_manifest(text, storage.shown(root))
    check_fits(manifest, spec, storage.shown(root))
    return manifest
