"""A hash that identifies the table that a state belongs to."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from torch_table_loader.errors import ConfigError
from torch_table_loader.records import DataFile, LeftOut

_DOMAIN = b"torch-table-loader fingerprint 1\n"


def fingerprint(files: Sequence[DataFile], rows: Sequence[int]) -> str:
    """Hash the table's files, in canonical order: relative names, sizes and physical rows (−1 if unknown).

    Root, mtime and etag are left out, so that a table that was moved or copied counts as the same table.

    Returns:
        64 hexadecimal digits.

    >>> fingerprint([], [])[:16]
    '31f91978c82f9d64'
    """
    if len(files) != len(rows):
        raise ConfigError(f"fingerprint needs one row count a file, got {len(files)} files and {len(rows)} counts")
    digest = hashlib.sha256(_DOMAIN)
    for file, count in zip(files, rows, strict=True):
        name = file.name.encode("utf-8")
        digest.update(struct.pack("<qqq", len(name), file.version.num_bytes, count))
        digest.update(name)
    return digest.hexdigest()


def fingerprint_without(table: str, left_out: Sequence[LeftOut]) -> str:
    """Hash a table with parts left out: which parts they are, but not what is wrong with them.

    Returns:
        64 hexadecimal digits; `table` itself if nothing is left out.
    """
    if not left_out:
        return table
    digest = hashlib.sha256(f"torch-table-loader left out 1\n{table}\n".encode())
    for part in left_out:
        digest.update(f"{part.file!r} {part.start} {part.stop}\n".encode())
    return digest.hexdigest()


def content_key(table: str, files: Sequence[DataFile]) -> str:
    """Hash what distinguishes a table's current files from all others, including later files with the same names.

    A fingerprint cannot: it stays the same if a file is rewritten with the same number of bytes and rows, and another
    table may have files of the same names and sizes. Data derived from a table and kept on disk uses this key.

    Returns:
        64 hexadecimal digits; `table` itself if the table's format promises that files never change.
    """
    if all(file.version.immutable for file in files):
        return table
    digest = hashlib.sha256(f"torch-table-loader content 1\n{table}\n".encode())
    for version in (each.version for file in files for each in (file, *file.sidecars)):
        digest.update(f"{version.mtime_ns} {version.etag!r}\n".encode())
    return digest.hexdigest()
