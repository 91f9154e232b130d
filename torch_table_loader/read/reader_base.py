"""What format readers share, such as what partition values rule out; and the reader of tables in memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.arrays import selected
from torch_table_loader.arrow.datatypes import is_text
from torch_table_loader.arrow.sound import sound
from torch_table_loader.errors import TableError
from torch_table_loader.format_contracts import (
    FormatReader,
    HoldingReader,
    NullProvingReader,
    OpenFile,
    RangedReader,
    SizingReader,
    Traits,
)
from torch_table_loader.messages import first_twice
from torch_table_loader.read.failures import reading
from torch_table_loader.read.file_ends import open_at_start
from torch_table_loader.records import FileMeta
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile


Decode = Callable[[pa.NativeFile, Sequence[str]], Iterable[pa.RecordBatch]]
"""Decodes a file from its start into batches that have the named columns, at least one."""


PARTS = 4
"""Parts of `dictionary_bytes` in which what may be more is decoded."""

_DICTIONARY = pa.dictionary(pa.int8(), pa.null()).id


class WithoutStatistics(FormatReader):
    """A reader of files that keep no statistics: only partition values rule rows out."""

    __slots__ = ()

    @override
    def prune(self, file: DataFile, meta: FileMeta, filters: Any, schema: pa.Schema) -> Sequence[bool]:
        return [partition_can_pass(file, filters, schema)] * len(meta.group_rows)

    @override
    def null_columns(self, meta: FileMeta, columns: Sequence[str], kept: Sequence[bool]) -> frozenset[str]:
        return frozenset()


class WithoutNulls(WithoutStatistics, NullProvingReader):
    """A reader of files that cannot hold a null."""

    __slots__ = ()

    @override
    def null_free(self, meta: FileMeta, columns: Sequence[str], kept: Sequence[bool]) -> frozenset[str]:
        return frozenset(columns)


class CountedColumns(SizingReader):
    """A reader that counts what columns decode to when it inspects a file, where it can."""

    __slots__ = ()

    @override
    def decoded_bytes(self, meta: FileMeta, group: int, columns: Sequence[str]) -> tuple[int, int]:
        found = (meta.decoded_bytes(columns) or 0) * meta.group_rows[group] // max(1, meta.num_rows)
        return found, found


class WholeGroups(WithoutStatistics, RangedReader, HoldingReader):
    """A reader of files whose row groups are read whole, whichever columns are wanted, unless none is."""

    __slots__ = ()

    @override
    def held_bytes(self, meta: FileMeta, group: int, columns: Sequence[str], max_rows: int, row_bytes: int) -> int:
        beyond = max(0, meta.group_rows[group] - max_rows)  # all rows come at once, and are given in parts
        return meta.group_bytes[group] + beyond * row_bytes

    @override
    def ranges(
        self, file: DataFile, meta: FileMeta, groups: Sequence[int], columns: Sequence[str]
    ) -> Sequence[Sequence[tuple[int, int]]]:
        found: list[list[tuple[int, int]]] = [[] for _ in groups]
        if columns and meta.group_ranges is not None:
            found = [[meta.group_ranges[group]] for group in groups]
        if found:
            found[0] = [*meta.opening, *found[0]]
        return found


class GroupedFile(OpenFile):
    """An open file whose row groups are decoded one at a time, into fresh memory."""

    def __init__(self, source: pa.NativeFile, meta: FileMeta) -> None:
        self._source = source
        self._meta = meta

    @override
    def batches(self, groups: range, columns: Sequence[str], max_rows: int) -> Iterator[pa.RecordBatch]:
        wanted = list(columns)
        for group in groups:
            whole = self._group(group, wanted) if wanted else rows_without_columns(self._meta.group_rows[group])
            yield from bounded(whole, max_rows)

    @override
    def close(self) -> None:
        self._source.close()

    @abstractmethod
    def _group(self, group: int, columns: list[str]) -> pa.RecordBatch:
        """Decode columns of a row group."""


class SequentialFile(OpenFile):
    """A file that is decoded from its start on each call, and opened then."""

    def __init__(self, storage: Storage, file: DataFile, decode: Decode) -> None:
        self._storage = storage
        self._file = file
        self._decode = decode
        self._sources: list[pa.NativeFile] = []

    @override
    def batches(self, groups: range, columns: Sequence[str], max_rows: int) -> Iterator[pa.RecordBatch]:
        if not groups:
            return
        source = open_at_start(self._storage, self._file)
        self._sources.append(source)
        wanted = list(columns)
        for batch in self._decode(source, wanted):
            yield from bounded(selected(batch, wanted), max_rows)

    @override
    def close(self) -> None:
        for source in self._sources:
            source.close()


def partition_can_pass(file: DataFile, filters: Any, schema: pa.Schema) -> bool:
    """Return whether a filter can be true of a row of a file, by the file's partition values."""
    from torch_table_loader.predicates.facts import predicate_of

    return predicate_of(filters, schema).can_pass({}, known_values(file, schema))


