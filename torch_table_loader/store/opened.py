"""Opens a complete store: its files are mapped into memory."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from torch_table_loader.arrow.datatypes import plain_type
from torch_table_loader.arrow.sound import sound
from torch_table_loader.cancellation import Threads
from torch_table_loader.errors import OutOfMemoryError
from torch_table_loader.local_files import open_regular
from torch_table_loader.planning.lists import SUMMED, ListLengths
from torch_table_loader.store.coded_strings import CodedStrings
from torch_table_loader.store.gather import ListValues, ReadAhead, StoredRows, TextOfFiles
from torch_table_loader.store.manifest import Manifest, Summed, check_fits, check_store, read_manifest, write_manifest
from torch_table_loader.store.record_layout import CODES, IDS, LENGTHS, WORDS, Origin, StoreSpec, heap_file, values_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NO_BYTES = np.empty(0, dtype=np.uint8)


def open_store(
    place: Path,
    spec: StoreSpec,
    threads: int,
    window_bytes: int | None = None,
    *,
    share: tuple[int, int] | None = (0, 1),
    contents: bool = False,
    compared: bool = False,
) -> StoredRows | None:
    """Map a store into memory after checking it.

    Args:
        threads: number of threads that compute checksums.
        window_bytes: bytes of pages that a lane may have the system read ahead; None if memory holds the store.
        share: see `Manifest.opening_sums`; None also if memory does not hold the store.
        contents: whether to compare everything, and not only if a file was written to since the store was finished.
        compared: whether the process that started this one has compared the contents.

    Returns:
        None if there is no store, or it is not complete yet.
    """
    manifest = read_manifest(place)
    if manifest is None:
        return None
    check_fits(manifest, spec, place.name)
    touched = _compare_with_files(place, spec, manifest, threads, contents=contents)
    chunks, files = _mapped(place, manifest)
    origin = Origin(place.name)
    with Threads(threads, "table-loader-verify", joined=True) as pool:
        if not (touched or contents):
            compare(manifest.opening_sums(share), files, origin, pool.map)
        heaps = list(pool.map(lambda chunk: heap_batches(manifest, chunk, files[heap_file(chunk)], origin), chunks))
    lengths, values = _flat_lists(manifest, files, origin)
    compared = compared or touched or contents or share == (0, 1)
    return stored_rows(
        manifest,
        manifest.num_rows,
        {name: scattered(files[name]) for name in manifest.row_widths if name in files},
        [batch for batches in heaps for batch in batches],
        words_of(files[WORDS], manifest, origin) if manifest.codes else (),
        origin,
        lengths=lengths,
        values=values,
        read_ahead=_read_ahead(place, manifest, window_bytes),
        text=None if compared else TextOfFiles([heap_file(chunk) for chunk in chunks for _ in heaps[chunk]], origin),
    )


def _compare_with_files(place: Path, spec: StoreSpec, manifest: Manifest, threads: int, *, contents: bool) -> bool:
    """Return whether files had to be compared, since they were written to after the store was finished."""
    touched = check_store(place, manifest, contents=contents, threads=threads)
    if touched:
        with suppress(OSError):  # so that the next one need not read it all again; the folder may be read-only
            write_manifest(place, spec, manifest.parts, manifest.whole, manifest.codes)
    return touched


def _mapped(place: Path, manifest: Manifest) -> tuple[range, dict[str, mmap.mmap]]:
    """Return the chunks that have heaps, and the files that are read, mapped into memory, by name."""
    chunks, unread = range(len(manifest.parts)), frozenset[str]()
    if not manifest.heap_names:
        chunks, unread = range(0), frozenset(map(heap_file, chunks))
    names = [name for name, (length, *_) in manifest.files.items() if length and name not in unread]
    return chunks, {name: mapping(place / name) for name in names}


def _flat_lists(
    manifest: Manifest, files: Mapping[str, mmap.mmap], origin: Origin
) -> tuple[ListLengths | None, ListValues | None]:
    """Return the lengths and values of lists that are kept flat; None where none are."""
    if not manifest.flat:
        return None, None
    dtype, own = manifest.layout.value_dtype, map(values_file, range(len(manifest.parts)))
    values = ListValues.consecutive([scattered(files[name]).view(dtype) for name in own if name in files])
    return lengths_of(files[LENGTHS], manifest, origin), values


def stored_rows(
    manifest: Manifest,
    num_rows: int,
    files: Mapping[str, NDArray[np.uint8]],
    heap: Sequence[pa.RecordBatch],
    words: tuple[pa.Array, ...],
    origin: Origin,
    **others: Any,
) -> StoredRows:
    """View rows of a store, from the bytes of its files.

    `words` are the distinct strings of the columns with codes; `others` are more arguments of `StoredRows`.
    """
    strings = None
    if manifest.codes:
        codes = files.get(CODES, _NO_BYTES).reshape(-1).view("<i4").reshape(num_rows, len(manifest.codes))
        strings = CodedStrings(manifest.codes, codes, words, origin)
    return StoredRows(manifest.layout, num_rows, files, manifest.null_columns, heap, strings=strings, **others)


def compare(parts: Sequence[Summed], files: Mapping[str, Any], origin: Origin, each: Callable[..., Any] = map) -> None:
    """Compare parts of files with their checksums, given the bytes of each file that is not empty.

    `each` is `map`, or that of a pool.
    """

    def one(part: Summed) -> None:
        data = memoryview(files[part.name])[part.start : part.start + part.length]
        if xxhash.xxh3_64_intdigest(data) != part.checksum:
            raise origin.damaged(part.what)

    list(each(one, [part for part in parts if part.length]))


def heap_batches(manifest: Manifest, chunk: int, data: Any, origin: Origin) -> list[pa.RecordBatch]:
    """Return the columns of a chunk's heap that are read, after validating its bytes."""
    name, wanted, rows = heap_file(chunk), manifest.layout.heap_schema, manifest.parts[chunk].rows
    batches = arrow_batches(data, name, origin, text=False)
    if any(batch.schema != wanted for batch in batches) or sum(batch.num_rows for batch in batches) != rows:
        raise origin.damaged(name, f"does not have {rows} rows of the columns of the manifest")
    return [batch.select(manifest.heap_names) for batch in batches]


