"""The format readers by name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from torch_table_loader.errors import ConfigError
from torch_table_loader.read.avro import AvroReader
from torch_table_loader.read.csv import CsvReader
from torch_table_loader.read.ipc import IpcReader
from torch_table_loader.read.json import JsonReader
from torch_table_loader.read.orc import OrcReader
from torch_table_loader.read.parquet import ParquetReader

if TYPE_CHECKING:
    from torch_table_loader.contracts import FormatReader

_READERS: dict[str, FormatReader] = {
    reader.name: reader
    for reader in (
        ParquetReader(),
        OrcReader(),
        CsvReader(),
        JsonReader(),
        JsonReader("jsonl"),
        IpcReader(),
        IpcReader("ipc"),
        IpcReader("feather"),
        AvroReader(),
    )
}

_UNVERIFIED: dict[str, FormatReader] = {"parquet": ParquetReader(verify_checksums=False)}

FORMATS = tuple(_READERS)
"""What the caller may write as ``format=``."""

INFERRED = frozenset({"csv", "json", "jsonl"})
"""Formats without types of their own: `resolve_schema(..., inferred=True)` where no ``schema=`` is given."""

COLUMNAR = frozenset({"parquet", "orc", "arrow", "ipc", "feather"})
"""Formats that read one row group, and one column of it, without reading what comes before."""


def reader_for(name: str, *, verify_checksums: bool = True) -> FormatReader:
    """Give the reader of a format.

    Args:
        name: what the caller wrote as ``format=``.
        verify_checksums: whether stored checksums are compared with the data that they are of.

    Raises:
        ConfigError: there is none; names those there are.

    >>> reader_for("parquet").name
    'parquet'
    """
    if name in _READERS:
        return _READERS[name] if verify_checksums else _UNVERIFIED.get(name, _READERS[name])
    near = difflib.get_close_matches(name, FORMATS, n=1)
    raise ConfigError(
        f"format must be one of {', '.join(map(repr, FORMATS))}, got {name!r}"
        + (f"; did you mean {near[0]!r}?" if near else "")
    )


__all__ = ["COLUMNAR", "FORMATS", "INFERRED", "reader_for"]
