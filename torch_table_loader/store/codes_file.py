"""Codes of the strings that repeat, in the files of a store: an index beside the heaps, which keep every string.

``codes.bin`` has an int32 for each row and column, row by row: the place of the row's string among the distinct strings
of its column, or -1 for a null. ``words.arrow`` is an Arrow IPC file with one row, which has a list of the distinct
strings of each column. A store that lacks them, such as one of an older version, is read from its heaps.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from torch_table_loader.store.chunk_writer import ArrowFile, ChunkFile
from torch_table_loader.store.coded_strings import CodedStrings, codes_of
from torch_table_loader.store.mapped import arrow_batches, scattered
from torch_table_loader.store.spec import CODES, WORDS, CodesPart, StoreSpec, chunk_codes_file

if TYPE_CHECKING:
    from collections.abc import Sequence


def write_codes(place: Path, spec: StoreSpec) -> CodesPart | None:
    """Write the codes of a store whose chunks are finished.

    Args:
        place: the store's folder.
        spec: what it contains.

    Returns:
        None if no strings repeat, or a chunk was built without codes.

    Raises:
        StorageError: the disk is full.
    """
    paths = [place / chunk_codes_file(chunk) for chunk, rows in enumerate(spec.chunk_rows) if rows]
    if not all(path.exists() for path in paths):
        return None
    chunks = [arrow_batches(path) for path in paths]
    found = codes_of(chunks)
    if not found.names:
        return None
    lists = [pa.LargeListArray.from_arrays([0, len(words)], words) for words in found.dictionaries]
    row = pa.RecordBatch.from_arrays(lists, list(found.names))
    with ArrowFile(place / WORDS, row.schema) as words:
        words.write(row)
    with ChunkFile(place / CODES) as codes:
        found.write(chunks, codes.write)
    return CodesPart(tuple(int(name[1:]) for name in found.names), found.nullable, codes.crc, words.crc)


def open_codes(place: Path, part: CodesPart) -> CodedStrings:
    """Map the codes of a store."""
    codes = scattered(place / CODES).view("<i4").reshape(-1, len(part.columns))
    return CodedStrings(part.columns, codes, words_of(arrow_batches(place / WORDS)), part.nullable)


def words_of(batches: Sequence[pa.RecordBatch]) -> tuple[pa.Array, ...]:
    """Return the distinct strings of each column from the content of ``words.arrow``."""
    return tuple(column.values for column in batches[0].columns)
