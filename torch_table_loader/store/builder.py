"""Builds a store: threads, ranks and nodes that share its folder take chunks until all are built.

Sums of the rows' weights are a file beside the stores, made once and mapped by all ranks of a machine: int64 in this
machine's byte order, followed by the 16 bytes of their XXH3 hash. It gets its name when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import xxhash

from torch_table_loader.cancellation import Threads, check_wanted, result_of, wait_for
from torch_table_loader.errors import OutOfMemoryError, StorageError, TableError
from torch_table_loader.local_files import (
    allocate,
    make_folder,
    new_file,
    open_regular,
    read_regular,
    stat_regular,
    write_whole,
)
from torch_table_loader.nesting import load_json
from torch_table_loader.planning.lists import ListLengths
from torch_table_loader.sizes import sizes
from torch_table_loader.store.chunk_writer import (
    ArrowFile,
    ChunkFile,
    FileSink,
    MemorySink,
    ReadChunk,
    naming_disk_errors,
    write_chunk,
)
from torch_table_loader.store.coded_strings import codes_of, separated
from torch_table_loader.store.gather import ListValues, StoredRows
from torch_table_loader.store.leases import Leases
from torch_table_loader.store.manifest import read_manifest, write_manifest
from torch_table_loader.store.opened import arrow_batches, mapping, scattered
from torch_table_loader.store.record_layout import (
    CODES,
    LEASES,
    LENGTHS,
    NULLS,
    PARTS,
    WIDE_LENGTHS,
    WORDS,
    Origin,
    Part,
    StoreSpec,
    chunk_codes_file,
    heap_name,
    part_file,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]


_log = logging.getLogger(__name__)

Report = Callable[[int], None]
"""Called from time to time with the number of finished chunks."""

_TOO_LARGE = "the row store needs about {:,} bytes of memory"
_SMALLER = (
    'pass row_store= a directory instead of "memory", fewer columns=[...], or give the process more memory (the limits '
    "of its cgroups and of `ulimit` count)"
)

_SPARE = 0.02
"""Share of a store's bytes that must be free in addition to them."""

_HASH_BYTES = 16


def build_files(place: Path, spec: StoreSpec, read: ReadChunk, threads: int, report: Report | None = None) -> None:
    """Build a store in a folder, or help other builders, and return when it is complete."""
    with naming_disk_errors(place):
        for folder in (place, place / PARTS, place / LEASES):
            make_folder(folder)
        _check_room(place, spec)
        with _unless_finished(place):
            _reserve(place, spec)
    sink = FileSink(place, spec)
    try:
        with Leases(place / LEASES) as leases:
            _Builder(place, spec, read, sink, leases, report).run(threads)
        sink.sync()
    finally:
        sink.close()
    _finish(place, spec)


def build_memory(
    spec: StoreSpec, read: ReadChunk, threads: int, report: Report | None = None, room: int | None = None
) -> StoredRows:
    """Build a store in the memory of this process, of which it may use `room` bytes; None if unknown."""
    check_memory(spec.num_bytes, room)
    try:
        return _built_in_memory(spec, read, threads, report, room)
    except MemoryError as error:
        if isinstance(error, OutOfMemoryError):
            raise
        raise OutOfMemoryError(
            f"{_TOO_LARGE.format(spec.num_bytes)}, which it did not get ({error}); {_SMALLER}"
        ) from error


def _built_in_memory(
    spec: StoreSpec, read: ReadChunk, threads: int, report: Report | None, room: int | None
) -> StoredRows:
    sink, lock, done, heap_bytes = MemorySink(spec), threading.Lock(), [0], [0]

    def build(chunk: int) -> Part:
        with lock:
            check_memory(spec.num_bytes - spec.variable_bytes + heap_bytes[0], room)
        part = write_chunk(spec, chunk, read(chunk), sink)
        with lock:
            heap_bytes[0] += part.heap_bytes + part.num_values * spec.layout.value_dtype.itemsize
            done[0] += 1
            if report is not None:
                report(done[0])
        return part

    with Threads(threads, "table-loader-store", joined=True) as pool:
        parts = list(pool.map(build, range(len(spec.chunk_rows))))
    strings, heap = separated([sink.heaps.pop(chunk, []) for chunk in range(len(parts))])
    null_columns = frozenset(column for part in parts for column in part.null_columns)
    if not null_columns:
        del sink.files[NULLS]
    lengths, values = None, None
    if spec.flat:
        lengths = ListLengths.of(sink.files[WIDE_LENGTHS].view("<u4"))
        values = ListValues.consecutive([part for chunk in range(len(parts)) for part in sink.flat[chunk]])
    return StoredRows(
        spec.layout, spec.num_rows, sink.files, null_columns, heap, lengths=lengths, values=values, strings=strings
    )