def known_values(file: DataFile, schema: pa.Schema) -> dict[str, pa.Scalar]:
    """Return what a file's partition says of columns of the table, in their types."""
    values = {name: _as_type(value, schema.field(name).type) for name, value in file.partition if name in schema.names}
    return {name: value for name, value in values.items() if value is not None}


def _as_type(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """Return a partition value as its column's type; None if that says nothing: NaN, or a value of another type.

    Where the file lacks the column, reading refuses such a value.
    """
    if value != value:  # noqa: PLR0124 - NaN equals nothing
        return None
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def one_group(
    schema: pa.Schema, num_rows: int, file: DataFile, column_bytes: Sequence[int] | None = None, at_once: int = 0
) -> FileMeta:
    """Return the metadata of a file that is one row group, as large as the file, or none if it has no rows."""
    if column_bytes is not None:
        column_bytes = tuple(column_bytes)
    rows: tuple[int, ...] = ()
    num_bytes: tuple[int, ...] = ()
    if num_rows:
        rows, num_bytes = (num_rows,), (file.version.num_bytes,)
    return FileMeta(schema, rows, num_bytes, column_bytes=column_bytes, at_once=(at_once,) if at_once else ())


def refuse_duplicates(schema: pa.Schema, file: DataFile) -> None:
    """Refuse a file with two columns of one name."""
    if (twice := first_twice(schema.names)) is not None:
        raise TableError(
            f"{file.name} must have columns of different names, got {twice!r} "
            f"{schema.names.count(twice)} times; write it again with unique names"
        )


def bounded(batch: pa.RecordBatch, max_rows: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch into slices of 1 to `max_rows` rows, without copying.

    >>> [part.num_rows for part in bounded(pa.record_batch({"a": [1, 2, 3]}), 2)]
    [2, 1]
    """
    places = _cuts_of_dictionaries(batch)
    if not places and 0 < batch.num_rows <= max_rows:
        yield batch
        return
    for first, last in pairwise([0, *places, batch.num_rows]):
        for start in range(first, last, max_rows):
            yield batch.slice(start, min(max_rows, last - start))


def _cuts_of_dictionaries(batch: pa.RecordBatch) -> list[int]:
    """Return the rows before which a batch is cut, so that no slice is too large once dictionaries are decoded.

    A long text that a dictionary has once may be in all rows.
    """
    cuts = set[int]()
    for place, kind in enumerate(batch.schema.types):
        if kind.id != _DICTIONARY or not is_text(kind.value_type) or not batch.num_rows:
            continue
        column, most = batch.column(place), sizes().dictionary_bytes
        lengths = pc.fill_null(pc.binary_length(column.dictionary).cast(pa.int64()), 0)
        if batch.num_rows * (pc.max(lengths).as_py() or 0) <= most:
            continue
        upto = pc.cumulative_sum(pc.fill_null(lengths.take(column.indices), 0)).to_numpy()
        row = 0
        part = most // PARTS
        while upto[-1] - (before := upto[row - 1] if row else 0) > part:
            row = max(row + 1, int(np.searchsorted(upto, before + part, side="right")))
            if row >= batch.num_rows:
                break
            cuts.add(row)
    return sorted(cuts)


def rows_without_columns(num_rows: int) -> pa.RecordBatch:
    """Return a batch that has rows and no columns.

    >>> rows_without_columns(3).num_rows
    3
    """
    return pa.record_batch([pa.nulls(num_rows)], names=["none"]).select([])


@dataclass(frozen=True, slots=True)
class HeldReader(WithoutStatistics, HoldingReader):
    """Reads the one file of a table in memory, whose storage has the table."""

    name: str = "a table in memory"
    suffixes = ()
    traits = Traits(cut="runs of rows", pruned="partitions", counted="the table")
    columnar = True

    @override
    def inspect(self, storage: Any, file: DataFile, schema: pa.Schema | None) -> FileMeta:
        with reading(storage, file):
            storage.version(file.path)
            rows, table = storage.table.group_rows, storage.table
            total = max(1, table.num_rows)
            return FileMeta(table.schema, rows, tuple(table.num_bytes * count // total for count in rows))

    @override
    def held_bytes(self, meta: FileMeta, group: int, columns: Sequence[str], max_rows: int, row_bytes: int) -> int:
        return 0

    @override
    def open(self, storage: Any, file: DataFile, meta: FileMeta) -> HeldFile:
        storage.version(file.path)
        return HeldFile(storage.table, meta)


class HeldFile(OpenFile):
    """The rows of a table in memory; each batch gets memory of its own."""

    def __init__(self, table: Any, meta: FileMeta) -> None:
        self._table = table
        self._starts = np.cumsum([0, *meta.group_rows], dtype=np.int64)

    @override
    def batches(self, groups: range, columns: Sequence[str], max_rows: int) -> Iterator[pa.RecordBatch]:
        if not groups:
            return
        start, stop = int(self._starts[groups.start]), int(self._starts[groups.stop])
        if not columns:
            yield from bounded(rows_without_columns(stop - start), max_rows)
            return
        for first in range(start, stop, max_rows):
            yield sound(self._table.rows(first, min(first + max_rows, stop), columns))

    @override
    def close(self) -> None:
        pass
