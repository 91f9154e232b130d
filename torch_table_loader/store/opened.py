"""Opens a complete store."""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from torch_table_loader.errors import OutOfMemoryError
from torch_table_loader.local_files import open_regular
from torch_table_loader.store.gather import StoredRows
from torch_table_loader.store.lengths_file import lengths_of
from torch_table_loader.store.list_values import ListValues, StoredLists
from torch_table_loader.store.manifest import Manifest, check_fits, check_store, read_manifest, write_manifest
from torch_table_loader.store.read_ahead import ReadAhead
from torch_table_loader.store.spec import IDS, LENGTHS, NULLS, RECORDS, StoreSpec, heap_file, values_file

if TYPE_CHECKING:
    from numpy.typing import NDArray


def open_store(place: Path, spec: StoreSpec, threads: int, window_bytes: int | None = None) -> StoredRows | None:
    """Map a store into memory after checking its counts, and its checksums if a file was written since.

    Args:
        place: its folder.
        spec: what it must contain.
        threads: number of threads that compute checksums.
        window_bytes: bytes of pages that a lane may have the system read ahead; None if memory holds the store.

    Returns:
        None if there is no store, or it is not complete yet.

    Raises:
        TableError: the store is damaged, or contains something else.
    """
    manifest = read_manifest(place)
    if manifest is None:
        return None
    check_fits(manifest, spec, place.name)
    if check_store(place, manifest, contents=False, threads=threads):
        with suppress(OSError):  # so that the next one need not read it all again; the folder may be read-only
            write_manifest(place, spec, manifest.parts, manifest.lengths)
    return _mapped(place, manifest, window_bytes)


def _mapped(place: Path, manifest: Manifest, window_bytes: int | None) -> StoredRows:
    layout, rows = manifest.layout, manifest.num_rows
    records: NDArray[Any] = np.empty(0, dtype=np.uint8)
    if layout.width and rows:
        records = _map(place / RECORDS).view(f"V{layout.width}")
    nulls = _map(place / NULLS).reshape(rows, layout.null_width) if NULLS in manifest.files else None
    ids = None
    if IDS in manifest.files:
        ids = _map(place / IDS).view("<i8") if rows else np.empty(0, dtype="<i8")
    heap: list[pa.RecordBatch] = []
    if layout.heap:
        for chunk in range(len(manifest.parts)):
            heap += _heap(place / heap_file(chunk))
    read_ahead = None
    if window_bytes is not None and layout.width and hasattr(os, "posix_fadvise"):
        nulled = [(place / NULLS, layout.null_width)] if NULLS in manifest.files else []
        read_ahead = ReadAhead([(place / RECORDS, layout.width), *nulled], window_bytes)
    lists = None if manifest.lengths is None else _lists(place, manifest, manifest.lengths[0])
    return StoredRows(layout, records, nulls, manifest.null_columns, ids, heap, rows, read_ahead, lists)


def _lists(place: Path, manifest: Manifest, width: int) -> StoredLists:
    lengths = lengths_of(mapping(place / LENGTHS), width, manifest.num_rows, place.name)
    dtype = manifest.layout.value_dtype
    values = [
        _map(place / values_file(chunk)).view(dtype) for chunk, part in enumerate(manifest.parts) if part.num_values
    ]
    return StoredLists(lengths, ListValues.behind_one_another(values))


def _map(path: Path) -> NDArray[np.uint8]:
    """Map a file for random access."""
    mapped = mapping(path)
    if hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, dtype=np.uint8)


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


def _heap(path: Path) -> list[pa.RecordBatch]:
    with pa.ipc.open_file(pa.BufferReader(pa.py_buffer(mapping(path)))) as reader:
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]
