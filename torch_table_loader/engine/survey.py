"""The survey of a table: footers read once and in parallel, schemas unified, row groups pruned."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from torch_table_loader.contracts import ListBoundsReader, NullProvingReader, SettlingReader, SnapshotSource, renewing
from torch_table_loader.engine.salvage import salvage_file, told
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.messages import warn_caller
from torch_table_loader.planning.layout import TableLayout
from torch_table_loader.read.deletes import Deletes
from torch_table_loader.read.expressions import check_filter
from torch_table_loader.read.failures import reading
from torch_table_loader.read.field_ids import found_by_name
from torch_table_loader.read.footers import FooterSizes, LazyFooters, check_rows, estimated_groups
from torch_table_loader.read.formats import infers_types, inspect_file, reader_of
from torch_table_loader.read.sound import check_names
from torch_table_loader.read.tasks import DEFAULT_MAX_ROWS, TaskReader
from torch_table_loader.read.unify import resolve_schema
from torch_table_loader.records import ReadTask
from torch_table_loader.source.fingerprint import fingerprint, fingerprint_without
from torch_table_loader.source.plan_cache import CacheEntry

if TYPE_CHECKING:
    from torch_table_loader.contracts import Source, Storage
    from torch_table_loader.read.row_stage import RowStage
    from torch_table_loader.records import DataFile, FileMeta, LeftOut
    from torch_table_loader.source.plan_cache import PlanCache

FAR_REQUESTS = 128
"""Footers that are asked for at once where the store is far away: stores answer small requests in tens of
milliseconds, and a footer takes less than one of them to check."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A table whose footers have been read.

    Args:
        storage: where the files are.
        layout: files and row groups.
        metas: what each file's footer says, or will say when it is asked.
        schema: the unified schema, partition columns included.
        fingerprint: hash of relative names, sizes and row counts; or of table and snapshot.
        deletes: reads what is deleted from the files.
        snapshot_id: of a table that has snapshots, the one that is read.
        description: what the source says of itself.
        notes: what planning has to say.
        start_snapshot_id: where only the rows are read that were appended after another snapshot, that one.
        left_out: damaged parts that ``on_error="skip"`` leaves out.
    """

    storage: Storage
    layout: TableLayout
    metas: tuple[FileMeta, ...] | LazyFooters
    schema: pa.Schema
    fingerprint: str
    deletes: Deletes
    snapshot_id: int | None = None
    description: str = ""
    notes: tuple[str, ...] = ()
    start_snapshot_id: int | None = None
    left_out: tuple[LeftOut, ...] = ()

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The data files in canonical order."""
        return self.layout.files

    @property
    def footer_bytes(self) -> int:
        """Bytes of raw footers that are held so that no footer is read twice."""
        if isinstance(self.metas, LazyFooters):
            return self.metas.num_bytes
        return sum(len(meta.footer) for meta in self.metas if meta.footer is not None)

    @property
    def estimated(self) -> bool:
        """Whether row groups are estimates, since footers are read later."""
        return isinstance(self.metas, LazyFooters)

    def reader(
        self,
        columns: Sequence[str],
        filters: Any,
        *,
        row_ids: bool = False,
        max_rows: int = DEFAULT_MAX_ROWS,
        stage: RowStage | None = None,
    ) -> TaskReader:
        """Make what reads the table's rows, deletes left out.

        Args:
            columns: names to deliver, in this order.
            filters: an expression over `schema`, or None.
            row_ids: whether the last column is each row's ordinal among all physical rows.
            max_rows: no batch has more rows.
            stage: makes other rows of those that live; None delivers them as they are.
        """
        return TaskReader(
            self.storage,
            self.files,
            self.metas,
            self.schema,
            columns,
            filters=filters,
            row_id_bases=self.layout.file_starts[:-1] if row_ids else None,
            max_rows=max_rows,
            deletes=self.deletes,
            verify_checksums=self.deletes.verify_checksums,
            stage=stage,
        )

    def first_rows(self, columns: Sequence[str], filters: Any, count: int) -> pa.Table:
        """Read the first live rows, at most `count`, in the order of the files; see `reader`."""
        reader, left = self.reader(columns, filters, max_rows=max(count, 1)), count
        found: list[pa.RecordBatch] = []
        for file in range(len(self.layout)):
            if left > 0 and (parts := self.layout.kept_segments(file)):
                found += reader.read(ReadTask(file, parts, take=left))
                left = count - sum(batch.num_rows for batch in found)
        return pa.Table.from_batches(found, reader.schema)

    def refuse_nulls(self, columns: frozenset[str]) -> None:
        """Refuse columns in which statistics prove a null.

        Args:
            columns: those in which a null would be an error when it came.

        Raises:
            TableError: names the column, a file, and the remedies.
        """
        wanted = sorted(columns)
        if not wanted or self.estimated:
            return

        def check(index: int) -> None:
            file, meta = self.files[index], self.metas[index]
            kept = self._kept_groups(index)
            if file.deletes or not any(kept):
                return  # a delete may take the nulls
            with _naming(self.storage, file):
                found = reader_of(file).null_columns(meta, self._in_file(index, wanted), kept)
            found |= {name for name, value in file.partition if value is None and name in columns}
            if file.columns is None:  # a column that a file does not have is null in it
                found |= columns - set(meta.schema.names) - {name for name, _ in file.partition}
            if found:
                raise TableError(
                    f"column {min(found)!r} has nulls in {file.name!r} (its metadata says so), and a tensor of ints "
                    f'or bools has no place for them; pass nulls={{{min(found)!r}: fill}}, nulls="mask", or filter '
                    "them out"
                )

        in_parallel(check, range(len(self.files)))

    def null_free(self, columns: Sequence[str]) -> frozenset[str]:
        """Return those of some columns in which statistics prove that there is no null in what is read."""
        free = frozenset() if self.estimated else frozenset(columns)
        for index, file in enumerate(self.files if free else ()):
            reader, kept = reader_of(file), self._kept_groups(index)
            if any(kept):
                proven = {name for name, value in file.partition if value is not None}
                if isinstance(reader, NullProvingReader):
                    with _naming(self.storage, file):
                        proven |= reader.null_free(self.metas[index], self._in_file(index, sorted(free)), kept)
                free &= proven
        return free

    def list_bounds(self, column: str) -> tuple[int, int] | None:
        """Return numbers between which the integers in a column of lists lie; None where statistics do not say."""
        found: list[tuple[int, int]] = []
        for index, file in enumerate(() if self.estimated else self.files):
            reader, names = reader_of(file), self._in_file(index, [column])
            if not isinstance(reader, ListBoundsReader) or names != [column]:
                return None
            with _naming(self.storage, file):
                bounds = reader.list_bounds(file, self.metas[index], column)
            if bounds is None:
                return None
            found.append(bounds)
        return (min(low for low, _ in found), max(high for _, high in found)) if found else None

    def _kept_groups(self, index: int) -> list[bool]:
        groups = self.layout.groups_of(index)
        kept: list[bool] = self.layout.group_kept[groups.start : groups.stop].tolist()
        return kept

    def _in_file(self, index: int, columns: Sequence[str]) -> list[str]:
        """Return the columns that a file's statistics have under the table's own names."""
        file, meta = self.files[index], self.metas[index]
        if file.columns is None:
            return list(columns)
        return [name for name in columns if found_by_name(meta.schema, file.columns, {name})]


