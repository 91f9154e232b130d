"""Tables of flatbuffers, the form in which Arrow keeps its metadata (https://flatbuffers.dev/internals/)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_FILE_END = struct.Struct("<i6s")
"""The end of an Arrow IPC file: the length of its footer, and ``ARROW1``."""

_FOOTER_SCHEMA, _SCHEMA_METADATA, _KEY, _VALUE = 1, 2, 0, 1


@dataclass(frozen=True, slots=True)
class FlatTable:
    """The table at a byte of a buffer; its fields have the numbers that they have in Arrow's ``.fbs`` files.

    All methods raise ``ValueError`` or ``struct.error`` if the buffer is damaged.
    """

    data: bytes
    at: int

    @classmethod
    def root(cls, data: bytes) -> FlatTable:
        """Return the table that a buffer begins with."""
        return cls(data, _target(data, 0))

    def place(self, field: int) -> int:
        """Return the byte at which a field is; 0 if the table has none."""
        (to_vtable,) = struct.unpack_from("<i", self.data, self.at)
        vtable = self.at - to_vtable
        if vtable < 0:
            raise ValueError("a table begins before its buffer")
        (vtable_bytes,) = struct.unpack_from("<H", self.data, vtable)
        slot = 4 + 2 * field
        place = struct.unpack_from("<H", self.data, vtable + slot)[0] if slot + 2 <= vtable_bytes else 0
        if place:
            return self.at + place
        return 0

    def byte(self, field: int) -> int | None:
        """Return a field of one byte; None if the table has none."""
        place = self.place(field)
        if place:
            return self.data[place]
        return None

    def table(self, field: int) -> FlatTable | None:
        """Return the table that a field leads to; None if there is none."""
        place = self.place(field)
        if place:
            return FlatTable(self.data, _target(self.data, place))
        return None

    def vector(self, field: int) -> tuple[int, int]:
        """Return the byte at which the elements of a vector begin, and their number; zeros if there is no vector."""
        place = self.place(field)
        if not place:
            return 0, 0
        start = _target(self.data, place)
        (count,) = struct.unpack_from("<I", self.data, start)
        return start + 4, count

    def tables(self, field: int) -> list[FlatTable]:
        """Return the tables of a vector."""
        start, count = self.vector(field)
        return [FlatTable(self.data, _target(self.data, start + 4 * number)) for number in range(count)]

    def text(self, field: int) -> bytes:
        """Return the bytes of a text."""
        start, length = self.vector(field)
        return self.data[start : start + length]


def schema_pairs(file: bytes) -> list[tuple[bytes, bytes]]:
    """Return the metadata of the schema of an Arrow IPC file, in order: pyarrow returns each key only once."""
    size, _ = _FILE_END.unpack_from(file, len(file) - _FILE_END.size)
    schema = FlatTable.root(file[-_FILE_END.size - size : -_FILE_END.size]).table(_FOOTER_SCHEMA)
    if schema is None:
        raise ValueError("the footer has no schema")
    return [(pair.text(_KEY), pair.text(_VALUE)) for pair in schema.tables(_SCHEMA_METADATA)]


def _target(data: bytes, place: int) -> int:
    """Return where an offset leads to."""
    return place + int(struct.unpack_from("<I", data, place)[0])
