"""Deletion vectors: roaring bitmaps, framed alike in Puffin files and in those of Delta Lake.

https://iceberg.apache.org/puffin-spec/, and "Deletion Vector Format" in the protocol of Delta Lake, whose log may hold
the bitmap itself.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from torch_table_loader.contracts import is_far
from torch_table_loader.errors import MissingExtraError, TableError
from torch_table_loader.read.far_files import LEAST_TAIL_BYTES, open_at_end

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DeleteFile

_PUFFIN = b"PFA1"
_DELTA = b"\x01"
_VECTOR = b"\xd1\xd3\x39\x64"
_FOOTER_END = struct.Struct("<iI4s")
_LZ4 = 1
_MOST_FOOTER_BYTES = 256 << 20


class Blob(NamedTuple):
    """What the footer of a Puffin file says of a blob, whose length is in bytes."""

    length: int
    properties: Mapping[str, Any]


class Puffin(NamedTuple):
    """A Puffin file: its blobs, by the bytes at which they begin, and its bytes if it is small."""

    blobs: Mapping[int, Blob]
    data: bytes

    @property
    def num_bytes(self) -> int:
        """About how much memory it takes."""
        return len(self.data) + 512 * len(self.blobs)

    def check(self, delete: DeleteFile, path: str) -> None:
        """Refuse a vector that was not written for a data file.

        Raises:
            TableError: it is of another file, of another length, or deletes more or fewer rows.
        """
        offset, length = delete.blob or (0, 0)
        blob = self.blobs.get(offset)
        if blob is None or blob.length != length:
            there = "none" if blob is None else f"one of {blob.length} bytes"
            raise _broken(delete, f"a blob of {length} bytes at byte {offset}, as the table's metadata says", there)
        if (target := blob.properties.get("referenced-data-file")) != path:
            raise _broken(delete, f"of {path!r}, as the table's metadata says", f"one of {target!r}")
        if (rows := str(blob.properties.get("cardinality", delete.num_rows))) != str(delete.num_rows):
            raise _broken(delete, f"of {delete.num_rows} rows, as the table's metadata says", f"one of {rows:.40}")


def read_puffin(storage: Storage, delete: DeleteFile) -> Puffin:
    """Read the footer of a Puffin file; from a remote store, one request brings a small file whole.

    Raises:
        TableError: it is gone, torn, or no Puffin file.
    """
    with open_at_end(storage, delete.file) as source:
        size = source.size()
        tail = source.read_at(min(size, LEAST_TAIL_BYTES), max(0, size - LEAST_TAIL_BYTES))
        if len(tail) < _FOOTER_END.size or not tail.endswith(_PUFFIN):
            raise _broken(delete, f"in a Puffin file, which begins and ends with {_PUFFIN!r}", repr(tail[-4:]))
        length, flags, _ = _FOOTER_END.unpack(tail[-_FOOTER_END.size :])
        start = size - _FOOTER_END.size - length - len(_PUFFIN)
        if not 0 <= length <= _MOST_FOOTER_BYTES or start < len(_PUFFIN):
            raise _broken(delete, f"in a Puffin file of {size} bytes", f"a footer of {length} bytes")
        footer = source.read_at(size - start, start) if size - start > len(tail) else tail[start - size :]
        head = tail[:4] if len(tail) == size else _PUFFIN if is_far(storage) else source.read_at(4, 0)
    if head != _PUFFIN or not footer.startswith(_PUFFIN):
        raise _broken(delete, f"in a Puffin file, which begins and ends with {_PUFFIN!r}", f"{head!r}, {footer[:4]!r}")
    payload = footer[len(_PUFFIN) : -_FOOTER_END.size]
    try:
        told = json.loads(_decompressed(payload) if flags & _LZ4 else payload)["blobs"]
        blobs = {int(each["offset"]): Blob(int(each["length"]), dict(each.get("properties") or {})) for each in told}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise _broken(delete, "in a Puffin file whose footer is JSON with blobs", f"another ({error!r})") from error
    return Puffin(blobs, tail if len(tail) == size else b"")


def _decompressed(payload: bytes) -> bytes:
    found: bytes = pa.CompressedInputStream(pa.BufferReader(payload), "lz4").read(_MOST_FOOTER_BYTES)
    return found


def read_vector(storage: Storage, delete: DeleteFile, data: bytes = b"") -> NDArray[np.int64]:
    """Read a deletion vector, from `data` if that has all bytes of its file.

    Returns:
        int64 positions in the data file, ascending.

    Raises:
        TableError: it is gone, torn, or no deletion vector.
    """
    if delete.blob is None:
        return _parse_bitmap(delete.inline, delete)
    offset, length = delete.blob
    if delete.file.format == "puffin":
        start, size = _PUFFIN, delete.file.version.num_bytes
    else:  # the log of a Delta Lake table does not say how long the file is
        start, size = _DELTA, storage.version(delete.file.path).num_bytes
    if offset < len(start) or length < 1 or offset + length > size:
        raise _broken(delete, f"a blob inside its {size} bytes", f"bytes {offset} to {offset + length}")
    if data:
        blob = data[offset : offset + length]
    elif is_far(storage):  # its length, magic and checksum show whether it is the blob
        blob = bytes(storage.read_range(delete.file.path, offset, offset + length, delete.file.version))
    else:
        with storage.open(delete.file.path) as source:
            if (head := source.read_at(len(start), 0)) != start:
                raise _broken(delete, f"in a file that begins with {start!r}", repr(head))
            blob = source.read_at(length, offset)
    if len(blob) < 12 or int.from_bytes(blob[:4], "big") != len(blob) - 8:
        raise _broken(delete, "a blob that says its own length", f"{len(blob)} bytes that say another")
    if zlib.crc32(blob[4:-4]) != int.from_bytes(blob[-4:], "big"):
        raise _broken(delete, "a blob whose checksum holds", "another checksum")
    return _parse_bitmap(blob[4:-4], delete)


def _parse_bitmap(body: bytes, delete: DeleteFile) -> NDArray[np.int64]:
    if body[:4] != _VECTOR:
        raise _broken(delete, f"a blob with the magic {_VECTOR!r}", repr(body[:4]))
    try:
        bitmap = _bitmap(body[4:])
        if len(bitmap) != delete.num_rows:  # before it is unpacked: a few bytes may hold any number of positions
            raise _broken(delete, f"the {delete.num_rows} positions that the table's metadata says", f"{len(bitmap)}")
        return np.array(bitmap.to_array(), dtype=np.int64)
    except (ValueError, OverflowError, IndexError) as error:
        raise _broken(delete, "a roaring bitmap", f"bytes that do not parse ({error})") from error


def _bitmap(data: bytes) -> Any:
    try:
        from pyroaring import BitMap64
    except ImportError as error:
        raise MissingExtraError("deletion vectors need pyroaring; pip install pyroaring") from error
    return BitMap64.deserialize(data)


def _broken(delete: DeleteFile, expected: str, got: str) -> TableError:
    return TableError(
        f"the deletion vector in {delete.file.name} must be {expected}, got {got}; the file is torn, or was not "
        "written as the format says: write the table's deletes again"
    )
