"""Deletion vectors as the log of a Delta Lake table describes them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

from torch_table_loader.delta.delta_options import path_of
from torch_table_loader.table_formats import DataFile, DeleteFile, FileVersion, shown_url

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_PYTHONS = str.maketrans(_Z85, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~")
"""Base 85 as ZeroMQ's RFC 32 spells it, in the letters that Python's `base64` knows."""

_UUID_LETTERS = 20
_FRAME_BYTES = 8
"""Of a vector in a file: its length before it, and its checksum after it."""

_MOST = (1 << 63) - 1


class Vector(NamedTuple):
    """A deletion vector: in a file, or inline where the log itself holds it (then `path` is None).

    The offset is the byte of the file at which the vector begins, including its length.
    """

    path: str | None
    offset: int
    num_bytes: int
    num_rows: int
    inline: bytes = b""

    def delete_of(self, file: DataFile, root: str) -> DeleteFile:
        """Return it as what deletes rows of a data file of the table in the folder `root`."""
        if self.path is None:
            return DeleteFile(replace(file, deletes=()), "vector", self.num_rows, inline=self.inline)
        name = shown_url(self.path).removeprefix(f"{root.rstrip('/')}/")
        blob = self.offset, self.num_bytes + _FRAME_BYTES
        holder = DataFile(self.path, name, FileVersion(sum(blob), immutable=True), "deletion vectors")
        return DeleteFile(holder, "vector", self.num_rows, blob=blob)


def vector_of(entry: Mapping[str, Any], root: str) -> Vector:
    """Read a ``deletionVector`` of the log."""
    kind, where = entry.get("storageType"), entry.get("pathOrInlineDv")
    if not isinstance(where, str) or not where:
        raise ValueError(f"pathOrInlineDv of a deletion vector must be a text that is not empty, got {where!r}")
    num_bytes, num_rows = (_whole(entry.get(name), name) for name in ("sizeInBytes", "cardinality"))
    if kind == "i":
        data = _bytes(where)
        if not 0 <= len(data) - num_bytes < 4:
            raise ValueError(f"sizeInBytes of a deletion vector is {num_bytes}, and its inline text has {len(data)}")
        return Vector(None, 0, num_bytes, num_rows, data[:num_bytes])
    offset = 1 if entry.get("offset") is None else _whole(entry.get("offset"), "offset")
    if kind == "p":
        return Vector(path_of(root, where), offset, num_bytes, num_rows)
    if kind != "u":
        raise ValueError(f"storageType of a deletion vector must be 'u', 'p' or 'i', got {kind!r}")
    prefix, name = where[:-_UUID_LETTERS], UUID(bytes=_bytes(where[-_UUID_LETTERS:]))
    folder = f"{root.rstrip('/')}/{prefix}".rstrip("/")
    return Vector(f"{folder}/deletion_vector_{name}.bin", offset, num_bytes, num_rows)


def _whole(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
        raise ValueError(f"{name} of a deletion vector must be a whole number from 0 to {_MOST}, got {value!r:.40}")
    return value


def _bytes(letters: str) -> bytes:
    """Decode text of base 85.

    >>> _bytes("HelloWorld").hex()
    '864fd26fb559f75b'
    """
    if unknown := set(letters) - set(_Z85):
        raise ValueError(f"{min(unknown)!r} is no letter of base 85")
    if len(letters) % 5:
        raise ValueError(f"text of base 85 must have five letters for four bytes, got {len(letters)} letters")
    return base64.b85decode(letters.translate(_PYTHONS))
