"""Codes of the strings that repeat, in the files of a store: an index beside the heaps, which keep every string.

``codes.bin`` has an int32 for each row and column, row by row: the place of the row's string among the distinct strings
of its column, or -1 for a null. ``words.arrow`` is an Arrow IPC file with one row, which has a list of the distinct
strings of each column. A store that lacks them is read from its heaps.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from torch_table_loader.arrow.datatypes import plain_type
from torch_table_loader.store.chunk_writer import ArrowFile, ChunkFile
from torch_table_loader.store.coded_strings import codes_of
from torch_table_loader.store.mapped import arrow_batches, mapping
from torch_table_loader.store.origin import Origin
from torch_table_loader.store.spec import CODES, PARTS, WORDS, CodesPart, StoreSpec, chunk_codes_file

if TYPE_CHECKING:
    from torch_table_loader.store.record_layout import RecordLayout


def write_codes(place: Path, spec: StoreSpec) -> CodesPart | None:
    """Write the codes of a store whose chunks are finished.

    Returns:
        None if no strings repeat, or a chunk was built without codes.

    Raises:
        StorageError: the disk is full.
    """
    paths = [place / chunk_codes_file(chunk) for chunk, rows in enumerate(spec.chunk_rows) if rows]
    if not all(path.exists() for path in paths):
        return None
    origin = Origin(place.name, f"remove the folder {str(place)!r}, and it is built again")
    chunks = [arrow_batches(mapping(path), f"{PARTS}/{path.name}", origin, text=True) for path in paths]
    found = codes_of(chunks)
    if not found.names:
        return None
    lists = [pa.LargeListArray.from_arrays([0, len(words)], words) for words in found.dictionaries]
    row = pa.RecordBatch.from_arrays(lists, list(found.names))
    with ArrowFile(place / WORDS, row.schema) as words:
        words.write(row)
    with ChunkFile(place / CODES) as codes:
        found.write(chunks, codes.write)
    return CodesPart(tuple(int(name[1:]) for name in found.names), found.nullable, codes.checksum, words.checksum)


def words_of(data: Any, part: CodesPart, layout: RecordLayout, origin: Origin) -> tuple[pa.Array, ...]:
    """Return the distinct strings of each column.

    Args:
        data: the content of ``words.arrow``, whose checksum was compared.

    Raises:
        TableError: they do not fit the store.
    """
    wanted = [pa.large_list(plain_type(layout.schema.types[column])) for column in part.columns]
    batches = arrow_batches(data, WORDS, origin, text=False)
    if [batch.num_rows for batch in batches] != [1] or batches[0].schema.types != wanted:
        raise origin.damaged(WORDS, "does not have one row of the columns of the manifest")
    return tuple(column.values for column in batches[0].columns)