@contextmanager
def _naming(storage: Storage, file: DataFile) -> Iterator[None]:
    """Add a file's name to errors of its reader, which does not know it when it looks at a footer in memory."""
    try:
        with reading(storage, file):
            yield
    except TableError as error:
        if file.name in str(error):
            raise
        raise TableError(f"{file.name}: {error}") from error


@dataclass(frozen=True, slots=True)
class Inspector:
    """Reads footers, and keeps them in a cache if there is one. It pickles.

    Args:
        storage: where the files are.
        given: the caller's ``schema=``, or None.
        cache: footers that were read before, or None.
        sizes: of footers that were read.
    """

    storage: Storage
    given: pa.Schema | None
    cache: PlanCache | None
    sizes: FooterSizes = field(default_factory=FooterSizes, compare=False)

    def __call__(self, file: DataFile) -> FileMeta:
        """Return the footer of a file, from the cache or the file; compare its rows with the table's metadata."""
        entry = None if self.cache is None else self.cache.get(file)
        meta = self.read(file) if entry is None else entry.meta
        check_rows(file, meta)
        return meta

    def read(self, file: DataFile) -> FileMeta:
        """Read the footer of a file."""
        hinted = self.sizes.hint(file)
        meta = renewing(self.storage, lambda: inspect_file(self.storage, hinted, self.given))
        self.sizes.add(file, meta)
        if self.cache is not None:
            self.cache.put(file, CacheEntry(meta))
        return meta


