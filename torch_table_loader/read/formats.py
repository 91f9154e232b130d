"""The format readers by name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch_table_loader.errors import ConfigError, ConfigTypeError, TableError
from torch_table_loader.read.avro import AvroReader
from torch_table_loader.read.csv import CsvReader
from torch_table_loader.read.failures import reading
from torch_table_loader.read.ipc import IpcReader
from torch_table_loader.read.json import JsonReader
from torch_table_loader.read.orc import OrcReader
from torch_table_loader.read.parquet import ParquetReader
from torch_table_loader.spelling import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_table_loader.contracts import FormatReader, Storage
    from torch_table_loader.records import DataFile, FileMeta

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

_MOST_ROWS = 1 << 48
"""More rows than any file has; the rows of many such files still count in 64 bits."""


_SUFFIXES = {"pq": "parquet", "ndjson": "jsonl"} | {name: name for name in FORMATS}
"""What the end of a file's name says."""


def reader_for(name: str, path: Any = None, *, verify_checksums: bool = True) -> FormatReader:
    """Return the reader of a format.

    Args:
        name: what the caller wrote as ``format=``.
        path: what the caller wrote as ``path``, whose suffix may say what to write.
        verify_checksums: whether stored checksums are compared with the data that they are of.

    Raises:
        ConfigError: there is none; names those there are.

    >>> reader_for("parquet").name
    'parquet'
    """
    if isinstance(name, str) and name in _READERS:
        return _READERS[name] if verify_checksums else _UNVERIFIED.get(name, _READERS[name])
    first = path[0] if isinstance(path, list | tuple) and path else path
    said = _SUFFIXES.get(str(first).rpartition(".")[2].lower()) if isinstance(first, str | os.PathLike) else None
    written = _SUFFIXES.get(name.lower().lstrip(".")) if isinstance(name, str) else None
    hint = f"; did you mean {written}?" if written else did_you_mean(name, FORMATS)
    raise (ConfigError if isinstance(name, str) else ConfigTypeError)(
        f"format must be one of {', '.join(map(repr, FORMATS))}, got {name!r}"
        + (f"; the path ends as files of format={said!r} do" if said else hint)
    )


def inspect_file(storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:
    """Read what a file says of itself, and check its counts: see `FormatReader.inspect`.

    Args:
        storage: where it is.
        file: which.
        schema: the caller's ``schema=``, or None.

    Raises:
        TableError: the file is damaged or of another format, whatever its decoder says of that.
        StorageError: the store failed.
    """
    with reading(storage, file):
        meta = reader_for(file.format).inspect(storage, file, schema)
    rows = meta.group_rows
    if min(rows, default=0) < 0 or sum(rows) > _MOST_ROWS:
        raise TableError(
            f"{file.name} must have row groups of 0 rows or more, {_MOST_ROWS} together at most, got "
            f"{list(rows)[:10]}; the file is damaged: write it again, or leave it out of the table"
        )
    return meta
