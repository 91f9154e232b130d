"""Opens a complete store."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_table_loader.cancellation import Threads
from torch_table_loader.store.coded_strings import CodedStrings
from torch_table_loader.store.codes_file import words_of
from torch_table_loader.store.gather import StoredRows, TextOfFiles
from torch_table_loader.store.lengths_file import lengths_of
from torch_table_loader.store.list_values import ListValues, StoredLists
from torch_table_loader.store.manifest import Manifest, Summed, check_fits, check_store, read_manifest, write_manifest
from torch_table_loader.store.mapped import arrow_batches, mapping, scattered
from torch_table_loader.store.origin import Origin
from torch_table_loader.store.read_ahead import ReadAhead
from torch_table_loader.store.spec import CODES, IDS, LENGTHS, NULLS, RECORDS, WORDS, StoreSpec, heap_file, values_file

if TYPE_CHECKING:
    import mmap

    import pyarrow as pa
    from numpy.typing import NDArray


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
        spec: what it must contain.
        threads: number of threads that compute checksums.
        window_bytes: bytes of pages that a lane may have the system read ahead; None if memory holds the store.
        share: see `Manifest.opening_sums`; None also if memory does not hold the store.
        contents: whether to compare everything, and not only if a file was written to since the store was finished.
        compared: whether the process that started this one has compared the contents.

    Returns:
        None if there is no store, or it is not complete yet.

    Raises:
        TableError: the store is damaged, or contains something else.
    """
    manifest = read_manifest(place)
    if manifest is None:
        return None
    check_fits(manifest, spec, place.name)
    touched = check_store(place, manifest, contents=contents, threads=threads)
    if touched:
        with suppress(OSError):  # so that the next one need not read it all again; the folder may be read-only
            write_manifest(place, spec, manifest.parts, manifest.lengths, manifest.codes)
    names = [name for name, (length, *_) in manifest.files.items() if length]
    unread = () if manifest.heap_names else {heap_file(chunk) for chunk in range(len(manifest.parts))}
    files = {name: mapping(place / name) for name in names if name not in unread}
    origin, chunks = Origin(place.name), range(len(manifest.parts)) if manifest.heap_names else ()
    with Threads(threads, "table-loader-verify", joined=True) as pool:
        if not (touched or contents):
            compare(manifest.opening_sums(share), files, origin, pool.map)
        heaps = list(pool.map(lambda chunk: heap_batches(manifest, chunk, files[heap_file(chunk)], origin), chunks))
    rows = _mapped(place, manifest, files, heaps)
    compared = compared or touched or contents or share == (0, 1)
    text = None if compared else TextOfFiles([heap_file(chunk) for chunk in chunks for _ in heaps[chunk]], origin)
    return replace(rows, read_ahead=_read_ahead(place, manifest, window_bytes), text=text)


def compare(parts: Sequence[Summed], files: Mapping[str, Any], origin: Origin, each: Callable[..., Any] = map) -> None:
    """Compare parts of files with their checksums.

    Args:
        files: the bytes of each file that is not empty.
        each: `map`, or that of a pool.

    Raises:
        TableError: a part is not what was written.
    """

    def one(part: Summed) -> None:
        part.compare(memoryview(files[part.name])[part.start : part.start + part.length], origin)

    list(each(one, [part for part in parts if part.length]))


def heap_batches(
    manifest: Manifest, chunk: int, data: Any, origin: Origin, *, text: bool = False
) -> list[pa.RecordBatch]:
    """Return the columns of a chunk's heap that are read, after validating the heap.

    Args:
        data: the heap's bytes.

    Raises:
        TableError: the heap is damaged.
    """
    name, wanted, rows = heap_file(chunk), manifest.layout.heap_schema, manifest.parts[chunk].rows
    batches = arrow_batches(data, name, origin, text=text)
    if any(batch.schema != wanted for batch in batches) or sum(batch.num_rows for batch in batches) != rows:
        raise origin.damaged(name, f"does not have {rows} rows of the columns of the manifest")
    return [batch.select(manifest.heap_names) for batch in batches]


def _mapped(
    place: Path, manifest: Manifest, files: Mapping[str, mmap.mmap], heaps: Sequence[Sequence[pa.RecordBatch]]
) -> StoredRows:
    layout, rows, origin = manifest.layout, manifest.num_rows, Origin(place.name)
    arrays = {name: scattered(files[name]) for name in (RECORDS, NULLS, IDS, CODES) if name in files}
    none = np.empty(0, dtype=np.uint8)
    records: NDArray[Any] = arrays.get(RECORDS, none)
    strings, coded = None, manifest.codes
    if coded is not None:
        codes = arrays.get(CODES, none).view("<i4").reshape(-1, len(coded.columns))
        strings = CodedStrings(
            coded.columns, codes, words_of(files[WORDS], coded, layout, origin), coded.nullable, origin
        )
    return StoredRows(
        layout,
        records.view(f"V{layout.width}") if layout.width else records,
        arrays.get(NULLS, none).reshape(rows, layout.null_width) if NULLS in manifest.files else None,
        manifest.null_columns,
        arrays.get(IDS, none).view("<i8") if IDS in manifest.files else None,
        [batch for batches in heaps for batch in batches],
        rows,
        lists=None if manifest.lengths is None else _lists(manifest, files, manifest.lengths[0], origin),
        strings=strings,
    )


def _read_ahead(place: Path, manifest: Manifest, window_bytes: int | None) -> ReadAhead | None:
    if window_bytes is None or not hasattr(os, "posix_fadvise"):
        return None
    layout = manifest.layout
    widths = {RECORDS: layout.width, NULLS: layout.null_width, CODES: manifest.codes_width}
    files = [(place / name, width) for name, width in widths.items() if width and name in manifest.files]
    return ReadAhead(files, window_bytes) if files else None


def _lists(manifest: Manifest, files: Mapping[str, mmap.mmap], width: int, origin: Origin) -> StoredLists:
    dtype, names = manifest.layout.value_dtype, map(values_file, range(len(manifest.parts)))
    values = [scattered(files[name]).view(dtype) for name in names if name in files]
    return StoredLists(lengths_of(files[LENGTHS], width, manifest, origin), ListValues.behind_one_another(values))
