"""Opens a complete store."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_table_loader.store.codes_file import open_codes
from torch_table_loader.store.gather import StoredRows
from torch_table_loader.store.lengths_file import lengths_of
from torch_table_loader.store.list_values import ListValues, StoredLists
from torch_table_loader.store.manifest import Manifest, check_fits, check_store, read_manifest, write_manifest
from torch_table_loader.store.mapped import arrow_batches, mapping, scattered
from torch_table_loader.store.read_ahead import ReadAhead
from torch_table_loader.store.spec import CODES, IDS, LENGTHS, NULLS, RECORDS, StoreSpec, heap_file, values_file

if TYPE_CHECKING:
    import pyarrow as pa
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
            write_manifest(place, spec, manifest.parts, manifest.lengths, manifest.codes)
    return _mapped(place, manifest, window_bytes)


def _mapped(place: Path, manifest: Manifest, window_bytes: int | None) -> StoredRows:
    layout, rows = manifest.layout, manifest.num_rows
    records: NDArray[Any] = np.empty(0, dtype=np.uint8)
    if layout.width and rows:
        records = scattered(place / RECORDS).view(f"V{layout.width}")
    nulls = scattered(place / NULLS).reshape(rows, layout.null_width) if NULLS in manifest.files else None
    ids = None
    if IDS in manifest.files:
        ids = scattered(place / IDS).view("<i8") if rows else np.empty(0, dtype="<i8")
    heap: list[pa.RecordBatch] = []
    strings = None if manifest.codes is None else open_codes(place, manifest.codes)
    if kept := manifest.heap_names:
        for chunk in range(len(manifest.parts)):
            heap += [batch.select(kept) for batch in arrow_batches(place / heap_file(chunk))]
    read_ahead = None
    if window_bytes is not None and hasattr(os, "posix_fadvise"):
        widths = {RECORDS: layout.width, NULLS: layout.null_width, CODES: manifest.codes_width}
        files = [(place / name, width) for name, width in widths.items() if width and name in manifest.files]
        read_ahead = ReadAhead(files, window_bytes) if files else None
    lists = None if manifest.lengths is None else _lists(place, manifest, manifest.lengths[0])
    return StoredRows(layout, records, nulls, manifest.null_columns, ids, heap, rows, read_ahead, lists, strings)


def _lists(place: Path, manifest: Manifest, width: int) -> StoredLists:
    lengths = lengths_of(mapping(place / LENGTHS), width, manifest.num_rows, place.name)
    dtype = manifest.layout.value_dtype
    values = [
        scattered(place / values_file(chunk)).view(dtype)
        for chunk, part in enumerate(manifest.parts)
        if part.num_values
    ]
    return StoredLists(lengths, ListValues.behind_one_another(values))
