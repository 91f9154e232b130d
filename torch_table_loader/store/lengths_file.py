"""The lengths of a store's lists in one file, in the narrowest integers that can hold them.

The file has the number of elements before each block of 64 lists (int64, with the total at the end), then the lengths,
by row, padded with zeros to a whole block.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from torch_table_loader.errors import TableError
from torch_table_loader.local_files import new_file
from torch_table_loader.planning.document_lengths import SUMMED, DocumentLengths
from torch_table_loader.store.spec import LENGTHS, Part

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.store.manifest import Manifest
    from torch_table_loader.store.origin import Origin


def write_lengths(place: Path, wide: NDArray[Any], parts: Sequence[Part]) -> tuple[int, int]:
    """Write the file for a store whose chunks are finished.

    Returns:
        The bytes of a length, and the XXH3 hash of the file.

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
    made, checksum = DocumentLengths.of(wide), xxhash.xxh3_64()
    with new_file(place / LENGTHS) as (unfinished, file):
        for data in (made.sums, made.padded):
            checksum.update(data.data)
            file.write(data.data)
        file.flush()
        os.fsync(file.fileno())
        file.close()
        unfinished.replace(place / LENGTHS)
    return made.padded.itemsize, int(checksum.intdigest())


def lengths_of(data: Any, width: int, manifest: Manifest, origin: Origin) -> DocumentLengths:
    """Return the lengths in a file whose checksum was compared.

    Args:
        data: its bytes.
        width: bytes of a length.

    Raises:
        TableError: the lengths do not fit the store.
    """
    rows, wanted = manifest.num_rows, int(manifest.value_starts[-1])
    sums = np.frombuffer(data, dtype="<i8", count=-(-rows // SUMMED) + 1)
    if sums[-1] != wanted:
        raise origin.damaged(LENGTHS, f"counts {sums[-1]} elements of lists, and the manifest {wanted}")
    lengths = np.frombuffer(data, dtype=f"<u{width}", offset=sums.nbytes)
    return DocumentLengths(lengths, sums, rows)
