"""Parquet: the footer in one ranged read, row groups as batches of own memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.arrays import selected, take_rows
from torch_table_loader.arrow.sound import sound_text, text_places
from torch_table_loader.errors import TableError
from torch_table_loader.format_contracts import (
    BoundsReader,
    EncodingReader,
    HoldingReader,
    LimitingReader,
    ListBoundsReader,
    ListCountingReader,
    NullProvingReader,
    RangedReader,
    SharingReader,
    SizingReader,
    ThinningFile,
    Traits,
)
from torch_table_loader.messages import first_line
from torch_table_loader.read.failures import as_reading_error, of_unread
from torch_table_loader.read.int96 import (
    Instants,
    columns_of_instants,
    parse_as_bytes,
    unit_of_instants,
    with_instants,
)
from torch_table_loader.read.parquet_encrypted import checked_footer, encrypted_error
from torch_table_loader.read.parquet_footer import (
    DAMAGE,
    bounds_of,
    chunk_ranges,
    encoded_columns,
    leaf_of_lists,
    leaf_paths,
    list_values,
    parse,
    read_footer,
    refuse_unsafe,
)
from torch_table_loader.read.parquet_pages import refuse_large_pages
from torch_table_loader.read.parquet_sizes import (
    LEVEL_BYTES,
    Decoded,
    converted_bytes,
    decoded_size,
    large_pages_size,
    leaves_of,
    levels_size,
    seen_rows,
    variable_leaves,
)
from torch_table_loader.read.reader_base import PARTS, bounded, refuse_duplicates
from torch_table_loader.read.wide_parquet import WideParquet
from torch_table_loader.records import FileMeta
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile


_BUFFER_BYTES = 128 * 1024
"""What is read of a column at once; without it, Arrow holds all that a row group has of it, which costs more CPU too.

