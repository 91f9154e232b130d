"""Sums of the rows' weights in a file beside the row stores: made once, mapped by all ranks of a machine.

The file is the sums, int64 in this machine's byte order, followed by the 16 bytes of their XXH3 hash. It gets its name
when it is complete.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import xxhash

from torch_table_loader.errors import StorageError
from torch_table_loader.local_files import allocate, make_folder, new_file, open_regular, stat_regular
from torch_table_loader.sizes import sizes
from torch_table_loader.store.chunk_writer import naming_disk_errors
from torch_table_loader.store.leases import Leases
from torch_table_loader.store.opened import mapping, scattered
from torch_table_loader.store.spec import LEASES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

_HASH_BYTES = 16


def digest_of(sums: Ints) -> str:
    """Return the hash of some sums, as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(sums.data)


def open_sums(path: Path, rows: int) -> tuple[Ints, str] | None:
    """Map a file of sums for so many rows, one more than rows, and check its hash.

    Returns:
        The sums, read-only, and their hash; None if there is no such file.
    """
    wanted = 8 * (rows + 1) + _HASH_BYTES
    try:
        found = stat_regular(path).st_size
        if found != wanted:
            raise _damaged(path, f"it has {found:,} bytes instead of {wanted:,}")
        mapped = mapping(path)
    except (FileNotFoundError, NotADirectoryError):  # whoever creates the folder reports what is wrong with it
        return None
    digest = digest_of(np.frombuffer(mapped, dtype=np.int64, count=rows + 1))
    if mapped[-_HASH_BYTES:].hex() != digest:
        raise _damaged(path, "its checksum differs")
    return scattered(mapped)[:-_HASH_BYTES].view(np.int64), digest


def build_sums(path: Path, rows: int, fill: Callable[[Ints], None]) -> None:
    """Make a file of sums, or wait for another process that makes it.

    `fill` writes the sums into an array of ``rows + 1`` zeros.
    """
    leases_folder, number = path.parent / LEASES, int.from_bytes(hashlib.sha256(path.name.encode()).digest()[:6])
    with naming_disk_errors(path.parent):
        make_folder(path.parent)
        make_folder(leases_folder)
    with Leases(leases_folder) as leases:
        while not path.exists():
            if not leases.claim(number):
                time.sleep(sizes().look_again_s)
                continue
            try:
                if not path.exists():  # another process finished between the two checks
                    _write(path, rows, fill)
            finally:
                leases.release(number)


def _write(path: Path, rows: int, fill: Callable[[Ints], None]) -> None:
    num_bytes = 8 * (rows + 1)
    with naming_disk_errors(path.parent), new_file(path) as (unfinished, file):
        file.truncate(num_bytes + _HASH_BYTES)
        allocate(file.fileno(), num_bytes + _HASH_BYTES)
        again = open_regular(unfinished, os.O_RDWR)
        try:
            mapped = mmap.mmap(again, num_bytes)
        finally:
            os.close(again)
        sums = np.frombuffer(mapped, dtype=np.int64)
        fill(sums)
        digest = digest_of(sums)
        mapped.flush()
        file.seek(num_bytes)
        file.write(bytes.fromhex(digest))
        file.flush()
        os.fsync(file.fileno())
        file.close()
        unfinished.replace(path)


def _damaged(path: Path, why: str) -> StorageError:
    return StorageError(f"the weights in {str(path)!r} are damaged: {why}; remove the file, and it is computed again")
