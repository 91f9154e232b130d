"""A store behind a URL: the records of a window of the order are sorted, and neighbours come with one request."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import closing
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from torch_table_loader.errors import TableError
from torch_table_loader.local_files import make_folder, read_regular
from torch_table_loader.planning.ranges import Ranges, coalesce, in_windows
from torch_table_loader.store.gather import StoredRows
from torch_table_loader.store.leases import Leases
from torch_table_loader.store.manifest import Manifest, check_fits, parse_manifest, read_manifest
from torch_table_loader.store.record_layout import RecordLayout
from torch_table_loader.store.spec import IDS, MANIFEST, NULLS, RECORDS, StoreSpec, heap_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.contracts import PartStorage

    Ints: TypeAlias = NDArray[np.int64]

T = TypeVar("T")

GAP_BYTES = 1 << 18
"""Bytes that are read in vain between two records rather than asking twice: a few milliseconds of a fast line."""

REQUEST_BYTES = 8 << 20
"""The most that one request asks for."""

IN_FLIGHT_BYTES = 64 << 20
"""The most that is asked for at once, beside what a window keeps."""

IN_FLIGHT_PARTS = 256

_UPLOAD = "upload"
_THREADS = 16


class RemoteRows:
    """All rows of a store behind a URL; what stays in memory is the rows of a window."""

    def __init__(self, storage: PartStorage, root: str, manifest: Manifest, least: int, most: int) -> None:
        """Read nothing yet.

        Args:
            storage: where the store is.
            root: its folder there.
            manifest: what it says of itself.
            least: rows of the first window of a lane.
            most: rows of any window.
        """
        self._storage = storage
        self._root = root
        self._manifest = manifest
        self._least, self._most = least, most
        self.layout = RecordLayout(manifest.schema)
        self.num_rows = manifest.num_rows

    @cached_property
    def row_ids(self) -> Ints | None:
        """int64[rows], rising; None where each row's id is its place."""
        if IDS not in self._manifest.files:
            return None
        return self._records(IDS, 8, np.arange(self.num_rows)).view("<i8").reshape(-1)

    def ids(self, places: Ints) -> Ints:
        """Return the row id at each place."""
        if IDS not in self._manifest.files:
            return places.copy()
        wanted, local = np.unique(places, return_inverse=True)
        found: Ints = self._records(IDS, 8, wanted).view("<i8").reshape(-1)[local]
        return found

    def gather(self, places: Ints) -> list[pa.Array]:
        """Return the rows at some places, as one array a column; see `StoredRows.gather`."""
        rows, local = self.fetch(places)
        return rows.gather(local)

    def windows(
        self, blocks: Iterator[tuple[Ints, T]], most_blocks: int | None = None
    ) -> Iterator[tuple[StoredRows, Ints, T]]:
        """Read the rows of blocks into memory, the next window while this one is taken; see `StoredRows.windows`."""
        windows = in_windows(blocks, self._least, self._most, most_blocks)

        def begin(window: list[tuple[Ints, T]]) -> Future[tuple[StoredRows, Ints]]:
            return pool.submit(self.fetch, np.concatenate([places for places, _ in window]), cancellation)

        with ThreadPoolExecutor(1, "table-loader-window") as pool, closing(_Cancellation()) as cancellation:
            coming = deque((window, begin(window)) for window in islice(windows, 1))
            while coming:
                coming.extend((window, begin(window)) for window in islice(windows, 1))
                window, future = coming.popleft()
                rows, local = future.result()
                at = 0
                for places, note in window:
                    yield rows, local[at : at + len(places)], note
                    at += len(places)

    def fetch(self, places: Ints, cancellation: _Cancellation | None = None) -> tuple[StoredRows, Ints]:
        """Read some rows into memory.

        Args:
            places: int64[n], each in [0, num_rows).
            cancellation: whether nobody wants them any more.

        Returns:
            The rows, each once, and where among them each place's is.
        """
        wanted, local = np.unique(places, return_inverse=True)
        layout, files = self.layout, self._manifest.files
        records: NDArray[Any] = np.empty(0, dtype=np.uint8)
        if layout.width:
            records = self._records(RECORDS, layout.width, wanted, cancellation).view(f"V{layout.width}").reshape(-1)
        nulls = self._records(NULLS, layout.null_width, wanted, cancellation) if NULLS in files else None
        ids: Ints | None = wanted
        if IDS in files:
            ids = self._records(IDS, 8, wanted, cancellation).view("<i8").reshape(-1)
        heap = self._heap(wanted, cancellation) if layout.heap else []
        return StoredRows(layout, records, nulls, self._manifest.null_columns, ids, heap, len(wanted)), local

    def _records(
        self, name: str, width: int, wanted: Ints, cancellation: _Cancellation | None = None
    ) -> NDArray[np.uint8]:
        """Read records of one file: uint8[n, width]."""
        out = np.empty((len(wanted), width), dtype=np.uint8)
        if not len(wanted):
            return out
        parts = coalesce(wanted, GAP_BYTES // width, max(1, REQUEST_BYTES // width))
        flat = out.view(f"V{width}").reshape(-1)
        for some in _in_flight(parts, width):
            _check(cancellation)
            ends = [(int(parts.first[i]) * width, int(parts.stop[i]) * width) for i in some]
            found = self._storage.read_parts(f"{self._root}/{name}", ends)
            for number, data in zip(some, found, strict=True):
                begin, end = int(parts.bounds[number]), int(parts.bounds[number + 1])
                np.take(
                    np.frombuffer(data, dtype=flat.dtype),
                    wanted[begin:end] - parts.first[number],
                    out=flat[begin:end],
                    mode="clip",
                )
        return out

    def _heap(self, wanted: Ints, cancellation: _Cancellation | None) -> list[pa.RecordBatch]:
        """Read the heaps of the chunks that are wanted, one after the other, and keep what is wanted of each."""
        starts = np.cumsum([0, *(part.rows for part in self._manifest.parts)])
        ends = np.searchsorted(wanted, starts)
        kept = []
        for chunk in np.flatnonzero(np.diff(ends)).tolist():
            _check(cancellation)
            path = f"{self._root}/{heap_file(chunk)}"
            size = self._manifest.parts[chunk].heap_bytes
            cuts = [*range(0, size, REQUEST_BYTES), size]
            data = b"".join(self._storage.read_parts(path, list(pairwise(cuts))))
            with pa.ipc.open_file(pa.py_buffer(data)) as reader:
                table = reader.read_all()
            taken = table.take(pa.array(wanted[ends[chunk] : ends[chunk + 1]] - starts[chunk]))
            kept += taken.combine_chunks().to_batches()
        return kept


class _Cancellation:
    """Cancels what is still being read, once it is closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


def _check(cancellation: _Cancellation | None) -> None:
    if cancellation is not None and cancellation.closed:
        raise CancelledError


def _in_flight(parts: Ranges, width: int) -> Iterator[range]:
    """Return runs of parts that are asked for together."""
    sizes = (parts.stop - parts.first) * width
    groups = (np.cumsum(sizes) - sizes) // IN_FLIGHT_BYTES + np.arange(len(sizes)) // IN_FLIGHT_PARTS
    firsts = np.flatnonzero(np.diff(groups, prepend=-1)).tolist()
    for first, stop in zip(firsts, [*firsts[1:], len(sizes)], strict=True):
        yield range(first, stop)


def open_remote(storage: PartStorage, root: str, spec: StoreSpec, *, least: int, most: int) -> RemoteRows | None:
    """Open a store behind a URL, after the lengths of its files were compared.

    Args:
        storage: where it is.
        root: its folder there.
        spec: what it must hold.
        least: rows of the first window of a lane.
        most: rows of any window.

    Returns:
        None if there is no store, or it is not whole yet.

    Raises:
        TableError: it is damaged, or holds something else.
        StorageError: the store refuses, or does not answer.
    """
    manifest = _remote_manifest(storage, root, spec)
    if manifest is None:
        return None

    def check(entry: tuple[str, tuple[int, int]]) -> None:
        name, (length, _) = entry
        found = storage.version(f"{root}/{name}").num_bytes
        if found != length:
            raise TableError(
                f"the row store {storage.shown(root)} is damaged: {name} must have {length} bytes, got {found}; remove "
                "that folder, and it is built anew"
            )

    with ThreadPoolExecutor(_THREADS, "table-loader-verify") as pool:
        list(pool.map(check, manifest.files.items()))
    if manifest.files[RECORDS][0]:
        storage.read_parts(f"{root}/{RECORDS}", [(0, 1)])  # a server that knows no ranges says so here
    return RemoteRows(storage, root, manifest, least, most)


def upload_store(place: Path, storage: PartStorage, root: str, spec: StoreSpec) -> None:
    """Copy a store that is whole to a URL, its manifest last, unless it is there, or another process is at it.

    Args:
        place: its folder on this machine.
        storage: where it is to go.
        root: its folder there.
        spec: what it holds.
    """
    manifest = read_manifest(place)
    if manifest is None or _remote_manifest(storage, root, spec) is not None:
        return
    claims = place / _UPLOAD
    make_folder(claims)
    with Leases(claims) as leases:
        if not leases.claim(0):
            return
        with ThreadPoolExecutor(4, "table-loader-upload") as pool:
            list(pool.map(lambda name: storage.put_file(str(place / name), f"{root}/{name}"), manifest.files))
        storage.write_bytes(f"{root}/{MANIFEST}", read_regular(place / MANIFEST))


def _remote_manifest(storage: PartStorage, root: str, spec: StoreSpec) -> Manifest | None:
    path = f"{root}/{MANIFEST}"
    try:
        text = storage.read_bytes(path)
    except TableError:  # there is none
        return None
    manifest = parse_manifest(text, storage.shown(root))
    check_fits(manifest, spec, storage.shown(root))
    return manifest
