"""Files of a store, mapped into memory."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from torch_table_loader.errors import OutOfMemoryError
from torch_table_loader.local_files import open_regular

if TYPE_CHECKING:
    from numpy.typing import NDArray


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


def scattered(path: Path) -> NDArray[np.uint8]:
    """Map a non-empty file whose bytes are read in any order."""
    mapped = mapping(path)
    if hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, dtype=np.uint8)


def arrow_batches(path: Path) -> list[pa.RecordBatch]:
    """Map the record batches of an Arrow IPC file."""
    with pa.ipc.open_file(pa.BufferReader(pa.py_buffer(mapping(path)))) as reader:
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]