def check_memory(num_bytes: int, room: int | None) -> None:
    """Refuse a store that needs more bytes of memory than it may use; None if that is unknown."""
    if room is not None and num_bytes > room:
        raise OutOfMemoryError(f"{_TOO_LARGE.format(num_bytes)}, and {room:,} are free for it; {_SMALLER}")


class _Builder:
    """One process's builder: its threads take chunks that no other builder works on."""

    def __init__(
        self, place: Path, spec: StoreSpec, read: ReadChunk, sink: FileSink, leases: Leases, report: Report | None
    ) -> None:
        self._place = place
        self._spec = spec
        self._read = read
        self._sink = sink
        self._leases = leases
        self._report = report
        self._failed = False
        self._chunks_left = 0
        """How often a thread of this process has released a chunk, finished or not."""
        self._changed = threading.Condition()
        self._looks = 0
        self._looking = threading.Lock()
        self._measured = False
        self._flushing: Future[None] | None = None

    def run(self, threads: int) -> None:
        with (
            Threads(1, "table-loader-flush", joined=True) as self._flusher,
            Threads(threads, "table-loader-store", joined=True) as pool,
        ):
            futures = [pool.submit(self._work) for _ in range(threads)]
            for future in futures:
                result_of(future)

    def _work(self) -> None:
        try:
            while not (self._failed or self._all_done()):
                check_wanted()
                left = self._chunks_left
                if (chunk := self._claim()) is not None:
                    self._build(chunk)
                else:
                    self._warn_of_waiting()
                    self._wait(left)
        except FileNotFoundError:
            if read_manifest(self._place) is None:  # else another builder has finished, and removed its leases
                self._fail()
                raise
        except BaseException:
            self._fail()
            raise

    def _fail(self) -> None:
        with self._changed:
            self._failed = True
            self._changed.notify_all()

    def _wait(self, left: int) -> None:
        """Wait a while for other processes, or until another thread releases a chunk, if none has since `left`."""
        with self._changed:
            wait_for(self._changed, lambda: self._failed or self._chunks_left != left, sizes().look_again_s)

    def _claim(self) -> int | None:
        done = done_chunks(self._place)
        if self._report is not None:
            self._report(len(done))
        for chunk in range(len(self._spec.chunk_rows)):
            if chunk not in done and self._leases.claim(chunk):
                # Between the two checks the chunk was finished, or the whole store, which removes its parts.
                if part_file(self._place, chunk).exists() or read_manifest(self._place) is not None:
                    self._leases.release(chunk)
                    continue
                return chunk
        return None

    def _warn_of_waiting(self) -> None:
        """Log once that other processes hold all remaining chunks, and have held them for a while."""
        with self._looking:
            if self._leases.holds_any:
                return
            self._looks += 1
            if self._looks != sizes().looks_until_warning:
                return
        left = len(self._spec.chunk_rows) - len(done_chunks(self._place))
        _log.warning(
            "the row store %s: the last %d of %d chunks are being built by other processes; waiting for them",
            self._place.name,
            left,
            len(self._spec.chunk_rows),
        )

    def _build(self, chunk: int) -> None:
        try:
            part = write_chunk(self._spec, chunk, self._read(chunk), self._sink)
            with naming_disk_errors(self._place), _unless_finished(self._place):
                write_whole(part_file(self._place, chunk), json.dumps(part).encode())
        finally:
            self._leases.release(chunk)
            with self._changed:
                self._chunks_left += 1
                self._changed.notify_all()
        if (part.heap_bytes or part.num_values) and not self._measured:
            self._measured = True
            codes_bytes = 2 * _bytes_of(self._place / chunk_codes_file(chunk))  # until those of all chunks are one file
            _check_room(self._place, self._spec, part, codes_bytes)
        if self._flushing is None or self._flushing.done():
            self._flushing = self._flusher.submit(self._sink.sync)  # the disk writes while the next chunks are read

    def _all_done(self) -> bool:
        return read_manifest(self._place) is not None or len(done_chunks(self._place)) == len(self._spec.chunk_rows)


