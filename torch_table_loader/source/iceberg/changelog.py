"""What the commits between two snapshots changed: which rows came, and which went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from torch_table_loader.errors import ConfigError
from torch_table_loader.source.changed_files import marked
from torch_table_loader.source.iceberg.appended import REPLACE, Commit, commits_since, manifests_of, same_entry
from torch_table_loader.source.iceberg.manifests import read_manifests
from torch_table_loader.source.iceberg.scan import DeleteIndex
from torch_table_loader.source.iceberg.schema import CHANGES

if TYPE_CHECKING:
    from torch_table_loader.records import DataFile, DeleteFile
    from torch_table_loader.source.iceberg.manifests import Entry, Manifest, Raw
    from torch_table_loader.source.iceberg.metadata import TableMetadata
    from torch_table_loader.source.iceberg.pruning import Pruner
    from torch_table_loader.source.iceberg.scan import Naming
    from torch_table_loader.source.table_storage import TableStorage

INSERT, DELETE = "INSERT", "DELETE"


class Change(NamedTuple):
    """Rows of a data file that a commit put into the table, or took out of it.

    Args:
        ordinal: of the commit among those that change rows, from 0.
        deletes: what its other rows are left out by.
    """

    kind: str
    ordinal: int
    commit: int
    entry: Entry
    deletes: tuple[DeleteFile, ...]


def changed_files(
    storage: TableStorage, metadata: TableMetadata, start: int, end: int | None, pruner: Pruner | None, naming: Naming
) -> tuple[tuple[DataFile, ...], tuple[str, ...]]:
    """Return the data files whose rows came or went after one snapshot, up to and with another, commit by commit.

    A file is there once for each change of its rows. Of one commit come the rows that went, then those that came. A
    commit that replaces files by others with the same rows changes none.

    Args:
        end: the newer snapshot; None of a table that has none.
        pruner: leaves files out; or None.

    Raises:
        ConfigError: a commit deleted rows by keys, or the snapshots are not of one history.
    """
    listings = _Listings(storage, metadata, pruner)
    commits = [each for each in commits_since(metadata, start, end) if each.operation != REPLACE]
    changes: list[Change] = []
    for ordinal, commit in enumerate(commits):
        found = _changes(listings, naming, commit, ordinal)
        changes += sorted(found, key=lambda change: (change.kind, change.entry.sequence_number, change.entry.path))
    kept = [change for change in changes if change.entry.path not in listings.pruned]
    storage.require(change.entry.path for change in kept)
    storage.require(delete.file.path for change in kept for delete in change.deletes)
    notes: tuple[str, ...] = ()
    if pruner is not None:
        ruled_out = len(changes) - len(kept)
        notes = (f"the filter prunes {ruled_out:,} of {len(changes):,} changed files by their statistics",)
    return _files(kept, naming), notes


@dataclass(slots=True, eq=False)
class _Listings:
    """What snapshots list. Each manifest is read once; commits share most of them."""

    storage: TableStorage
    metadata: TableMetadata
    pruner: Pruner | None
    pruned: set[str] = field(default_factory=set)
    """The paths that the filter leaves out: whatever happened to their rows."""
    _manifests: dict[int, dict[str, Manifest]] = field(default_factory=dict)
    _entries: dict[str, list[Entry]] = field(default_factory=dict)

    def manifests(self, snapshot: int, *, deletes: bool) -> dict[str, Manifest]:
        """Return a snapshot's manifests of data or of deletes, by their paths."""
        if snapshot not in self._manifests:
            self._manifests[snapshot] = manifests_of(self.storage, self.metadata, snapshot)
        return {path: each for path, each in self._manifests[snapshot].items() if each.deletes is deletes}

    def entries(self, manifests: Mapping[str, Manifest]) -> list[Entry]:
        """Return the files that manifests list."""
        unread = [manifest for path, manifest in manifests.items() if path not in self._entries]
        self.storage.require(manifest.path for manifest in unread)
        found = read_manifests(self.storage, unread, self._note)
        self._entries.update(zip((manifest.path for manifest in unread), found, strict=True))
        return [entry for path in manifests for entry in self._entries[path]]

    def _note(self, entry: Entry, raw: Raw) -> bool:
        if self.pruner is not None and not entry.content and not self.pruner.keeps(entry, raw):
            self.pruned.add(entry.path)
        return True


def _changes(listings: _Listings, naming: Naming, commit: Commit, ordinal: int) -> Iterator[Change]:
    """Yield what a commit did to the snapshot before it."""
    assert commit.parent is not None  # noqa: S101 it comes after another
    snapshots = (commit.parent, commit.id)
    deletes = [listings.entries(listings.manifests(each, deletes=True)) for each in snapshots]
    before, after = (DeleteIndex(entries, naming) for entries in deletes)
    data = [listings.manifests(each, deletes=False) for each in snapshots]
    same_deletes = {same_entry(each) for each in deletes[0]} == {same_entry(each) for each in deletes[1]}
    shared = data[0].keys() & data[1].keys() if same_deletes else frozenset()
    old, new = (
        {entry.path: entry for entry in listings.entries({path: each[path] for path in each.keys() - shared})}
        for each in data
    )
    for path, entry in old.items():
        if path not in new:
            yield Change(DELETE, ordinal, commit.id, entry, before.deletes_of(entry))
    for path, entry in new.items():
        if path not in old:
            yield Change(INSERT, ordinal, commit.id, entry, after.deletes_of(entry))
        elif not same_deletes:
            was, now = before.deletes_of(old[path]), after.deletes_of(entry)
            _refuse_keys(was, now, commit, naming.name_of(path))
            for kind, there, other in ((DELETE, was, now), (INSERT, now, was)):
                if kept := _only_in(other, there):  # rows that live there, and that only the other ones delete
                    yield Change(kind, ordinal, commit.id, entry, (*there, *kept))


def _only_in(deletes: Sequence[DeleteFile], others: Sequence[DeleteFile]) -> list[DeleteFile]:
    """Return position deletes that are not among others, as those whose rows are kept."""
    known = {(each.file.path, each.blob) for each in others}
    return [replace(each, keeps=True) for each in deletes if (each.file.path, each.blob) not in known]


def _refuse_keys(was: Sequence[DeleteFile], now: Sequence[DeleteFile], commit: Commit, name: str) -> None:
    """Refuse a commit by which other keys are deleted from a file than before."""
    before, after = ({each.file.path for each in side if each.kind == "equality"} for side in (was, now))
    if before != after:
        raise ConfigError(
            f"snapshot {commit.id} deletes rows of {name}, and maybe of others, by equality deletes, which say keys "
            "and not rows: a changelog cannot tell which rows went without reading all that were there; read up to "
            f"the snapshot before it (end_snapshot_id={commit.parent}) and from it on (start_snapshot_id={commit.id}), "
            "or the whole table"
        )


def _files(changes: Sequence[Change], naming: Naming) -> tuple[DataFile, ...]:
    """Make a file of each change, with what the changelog says of its rows."""
    found = (
        (
            naming.file_of(change.entry, naming.name_of(change.entry.path), change.deletes),
            (change.kind, change.ordinal, change.commit),
        )
        for change in changes
    )
    return marked(found, CHANGES)
