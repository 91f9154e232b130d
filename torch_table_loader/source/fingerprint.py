"""One hash that says which table a state speaks of."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from torch_table_loader.errors import ConfigError
from torch_table_loader.records import DataFile

_DOMAIN = b"torch-table-loader fingerprint 1\n"


def fingerprint(files: Sequence[DataFile], rows: Sequence[int]) -> str:
    """Hash the table's files in order: relative names, sizes and row counts.

    Root, mtime and etag stay out, so that a table that was moved or copied is still the same table.

    Args:
        files: the data files in canonical order.
        rows: the physical rows of each; −1 where unknown.

    Returns:
        64 hexadecimal digits.

    Raises:
        ConfigError: the lists have different lengths.

    >>> fingerprint([], [])[:16]
    '31f91978c82f9d64'
    """
    if len(files) != len(rows):
        raise ConfigError(f"fingerprint wants one row count a file, got {len(files)} files and {len(rows)} counts")
    digest = hashlib.sha256(_DOMAIN)
    for file, count in zip(files, rows, strict=True):
        name = file.name.encode("utf-8")
        digest.update(struct.pack("<qqq", len(name), file.version.num_bytes, count))
        digest.update(name)
    return digest.hexdigest()


__all__ = ["fingerprint"]