@contextmanager
def _unless_finished(place: Path) -> Iterator[None]:
    """Ignore a missing folder if another builder has finished the store meanwhile."""
    try:
        yield
    except FileNotFoundError:
        if read_manifest(place) is None:
            raise


def done_chunks(place: Path) -> set[int]:
    """Return the chunks that are finished."""
    with suppress(FileNotFoundError):
        return {int(path.stem) for path in (place / PARTS).iterdir() if path.suffix == ".json"}
    return set()


def _check_room(place: Path, spec: StoreSpec, known: Part | None = None, codes_bytes: int = 0) -> None:
    """Refuse to begin or to continue if the disk has too little room.

    A known, finished chunk is a better guide to the columns of variable width than the estimate. `codes_bytes` are
    those of the codes of its strings.
    """
    variable = 0
    if known is not None:
        of_known = known.heap_bytes + known.num_values * spec.layout.value_dtype.itemsize + codes_bytes
        variable = of_known * spec.num_rows // max(1, known.rows)
    num_bytes = spec.num_bytes + max(0, variable - spec.variable_bytes)
    needed = int(num_bytes * (1 + _SPARE)) - _bytes_there(place)
    free = shutil.disk_usage(place).free
    if needed > free:
        raise StorageError(
            f"the row store needs about {needed:,} more bytes in {str(place)!r}, and {free:,} are free; pass "
            'row_store= another folder, fewer columns=[...], or shuffle="splits", which needs no store'
        )


def _bytes_there(place: Path) -> int:
    return sum(map(_bytes_of, place.iterdir()))


def _bytes_of(path: Path) -> int:
    """Return the bytes that a file takes on its disk; 0 if there is none."""
    with suppress(FileNotFoundError):
        return 512 * path.stat().st_blocks
    return 0


def _reserve(place: Path, spec: StoreSpec) -> None:
    """Create the large files at their full length, and allocate their disk space."""
    for name, width in spec.row_widths.items():
        num_bytes = width * spec.num_rows
        file = open_regular(place / name, os.O_WRONLY | os.O_CREAT)
        try:
            if os.fstat(file).st_size < num_bytes:
                os.ftruncate(file, num_bytes)
            allocate(file, num_bytes)
        finally:
            os.close(file)


def _finish(place: Path, spec: StoreSpec) -> None:
    """Write the manifest, unless another builder already did."""
    try:
        parts = list(_read_parts(place, len(spec.chunk_rows)))
        whole, codes = write_codes(place, spec) if spec.layout.heap else ({}, {})
        if spec.flat:
            wide = np.frombuffer(mapping(place / WIDE_LENGTHS) if spec.num_rows else b"", dtype="<u4")
            whole |= write_lengths(place, wide, parts)
    except FileNotFoundError:
        if read_manifest(place) is None:
            raise
    else:
        if read_manifest(place) is None:
            with naming_disk_errors(place):
                if parts and not any(NULLS in part.sums for part in parts):
                    (place / NULLS).unlink(missing_ok=True)
                write_manifest(place, spec, parts, whole, codes)
    for folder in (LEASES, PARTS):
        shutil.rmtree(place / folder, ignore_errors=True)


def write_lengths(place: Path, wide: NDArray[Any], parts: Sequence[Part]) -> dict[str, int]:
    """Write the lengths of a store's lists in the narrowest integers that can hold them.

    The file has the number of elements before each block of 64 lists (int64, with the total at the end), then the
    lengths, by row, padded with zeros to a whole block. `wide` are the lengths as the builders of the chunks wrote
    them.

    Returns:
        The XXH3 hash of the file, under its name.
    """
    row = 0
    for chunk, part in enumerate(parts):
        found = int(wide[row : row + part.rows].sum(dtype=np.int64))
        if found != part.num_values:
            raise TableError(
                f"chunk {chunk} of the row store {place.name!r} has {part.num_values} elements of lists, and lengths "
                f"for {found}; remove the folder {str(place)!r}, and it is built again"
            )
        row += part.rows
    made = ListLengths.of(wide)
    with ChunkFile(place / LENGTHS) as file:
        file.write(made.sums)
        file.write(made.padded)
    return {LENGTHS: file.checksum}


