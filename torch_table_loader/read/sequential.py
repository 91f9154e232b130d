"""What CSV, JSON lines and IPC streams share: one row group, read from the start each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from torch_table_loader.errors import TableError
from torch_table_loader.read.prune import partition_can_pass
from torch_table_loader.read.slices import bounded
from torch_table_loader.records import FileMeta

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile

INFERENCE_BYTES = 1 << 30
"""A text file whose types are guessed is parsed whole in memory; above this size (1 GiB) the caller must say them."""

Decode = Callable[[pa.NativeFile, Sequence[str]], Iterable[pa.RecordBatch]]
"""Decodes a file from its start into batches that have the named columns, at least one."""


class WithoutStatistics:
    """What a `FormatReader` says of files that keep no statistics."""

    __slots__ = ()

    def prune(self, file: DataFile, meta: FileMeta, filters: Any, schema: pa.Schema) -> Sequence[bool]:
        """Return whether the partition values let rows pass: see `FormatReader.prune`."""
        return [partition_can_pass(file, filters, schema)] * len(meta.group_rows)

    def null_columns(self, meta: FileMeta, columns: Sequence[str], kept: Sequence[bool]) -> frozenset[str]:  # noqa: ARG002
        """Prove nothing: see `FormatReader.null_columns`."""
        return frozenset()


class SequentialFile:
    """A file that is decoded from its start on each call; opened when the first batch is asked for."""

    def __init__(self, storage: Storage, file: DataFile, decode: Decode) -> None:
        """Remember what to decode, and how."""
        self._storage = storage
        self._file = file
        self._decode = decode
        self._sources: list[pa.NativeFile] = []

    def batches(self, groups: range, columns: Sequence[str], max_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield all rows: see `OpenFile.batches`."""
        if not groups:
            return
        source = self._storage.open(self._file.path)
        self._sources.append(source)
        wanted = list(columns)
        for batch in self._decode(source, wanted):
            yield from bounded(batch if batch.schema.names == wanted else batch.select(wanted), max_rows)

    def close(self) -> None:
        """Release the file."""
        for source in self._sources:
            source.close()


def one_group(schema: pa.Schema, num_rows: int, file: DataFile) -> FileMeta:
    """Make the metadata of a file that is one row group, or none if it has no rows.

    Args:
        schema: the file's.
        num_rows: as counted.
        file: its stored size is the row group's.
    """
    rows, sizes = ((num_rows,), (file.version.num_bytes,)) if num_rows else ((), ())
    return FileMeta(schema=schema, group_rows=rows, group_bytes=sizes)


def refuse_large_inference(file: DataFile, num_bytes: int) -> None:
    """Refuse to guess the types of a file that is too large to parse at once.

    Args:
        file: the file, for the message.
        num_bytes: its size.

    Raises:
        TableError: asks for ``schema=``.
    """
    if num_bytes > INFERENCE_BYTES:
        raise TableError(
            f"{file.name} must be at most {INFERENCE_BYTES} bytes for its types to be guessed, got {num_bytes} bytes; "
            "pass schema= with the types to read it as, and it is read in blocks"
        )
