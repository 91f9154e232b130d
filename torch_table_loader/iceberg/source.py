"""An Iceberg table at one snapshot, as a source of data files; a plan cache keeps what a filter leaves of them."""

from __future__ import annotations

import datetime as dt
import json
import zlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from typing_extensions import override

from torch_table_loader.errors import ConfigError
from torch_table_loader.iceberg.catalog import as_it_is_now, open_table
from torch_table_loader.iceberg.manifests import (
    DeletesInfo,
    Entry,
    list_manifests,
    partition_key,
    read_manifests,
)
from torch_table_loader.iceberg.metadata import (
    CHANGES,
    LINEAGE,
    NAME_MAPPING,
    NO_SNAPSHOT,
    all_columns,
    contradicts,
    names_of,
    parents_of,
)
from torch_table_loader.iceberg.pruning import Pruner, row_filter
from torch_table_loader.iceberg.scan import DeleteIndex, KeySpans, Naming, listed_twice, plan_files
from torch_table_loader.iceberg.targets import Targets
from torch_table_loader.table_formats import (
    Column,
    Commit,
    Facts,
    History,
    TableColumns,
    TableRequest,
    arrow_schema,
    shown_url,
)

if TYPE_CHECKING:
    from torch_table_loader.iceberg.catalog import OpenTable, TableAddress
    from torch_table_loader.iceberg.manifests import Manifest, Raw
    from torch_table_loader.iceberg.metadata import Schema, Snapshot, TableMetadata
    from torch_table_loader.table_formats import DataFile, SnapshotFiles, TableStorage

_DOES: Mapping[str, Literal["append", "replace"]] = {"append": "append", "replace": "replace"}

Plan = tuple[list[Entry], tuple[str, ...]]
"""The files of a snapshot that a filter leaves, and notes about them."""

_values_of = attrgetter(*(name for name in Entry.__dataclass_fields__ if name != "partition"))
_TAGS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "datetime": (dt.datetime, dt.datetime.isoformat, dt.datetime.fromisoformat),  # before its base class
    "date": (dt.date, dt.date.isoformat, dt.date.fromisoformat),
    "time": (dt.time, dt.time.isoformat, dt.time.fromisoformat),
    "decimal": (Decimal, str, Decimal),
    "uuid": (UUID, str, UUID),
}
"""Types of partition values that JSON lacks, and how to write and read them."""


def commits_since(metadata: TableMetadata, start: int, end: int | None) -> list[Commit]:
    """Return the commits after one snapshot, up to and with another (None for a table without any), oldest first."""
    metadata.known(start)
    commits = metadata.snapshots
    found: list[Commit] = []
    at = end
    while at != start:
        if at is None or at not in commits or len(found) > len(commits):
            last = found[-1].id if found else end
            ends = "which has none" if at is None else f"whose parent {at} has expired"
            raise ConfigError(
                f"snapshot {start} must be an ancestor of snapshot {end}, whose history goes back to {last}, {ends}; "
                "take both from one branch"
            )
        snapshot = commits[at]
        parent = None if snapshot.parent_snapshot_id == NO_SNAPSHOT else snapshot.parent_snapshot_id
        operation = str((snapshot.summary and snapshot.summary.operation) or "unknown")
        found.append(Commit(at, parent, operation, _DOES.get(operation) or "change"))
        at = parent
    return found[::-1]