def survey(
    source: Source,
    filters: Any,
    given: pa.Schema | None,
    cache: PlanCache | None,
    *,
    split_deletes: bool = False,
    lazy: bool = False,
    verify_checksums: bool = True,
    skip: bool = False,
) -> Table:
    """Read what a table says of itself.

    Args:
        source: its files.
        filters: a row filter, for pruning; or None.
        given: the caller's ``schema=``, or None.
        cache: footers that were read before, or None.
        split_deletes: whether files that have deletes may be cut.
        lazy: take rows from the table's metadata, and leave the footers until files are read.
        verify_checksums: whether pages of Parquet files that have a checksum are compared with it.
        skip: leave out damaged files, or the damaged parts of files; footers are then never left for later.

    Raises:
        TableError: a file is gone, torn, or does not fit the others.
        ConfigError: the filter does not fit the schema.
    """
    files = tuple(source.files)
    snapshot = source if isinstance(source, SnapshotSource) else None
    inspect = Inspector(source.storage, given, cache)
    deletes = Deletes(source.storage, verify_checksums=verify_checksums)
    if lazy and snapshot is not None and not skip:
        return _estimate(snapshot, files, inspect, filters, deletes, split_deletes=split_deletes)
    files, metas, left_out = _salvage(files, inspect) if skip else (files, _inspect(files, inspect), [])
    if not files and given is None and snapshot is None:
        raise ConfigError(
            "the table has no data file (only hidden, empty or ignored ones), so that its columns are not known; "
            "pass schema= to read it as an empty table"
        )
    schema = _schema(source, files, metas, given) if snapshot is None else snapshot.schema
    kept: list[Sequence[bool]] | None = None
    if filters is not None:
        check_filter(filters, schema)
        kept = in_parallel(
            lambda pair: _prune(source.storage, *pair, filters, schema), list(zip(files, metas, strict=True))
        )
    groups = [(meta.group_rows, meta.group_bytes) for meta in metas]
    layout = _lay_out(files, groups, kept, deletes, source.storage, split_deletes=split_deletes)
    if snapshot is None:
        table = Table(source.storage, layout, metas, schema, fingerprint(files, layout.file_rows.tolist()), deletes)
    else:
        table = _snapshot_table(snapshot, layout, metas, deletes)
    return _without(table, left_out)


def _prune(storage: Storage, file: DataFile, meta: FileMeta, filters: Any, schema: pa.Schema) -> Sequence[bool]:
    with reading(storage, file):
        return reader_of(file).prune(file, meta, filters, schema)


def _estimate(
    snapshot: SnapshotSource,
    files: tuple[DataFile, ...],
    inspect: Inspector,
    filters: Any,
    deletes: Deletes,
    *,
    split_deletes: bool,
) -> Table:
    """Lay a table out by its metadata alone."""
    if filters is not None:
        check_filter(filters, snapshot.schema)
    groups = list(map(estimated_groups, files))
    layout = _lay_out(files, groups, None, deletes, snapshot.storage, split_deletes=split_deletes)
    metas = LazyFooters(files, inspect)
    # A file without rows is never opened later: only here it is noticed if it has some.
    empty = [index for index, file in enumerate(files) if file.num_rows == 0]
    in_parallel(metas.__getitem__, empty, asks=snapshot.storage)
    return _snapshot_table(snapshot, layout, metas, deletes)


def _snapshot_table(
    snapshot: SnapshotSource, layout: TableLayout, metas: tuple[FileMeta, ...] | LazyFooters, deletes: Deletes
) -> Table:
    return Table(
        snapshot.storage,
        layout,
        metas,
        snapshot.schema,
        snapshot.fingerprint,
        deletes,
        snapshot.snapshot_id,
        snapshot.description,
        tuple(snapshot.notes),
        getattr(snapshot, "start_snapshot_id", None),
    )


def _lay_out(
    files: tuple[DataFile, ...],
    groups: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    kept: list[Sequence[bool]] | None,
    deletes: Deletes,
    storage: Storage,
    *,
    split_deletes: bool,
) -> TableLayout:
    rows, num_bytes = [each[0] for each in groups], [each[1] for each in groups]
    deleted = [index for index, file in enumerate(files) if file.deletes]
    counted = in_parallel(lambda index: _live(files[index], rows[index], deletes), deleted, asks=storage)
    live: list[Sequence[int]] = list(rows)
    for index, own in zip(deleted, counted, strict=True):
        live[index] = own
    whole = [not split_deletes and tuple(own) != all_rows for own, all_rows in zip(live, rows, strict=True)]
    return TableLayout.of(files, rows, num_bytes, kept, live, whole=whole)


def in_parallel(work: Callable[[T], R], items: Sequence[T], *, asks: Storage | None = None) -> list[R]:
    """Map over threads; the first error is raised.

    Args:
        work: of one item.
        items: which.
        asks: the storage that the work waits for: one that is far away is asked for many items at once, however few
            CPUs there are. The first of those lie all over the table, so that what they teach holds for the others.

    Returns:
        What came of each item, in their order.
    """
    if len(items) <= 1:
        return [work(item) for item in items]
    near = asks is None or asks.is_local
    threads = min(4 * (os.cpu_count() or 1), FAR_REQUESTS) if near else FAR_REQUESTS
    order = range(len(items)) if near else halving(len(items))
    with ThreadPoolExecutor(min(len(items), threads), "table-loader-survey") as pool:
        found = dict(zip(order, pool.map(lambda place: work(items[place]), order), strict=True))
    return [found[place] for place in range(len(items))]