Objects that are far are here already when they are decoded.
"""

_VALUES_TO_COPY = 1 << 18
"""The most values that are read before rows of them are copied: caches must hold both."""

_PAGES_BYTES = 3 * 1024 * 1024
"""About what an open column holds beside its rows: a dictionary, and a page before and after decompression."""

_GROWTH = 8
"""The rows of a part are at most so many times those of the one before it, whatever that one weighed."""


@dataclass(frozen=True, slots=True)
class ParquetReader(
    EncodingReader,
    LimitingReader,
    SharingReader,
    NullProvingReader,
    ListCountingReader,
    ListBoundsReader,
    BoundsReader,
    RangedReader,
    SizingReader,
    HoldingReader,
):
    """Reads Parquet files (https://parquet.apache.org/docs/file-format/).

    `encoded` are columns of strings that come as dictionaries if a file has them so. Where `shares` is set, threads
    of Arrow's pool share the columns of each row group. No page may be larger than `most_bytes`, if that is not 0.
    """

    name: str = "parquet"
    suffixes = (".parquet", ".pq")
    traits = Traits(cut="row groups", pruned="statistics, partitions", counted="the footer")
    verify_checksums: bool = True
    encoded: frozenset[str] = frozenset()
    shares: bool = False
    most_bytes: int = 0
    columnar = True

    @override
    def encoding(self, columns: frozenset[str]) -> ParquetReader:
        return replace(self, encoded=columns)

    @override
    def limited(self, num_bytes: int) -> ParquetReader:
        return replace(self, most_bytes=num_bytes)

    @override
    def sharing(self) -> ParquetReader:
        return replace(self, shares=True)

    @override
    def inspect(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:
        try:
            footer, data_bytes = read_footer(storage, file)
        except (OSError, pa.ArrowException) as error:
            raise as_reading_error(error, file, is_local=storage.is_local) from error
        try:
            parsed = parse(footer)
            file_schema = with_instants(parsed, schema)
            refuse_duplicates(file_schema, file)
        except (*DAMAGE, NotImplementedError) as error:
            if of_unread(error):
                raise as_reading_error(error, file, is_local=storage.is_local) from error
            raise TableError(
                f"{file.name} must end with a Parquet footer, got one that does not parse ({first_line(error)}); "
                "the file is torn: write it again, or leave it out of the table"
            ) from error
        footer = checked_footer(file, footer, parsed, data_bytes)
        groups = [parsed.row_group(index) for index in range(parsed.num_row_groups)]
        return FileMeta(
            schema=file_schema,
            group_rows=tuple(group.num_rows for group in groups),
            group_bytes=tuple(group.total_byte_size for group in groups),
            footer=footer,
        )

    @override
    def prune(self, file: DataFile, meta: FileMeta, filters: Any, schema: pa.Schema) -> Sequence[bool]:
        from torch_table_loader.read.parquet_pruning import kept_row_groups

        return kept_row_groups(file, meta, parse(_footer_of(file, meta)), filters, schema)

    @override
    def null_columns(self, meta: FileMeta, columns: Sequence[str], kept: Sequence[bool]) -> frozenset[str]:
        counts = _null_counts(meta, columns, kept)
        return frozenset(name for name, found in counts.items() if any(found))

    @override
    def null_free(self, meta: FileMeta, columns: Sequence[str], kept: Sequence[bool]) -> frozenset[str]:
        counts = _null_counts(meta, columns, kept)
        return frozenset(name for name, found in counts.items() if all(count == 0 for count in found))

    @override
    def list_values(self, meta: FileMeta, column: str) -> tuple[Sequence[int], Sequence[int]] | None:
        checked = _checked_lists("the file", meta, column)
        if checked is None:
            return None
        return list_values(*checked)

    @override
    def list_bounds(self, file: DataFile, meta: FileMeta, column: str) -> tuple[int, int] | None:
        checked = _checked_lists(file.name, meta, column)
        if checked is None:
            return None
        return bounds_of(*checked[:2])

    @override
    def bounds(self, meta: FileMeta, column: str) -> tuple[int, int | None, int | None] | None:
        nulls = _null_counts(meta, [column], [True] * len(meta.group_rows)).get(column)
        if meta.footer is None or nulls is None:
            return None
        known = [count for count in nulls if count is not None]
        if len(known) < len(nulls):
            return None
        if sum(known) == meta.num_rows:
            return sum(known), None, None
        parsed = parse(meta.footer)
        found = bounds_of(parsed, leaf_paths(parsed).index(column))
        if found is None:
            return None
        return (sum(known), *found)

    @override
    def decoded_bytes(self, meta: FileMeta, group: int, columns: Sequence[str]) -> tuple[int, int]:
        if meta.footer is None:
            return 0, 0
        parsed = parse(meta.footer)
        fixed, leaves = variable_leaves(parsed, meta.schema, columns)
        fixed *= meta.group_rows[group]
        found = decoded_size(meta.footer, parsed, group, leaves)
        return fixed + found.least, fixed + found.most

    @override
    def held_bytes(self, meta: FileMeta, group: int, columns: Sequence[str], max_rows: int, row_bytes: int) -> int:
        num_rows, pages = max(1, meta.group_rows[group]), _PAGES_BYTES * len(columns)
        fixed, most, nested, levels = row_bytes, row_bytes, 0, LEVEL_BYTES * len(columns)
        if meta.footer is not None:
            parsed = parse(meta.footer)
            fixed, leaves = variable_leaves(parsed, meta.schema, columns)
            most = max(row_bytes, fixed + decoded_size(meta.footer, parsed, group, leaves).least // num_rows)
            nested = levels_size(parsed, group, leaves) // num_rows
            pages += large_pages_size(parsed, group, leaves)
        pages = min(pages, 2 * meta.group_bytes[group])
        if _is_whole(num_rows, max_rows):  # a few columns are decoded at a time
            return num_rows * (most + nested + levels) + pages // max(1, len(columns))
        # Arrow makes room for a power of two of values; it keeps that of levels, and of values that it converts.
        max_rows = min(max_rows, meta.num_rows)
        room = 1 << (max_rows - 1).bit_length()
        levels += converted_bytes(meta.schema, columns)
        return room * (fixed + levels) + 2 * max_rows * (most - fixed + nested) + pages

    @override
    def open(self, storage: Storage, file: DataFile, meta: FileMeta) -> ParquetFile:
        parsed = parse(_footer_of(file, meta))
        coded = encoded_columns(parsed, self.encoded)
        source = storage.open(file.path)

        def opened(unit: str | None, footer: pq.FileMetaData) -> WideParquet:
            return WideParquet(
                source,
                metadata=footer,
                pre_buffer=False,  # bytes that are here would be copied; of others it has one request in flight
                buffer_size=_BUFFER_BYTES if storage.is_local else 0,
                page_checksum_verification=self.verify_checksums,
                read_dictionary=coded or None,
                coerce_int96_timestamp_unit=unit,
            )

        try:
            # Iceberg's timestamps are microseconds, of which INT96 holds years that nanoseconds do not.
            by_schema = file.columns is None
            unit = unit_of_instants(parsed, meta.schema) if by_schema else "us"
            instants = None
            if names := columns_of_instants(parsed):
                stored = opened(None, parse_as_bytes(file.name, _footer_of(file, meta)))
                instants = Instants(file.name, names, unit or "ns", by_schema, stored)
            handle = opened(unit, parsed)
            return ParquetFile(
                handle,
                source,
                meta,
                instants,
                coded=coded,
                shares=self.shares,
                name=file.name,
                most_bytes=self.most_bytes,
            )
        except BaseException:
            source.close()
            raise

    @override
    def ranges(
        self, file: DataFile, meta: FileMeta, groups: Sequence[int], columns: Sequence[str]
    ) -> Sequence[Sequence[tuple[int, int]]]:
        # Opening needs the footer alone, which is here.
        return chunk_ranges(parse(_footer_of(file, meta)), file.version.num_bytes, groups, columns)


class _Part(NamedTuple):
    """How some columns of a row group come, which is the same for all row groups of a file.

    Args:
        texts: the places of columns with text.
        as_asked: whether they come without others, and in the order in which they are asked for.
    """

    texts: list[int]
    as_asked: bool


class _Form(NamedTuple):
    """How all columns of a row group come that is read whole.

    Args:
        dictionaries: whether some are dictionaries, which may come to more bytes than they take.
    """

    schema: pa.Schema
    dictionaries: bool

    @classmethod
    def of(cls, fields: Sequence[pa.Field]) -> _Form:
        """Return that of some fields."""
        return cls(pa.schema(fields), any(pa.types.is_dictionary(field.type) for field in fields))


class ParquetFile(ThinningFile):
    """An open Parquet file; batches are decoded into fresh memory, never mapped."""

    def __init__(
        self,
        handle: WideParquet,
        source: pa.NativeFile,
        meta: FileMeta,
        instants: Instants | None = None,
        *,
        coded: Sequence[str] = (),
        shares: bool = False,
        name: str = "the file",
        most_bytes: int = 0,
    ) -> None:
        self._name = name
        self._most_of_a_page = most_bytes
        self._handle = handle
        self._source = source
        self._meta = meta
        self._instants = instants
        self._readers = [handle.reader]
        if instants is not None:
            self._readers.append(instants.handle.reader)
        self._coded = frozenset(coded)
        self._shares = shares
        self._values_at_once = sizes().parquet_values
        self._most_bytes = sizes().dictionary_bytes
        self._leaves: dict[tuple[str, ...], tuple[int, list[int]]] = {}
        self._parts: dict[tuple[str, ...], _Part] = {}
        self._divided: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        self._forms: dict[tuple[str, ...], _Form] = {}
        self._seen = seen_rows(meta.footer or b"")
        readable = handle.schema_arrow.names
        self._encrypted = frozenset(meta.schema.names).difference(readable) if len(readable) < len(meta.schema) else ()

    @override
    def batches(self, groups: range, columns: Sequence[str], max_rows: int) -> Iterator[pa.RecordBatch]:
        wanted = list(columns)
        self._refuse(groups, wanted)
        for call, first in self._calls(groups, wanted, max_rows):
            if not first:
                yield from self._group(call[0], wanted)
                continue
            for batch in self._streamed(call, wanted, first, max_rows):
                # pyarrow takes dotted paths of leaves, so "a" or "a.b" may bring in more than it names,
                # and it keeps the file's order.
                yield from bounded(selected(batch, wanted), max(1, batch.num_rows))

    def _group(self, group: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Read a row group whole; only dictionaries may make it too large for one batch."""
        batches = self._table(group, columns).to_batches()
        if not self._forms[tuple(columns)].dictionaries:
            return iter(batches)
        return chain.from_iterable(bounded(batch, max(1, batch.num_rows)) for batch in batches)

    def _calls(self, groups: range, columns: list[str], max_rows: int) -> Iterator[tuple[list[int], int]]:
        """Divide row groups into calls of pyarrow, each with the rows of its first batch; 0: a row group is read whole.

        A row group of about `max_rows` is read whole, which is pyarrow's fastest way. The others are streamed in one
        call, which then fills batches across row groups. One whose values may come to too many bytes is read in parts.
        """
        streamed: list[int] = []
        held = 0
        for group in groups:
            weight, first = self._weighed(group, columns, max_rows)
            whole = _is_whole(self._meta.group_rows[group], max_rows)
            if streamed and (first or whole or held + weight > self._most_bytes):
                yield streamed, max_rows
                streamed, held = [], 0
            if first or whole:
                yield [group], first
            else:
                streamed.append(group)
                held += weight
        if streamed:
            yield streamed, max_rows

    def _weighed(self, group: int, columns: Sequence[str], max_rows: int) -> tuple[int, int]:
        """Return the most bytes that columns of a row group may decode to, and the rows of the first part of it.

        The bytes are 0 if any `max_rows` rows are few, and the rows are 0 if there need not be parts.
        """
        names, footer, num_rows = tuple(columns), self._meta.footer, self._meta.group_rows[group]
        fixed, leaves = self._variable(names)
        if not leaves or not num_rows or footer is None:
            return 0, 0
        found, seen = decoded_size(footer, self._handle.metadata, group, leaves), self._seen.get(names)
        most, limit = found.most, self._most_bytes
        if found.least < most:
            if seen is not None and found.least * seen.rows <= 2 * seen.least * num_rows:  # it is like those before it
                most = min(most, 2 * seen.most * num_rows // seen.rows)
            else:
                limit //= PARTS
        weight = fixed * num_rows + most
        if weight * max_rows <= limit * num_rows:
            return 0, 0
        if weight <= limit:
            return weight, 0
        return weight, max(1, self._most_bytes // PARTS * num_rows // weight)

    def _variable(self, names: tuple[str, ...]) -> tuple[int, list[int]]:
        if (known := self._leaves.get(names)) is None:
            decoded = [name for name in names if name not in self._coded]
            known = self._leaves[names] = variable_leaves(self._handle.metadata, self._meta.schema, decoded)
        return known

    def _refuse(self, groups: Iterable[int], columns: Sequence[str]) -> None:
        """Refuse columns that are encrypted, or too large."""
        if self._encrypted and (found := [name for name in columns if name in self._encrypted]):
            raise encrypted_error(self._name, found)
        if self._most_of_a_page:
            most, parsed = self._most_of_a_page, self._handle.metadata
            large = [group for group in groups if self._meta.group_bytes[group] > most]
            for group in large:
                refuse_large_pages(self._source, parsed, group, leaves_of(parsed, columns), most)

    @override
    def thins(self, group: int, columns: Sequence[str], max_rows: int) -> bool:
        return _is_whole(self._meta.group_rows[group], max_rows) and not self._weighed(group, columns, max_rows)[1]

    @override
    def thinned(self, group: int, columns: Sequence[str], num_rows: int, kept: pa.Array | None) -> pa.RecordBatch:
        # A few columns at a time, whose kept rows are copied while caches hold them.
        names = list(columns)
        self._refuse([group], names)
        at_once = max(1, _VALUES_TO_COPY // max(1, num_rows)) if kept is not None else max(1, len(names))
        fields: list[pa.Field] = []
        arrays: list[pa.Array] = []
        for start in range(0, len(names), at_once):
            table = self._table(group, names[start : start + at_once])
            if table.num_rows != num_rows:
                raise TableError(
                    f"row group {group} must have {num_rows} rows, as was planned, got {table.num_rows}; the file has "
                    "changed: build the loader again"
                )
            fields += table.schema
            arrays += _in_one_piece(table) if kept is None else _taken(table, kept)
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _table(self, group: int, columns: list[str]) -> pa.Table:
        """Read a row group, a few columns at a time, which is faster since caches hold them, or all side by side."""
        names = tuple(columns)
        if (divided := self._divided.get(names)) is None:
            divided = self._divided[names] = self._divide(names)
        tables = [self._some(group, some) for some in divided]
        if (form := self._forms.get(names)) is None:
            form = self._forms[names] = _Form.of([field for table in tables for field in table.schema])
        if len(tables) == 1:
            return tables[0]
        return pa.Table.from_arrays([column for table in tables for column in table.columns], schema=form.schema)

    def _divide(self, names: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Divide columns into those that one call reads of a row group."""
        at_once = max(1, self._values_at_once // max(1, *self._meta.group_rows))
        if self._shares or len(names) <= 2 * at_once:  # a second call costs more than caches save
            return [names]
        return [names[start : start + at_once] for start in range(0, len(names), at_once)]

    def _some(self, group: int, names: tuple[str, ...]) -> pa.Table:
        """Read a few columns of a row group at once; how they come is looked up at the first row group."""
        table = self._handle.group(group, names, use_threads=self._shares)
        if self._instants is not None:
            table = self._instants.of_group(table, group, names)
        if (known := self._parts.get(names)) is None:
            schema = pa.schema(map(table.schema.field, names))
            known = self._parts[names] = _Part(text_places(schema), table.column_names == list(names))
        if not known.as_asked:
            table = table.select(names)
        if known.texts:
            sound_text(table, known.texts)
        return table

    def _streamed(self, groups: list[int], columns: list[str], first: int, max_rows: int) -> Iterator[pa.RecordBatch]:
        """Stream row groups in batches of `max_rows`; if the first one is to have fewer, as many as they weigh."""
        batches: Iterator[pa.RecordBatch] = self._handle.iter_batches(
            batch_size=first, row_groups=groups, columns=columns, use_threads=self._shares
        )
        if self._instants is not None:
            batches = self._instants.of_batches(batches, groups, columns, first)
        rows, num_bytes, num_rows = first, 0, 0
        texts: list[int] | None = None
        while True:
            for reader in self._readers:
                reader.set_batch_size(rows)  # streams of one file share it
            if (batch := next(batches, None)) is None:
                break
            texts = text_places(batch.schema) if texts is None else texts
            yield sound_text(batch, texts)
            if first < max_rows and batch.num_rows:
                num_bytes, num_rows = num_bytes + batch.nbytes, num_rows + batch.num_rows
                most = self._most_bytes // PARTS * batch.num_rows // max(1, batch.nbytes)
                rows = max(1, min(max_rows, _GROWTH * rows, most))
        if num_rows:
            self._learn(groups[0], columns, num_bytes, num_rows)

    def _learn(self, group: int, columns: list[str], num_bytes: int, num_rows: int) -> None:
        """Remember what rows of a row group came to, for those after it."""
        names = tuple(columns)
        stored = decoded_size(self._meta.footer or b"", self._handle.metadata, group, self._leaves[names][1]).least
        self._seen[names] = Decoded(stored, num_bytes, num_rows)

    @override
    def close(self) -> None:
        self._handle.close()
        self._source.close()


def _is_whole(num_rows: int, max_rows: int) -> bool:
    """Whether a row group of so many rows is read whole, where reads have at most `max_rows`.

    >>> _is_whole(100, 100), _is_whole(51, 100), _is_whole(50, 100), _is_whole(101, 100)
    (True, True, False, False)
    """
    return max_rows < 2 * num_rows <= 2 * max_rows


def _taken(table: pa.Table, places: pa.Array) -> list[pa.Array]:
    """Return rows of a table, by their uint32 places, which are not checked: its columns, each in one piece.

    >>> [column.to_pylist() for column in _taken(pa.table({"a": [5, 6, 7]}), pa.array([0, 2], pa.uint32()))]
    [[5, 7]]
    """
    batches = table.to_batches()
    if len(batches) == 1:
        return list(take_rows(batches[0], places).columns)
    return _in_one_piece(pc.take(table, places, boundscheck=False))


def _in_one_piece(table: pa.Table) -> list[pa.Array]:
    """Return the columns of a table, each as one array; only those of several chunks are copied."""
    return [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in table.columns]


def _footer_of(file: DataFile, meta: FileMeta) -> bytes:
    if meta.footer is None:
        raise TableError(
            f"{file.name} must come with the Parquet footer that inspect read, got metadata without one; "
            "inspect the file again"
        )
    return meta.footer


def _checked_lists(name: str, meta: FileMeta, column: str) -> tuple[pq.FileMetaData, int, list[int | None]] | None:
    """Return the footer, the leaf of a column of lists, whose statistics are checked, and its nulls by row group."""
    if meta.footer is None:
        return None
    parsed = parse(meta.footer)
    leaf = leaf_of_lists(parsed, column)
    if leaf is None:
        return None
    return parsed, leaf, [chunks[leaf].nulls for chunks in refuse_unsafe(name, meta.footer, parsed, [leaf])]


def _null_counts(meta: FileMeta, columns: Sequence[str], kept: Sequence[bool]) -> dict[str, list[int | None]]:
    """Count the nulls of flat columns in each kept row group; None where the statistics do not say."""
    if meta.footer is None:
        return {}
    parsed = parse(meta.footer)
    leaves = {
        name: (place, leaf.max_definition_level)
        for name, place in _flat_leaves(parsed, meta.schema, columns)
        if (leaf := parsed.schema.column(place)).max_repetition_level == 0 and leaf.max_definition_level <= 1
    }
    if not leaves:
        return {}
    chunks = refuse_unsafe("the file", meta.footer, parsed, [place for place, _ in leaves.values()])
    groups = [group for group, keep in zip(chunks, kept, strict=True) if keep]
    return {
        name: [group[place].nulls if nullable else 0 for group in groups] for name, (place, nullable) in leaves.items()
    }


def _flat_leaves(parsed: pq.FileMetaData, schema: pa.Schema, columns: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the flat ones of some columns that a file has, and their leaves.

    Where each column has one leaf, its place is known: a file may have very many, of which few are asked for.
    """
    paths: dict[str, int] | None = None
    for name in columns:
        place = schema.get_field_index(name)
        if place < 0 or pa.types.is_nested(schema.field(place).type):
            continue
        if len(schema) == parsed.num_columns and parsed.schema.column(place).path == name:
            yield name, place
            continue
        if paths is None:
            paths = {path: leaf for leaf, path in enumerate(leaf_paths(parsed))}
        if name in paths:
            yield name, paths[name]