def lengths_of(data: Any, manifest: Manifest, origin: Origin) -> ListLengths:
    """Return the lengths in a file, from its bytes, whose checksum was compared."""
    rows, wanted = manifest.num_rows, int(manifest.value_starts[-1])
    sums = np.frombuffer(data, dtype="<i8", count=-(-rows // SUMMED) + 1)
    if sums[-1] != wanted:
        raise origin.damaged(LENGTHS, f"counts {sums[-1]} elements of lists, and the manifest {wanted}")
    lengths = np.frombuffer(data, dtype=f"<u{manifest.length_width or 1}", offset=sums.nbytes)
    return ListLengths(lengths, sums, rows)


def words_of(data: Any, manifest: Manifest, origin: Origin) -> tuple[pa.Array, ...]:
    """Return the distinct strings of each column, from the bytes of ``words.arrow``, whose checksum was compared."""
    wanted = [pa.large_list(plain_type(manifest.schema.types[column])) for column in manifest.codes]
    batches = arrow_batches(data, WORDS, origin, text=False)
    if [batch.num_rows for batch in batches] != [1] or batches[0].schema.types != wanted:
        raise origin.damaged(WORDS, "does not have one row of the columns of the manifest")
    return tuple(column.values for column in batches[0].columns)


def _read_ahead(place: Path, manifest: Manifest, window_bytes: int | None) -> ReadAhead | None:
    if window_bytes is None or not hasattr(os, "posix_fadvise"):
        return None
    files = [(place / name, width) for name, width in manifest.row_widths.items() if width and name != IDS]
    if files:
        return ReadAhead(files, window_bytes)
    return None


def mapping(path: Path) -> mmap.mmap:
    """Map a non-empty file for reading.

    Raises:
        OutOfMemoryError: the address space has no room for it.
    """
    file = open_regular(path)
    try:
        return mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise OutOfMemoryError(
            f"the row store's file {str(path)!r} of {os.fstat(file).st_size:,} bytes does not fit this process's "
            "address space; raise its limit (`ulimit -v`), or pass fewer columns=[...]"
        ) from error
    finally:
        os.close(file)


def scattered(mapped: mmap.mmap) -> NDArray[np.uint8]:
    """Return the bytes of a mapped file, and tell the system that they will be read in any order."""
    if hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, dtype=np.uint8)


def arrow_batches(data: Any, what: str, origin: Origin, *, text: bool) -> list[pa.RecordBatch]:
    """Return the record batches of an Arrow IPC file as views of its bytes, after validating these."""
    try:
        with pa.ipc.open_file(pa.BufferReader(pa.py_buffer(data))) as reader:
            return [sound(reader.get_batch(number), text=text) for number in range(reader.num_record_batches)]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise origin.damaged(what, f"does not decode ({str(error).partition(chr(10))[0]})") from error