def halving(count: int) -> Sequence[int]:
    """Return all numbers below a count in an order of which each beginning is spread over them evenly.

    >>> halving(8)
    [0, 4, 2, 6, 1, 5, 3, 7]
    """
    width = count.bit_length()
    return sorted(range(count), key=lambda number: f"{number:0{width}b}"[::-1])


def _schema(source: Source, files: Sequence[DataFile], metas: Sequence[FileMeta], given: pa.Schema | None) -> pa.Schema:
    schemas = [(file.name, meta.schema) for file, meta in zip(files, metas, strict=True)]
    inferred = any(infers_types(file) for file in {file.format: file for file in files}.values())
    return resolve_schema(schemas, partition=source.partition_schema, given=given, inferred=inferred)


def _live(file: DataFile, group_rows: tuple[int, ...], deletes: Deletes) -> Sequence[int]:
    """Return the rows that position deletes leave in each row group; −1 where keys are deleted too."""
    if any(delete.kind == "equality" for delete in file.deletes):
        return [-1] * len(group_rows)
    positions = deletes.positions(file)
    if len(positions) and not 0 <= positions[0] <= positions[-1] < sum(group_rows):
        raise TableError(
            f"the deletes of {file.name} must lie in its {sum(group_rows)} rows, got rows {positions[0]} to "
            f"{positions[-1]}; the table's metadata does not fit its files"
        )
    edges = np.cumsum([0, *group_rows])
    found: list[int] = (np.diff(edges) - np.diff(np.searchsorted(positions, edges))).tolist()
    return found


def _inspect(files: Sequence[DataFile], inspect: Inspector) -> tuple[FileMeta, ...]:
    metas = in_parallel(inspect, files, asks=inspect.storage)
    return _sharing_schemas(files, _settled(files, metas), inspect.storage)


def _salvage(
    files: Sequence[DataFile], inspect: Inspector
) -> tuple[tuple[DataFile, ...], tuple[FileMeta, ...], list[LeftOut]]:
    """Inspect files, and leave out what is damaged: of files of which something is left, the metadata."""

    def salvage(file: DataFile) -> tuple[FileMeta | None, Sequence[LeftOut]]:
        return salvage_file(inspect.storage, file, inspect.given, inspect)

    found = in_parallel(salvage, files, asks=inspect.storage)
    left_out = [part for _, parts in found for part in parts]
    sound = [(file, meta) for file, (meta, _) in zip(files, found, strict=True) if meta is not None]
    if files and not sound:
        raise TableError(f"every file of the table is damaged: {told(left_out)}; restore them, or write them again")
    kept, metas = tuple(file for file, _ in sound), [meta for _, meta in sound]
    return kept, _sharing_schemas(kept, _settled(kept, metas), inspect.storage), left_out


def _settled(files: Sequence[DataFile], metas: Sequence[FileMeta]) -> Sequence[FileMeta]:
    """Let formats of which files may differ in the type of a column choose one for the table."""
    of_format: dict[str, list[int]] = {}
    for place, file in enumerate(files):
        of_format.setdefault(file.format, []).append(place)
    found = list(metas)
    for places in of_format.values():
        reader = reader_of(files[places[0]])
        if isinstance(reader, SettlingReader):
            for place, meta in zip(places, reader.settle([metas[place] for place in places]), strict=True):
                found[place] = meta
    return found


def _without(table: Table, left_out: Sequence[LeftOut]) -> Table:
    """Report what is left out of a table, and bind its fingerprint to it."""
    if not left_out:
        return table
    warn_caller(told(left_out) + "; dataset.left_out lists all")
    bound = fingerprint_without(table.fingerprint, left_out)
    return replace(table, fingerprint=bound, left_out=tuple(left_out))


def _sharing_schemas(files: Sequence[DataFile], metas: Sequence[FileMeta], storage: Storage) -> tuple[FileMeta, ...]:
    """Return metadata in which files of equal schemas share one, so that a table of many files needs little memory."""
    distinct: list[pa.Schema] = []
    shared: list[FileMeta] = []
    for file, meta in zip(files, metas, strict=True):
        same = next((schema for schema in distinct[:8] if schema.equals(meta.schema, check_metadata=True)), None)
        if same is None:
            with reading(storage, file):
                check_names(meta.schema)
            distinct.append(meta.schema)
        shared.append(meta if same is None else replace(meta, schema=same))
    return tuple(shared)
