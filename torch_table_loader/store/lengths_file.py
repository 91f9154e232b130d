"""The lengths of a store's lists in one file, in the narrowest integers that can hold them.

The file has the number of elements before each block of 64 lists (int64, with the total at the end), then the lengths,
by row, padded with zeros to a whole block.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_table_loader.errors import TableError
from torch_table_loader.local_files import new_file
from torch_table_loader.planning.document_lengths import SUMMED, DocumentLengths
from torch_table_loader.store.manifest import REMEDY
from torch_table_loader.store.spec import LENGTHS, Part

if TYPE_CHECKING:
    from numpy.typing import NDArray


def write_lengths(place: Path, wide: NDArray[Any], parts: Sequence[Part]) -> tuple[int, int]:
    """Write the file for a store whose chunks are finished.

    Args:
        place: the store's folder.
        wide: the length of each list.
        parts: the store's chunks.

    Returns:
        The bytes of a length, and the CRC-32 of the file.

    Raises:
        TableError: the lengths do not match the chunks.
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
    made, crc = DocumentLengths.of(wide), 0
    with new_file(place / LENGTHS) as (unfinished, file):
        for data in (made.sums, made.padded):
            crc = zlib.crc32(data.data, crc)
            file.write(data.data)
        file.flush()
        os.fsync(file.fileno())
        file.close()
        unfinished.replace(place / LENGTHS)
    return made.padded.itemsize, crc


def lengths_of(data: Any, width: int, rows: int, name: str) -> DocumentLengths:
    """Return the lengths in a file.

    Args:
        data: its bytes.
        width: bytes of a length.
        rows: rows of the store.
        name: the store's name, for the message.

    Raises:
        TableError: the file has the wrong number of bytes.
    """
    blocks = -(-rows // SUMMED)
    wanted, found = 8 * (blocks + 1) + width * SUMMED * blocks, memoryview(data).nbytes
    if found != wanted:
        raise TableError(
            f"the row store {name!r} is damaged: {LENGTHS} must have {wanted} bytes for {rows} rows, got {found}; "
            f"{REMEDY}"
        )
    sums = np.frombuffer(data, dtype="<i8", count=blocks + 1)
    lengths = np.frombuffer(data, dtype=f"<u{width}", offset=sums.nbytes)
    return DocumentLengths(lengths, sums, rows)
