"""The survey of a table: footers read once and in parallel, schemas unified, row groups pruned."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow.sound import check_names
from torch_table_loader.contracts import SnapshotSource
from torch_table_loader.engine.machine import in_parallel
from torch_table_loader.engine.table import Table
from torch_table_loader.errors import ConfigError, MissingFileError, TableError
from torch_table_loader.format_contracts import SalvagingReader, SettlingReader
from torch_table_loader.messages import first_line, warn_caller
from torch_table_loader.planning.layout import TableLayout
from torch_table_loader.planning.listed_files import ListedFiles
from torch_table_loader.predicates.expressions import check_filter
from torch_table_loader.ranges import with_small_files
from torch_table_loader.read.conform import resolve_schema
from torch_table_loader.read.deletes import Deletes
from torch_table_loader.read.failures import changed_error, reading
from torch_table_loader.read.footers import FooterSizes, LazyFooters, check_rows, estimated_layout
from torch_table_loader.read.formats import infers_types, inspect_file, reader_of, settings_of
from torch_table_loader.records import LeftOut, fingerprint, fingerprint_without
from torch_table_loader.source.plan_cache import CacheEntry
from torch_table_loader.units import Size

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.contracts import Source, Storage
    from torch_table_loader.records import DataFile, FileMeta
    from torch_table_loader.source.plan_cache import Plans


_log = logging.getLogger(__name__)

_SHOWN = 3
"""The most damaged parts that a message names."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Inspector:
    """Reads footers, and keeps them in a cache if there is one; `given` is the caller's ``schema=``. It pickles."""

    storage: Storage
    given: pa.Schema | None
    cache: Plans | None
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
        meta = inspect_file(self.storage, hinted, self.given)
        self.sizes.add(file, meta)
        if self.cache is not None:
            self.cache.put(file, CacheEntry(meta))
        return meta


def survey(
    source: Source,
    filters: Any,
    given: pa.Schema | None,
    cache: Plans | None,
    *,
    split_deletes: bool = False,
    lazy: bool = False,
    verify_checksums: bool = True,
    skip: bool = False,
    brought_bytes: int = 0,
) -> Table:
    """Read what a table says of itself.

    Args:
        given: the caller's ``schema=``, or None.
        split_deletes: whether files that have deletes may be cut.
        lazy: take rows from the table's metadata, and leave the footers until files are read.
        verify_checksums: whether pages of Parquet files that have a checksum are compared with it.
        skip: leave out damaged files, or the damaged parts of files; footers are then never left for later.
        brought_bytes: the most bytes of small far files that come with their footers, for a reader of all their bytes.

    Raises:
        TableError: a file is gone, torn, or does not fit the others.
        ConfigError: the filter does not fit the schema.
    """
    began = time.perf_counter()
    snapshot = source if isinstance(source, SnapshotSource) else None
    storage = with_small_files(source.storage, getattr(source, "folder", None), brought_bytes)
    inspect = Inspector(storage, given, cache)
    deletes = _deletes_of(source, verify_checksums=verify_checksums)
    if lazy and snapshot is not None and not skip:
        return _estimate(snapshot, inspect, filters, deletes, split_deletes=split_deletes)
    found = _salvage(tuple(source.files), inspect) if skip else _inspect(tuple(source.files), inspect)
    schema = _schema(source, found, given) if snapshot is None else snapshot.schema
    unread_keys = tuple(key for key in getattr(source, "unread_keys", ()) if key not in schema.names)
    if filters is not None:
        check_filter(filters, schema, unread_keys)
    deleted = _with_deletes(found.files)
    layout = _layout(source.storage, found, filters, schema)
    if deleted:
        layout = _without_deleted(layout, deleted, deletes, source.storage, split_deletes=split_deletes)
    if snapshot is None:
        identity = fingerprint(found.files, layout.file_rows.tolist(), settings_of(found.files))
        own = {"unread_keys": unread_keys, "filters": filters}
        table = Table(storage, layout, found.metas, schema, identity, deletes, **own)
    else:
        table = _snapshot_table(snapshot, layout, found.metas, deletes, filters)
    _log.info("read the footers of %d files in %.2f s: %s", len(found.files), time.perf_counter() - began, layout)
    return _without(table, found.left_out)


class _Inspected(NamedTuple):
    """Files that can be read, and what their footers say; with the damaged parts that are left out."""

    files: tuple[DataFile, ...]
    metas: tuple[FileMeta, ...]
    left_out: Sequence[LeftOut] = ()


