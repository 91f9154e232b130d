"""Arrow IPC: the file format cut at record batches, the stream format as one row group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from torch_table_loader.errors import TableError
from torch_table_loader.read.failures import as_reading_error, first_line
from torch_table_loader.read.parquet import refuse_duplicates
from torch_table_loader.read.sequential import SequentialFile, WithoutStatistics, one_group
from torch_table_loader.read.slices import bounded, rows_without_columns
from torch_table_loader.records import FileMeta

if TYPE_CHECKING:
    from torch_table_loader.contracts import OpenFile, Storage
    from torch_table_loader.records import DataFile

_FILE_MAGIC = b"ARROW1"
_FEATHER_1_MAGIC = b"FEA1"


@dataclass(frozen=True, slots=True)
class IpcReader(WithoutStatistics):
    """Reads the Arrow IPC file (Feather 2) and stream formats (https://arrow.apache.org/docs/format/Columnar.html).

    Which of the two a file is, its first bytes say.
    """

    name: str = "arrow"

    def inspect(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:  # noqa: ARG002
        """Count the rows of each record batch by one cheap column: see `FormatReader.inspect`."""
        try:
            with storage.open(file.path) as source:
                if _is_file(source, file):
                    return _inspect_file(source, file)
                return _inspect_stream(source, file)
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, pa.ArrowInvalid):
                raise TableError(
                    f"{file.name} must be an Arrow IPC file or stream, got one that does not parse "
                    f"({first_line(error)}); the file is torn or of another format: write it again, leave it out, or "
                    "pass the format that it has"
                ) from error
            raise as_reading_error(error, file, is_local=storage.is_local) from error

    def open(self, storage: Storage, file: DataFile, meta: FileMeta) -> OpenFile:
        """Open: see `FormatReader.open`. The file format's footer, a few bytes a batch, is read again."""
        source = storage.open(file.path)
        try:
            if _is_file(source, file):
                return IpcFile(source, meta)
        except BaseException:
            source.close()
            raise
        source.close()
        return SequentialFile(storage, file, partial(_decode_stream, schema=meta.schema))


class IpcFile:
    """An open file of the IPC file format; a record batch is decoded at a time, into fresh memory."""

    def __init__(self, source: pa.NativeFile, meta: FileMeta) -> None:
        """Take over an open file."""
        self._source = source
        self._meta = meta

    def batches(self, groups: range, columns: Sequence[str], max_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of record batches: see `OpenFile.batches`."""
        wanted = list(columns)
        if not wanted:
            for group in groups:
                yield from bounded(rows_without_columns(self._meta.group_rows[group]), max_rows)
            return
        reader = pa.ipc.open_file(self._source, options=_only(wanted, self._meta.schema))
        for group in groups:
            yield from bounded(_owned(reader.get_batch(group)).select(wanted), max_rows)

    def close(self) -> None:
        """Release the file."""
        self._source.close()


def _is_file(source: pa.NativeFile, file: DataFile) -> bool:
    magic = source.read_at(len(_FILE_MAGIC), 0)
    source.seek(0)
    if magic.startswith(_FEATHER_1_MAGIC):
        raise TableError(
            f"{file.name} must be an Arrow IPC file or stream, got Feather version 1; write it again with "
            "pyarrow.feather.write_feather"
        )
    return bool(magic == _FILE_MAGIC)


def _inspect_file(source: pa.NativeFile, file: DataFile) -> FileMeta:
    schema = pa.ipc.open_file(source).schema
    refuse_duplicates(schema, file)
    # With one field included, pyarrow reads that field's part of each batch's body alone.
    reader = pa.ipc.open_file(source, options=_only(_cheapest(schema), schema))
    rows = [reader.get_batch(index).num_rows for index in range(reader.num_record_batches)]
    total = max(1, sum(rows))
    return FileMeta(
        schema=schema,
        group_rows=tuple(rows),
        group_bytes=tuple(file.version.num_bytes * count // total for count in rows),
    )


def _inspect_stream(source: pa.NativeFile, file: DataFile) -> FileMeta:
    with pa.ipc.open_stream(source) as reader:
        schema = reader.schema
    refuse_duplicates(schema, file)
    source.seek(0)
    with pa.ipc.open_stream(source, options=_only(_cheapest(schema), schema)) as reader:
        return one_group(schema, sum(batch.num_rows for batch in reader), file)


def _decode_stream(source: pa.NativeFile, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(source, options=_only(columns or _cheapest(schema), schema)) as reader:
        for batch in reader:
            yield _owned(batch)


def _only(columns: Sequence[str], schema: pa.Schema) -> pa.ipc.IpcReadOptions:
    return pa.ipc.IpcReadOptions(included_fields=[schema.names.index(name) for name in columns], use_threads=False)


def _cheapest(schema: pa.Schema) -> list[str]:
    """Name the column with the narrowest values; none if there are no columns."""

    def width(field: pa.Field) -> int:
        if pa.types.is_null(field.type):
            return 0
        return field.type.bit_width if pa.types.is_primitive(field.type) else 1 << 16

    return [min(schema, key=width).name] if len(schema) else []


def _owned(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a batch that is a view: uncompressed IPC buffers are cut from what the store handed out."""
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None]
    if all(buffer.is_mutable for buffer in buffers):
        return batch
    return batch.copy_to(pa.default_cpu_memory_manager())


__all__ = ["IpcFile", "IpcReader"]