@dataclass(slots=True, eq=False, kw_only=True)
class IcebergHistory(History):
    """The commits between two snapshots. Each manifest is read once; commits share most of them."""

    metadata: TableMetadata
    pruner: Pruner | None
    naming: Naming
    _manifests: dict[int, dict[str, Manifest]] = field(default_factory=dict)
    _entries: dict[str, list[Entry]] = field(default_factory=dict)

    pin = "snapshot_id"
    columns = CHANGES
    went, came = "DELETE", "INSERT"

    @override
    def touched(self, commits: Sequence[Commit], last: Commit) -> tuple[Sequence[DataFile], Sequence[DataFile]]:
        first = commits[0]
        snapshots = (first.id if first.does == "replace" else first.parent, commits[-1].id)
        if snapshots[0] == snapshots[1]:
            return (), ()
        deletes = [self._listed(self._manifests_of(each, deletes=True)) for each in snapshots]
        before, after = (DeleteIndex(entries, self.naming) for entries in deletes)
        data = [self._manifests_of(each, deletes=False) for each in snapshots]
        same_deletes = set(map(_same, deletes[0])) == set(map(_same, deletes[1]))
        shared = data[0].keys() & data[1].keys() if same_deletes else frozenset()
        old, new = (self._by_path({path: each[path] for path in each.keys() - shared}) for each in data)
        Targets(deletes[1]).refuse_respelled(new.values(), self.naming)
        both = old.keys() & new.keys()
        same = {path for path in both if same_deletes or before.deletes_of(old[path]) == after.deletes_of(new[path])}
        return self._files(old, before, same), self._files(new, after, same)

    def _files(self, entries: Mapping[str, Entry], index: DeleteIndex, same: set[str]) -> list[DataFile]:
        changed = [entry for path, entry in entries.items() if path not in same]
        changed.sort(key=lambda entry: (entry.sequence_number, entry.path))
        name = self.naming.name_of
        return [self.naming.file_of(entry, name(entry.path), index.deletes_of(entry)) for entry in changed]

    def _by_path(self, manifests: Mapping[str, Manifest]) -> dict[str, Entry]:
        """Return the files that manifests list, each of them once."""
        found: dict[str, Entry] = {}
        for entry in self._listed(manifests):
            if found.setdefault(entry.path, entry) is not entry:
                raise listed_twice(self.naming.name_of(entry.path))
        return found

    def _manifests_of(self, snapshot: int | None, *, deletes: bool | None = None) -> dict[str, Manifest]:
        """Return a snapshot's manifests by their paths: all, or those of data or of deletes."""
        assert snapshot is not None  # noqa: S101 it comes before another, or after it
        if snapshot not in self._manifests:
            found = self.metadata.snapshot(snapshot_id=snapshot)
            self.storage.require(found.lists)
            self._manifests[snapshot] = {each.path: each for each in list_manifests(self.storage, found)}
        manifests = self._manifests[snapshot]
        return {path: each for path, each in manifests.items() if deletes in (None, each.deletes)}

    def _listed(self, manifests: Mapping[str, Manifest]) -> list[Entry]:
        """Return the files that manifests list."""
        unread = [manifest for path, manifest in manifests.items() if path not in self._entries]
        self.storage.require(manifest.path for manifest in unread)
        found = read_manifests(self.storage, unread, self._note)
        self._entries.update((manifest.path, entries) for manifest, (entries, _) in zip(unread, found, strict=True))
        return [entry for path in manifests for entry in self._entries[path]]

    def _note(self, entry: Entry, raw: Raw) -> bool:
        if self.pruner is not None and not entry.content and not self.pruner.keeps(entry, raw):
            self.pruned.add(entry.path)
        return True


def _same(entry: Entry) -> Hashable:
    """Return a key that a file shares only with itself in other snapshots."""
    return entry.content, entry.path, entry.deletes