def _layout(storage: Storage, found: _Inspected, filters: Any, schema: pa.Schema) -> TableLayout:
    """Lay out what a filter may keep of the files."""
    kept = _kept(storage, found.files, found.metas, filters, schema)
    rows, sizes = [meta.group_rows for meta in found.metas], [meta.group_bytes for meta in found.metas]
    return TableLayout.of(found.files, rows, sizes, kept, getattr(storage, "uri_prefix", ""))


def _deletes_of(source: Source, *, verify_checksums: bool) -> Deletes:
    """Return what reads the deletes of a source: its own, if that compares checksums as the caller asks for."""
    own: Deletes | None = getattr(source, "deletes", None)
    if own is None or own.verify_checksums != verify_checksums:
        return Deletes(source.storage, verify_checksums=verify_checksums)
    return own


def _kept(
    storage: Storage, files: Sequence[DataFile], metas: Sequence[FileMeta], filters: Any, schema: pa.Schema
) -> list[Sequence[bool]] | None:
    """Return of each row group of each file whether a filter may keep some of it; None without one."""

    def of_file(index: int) -> Sequence[bool]:
        with reading(storage, files[index]):
            return reader_of(files[index]).prune(files[index], metas[index], filters, schema)

    if filters is None:
        return None
    return in_parallel(of_file, range(len(files)))


def _estimate(
    snapshot: SnapshotSource,
    inspect: Inspector,
    filters: Any,
    deletes: Deletes,
    *,
    split_deletes: bool,
) -> Table:
    """Lay a table out by its metadata alone."""
    if filters is not None:
        check_filter(filters, snapshot.schema)
    layout = estimated_layout(snapshot.files)
    metas = LazyFooters(layout.files, inspect)
    # A file without rows is never opened later: only here it is noticed if it has some.
    in_parallel(metas.__getitem__, np.flatnonzero(layout.file_rows == 0).tolist(), asks=snapshot.storage)
    if deleted := _with_deletes(layout.files):
        layout = _without_deleted(layout, deleted, deletes, snapshot.storage, split_deletes=split_deletes)
    return _snapshot_table(snapshot, layout, metas, deletes, filters)


def _snapshot_table(
    snapshot: SnapshotSource,
    layout: TableLayout,
    metas: tuple[FileMeta, ...] | LazyFooters,
    deletes: Deletes,
    filters: Any,
) -> Table:
    return Table(
        snapshot.storage,
        replace(layout, snapshot_id=snapshot.snapshot_id),
        metas,
        snapshot.schema,
        snapshot.fingerprint,
        deletes,
        snapshot.snapshot_id,
        snapshot.description,
        tuple(snapshot.notes),
        getattr(snapshot, "start_snapshot_id", None),
        getattr(snapshot, "changelog", False),
        filters=filters,
    )


def _with_deletes(files: Sequence[DataFile]) -> list[int]:
    """Return the places of files that have deletes."""
    if isinstance(files, ListedFiles):
        found: list[int] = files.deleted.tolist()
        return found
    return [index for index, file in enumerate(files) if file.deletes]


def _without_deleted(
    layout: TableLayout, deleted: Sequence[int], deletes: Deletes, storage: Storage, *, split_deletes: bool
) -> TableLayout:
    """Return the table without the rows that deletes take of some files."""
    files = layout.files

    def live(index: int) -> Sequence[int]:
        groups = layout.groups_of(index)
        return _live(files[index], layout.group_rows[groups.start : groups.stop], deletes)

    counted = in_parallel(live, deleted, asks=storage)
    return layout.without(dict(zip(deleted, counted, strict=True)), split_deletes=split_deletes)


def _schema(source: Source, found: _Inspected, given: pa.Schema | None) -> pa.Schema:
    if not found.files and given is None:
        raise ConfigError(
            "the table has no data file (only hidden, empty or ignored ones), so its columns are unknown; pass "
            "schema= to read it as an empty table"
        )
    schemas = [(file.name, meta.schema) for file, meta in zip(found.files, found.metas, strict=True)]
    inferred = any(map(infers_types, {file.format: file for file in found.files}.values()))
    return resolve_schema(schemas, partition=source.partition_schema, given=given, inferred=inferred)


