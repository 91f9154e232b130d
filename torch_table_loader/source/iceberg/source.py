"""An Iceberg table at one snapshot, as a source of data files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.planning.listed_files import packed
from torch_table_loader.records import Column, TableColumns
from torch_table_loader.scrubbing import shown_url
from torch_table_loader.source.changed_files import check_names
from torch_table_loader.source.iceberg.appended import appended_entries, changes_since
from torch_table_loader.source.iceberg.cached_plan import read_plan, write_plan
from torch_table_loader.source.iceberg.catalog import as_it_is_now, open_table
from torch_table_loader.source.iceberg.changelog import changed_files
from torch_table_loader.source.iceberg.manifests import list_manifests, read_manifests
from torch_table_loader.source.iceberg.pruning import iceberg_schema, make_pruner, row_filter
from torch_table_loader.source.iceberg.scan import DeleteIndex, Naming, plan_files
from torch_table_loader.source.iceberg.schema import (
    CHANGES,
    LINEAGE,
    all_columns,
    arrow_schema,
    contradicts,
    names_of,
    parents_of,
    read_columns,
    read_name_mapping,
)
from torch_table_loader.source.iceberg.shape import NAME_MAPPING
from torch_table_loader.source.iceberg.spans import KeySpans
from torch_table_loader.source.plan_cache import PlanCache
from torch_table_loader.source.snapshot_files import SnapshotFiles

if TYPE_CHECKING:
    from torch_table_loader.records import DataFile, NamedIds
    from torch_table_loader.source.iceberg.catalog import TableAddress
    from torch_table_loader.source.iceberg.manifests import Entry
    from torch_table_loader.source.iceberg.metadata import Snapshot, TableMetadata
    from torch_table_loader.source.iceberg.pruning import Pruner
    from torch_table_loader.source.table_storage import TableStorage

_Plan = tuple[list["Entry"], tuple[str, ...]]
"""The files of a snapshot that a filter leaves, and notes about them."""


@dataclass(frozen=True, kw_only=True)
class IcebergSource(SnapshotFiles):
    """A table at one snapshot (implements `contracts.HistorySource`).

    Args:
        row_filter: the filter that rows must pass: the caller's filters, joined.
    """

    row_filter: Any = field(default=None, repr=False, compare=False)

    def at_snapshot(self, snapshot_id: int) -> IcebergSource:
        """Return the same table at another snapshot: see `contracts.TimeTravelSource`."""
        if self.request is None:
            raise ConfigError(f"{self.description} was not found by a name or path, and stays at its snapshot")
        found: IcebergSource = self.request.open({"snapshot_id": snapshot_id})
        return replace(found, pinned=self.pinned)

    def changes_since(self, snapshot_id: int) -> Sequence[str]:
        """Describe commits after another snapshot that did more than append: see `contracts.HistorySource`."""
        if self.request is None or self.snapshot_id is None:
            return ()
        found = open_table(self.request.at)
        found.storage.close()
        return changes_since(found.metadata, snapshot_id, self.snapshot_id)

    @classmethod
    def open(
        cls,
        metadata: TableMetadata,
        storage: TableStorage,
        snapshot: Snapshot,
        *,
        name: str,
        columns: Sequence[str] | None = None,
        filters: Any = None,
        scan_filter: Any = None,
        cache: PlanCache | None = None,
        start: int | None = None,
        changelog: bool = False,
    ) -> IcebergSource:
        """Plan the files of a snapshot, or those appended up to it, or those whose rows were added or deleted.

        Args:
            columns: the columns to read; None for all.
            filters: a pyarrow Expression over the columns, or None.
            scan_filter: a pyiceberg expression or text, or None.
            cache: keeps the files of a snapshot under a filter; or None.
            start: an older snapshot; only rows appended after it are read. None reads all rows.
            changelog: whether to read all rows added or deleted after it, with their kind of change.

        Raises:
            ConfigError: a filter does not fit the table, or changes since `start` include some that cannot be read.
            TableError: a manifest is missing or damaged, or a column cannot be read.
        """
        struct = metadata.schemas[snapshot.schema_id]
        current = _columns(struct, columns, metadata.place, changelog=changelog)
        naming, notes = _naming(metadata, current)
        ice = iceberg_schema(struct)
        rows = row_filter(filters, scan_filter, ice)
        schema = arrow_schema(current)
        pruner, unasked = make_pruner(rows, ice, schema, metadata.specs)
        asked = f"{filters}\n{scan_filter}" if isinstance(scan_filter, str | None) else f"{filters}\n{scan_filter!r}"
        which = f"{metadata.uuid}\n{snapshot.id}" if start is None else f"{metadata.uuid}\n{start}\n{snapshot.id}"
        if start is not None and changelog:
            files, found_notes = changed_files(storage, metadata, start, snapshot.id, pruner, naming)
        else:
            kind = "plan 2" if start is None else "appended 1"
            cached = _CachedPlan(cache, f"iceberg {kind}\n{which}\n{snapshot.schema_id}\n{asked}")
            entries, found_notes = cached.get() or cached.put(
                _entries(storage, snapshot, pruner, KeySpans.of(struct))
                if start is None
                else appended_entries(storage, metadata, start, snapshot.id, pruner)
            )
            storage.require(entry.path for entry in entries)
            files = _files(entries, naming)
        listed = _listed(files, storage)
        notes += (*found_notes, *(f"{part} leaves no file out" for part in unasked))
        form = "1" if start is None else "changelog 1" if changelog else "appended 1"
        digest = hashlib.sha256(f"iceberg {form}\n{which}".encode()).hexdigest()
        at = "no snapshot (an empty table)" if snapshot.id is None else f"snapshot {snapshot.id}"
        at += "" if start is None else f", rows {'changed' if changelog else 'appended'} after snapshot {start}"
        description = f"Iceberg table {name} ({metadata.uuid}), {at}"
        partition = arrow_schema([*_identity_columns(metadata, current), *(CHANGES if changelog else ())])
        return cls(
            storage=storage,
            files=listed,
            schema=schema,
            fingerprint=digest,
            snapshot_id=snapshot.id,
            description=description,
            notes=notes,
            partition_schema=partition,
            cache=cache,
            start_snapshot_id=start,
            changelog=changelog,
            row_filter=rows,
        )


@dataclass(frozen=True, slots=True, eq=False)
class TableRequest:
    """The caller's table, and which part of it to read.

    Args:
        columns: the columns to read; None for all.
        filters: a pyarrow Expression, or None.
        scan_filter: a pyiceberg expression or text, or None.
        plan_cache: a directory that keeps plans, footers and counts; or None.
        start: an older snapshot; only rows appended after it are read. None reads all rows.
        changelog: whether to read all rows added or deleted after it.
    """

    at: TableAddress
    columns: Sequence[str] | None = None
    filters: Any = None
    scan_filter: Any = None
    plan_cache: str | None = None
    start: int | None = None
    changelog: bool = False

    def open(
        self, chosen: Mapping[str, Any], agree: Callable[[str, Any], Any] = lambda _, value: value
    ) -> IcebergSource:
        """Return the table at a snapshot, with its files planned.

        Args:
            agree: takes this rank's value of a name, and returns rank 0's value.
        """
        found = open_table(self.at)
        snapshot = found.metadata.snapshot(**chosen)
        snapshot_id, schema_id = agree("snapshot", [snapshot.id, snapshot.schema_id])
        if (snapshot_id, schema_id) != (snapshot.id, snapshot.schema_id):
            if not found.metadata.has(snapshot_id, schema_id):
                found = open_table(as_it_is_now(self.at))  # rank 0 came later, and saw a commit that this rank did not
            snapshot = found.metadata.snapshot_as(snapshot_id, schema_id)
        options, place, seconds = self.at.storage_options, found.storage.place, self.at.retry_seconds
        source = IcebergSource.open(
            found.metadata,
            found.storage,
            snapshot,
            name=found.name,
            columns=self.columns,
            filters=self.filters,
            scan_filter=self.scan_filter,
            start=self.start,
            changelog=self.changelog,
            cache=None if self.plan_cache is None else PlanCache.open(self.plan_cache, options, place, seconds),
        )
        return replace(source, pinned=any(value is not None for value in chosen.values()), request=self)


@dataclass(frozen=True, slots=True)
class _CachedPlan:
    """A cached plan of one snapshot, which never changes, under one filter."""

    cache: PlanCache | None
    key: str

    def get(self) -> _Plan | None:
        data = None if self.cache is None else self.cache.get_note(self.key)
        return None if data is None else read_plan(data)

    def put(self, plan: _Plan) -> _Plan:
        """Store a plan, unless its files are URLs with a login or a signature, which a cache must not hold."""
        if self.cache is not None and all(shown_url(entry.path) == entry.path for entry in plan[0]):
            self.cache.put_note(self.key, write_plan(*plan))
        return plan


def _entries(storage: TableStorage, snapshot: Snapshot, pruner: Pruner | None, spans: KeySpans) -> _Plan:
    """Read the manifests that a filter keeps, deletes first, and return the files that it keeps."""
    storage.require([] if snapshot.manifest_list is None else [snapshot.manifest_list])
    manifests = list_manifests(storage, snapshot)
    storage.require(manifest.path for manifest in manifests)
    kept = [manifest for manifest in manifests if pruner is None or pruner.keeps_manifest(manifest)]
    entries: list[Entry] = []
    num_files = 0
    for deletes in (True, False):
        part = [manifest for manifest in kept if manifest.deletes is deletes]
        seen = [0] * len(part)
        found = read_manifests(storage, part, None if pruner is None else pruner.keeps, seen, spans.read)
        entries += [entry for listed in found for entry in listed]
        num_files += sum(seen)
        spans = replace(spans, ids=frozenset(span.field_id for entry in entries for span in entry.spans))
    if pruner is None:
        return entries, ()
    note = (
        f"the filter prunes {len(manifests) - len(kept):,} of {len(manifests):,} manifests by partition values, and "
        f"{num_files - len(entries):,} of {num_files:,} files of the others by partition values and statistics"
    )
    return entries, (note,)


def _files(entries: Sequence[Entry], naming: Naming) -> tuple[DataFile, ...]:
    """Build the data files of a plan, each with the deletes that apply to it."""
    index = DeleteIndex((entry for entry in entries if entry.content), naming)
    return plan_files((entry for entry in entries if not entry.content), index, naming)


def _listed(files: tuple[DataFile, ...], storage: TableStorage) -> Sequence[DataFile]:
    """Return the files as columns, because they are most of the memory of a lazy plan of very many files.

    If a query costs nothing, get each file's version, to notice one that is missing or overwritten. No two of these
    files have much in common then, so columns would save little.
    """
    if not storage.is_local:
        return packed(files)
    return tuple(replace(file, version=storage.version(file.path)) for file in files)


def _columns(struct: Mapping[str, Any], wanted: Sequence[str] | None, place: str, *, changelog: bool) -> list[Column]:
    """Read the columns of a schema, then those of a changelog and of row lineage, if they are wanted."""
    current, unreadable = read_columns(struct)
    _refuse_unreadable(unreadable, wanted, place)
    own = {column.name for column in current}
    if changelog:
        check_names(own, CHANGES)
    lineage = [column for column in LINEAGE if wanted is not None and column.name in wanted]
    return [*current, *(CHANGES if changelog else ()), *(column for column in lineage if column.name not in own)]


def _identity_columns(metadata: TableMetadata, current: Sequence[Column]) -> list[Column]:
    """Return the columns whose values some partition spec of the table stores unchanged."""
    ids = {each["source-id"] for spec in metadata.specs.values() for each in spec if each["transform"] == "identity"}
    return [column for column in current if column.field_id in ids]


def _refuse_unreadable(unreadable: Mapping[str, str], columns: Sequence[str] | None, place: str) -> None:
    wanted = [name for name in unreadable if columns is None or name in columns]
    if wanted:
        raise TableError(
            f"column {wanted[0]!r} is of the type {unreadable[wanted[0]]}, which this library does not read, as "
            f"{place} says; name other columns in columns="
        )


def _former(metadata: TableMetadata, current: Sequence[Column]) -> dict[int, Column]:
    now = {column.field_id for column in all_columns(current)}
    former: dict[int, Column] = {}
    for schema_id in sorted(metadata.schemas):
        for column in all_columns(read_columns(metadata.schemas[schema_id])[0]):
            if column.field_id not in now:
                former[column.field_id] = column
    return former


def _naming(metadata: TableMetadata, current: Sequence[Column]) -> tuple[Naming, tuple[str, ...]]:
    """Return how manifest entries become files of the table, and notes about it."""
    names, notes = _names(metadata, current)
    table = TableColumns(tuple(current), _former(metadata, current), names)
    ids = {column.field_id: column.name for column in current}
    return Naming(metadata.location, table, metadata.specs, ids), notes


def _names(metadata: TableMetadata, current: Sequence[Column]) -> tuple[NamedIds | None, tuple[str, ...]]:
    """Read the name mapping; one that contradicts the schemas is replaced by the table's current names."""
    text = metadata.properties.get(NAME_MAPPING)
    if text is None:
        return None, ()
    names = read_name_mapping(text)
    parents: dict[int, int] = {}
    for schema in metadata.schemas.values():
        parents |= parents_of(read_columns(schema)[0])
    if not contradicts(names, parents):
        return names, ()
    note = f"the property {NAME_MAPPING} contradicts the table's schemas; files without field ids are read by name"
    return names_of(current), (note,)
