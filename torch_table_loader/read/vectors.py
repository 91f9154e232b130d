"""Deletion vectors: roaring bitmaps of row positions in Puffin files (https://iceberg.apache.org/puffin-spec/)."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_table_loader.errors import MissingExtraError, TableError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DeleteFile

_PUFFIN = b"PFA1"
_VECTOR = b"\xd1\xd3\x39\x64"


def read_vector(storage: Storage, delete: DeleteFile) -> NDArray[np.int64]:
    """Read a deletion vector.

    Args:
        storage: where it is.
        delete: which, with the place of its blob.

    Returns:
        int64 positions in the data file, ascending.

    Raises:
        TableError: it is gone, torn, or no deletion vector.
    """
    if delete.blob is None:
        raise TableError(f"{delete.file.name} must come with the place of its blob; plan the table again")
    offset, length = delete.blob
    with storage.open(delete.file.path) as source:
        size = source.size()
        head = source.read_at(min(4, size), 0)
        tail = source.read_at(min(4, size), max(0, size - 4))
        if head != _PUFFIN or tail != _PUFFIN:
            raise _broken(delete, f"a Puffin file, which begins and ends with {_PUFFIN!r}", f"{head!r} and {tail!r}")
        if offset < 4 or offset + length > size - 4:
            raise _broken(delete, f"a blob inside its {size} bytes", f"bytes {offset} to {offset + length}")
        blob = source.read_at(length, offset)
    return parse_vector(blob, delete)


def parse_vector(blob: bytes, delete: DeleteFile) -> NDArray[np.int64]:
    """Parse a blob of the type ``deletion-vector-v1``: length, magic, bitmap and checksum.

    Args:
        blob: its bytes.
        delete: where it is from, and how many positions it must have.
    """
    if len(blob) < 12 or int.from_bytes(blob[:4], "big") != len(blob) - 8:
        raise _broken(delete, "a blob that says its own length", f"{len(blob)} bytes that say another")
    body = blob[4:-4]
    if body[:4] != _VECTOR:
        raise _broken(delete, f"a blob with the magic {_VECTOR!r}", repr(body[:4]))
    if zlib.crc32(body) != int.from_bytes(blob[-4:], "big"):
        raise _broken(delete, "a blob whose checksum holds", "another checksum")
    try:
        bitmap = _bitmap(body[4:])
        if len(bitmap) != delete.num_rows:  # before it is unpacked: a few bytes may hold any number of positions
            raise _broken(delete, f"the {delete.num_rows} positions that the manifest says", f"{len(bitmap)}")
        return np.array(bitmap.to_array(), dtype=np.int64)
    except (ValueError, OverflowError, IndexError) as error:
        raise _broken(delete, "a roaring bitmap", f"bytes that do not parse ({error})") from error


def _bitmap(data: bytes) -> Any:
    try:
        from pyroaring import BitMap64
    except ImportError as error:
        raise MissingExtraError("deletion vectors need pyroaring; pip install 'torch-table-loader[iceberg]'") from error
    return BitMap64.deserialize(data)


def _broken(delete: DeleteFile, expected: str, got: str) -> TableError:
    return TableError(
        f"the deletion vector in {delete.file.name} must be {expected}, got {got}; the file is torn, or was not "
        "written as the format says: write the table's deletes again"
    )
