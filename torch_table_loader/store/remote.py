"""A store at a URL: the records of a window of the order are sorted, and neighbors are read with one request."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from torch_table_loader.cancellation import Threads, result_of
from torch_table_loader.errors import TableError
from torch_table_loader.local_files import make_folder, read_regular
from torch_table_loader.planning.ranges import in_windows
from torch_table_loader.records import FileVersion
from torch_table_loader.store.codes_file import words_of
from torch_table_loader.store.gather import StoredRows
from torch_table_loader.store.leases import Leases
from torch_table_loader.store.lengths_file import lengths_of
from torch_table_loader.store.list_values import Spans
from torch_table_loader.store.manifest import Manifest, check_fits, parse_manifest, read_manifest
from torch_table_loader.store.opened import compare
from torch_table_loader.store.origin import REMOVE_FOLDER, Origin
from torch_table_loader.store.remote_window import PartsReader, Records, RemoteFiles, Window
from torch_table_loader.store.spec import IDS, LENGTHS, MANIFEST, RECORDS, WORDS, StoreSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.contracts import PartStorage
    from torch_table_loader.planning.document_lengths import DocumentLengths
    from torch_table_loader.store.record_layout import RecordLayout

    Ints: TypeAlias = NDArray[np.int64]

T = TypeVar("T")

OpenReader: TypeAlias = Callable[[], AbstractContextManager[PartsReader]]
"""Opens a reader of parts of a store's files, until the block ends."""

_UPLOAD = "upload"
_THREADS = 16
_EXPECTED = 2
"""Windows whose bytes are requested beside the one that is being gathered, or was."""


class RemoteRows:
    """All rows of a store at a URL; only the rows of a window stay in memory."""

    def __init__(self, files: RemoteFiles, open_reader: OpenReader, least: int, most: int) -> None:
        """Start without reading.

        Args:
            open_reader: opens a reader for use outside an epoch.
            least: rows of a lane's first window; few rows arrive sooner than many.
        """
        self._files = files
        self._open_reader = open_reader
        self.layout = files.manifest.layout
        self.num_rows = files.manifest.num_rows
        self._fetching_words = threading.Lock()
        self._found_words: tuple[pa.Array, ...] | None = None
        self._most = most
        self._least = most if files.come_whole(least) else least

    @cached_property
    def row_ids(self) -> Ints | None:
        """int64[rows], ascending; None if each row's id is its place."""
        return self._ids(np.arange(self.num_rows)) if self._keeps_ids else None

    def ids(self, places: Ints) -> Ints:
        """Return the row id at each place."""
        if not self._keeps_ids:
            return places.copy()
        wanted, local = np.unique(places, return_inverse=True)
        return self._ids(wanted)[local]

    @cached_property
    def lengths(self) -> DocumentLengths | None:
        """The lengths of all flat lists, fetched once; None if there are none.

        Raises:
            TableError: the lengths are damaged.
        """
        manifest = self._files.manifest
        if manifest.lengths is None:
            return None
        return lengths_of(self._whole(LENGTHS), manifest.lengths[0], manifest, self._files.origin)

    def _words(self) -> tuple[pa.Array, ...]:
        """Return the distinct strings of the columns that the store has codes of, which one lane fetches for all."""
        codes = self._files.manifest.codes
        if codes is None:
            return ()
        with self._fetching_words:
            if self._found_words is None:
                self._found_words = words_of(self._whole(WORDS), codes, self.layout, self._files.origin)
            return self._found_words

    def _whole(self, name: str) -> bytes:
        """Fetch a file whole, and compare its checksum."""
        manifest = self._files.manifest
        with self._open_reader() as reader, closing(self._files.whole(reader, name)) as parts:
            data = bytes(parts.read(0, manifest.files[name][0]))
        compare([part for part in manifest.sums if part.name == name], {name: data}, self._files.origin)
        return data

    def gather(self, places: Ints) -> list[pa.Array]:
        """Return the rows at some places, as one array a column; see `StoredRows.gather`."""
        rows, local = self.fetch(places)
        return rows.gather(local)

    def fetch(self, places: Ints, spans: Spans | None = None, *, whole: bool = False) -> tuple[StoredRows, Ints]:
        """Read some rows into memory.

        Args:
            places: int64[n], each in [0, num_rows).
            spans: the wanted parts of flat lists; None for nothing.

        Returns:
            The rows, without duplicates, and the place of each among them.
        """
        lengths = self.lengths
        with self._open_reader() as reader, closing(Window(self._files, places, reader, 0, spans)) as window:
            return window.gather(lengths, self._words(), whole=whole), window.local

    def fetch_all(self) -> StoredRows:
        """Read all rows into memory, and compare their checksums."""
        manifest = self._files.manifest
        starts = manifest.value_starts
        spans = None if manifest.lengths is None else Spans(starts[:-1], starts[1:])
        return self.fetch(np.arange(self.num_rows), spans, whole=True)[0]

    def windows(
        self,
        blocks: Iterator[tuple[Ints, T]],
        most_blocks: int | None = None,
        reader: PartsReader | None = None,
        spans: Callable[[T], Spans] | None = None,
    ) -> Iterator[tuple[StoredRows, Ints, T]]:
        """Read the rows of blocks into memory; see `StoredRows.windows`.

        While one window is consumed, the next is gathered, and the bytes of the one after that are requested.

        Args:
            blocks: the places of each block, and a note of the caller's.
            most_blocks: the most blocks that are made available together.
            reader: the epoch's reader, which all lanes share; None to open one.
            spans: returns the wanted parts of flat lists for a block, from its note.
        """
        if reader is None:
            with self._open_reader() as own:
                yield from self.windows(blocks, most_blocks, own, spans)
            return
        lengths = self.lengths
        asked = self._asked(blocks, most_blocks, reader, spans)
        expected: deque[tuple[list[tuple[Ints, T]], Window]] = deque()
        gathered: deque[tuple[list[tuple[Ints, T]], Window, Future[StoredRows]]] = deque()

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
    ) -> Iterator[tuple[list[tuple[Ints, T]], Window]]:
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
            parts = None if spans is None else [spans(note) for _, note in window]
            wanted = None if parts is None else Spans(*(np.concatenate(each) for each in zip(*parts, strict=True)))
            yield window, Window(self._files, places, reader, before, wanted)
            before += len(places)

    @property
    def _keeps_ids(self) -> bool:
        return IDS in self._files.manifest.files

    def _ids(self, wanted: Ints) -> Ints:
        if not len(wanted):
            return np.empty(0, dtype=np.int64)
        with self._open_reader() as reader, closing(Records(self._files, IDS, 8, wanted, reader, 0)) as records:
            return records.take().view("<i8").reshape(-1)