@dataclass(frozen=True, eq=False)
class IcebergRequest(TableRequest):
    """An Iceberg table, and which part of it to read; a scan filter is a pyiceberg expression or text."""

    at: TableAddress
    scan_filter: Any = field(default=None, kw_only=True)

    pin = "snapshot_id"
    format = "iceberg"
    title = "Iceberg table"

    @override
    def open(
        self, chosen: Mapping[str, Any], agree: Callable[[str, Any], Any] = lambda _, value: value
    ) -> SnapshotFiles:
        found = open_table(self.at)
        snapshot = found.metadata.snapshot(**chosen)
        snapshot_id, schema_id = agree("snapshot", [snapshot.id, snapshot.schema_id])
        if (snapshot_id, schema_id) != (snapshot.id, snapshot.schema_id):
            if not found.metadata.has(snapshot_id, schema_id):
                found = open_table(as_it_is_now(self.at))  # rank 0 came later, and saw a commit that this rank did not
            snapshot = found.metadata.snapshot_as(snapshot_id, schema_id)
        return self._planned(found, snapshot, pinned=any(value is not None for value in chosen.values()))

    @override
    def commits(self, start: int, end: int) -> Sequence[Commit]:
        found = open_table(self.at)
        found.storage.close()
        return commits_since(found.metadata, start, end)

    def _planned(self, found: OpenTable, snapshot: Snapshot, *, pinned: bool) -> SnapshotFiles:
        """Plan the files of a snapshot, or those appended up to it, or those whose rows were added or deleted."""
        metadata, storage = found.metadata, found.storage
        own = metadata.schemas[snapshot.schema_id]
        current, changes = self._columns(own, metadata.place)
        naming, notes = _naming(metadata, current)
        rows, schema = row_filter(self.filters, self.scan_filter, own), arrow_schema(current)
        pruner = None
        if rows is not None:
            pruner = Pruner(rows, own, schema, metadata.specs)
        cache = self.cache_of(storage, self.at.storage_options)
        make = partial(_entries, found, snapshot, pruner, naming)
        cached = partial(self.cached, cache, make=make, write=write_plan, read=read_plan)
        files, found_notes = self._files(found, snapshot, pruner, naming, cached)
        notes += found_notes
        if pruner is not None:
            notes += tuple(f"{part} leaves no file out" for part in pruner.undecided)
        return self.made(
            found.name,
            metadata.uuid,
            snapshot.id,
            storage=storage,
            files=self.listed(files, storage),
            schema=schema,
            notes=notes,
            partition_schema=arrow_schema([*_identity_columns(metadata, current), *changes]),
            cache=cache,
            row_filter=rows,
            pinned=pinned,
        )

    def _files(
        self,
        found: OpenTable,
        snapshot: Snapshot,
        pruner: Pruner | None,
        naming: Naming,
        cached: Callable[[str], Plan],
    ) -> tuple[tuple[DataFile, ...], tuple[str, ...]]:
        """Return the data files that the filter leaves, and notes."""
        metadata, storage = found.metadata, found.storage
        if self.start is not None:
            history = IcebergHistory(
                storage=storage,
                place=metadata.place,
                start=self.start,
                end=snapshot.id,
                commits=commits_since(metadata, self.start, snapshot.id),
                filtered=pruner is not None,
                metadata=metadata,
                pruner=pruner,
                naming=naming,
            )
            return history.files(changelog=self.changelog)
        scan_filter = self.scan_filter
        if not isinstance(scan_filter, str | None):
            scan_filter = repr(scan_filter)
        key = f"iceberg plan 5\n{metadata.uuid}\n{snapshot.id}\n{snapshot.schema_id}\n{self.filters}\n{scan_filter}"
        entries, notes = cached(key)
        storage.require(entry.path for entry in entries)
        index = DeleteIndex((entry for entry in entries if entry.content), naming)
        return plan_files((entry for entry in entries if not entry.content), index, naming), notes

    def _columns(self, schema: Schema, place: str) -> tuple[list[Column], Sequence[Column]]:
        """Return the columns of a schema, then those of a changelog and of row lineage; and those of a changelog."""
        self.refuse_unreadable(schema.unreadable, place)
        own = {column.name for column in schema.columns}
        changes = self.changes(own, CHANGES)
        lineage = [each for each in LINEAGE if each.name in (self.columns or ()) and each.name not in own]
        return [*schema.columns, *changes, *lineage], changes


def _entries(found: OpenTable, snapshot: Snapshot, pruner: Pruner | None, naming: Naming) -> Plan:
    """Read the manifests that a filter keeps, deletes first, and return the files that it keeps."""
    metadata, storage = found.metadata, found.storage
    storage.require(snapshot.lists)
    manifests = list_manifests(storage, snapshot)
    storage.require(manifest.path for manifest in manifests)
    kept = [manifest for manifest in manifests if pruner is None or pruner.keeps_manifest(manifest)]
    keep, spans = None, KeySpans.of(metadata.schemas[snapshot.schema_id])
    if pruner is not None:
        keep = pruner.keeps
    deletes, num_deletes = _listed(storage, [each for each in kept if each.deletes], keep, spans)
    targets = Targets(deletes)
    spans = replace(spans, ids=frozenset(field_id for entry in deletes for field_id, _ in entry.spans))
    data, num_data = _listed(storage, [each for each in kept if not each.deletes], targets.noting(keep), spans)
    targets.refuse_respelled(data, naming)
    notes = targets.unmet(metadata, storage, kept, naming)
    entries, num_files = deletes + data, num_deletes + num_data
    if pruner is None:
        return entries, notes
    note = (
        f"the filter prunes {len(manifests) - len(kept):,} of {len(manifests):,} manifests by partition values, and "
        f"{num_files - len(entries):,} of {num_files:,} files of the others by partition values and statistics"
    )
    return entries, (note, *notes)


