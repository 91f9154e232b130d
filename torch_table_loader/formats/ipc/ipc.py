"""Arrow IPC: the file format cut at record batches, the stream format as one row group; and fms-fsdp's token files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow.arrays import offsets_of
from torch_table_loader.arrow.datatypes import is_variable, width_of
from torch_table_loader.arrow.sound import sound
from torch_table_loader.errors import TableError
from torch_table_loader.format_contracts import PLACE, SidecarReader, Traits
from torch_table_loader.formats.ipc.ipc_layout import (
    BUFFER,
    BUFFERS,
    COMPRESSION,
    FILE_MAGIC,
    HEADER,
    RECORD_BATCH,
    STREAM_START,
    VARIADIC,
    VERSION,
    Block,
    batch_at,
    batch_of_message,
    check_footer,
    check_message,
    decompressed_sizes,
    message_at,
    message_starts,
    sized,
    stream_starts,
)
from torch_table_loader.messages import warn_caller
from torch_table_loader.read.failures import reading
from torch_table_loader.read.file_ends import open_at_end, open_at_start
from torch_table_loader.read.list_groups import GROUP_BYTES, TOKENS, group_rows
from torch_table_loader.read.reader_base import (
    CountedColumns,
    GroupedFile,
    SequentialFile,
    WholeGroups,
    WithoutNulls,
    one_group,
    refuse_duplicates,
)
from torch_table_loader.records import FileMeta

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.format_contracts import OpenFile
    from torch_table_loader.records import DataFile

_FEATHER_1_MAGIC = b"FEA1"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_SMALL_BYTES = 1 << 20
"""The largest file that is read whole for its metadata, since a part of each record batch is read."""

_V5 = 4
"""Of Arrow 1.0 and later; before it, a union had one buffer more."""

_BUFFERS_BEFORE_VALUES = 3
"""Of a column of lists: which are null, where they begin, and which values are null."""


@dataclass(frozen=True, slots=True)
class IpcReader(WholeGroups, CountedColumns):
    """Reads the Arrow IPC file (Feather 2) and stream formats (https://arrow.apache.org/docs/format/Columnar.html).

    The first bytes of a file say which of the two it is.
    """

    name: str = "arrow"
    suffixes = (".arrow", ".ipc", ".feather")
    traits = Traits(cut="record batches", pruned="partitions", counted="the batches")
    columnar = True

    @override
    def inspect(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:
        near = storage.is_local or file.version.num_bytes <= _SMALL_BYTES  # else each look is a request
        with reading(storage, file, "an Arrow IPC file or stream"), open_at_end(storage, file, _SMALL_BYTES) as source:
            if _is_file(source, file):
                with sized(source, partial(message_starts, source)):
                    return _inspect_file(source, file, near=near)
            with sized(source):
                return _inspect_stream(source, file, near=near)

    @override
    def open(self, storage: Storage, file: DataFile, meta: FileMeta) -> OpenFile:
        # The footer of a file, a few bytes for each record batch, is read again.
        with ExitStack() as opened:
            source = opened.enter_context(storage.open(file.path))
            if _is_file(source, file):
                opened.pop_all()
                return IpcFile(source, meta)
        return SequentialFile(storage, file, partial(_decode_stream, schema=meta.schema))

    def placed(self, storage: Storage, file: DataFile, meta: FileMeta, column: str) -> FileMeta | None:
        """Return the metadata of a file with the column `PLACE` of a column of lists.

        None if the first record batch does not hold its values as they are, or record batches do not ascend.
        """
        if list(places := meta.group_ranges or ()) != sorted(places):
            return None
        if meta.num_rows:
            with reading(storage, file, "an Arrow IPC file or stream"), open_at_start(storage, file) as source:
                if _values_of(source, places[0][0] if places else 0, meta.schema, column) is None:
                    return None
        return _meta_with_place(meta)

    @override
    def ranges(
        self, file: DataFile, meta: FileMeta, groups: Sequence[int], columns: Sequence[str]
    ) -> Sequence[Sequence[tuple[int, int]]]:
        # A stream is read whole, and so is a record batch: its header, which is not kept, says where its columns are.
        if meta.group_ranges is None and len(meta.group_rows) == 1:
            return [[(0, file.version.num_bytes)] for _ in groups]
        return WholeGroups.ranges(self, file, meta, groups, columns)

    @override
    def decoded_bytes(self, meta: FileMeta, group: int, columns: Sequence[str]) -> tuple[int, int]:
        if meta.at_once:  # which a far file does not say: reads, and so the order of rows, must not depend on it
            return 0, 0
        return CountedColumns.decoded_bytes(self, meta, group, columns)

    @override
    def held_bytes(self, meta: FileMeta, group: int, columns: Sequence[str], max_rows: int, row_bytes: int) -> int:
        held = WholeGroups.held_bytes(self, meta, group, columns, max_rows, row_bytes)
        if meta.column_bytes is None or meta.at_once:
            return held
        return max(meta.group_bytes[group], held - meta.group_bytes[group])  # uncompressed, rows are what is stored


class IpcFile(GroupedFile):
    """An open file of the IPC file format, whose row groups are record batches."""

    def __init__(self, source: pa.NativeFile, meta: FileMeta) -> None:
        super().__init__(source, meta)
        self._reader: tuple[list[str], pa.RecordBatchFileReader] | None = None

    @override
    def _group(self, group: int, columns: list[str]) -> pa.RecordBatch:
        schema, place = self._meta.schema, None
        with sized(self._source, partial(message_starts, self._source)):
            if self._reader is None or self._reader[0] != columns:
                self._reader = columns, pa.ipc.open_file(self._source, options=_only(columns, schema))
            if PLACE in columns:
                place = _values_of(self._source, (self._meta.group_ranges or ())[group][0], schema, columns[0])
            batch = sound(self._reader[1].get_batch(group))
        if PLACE in columns:
            batch = _batch_with_places(batch, place)
        return _owned(batch).select(columns)


def _is_file(source: pa.NativeFile, file: DataFile) -> bool:
    magic = source.read_at(len(FILE_MAGIC), 0)
    source.seek(0)
    if magic.startswith(_FEATHER_1_MAGIC):
        raise TableError(
            f"{file.name} must be an Arrow IPC file or stream, got Feather version 1; write it again with "
            "pyarrow.feather.write_feather"
        )
    return bool(magic == FILE_MAGIC)


def _inspect_file(source: pa.NativeFile, file: DataFile, *, near: bool) -> FileMeta:
    schema = pa.ipc.open_file(source).schema
    refuse_duplicates(schema, file)
    # With one field included, pyarrow reads that field's part of each batch's body alone.
    reader = pa.ipc.open_file(source, options=_only(_cheapest(schema), schema))
    footer = check_footer(source, reader.num_record_batches)
    rows = [sound(reader.get_batch(index)).num_rows for index in range(reader.num_record_batches)]
    total, compressed = max(1, sum(rows)), _Compressed((), None)
    if near:
        dictionaries = [block.start for block in footer.dictionaries]
        compressed = _Compressed.of(source, [block.start for block in footer.batches], dictionaries, schema)
    return FileMeta(
        schema=schema,
        group_rows=tuple(rows),
        group_bytes=tuple(file.version.num_bytes * count // total for count in rows),
        group_ranges=tuple((block.start, block.stop) for block in footer.batches),
        opening=(
            (0, STREAM_START),
            *((block.start, block.stop) for block in footer.dictionaries),
            (footer.start, source.size()),
        ),
        column_bytes=_column_bytes(source, footer.batches, schema, sum(rows)) or compressed.all,
        at_once=compressed.at_once,
    )


class _Compressed(NamedTuple):
    """What each column comes to, in the record batch where it is largest and in all, of those that are compressed."""

    at_once: tuple[int, ...]
    all: tuple[int, ...] | None

    @classmethod
    def of(cls, source: pa.NativeFile, starts: Iterable[int], others: Iterable[int], schema: pa.Schema) -> _Compressed:
        """Look where record batches begin, and where dictionaries do; if there are such, or views, all count as one."""
        batches, dictionaries = _decompressed(source, starts), _decompressed(source, others)
        places = list(accumulate([_buffers_of(each) for each in schema.types], initial=0))
        if not batches or not len(schema):
            return cls((), None)
        if dictionaries or any(len(sizes) != places[-1] for sizes in batches):
            own, beside = [sum(sizes) for sizes in batches], sum(map(sum, dictionaries))
            return cls((max(own) + beside,), tuple([sum(own) // len(schema)] * len(schema)))
        columns = [[sum(sizes[start:stop]) for start, stop in pairwise(places)] for sizes in batches]
        found = list(zip(*columns, strict=True))
        return cls(tuple(map(max, found)), tuple(map(sum, found)))


def _decompressed(source: pa.NativeFile, starts: Iterable[int]) -> list[list[int]]:
    return [sizes for start in starts if (sizes := decompressed_sizes(source, start)) is not None]


def _column_bytes(
    source: pa.NativeFile, batches: Sequence[Block], schema: pa.Schema, num_rows: int
) -> tuple[int, ...] | None:
    """Return what columns decode to, where they are stored as they are: those of variable width share what is left."""
    if not batches:
        return None
    batch = batch_at(source, batches[0].start)
    if batch is None or batch.table(COMPRESSION) is not None or any(map(pa.types.is_dictionary, schema.types)):
        return None
    widths = np.array([width_of(kind) for kind in schema.types], np.float64)
    variable = np.array([is_variable(kind) for kind in schema.types], np.bool_)
    sizes = widths * num_rows
    left = max(0, sum(block.stop - block.start for block in batches) - int(sizes[~variable].sum()))
    sizes[variable] = left * widths[variable] / max(1, widths[variable].sum())
    return tuple(sizes.astype(np.int64).tolist())


def _inspect_stream(source: pa.NativeFile, file: DataFile, *, near: bool) -> FileMeta:
    with pa.ipc.open_stream(source) as reader:
        schema = reader.schema
    refuse_duplicates(schema, file)
    source.seek(0)

    def warn() -> None:
        warn_caller(
            f"{file.name} ends without an end-of-stream marker, which the format allows; if its writer was stopped, "
            "the rows after it are missing: write it again with a marker"
        )

    rows = sum(batch.num_rows for batch in _stream(source, _cheapest(schema), schema, warn))
    compressed = _Compressed((), None)
    if near:
        compressed = _Compressed.of(source, stream_starts(source), (), schema)
    return one_group(schema, rows, file, compressed.all, sum(compressed.at_once))


def _stream(
    source: pa.NativeFile, columns: Sequence[str], schema: pa.Schema, unmarked: Callable[[], None] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read the batches of a stream, which ends with its end-of-stream marker or after a message.

    Args:
        unmarked: called if it has no marker.
    """
    with pa.ipc.open_stream(source, options=_only(columns, schema)) as reader:
        while True:
            stop, place = source.tell(), None
            if PLACE in columns:
                place = _values_of(source, stop, schema, columns[0])
                source.seek(stop)
            if (batch := next(reader, None)) is None:
                break
            batch = sound(batch)
            if PLACE in columns:
                batch = _batch_with_places(batch, place)
            yield batch
    size = source.size()
    marker = source.read_at(8, stop)
    if size != stop and not (size - stop in (4, 8) and marker == _END_OF_STREAM[-len(marker) :]):
        raise pa.ArrowInvalid(
            f"a stream must end at a message or with an end-of-stream marker, and at byte {stop} of {size} come "
            f"{marker!r}: it was cut"
        )
    if size == stop and unmarked is not None:
        unmarked()


def _decode_stream(source: pa.NativeFile, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    batches = _stream(source, columns or _cheapest(schema), schema)
    while True:
        with sized(source):
            batch = next(batches, None)
        if batch is None:
            return
        yield _owned(batch)


def _only(columns: Sequence[str], schema: pa.Schema) -> pa.ipc.IpcReadOptions:
    stored = [schema.get_field_index(name) for name in columns if name != PLACE]
    return pa.ipc.IpcReadOptions(included_fields=stored, use_threads=False)


def _meta_with_place(meta: FileMeta) -> FileMeta:
    return replace(meta, schema=meta.schema.append(pa.field(PLACE, pa.int64(), nullable=False)))


def _batch_with_places(batch: pa.RecordBatch, place: Block | None) -> pa.RecordBatch:
    """Add the column `PLACE` to a batch of lists, whose values are at a place of the file."""
    lists = batch.column(0)
    width, offsets = lists.type.value_type.bit_width // 8, offsets_of(lists).astype(np.int64)
    if len(lists) and (place is None or place.start % width or offsets[-1] * width > place.stop - place.start):
        raise TableError(
            f"to be read in place, each record batch must hold the lists of {batch.schema.names[0]!r} uncompressed and "
            'aligned, as the file\'s first one does, and one does not; pass row_store= a folder or "memory", or write '
            "the file again"
        )
    places = pa.array(offsets[:-1] + (0 if place is None else place.start // width))
    return pa.RecordBatch.from_arrays([lists, places], names=[batch.schema.names[0], PLACE])


def _values_of(source: pa.NativeFile, start: int, schema: pa.Schema, column: str) -> Block | None:
    """Return where the next record batch after a byte has the values in the lists of a column.

    None if they do not lie there as they are, or no batch comes.
    """
    while (found := message_at(source, start)) and found[0].byte(HEADER - 1) != RECORD_BATCH:
        start = check_message(source, start) or start
    batch = None if found is None or found[0].byte(VERSION) != _V5 else batch_of_message(found[0])
    if found is None or batch is None or batch.table(COMPRESSION) is not None or batch.vector(VARIADIC)[1]:
        return None
    begin, count = batch.vector(BUFFERS)
    before = schema.types[: schema.get_field_index(column)]
    number = sum(map(_buffers_of, before)) + _BUFFERS_BEFORE_VALUES
    if number >= count:
        return None
    offset, length = BUFFER.unpack_from(batch.data, begin + number * BUFFER.size)
    return Block(found[1] + offset, found[1] + offset + length)


@lru_cache
def _buffers_of(kind: pa.DataType) -> int:
    """Return how many buffers of a record batch a column of a type has."""
    batch = batch_at(pa.BufferReader(pa.record_batch([pa.nulls(0, kind)], names=[""]).serialize()), 0)
    if batch is None:
        return 0
    return batch.vector(BUFFERS)[1]


def _cheapest(schema: pa.Schema) -> list[str]:
    """Return the name of the column with the narrowest values; none if there are no columns."""

    def width(field: pa.Field) -> int:
        if pa.types.is_null(field.type):
            return 0
        if not pa.types.is_primitive(field.type):
            return 1 << 16
        return int(field.type.bit_width)

    if len(schema):
        return [min(schema, key=width).name]
    return []


def _owned(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a batch that is a view: uncompressed IPC buffers are cut from what the store handed out."""
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None]
    if all(buffer.is_mutable for buffer in buffers):
        return batch
    return batch.copy_to(pa.default_cpu_memory_manager())


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
                    f"{file.name} must have its documents one after another, got one at byte {other.start} where "
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

    def placed(self, storage: Storage, file: DataFile, meta: FileMeta, column: str) -> FileMeta | None:
        """Return the metadata with the column `PLACE`; None for another column, and for compressed record batches."""
        if column != TOKENS:
            return None
        for start, _ in (meta.group_ranges or ())[:1]:
            with reading(storage, file, "an Arrow IPC file"), storage.open(file.path) as source:
                batch = batch_at(source, start)
                if batch is None or batch.table(COMPRESSION) is not None:
                    return None
        return _meta_with_place(meta)


class FmsFsdpFile(GroupedFile):
    """An open file, whose record batches become rows."""

    def __init__(self, source: pa.NativeFile, file: DataFile, meta: FileMeta) -> None:
        super().__init__(source, meta)
        self._file = file
        columns = [field for field in meta.schema if field.name != PLACE]
        self._stored = pa.schema([pa.field(field.name, field.type.value_type) for field in columns])

    @override
    def _group(self, group: int, columns: list[str]) -> pa.RecordBatch:
        data = self._bytes_of(group)
        batches = self._batches_of(data)
        rows = self._meta.group_rows[group]
        if len(batches) != rows:
            raise TableError(
                f"{self._file.name}, row group {group} must be {rows} record batches, as its footer says, got "
                f"{len(batches)}; it is damaged: write it again"
            )
        offsets = np.zeros(rows + 1, np.int64)
        np.cumsum([batch.num_rows for batch in batches], out=offsets[1:])
        if offsets[-1] >= 2**31:
            raise TableError(
                f"{self._file.name}, row group {group} has {offsets[-1]} tokens, and lists hold {2**31 - 1}; "
                "write it again with shorter documents"
            )
        table = pa.Table.from_batches(batches, self._stored)
        table.validate()
        ends = pa.array(offsets.astype(np.int32))
        arrays = [
            self._places(group, data, batches)
            if name == PLACE
            else pa.ListArray.from_arrays(ends, self._flat(group, name, table.column(name)))
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

    def _places(self, group: int, data: pa.Buffer, batches: Sequence[pa.RecordBatch]) -> pa.Array:
        """Return where the tokens of each document begin in the file; an empty one has the place of the one before."""
        (start, _), column = (self._meta.group_ranges or ())[group], self._stored.get_field_index(TOKENS)
        width = self._stored.field(column).type.bit_width // 8
        places, place = [], -(-start // width)
        for number, batch in enumerate(batches):
            if batch.num_rows:
                at = batch.column(column).buffers()[1].address - data.address
                place, odd = divmod(start + at, width)
                if odd or not 0 <= at <= data.size - batch.num_rows * width:
                    raise TableError(
                        f"{self._file.name}, row group {group}: record batch {number} must be aligned, and "
                        "not compressed, as the file's first one is, to be read in place; pass row_store= a folder or "
                        '"memory", or write it again'
                    )
            places.append(place)
        return pa.array(places, pa.int64())

    def _bytes_of(self, group: int) -> pa.Buffer:
        """Read a row group."""
        start, stop = (self._meta.group_ranges or ())[group]
        self._source.seek(start)
        data = self._source.read_buffer(stop - start)
        if data.size != stop - start:
            raise TableError(f"{self._file.name} ends before byte {stop}; it was cut: restore it, or write it again")
        return data

    def _batches_of(self, data: pa.Buffer) -> list[pa.RecordBatch]:
        """Decode the record batches of a row group, which follow one another as in a stream."""
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