def row_width(layout: RecordLayout) -> int:
    """Return the bytes that a window holds for a row beside its lists and its strings without codes."""
    return layout.width + layout.null_width + 8 + 4 * len(layout.heap)


def open_remote(
    storage: PartStorage, root: str, spec: StoreSpec, open_reader: OpenReader, *, least: int, most: int
) -> RemoteRows | None:
    """Open a store at a URL, after checking the lengths of its files.

    Args:
        spec: what it must contain.
        open_reader: opens a reader for use outside an epoch.
        least: rows of a lane's first window; few rows arrive sooner than many.

    Returns:
        None if there is no store, or it is not complete yet.

    Raises:
        TableError: the store is damaged, or contains something else.
        StorageError: the storage refuses, or does not answer.
    """
    manifest = _remote_manifest(storage, root, spec)
    if manifest is None:
        return None

    origin = Origin(storage.shown(root), REMOVE_FOLDER)

    def checked(entry: tuple[str, tuple[int, ...]]) -> FileVersion:
        name, (length, *_) = entry
        found = storage.version(f"{root}/{name}")
        if found.num_bytes != length:
            raise origin.damaged(name, f"must have {length} bytes, got {found.num_bytes}")
        return found

    with Threads(_THREADS, "table-loader-verify") as pool:
        versions = dict(zip(manifest.files, pool.map(checked, manifest.files.items()), strict=True))
    if manifest.files[RECORDS][0]:
        storage.read_range(f"{root}/{RECORDS}", 0, 1)  # a server without range support fails here
    return RemoteRows(RemoteFiles(root, manifest, versions, origin), open_reader, least, most)


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