def _listed(
    storage: TableStorage, manifests: Sequence[Manifest], keep: Callable[[Entry, Raw], bool] | None, spans: KeySpans
) -> tuple[list[Entry], int]:
    """Return the files of manifests that are kept, and the number of all."""
    found = read_manifests(storage, manifests, keep, spans.read)
    return [entry for entries, _ in found for entry in entries], sum(number for _, number in found)


def _identity_columns(metadata: TableMetadata, current: Sequence[Column]) -> list[Column]:
    """Return the columns whose values some partition spec of the table stores unchanged."""
    ids = {each.source_id for spec in metadata.specs.values() for each in spec if each.transform == "identity"}
    return [column for column in current if column.field_id in ids]


def _naming(metadata: TableMetadata, current: Sequence[Column]) -> tuple[Naming, tuple[str, ...]]:
    """Return how manifest entries become files of the table, and notes about it.

    A name mapping that contradicts the schemas is replaced by the table's current names.
    """
    now = {column.field_id for column in all_columns(current)}
    former: dict[int, Column] = {}
    parents: dict[int, int] = {}
    for _, schema in sorted(metadata.schemas.items()):
        former |= {each.field_id: each for each in all_columns(schema.columns) if each.field_id not in now}
        parents |= parents_of(schema.columns)
    names, notes = metadata.names, tuple[str, ...]()
    if names is not None and contradicts(names, parents):
        names = names_of(current)
        notes = (
            f"the property {NAME_MAPPING} contradicts the table's schemas; files without field ids are read by name",
        )
    ids = {column.field_id: column.name for column in current}
    return Naming(metadata.location, TableColumns(tuple(current), former, names), metadata.specs, ids), notes


def write_plan(plan: Plan) -> bytes | None:
    """Write the plan of a snapshot, which never changes, compressed; of equal partition values one copy.

    A plan whose files are URLs with a login or a signature is None: a cache must not hold these.
    """
    entries, notes = plan
    if any(shown_url(entry.path) != entry.path for entry in entries):
        return None
    partitions = {partition_key(entry.partition): entry.partition for entry in entries}
    numbers = {key: number for number, key in enumerate(partitions)}
    rows = [(numbers[partition_key(entry.partition)], *_values_of(entry)) for entry in entries]
    return zlib.compress(json.dumps([notes, list(partitions.values()), rows], default=_tagged).encode(), 1)


def read_plan(data: bytes) -> Plan:
    """Read what `write_plan` wrote."""
    notes, partitions, rows = json.loads(zlib.decompress(data), object_hook=_untagged)
    values = [_tuples(each) for each in partitions]
    entries: list[Entry] = []
    for number, path, content, form, spec_id, sequence, first, num_rows, num_bytes, splits, deletes, spans in rows:
        info = None if deletes is None else DeletesInfo(*_tuples(deletes))
        known = (values[number], sequence, first, num_rows, num_bytes, tuple(splits), info)
        entries.append(
            Entry(path, content, form, spec_id, *known, tuple([(field_id, Facts(*facts)) for field_id, facts in spans]))
        )
    return entries, tuple(notes)


def _tuples(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([_tuples(value) if isinstance(value, list) else value for value in values])


def _tagged(value: Any) -> dict[str, str]:
    for tag, (kind, say, _) in _TAGS.items():
        if isinstance(value, kind):
            return {tag: say(value)}
    raise TypeError(f"a partition value of the type {type(value).__name__} cannot be kept")


def _untagged(found: Mapping[str, str]) -> Any:
    [(tag, text)] = found.items()
    return _TAGS[tag][2](text)
