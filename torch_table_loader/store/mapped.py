"""Files of a store, mapped into memory."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow.sound import sound
from torch_table_loader.errors import OutOfMemoryError
from torch_table_loader.local_files import open_regular

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.store.origin import Origin


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
    """Return the bytes of a mapped file, which are read in any order from now on."""
    if hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, dtype=np.uint8)


def arrow_batches(data: Any, what: str, origin: Origin, *, text: bool) -> list[pa.RecordBatch]:
    """Return the record batches of an Arrow IPC file as views of its bytes, after validating them.

    Args:
        data: the file's bytes.
        text: whether text is looked at too; see `sound`.

    Raises:
        TableError: the file is damaged.
    """
    try:
        with pa.ipc.open_file(pa.BufferReader(pa.py_buffer(data))) as reader:
            return [sound(reader.get_batch(number), text=text) for number in range(reader.num_record_batches)]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise origin.damaged(what, f"does not decode ({str(error).partition(chr(10))[0]})") from error