def _live(file: DataFile, group_rows: NDArray[np.int64], deletes: Deletes) -> Sequence[int]:
    """Return the rows that position deletes leave in each row group; −1 where keys are deleted too."""
    if any(delete.kind == "equality" for delete in file.deletes):
        return [-1] * len(group_rows)
    positions = deletes.positions(file)
    if len(positions) and not 0 <= positions[0] <= positions[-1] < group_rows.sum():
        raise TableError(
            f"the deletes of {file.name} must lie in its {group_rows.sum()} rows, got rows {positions[0]} to "
            f"{positions[-1]}; the table's metadata does not match its files: write the deletes again"
        )
    edges = np.concatenate(([0], np.cumsum(group_rows)))
    named = np.diff(np.searchsorted(positions, edges))
    if not file.keeps_deleted:
        named = np.diff(edges) - named
    found: list[int] = named.tolist()
    return found


def _inspect(files: tuple[DataFile, ...], inspect: Inspector) -> _Inspected:
    metas = in_parallel(inspect, files, asks=inspect.storage)
    return _Inspected(files, _sharing_schemas(files, _settled(files, metas), inspect.storage))


def _salvage(files: Sequence[DataFile], inspect: Inspector) -> _Inspected:
    """Inspect files, and leave out what is damaged: of files of which something is left, the metadata."""
    found = in_parallel(lambda file: _salvage_file(file, inspect), files, asks=inspect.storage)
    left_out = [part for _, parts in found for part in parts]
    sound = [(file, meta) for file, (meta, _) in zip(files, found, strict=True) if meta is not None]
    if files and not sound:
        raise TableError(
            f"every file of the table is damaged: {described(left_out)}; restore them, or write them again"
        )
    kept, metas = tuple(file for file, _ in sound), [meta for _, meta in sound]
    return _Inspected(kept, _sharing_schemas(kept, _settled(kept, metas), inspect.storage), left_out)


def _salvage_file(file: DataFile, inspect: Inspector) -> tuple[FileMeta | None, Sequence[LeftOut]]:
    """Return the metadata of what can be read of a file, or None, and its damaged parts, which are left out.

    Raises:
        TableError: the file is gone, or no longer what was listed: that is no damage, and other ranks may see it.
        StorageError: the store failed.
    """
    try:
        return inspect(file), ()
    except MissingFileError:
        raise
    except TableError as error:
        now = inspect.storage.version(file.path)
        if not file.version.holds(now):
            raise changed_error(file, now) from error
        damage = error
    reader = reader_of(file)
    if isinstance(reader, SalvagingReader):
        try:
            with reading(inspect.storage, file):
                meta, left_out = reader.salvage(inspect.storage, file, inspect.given)
        except TableError as error:
            damage = error
        else:
            if meta.num_rows:
                return meta, left_out
    return None, [LeftOut(file.name, "all", 0, file.version.num_bytes, first_line(damage))]


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


def described(left_out: Sequence[LeftOut]) -> str:
    """Return what is left out, for people."""
    shown = "; ".join(map(str, left_out[:_SHOWN]))
    if len(left_out) > _SHOWN:
        shown += f"; and {len(left_out) - _SHOWN} more"
    num_bytes = sum(part.stop - part.start for part in left_out)
    parts = "1 damaged part" if len(left_out) == 1 else f"{len(left_out):,} damaged parts"
    return f'on_error="skip" leaves out {parts} of {Size(num_bytes)}: {shown}'


def _without(table: Table, left_out: Sequence[LeftOut]) -> Table:
    """Report what is left out of a table, and bind its fingerprint to it."""
    if not left_out:
        return table
    warn_caller(described(left_out) + "; dataset.left_out lists all")
    bound = fingerprint_without(table.fingerprint, left_out)
    return replace(table, fingerprint=bound, left_out=tuple(left_out))


def _sharing_schemas(files: Sequence[DataFile], metas: Sequence[FileMeta], storage: Storage) -> tuple[FileMeta, ...]:
    """Return metadata in which files of equal schemas share one, so that a table of many files needs little memory."""
    distinct: list[pa.Schema] = []
    shared: list[pa.Schema] = []
    for file, meta in zip(files, metas, strict=True):
        same = next((schema for schema in distinct[:8] if schema.equals(meta.schema, check_metadata=True)), None)
        if same is None:
            with reading(storage, file):
                check_names(meta.schema)
            same = meta.schema
            distinct.append(same)
        shared.append(same)
    return tuple([replace(meta, schema=schema) for meta, schema in zip(metas, shared, strict=True)])