def write_codes(place: Path, spec: StoreSpec) -> tuple[dict[str, int], Mapping[int, bool]]:
    """Write the codes of the strings that repeat: an index beside the heaps, which keep every string.

    ``codes.bin`` has an int32 for each row and column, row by row: the place of the row's string among the distinct
    strings of its column, or -1 for a null. ``words.arrow`` is an Arrow IPC file with one row, which has a list of the
    distinct strings of each column. A store that lacks them is read from its heaps.

    Returns:
        The XXH3 hashes of the files, and for each column with codes, whether it contains a null. There are none if no
        strings repeat, or a chunk was built without codes.
    """
    paths = [place / chunk_codes_file(chunk) for chunk, rows in enumerate(spec.chunk_rows) if rows]
    if not all(path.exists() for path in paths):
        return {}, {}
    origin = Origin(place.name, f"remove the folder {str(place)!r}, and it is built again")
    chunks = [arrow_batches(mapping(path), f"{PARTS}/{path.name}", origin, text=True) for path in paths]
    columns, dictionaries, blocks = codes_of(chunks)
    if not columns:
        return {}, {}
    lists = [pa.LargeListArray.from_arrays([0, len(words)], words) for words in dictionaries]
    row = pa.RecordBatch.from_arrays(lists, list(map(heap_name, columns)))
    with ArrowFile(place / WORDS, row.schema) as words:
        words.write(row)
    with ChunkFile(place / CODES) as codes:
        for block in blocks:
            codes.write(block)
    return {CODES: codes.checksum, WORDS: words.checksum}, columns


def _read_parts(place: Path, count: int) -> Iterator[Part]:
    for chunk in range(count):
        path = part_file(place, chunk)
        try:
            yield Part.from_json(load_json(read_regular(path), path.name))
        except (TypeError, ValueError) as error:
            raise TableError(
                f"the row store in {str(place)!r} cannot be finished: {path.name} is damaged ({error}); remove that "
                "folder, and it is built again"
            ) from error


def digest_of(sums: Ints) -> str:
    """Return the hash of some sums, as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(sums.data)


def open_sums(path: Path, rows: int) -> tuple[Ints, str] | None:
    """Map a file of sums for so many rows, one more than rows, and check its hash.

    Returns:
        The sums, read-only, and their hash; None if there is no such file.
    """
    wanted = 8 * (rows + 1) + _HASH_BYTES
    try:
        found = stat_regular(path).st_size
        if found != wanted:
            raise _damaged(path, f"it has {found:,} bytes instead of {wanted:,}")
        mapped = mapping(path)
    except (FileNotFoundError, NotADirectoryError):  # whoever creates the folder reports what is wrong with it
        return None
    digest = digest_of(np.frombuffer(mapped, dtype=np.int64, count=rows + 1))
    if mapped[-_HASH_BYTES:].hex() != digest:
        raise _damaged(path, "its checksum differs")
    return scattered(mapped)[:-_HASH_BYTES].view(np.int64), digest


def build_sums(path: Path, rows: int, fill: Callable[[Ints], None]) -> None:
    """Make a file of sums, or wait for another process that makes it.

    `fill` writes the sums into an array of ``rows + 1`` zeros.
    """
    leases_folder, number = path.parent / LEASES, int.from_bytes(hashlib.sha256(path.name.encode()).digest()[:6])
    with naming_disk_errors(path.parent):
        make_folder(path.parent)
        make_folder(leases_folder)
    with Leases(leases_folder) as leases:
        while not path.exists():
            if not leases.claim(number):
                time.sleep(sizes().look_again_s)
                continue
            try:
                if not path.exists():  # another process finished between the two checks
                    _write(path, rows, fill)
            finally:
                leases.release(number)


def _write(path: Path, rows: int, fill: Callable[[Ints], None]) -> None:
    num_bytes = 8 * (rows + 1)
    with naming_disk_errors(path.parent), new_file(path) as (unfinished, file):
        file.truncate(num_bytes + _HASH_BYTES)
        allocate(file.fileno(), num_bytes + _HASH_BYTES)
        again = open_regular(unfinished, os.O_RDWR)
        try:
            mapped = mmap.mmap(again, num_bytes)
        finally:
            os.close(again)
        sums = np.frombuffer(mapped, dtype=np.int64)
        fill(sums)
        digest = digest_of(sums)
        mapped.flush()
        file.seek(num_bytes)
        file.write(bytes.fromhex(digest))
        file.flush()
        os.fsync(file.fileno())
        file.close()
        unfinished.replace(path)


def _damaged(path: Path, why: str) -> StorageError:
    return StorageError(f"the weights in {str(path)!r} are damaged: {why}; remove the file, and it is computed again")
