"""fms-fsdp's Arrow files: the IPC file format, of which a record batch is a document and a row of it a token."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.errors import TableError
from torch_table_loader.format_contracts import SidecarReader, Traits
from torch_table_loader.read.failures import reading
from torch_table_loader.read.far_files import open_at_end
from torch_table_loader.read.ipc import check_footer, message_starts, sized
from torch_table_loader.read.reader_base import GroupedFile, WholeGroups, WithoutNulls, refuse_duplicates
from torch_table_loader.read.token_files import GROUP_BYTES, TOKENS, group_rows
from torch_table_loader.records import FileMeta

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile


@dataclass(frozen=True, slots=True)
class FmsFsdpReader(WholeGroups, WithoutNulls, SidecarReader):
    """Reads Arrow files with a document in each record batch: a row is a document, and each column a list.

    Planning reads the footer alone, which says where each record batch is. Each row group but the last has at least
    `group_bytes` of record batches.
    """

    name: str = "fms-fsdp"
    group_bytes: int = GROUP_BYTES
    columnar = True
    data_suffix = ".arrow"
    traits = Traits(cut="documents", pruned="partitions", counted="the footer")
    sidecars = ()

    @override
    def inspect(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:
        with reading(storage, file, "an Arrow IPC file"), open_at_end(storage, file) as source:
            with sized(source, partial(message_starts, source)):
                reader = pa.ipc.open_file(source)
            footer = check_footer(source, reader.num_record_batches)
            stored = reader.schema
        refuse_duplicates(stored, file)
        _check_schema(stored, file)
        for one, other in pairwise(footer.batches):
            if one.stop != other.start:
                raise TableError(
                    f"{file.name} must have its documents one behind another, got one at byte {other.start} where "
                    f"byte {one.stop} comes next; write it again"
                )
        start = footer.batches[0].start if footer.batches else 0
        ends = np.array([block.stop for block in footer.batches], np.int64) - start
        rows, _ = group_rows(np.diff(ends, prepend=0), 1, self.group_bytes)
        edges = [0, *accumulate(rows)]
        places = tuple((footer.batches[a].start, footer.batches[b - 1].stop) for a, b in pairwise(edges))
        return FileMeta(
            schema=pa.schema([pa.field(field.name, pa.list_(field.type)) for field in stored]),
            group_rows=tuple(rows),
            group_bytes=tuple(stop - start for start, stop in places),
            group_ranges=places,
        )

    @override
    def open(self, storage: Storage, file: DataFile, meta: FileMeta) -> FmsFsdpFile:
        return FmsFsdpFile(storage.open(file.path), file, meta)


class FmsFsdpFile(GroupedFile):
    """An open file, whose record batches become rows."""

    def __init__(self, source: pa.NativeFile, file: DataFile, meta: FileMeta) -> None:
        super().__init__(source, meta)
        self._file = file
        self._stored = pa.schema([pa.field(field.name, field.type.value_type) for field in meta.schema])

    @override
    def _group(self, group: int, columns: list[str]) -> pa.RecordBatch:
        documents = self._documents(group)
        rows = self._meta.group_rows[group]
        if len(documents) != rows:
            raise TableError(
                f"{self._file.name}, row group {group} must be {rows} record batches, as its footer says, got "
                f"{len(documents)}; it is damaged: write it again"
            )
        offsets = np.zeros(rows + 1, np.int64)
        np.cumsum([document.num_rows for document in documents], out=offsets[1:])
        if offsets[-1] >= 2**31:
            raise TableError(
                f"{self._file.name}, row group {group} has {offsets[-1]} tokens, and lists hold {2**31 - 1}; "
                "write it again with shorter documents"
            )
        table = pa.Table.from_batches(documents, self._stored)
        table.validate()
        arrays = [
            pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), self._flat(group, name, table.column(name)))
            for name in columns
        ]
        schema = pa.schema([self._meta.schema.field(name) for name in columns])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _flat(self, group: int, name: str, column: pa.ChunkedArray) -> pa.Array:
        """Return the values of all documents in one new buffer."""
        if column.null_count:
            place = next(place for place, chunk in enumerate(column.chunks) if chunk.null_count)
            raise TableError(
                f"{self._file.name}, column {name!r}: a document has no nulls, got {column.chunk(place).null_count} in "
                f"record batch {place} of row group {group}; write it again without"
            )
        return column.combine_chunks()  # it copies, even a single chunk

    def _documents(self, group: int) -> list[pa.RecordBatch]:
        """Decode the record batches of a row group, which follow one another as in a stream."""
        start, stop = (self._meta.group_ranges or ())[group]
        self._source.seek(start)
        data = self._source.read_buffer(stop - start)
        if data.size != stop - start:
            raise TableError(f"{self._file.name} ends before byte {stop}; it was cut: restore it, or write it again")
        with sized(pa.BufferReader(data)):
            messages = pa.ipc.MessageReader.open_stream(data)
            return [pa.ipc.read_record_batch(message, self._stored) for message in messages]


def _check_schema(stored: pa.Schema, file: DataFile) -> None:
    if TOKENS not in stored.names:
        raise TableError(
            f"{file.name} must have a column {TOKENS!r}, as files of fms-fsdp do, got {stored.names}; pass "
            "format='arrow' to read any Arrow file row by row"
        )
    for field in stored:
        if not (pa.types.is_integer(field.type) or pa.types.is_floating(field.type)):
            raise TableError(
                f"{file.name} must hold a document in each record batch, with an int or float for each token, got "
                f"column {field.name!r} of the type {field.type}; pass format='arrow' to read it row by row"
            )
