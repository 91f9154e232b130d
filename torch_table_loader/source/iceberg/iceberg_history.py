"""The commits between two snapshots, and the files that they touched, as manifests list them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from typing_extensions import override

from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.source.history import Commit, History
from torch_table_loader.source.iceberg.manifests import Entry, list_manifests, read_manifests
from torch_table_loader.source.iceberg.metadata import NO_SNAPSHOT
from torch_table_loader.source.iceberg.scan import DeleteIndex
from torch_table_loader.source.iceberg.schema import CHANGES

if TYPE_CHECKING:
    from torch_table_loader.records import DataFile
    from torch_table_loader.source.iceberg.manifests import Manifest, Raw
    from torch_table_loader.source.iceberg.metadata import TableMetadata
    from torch_table_loader.source.iceberg.pruning import Pruner
    from torch_table_loader.source.iceberg.scan import Naming

_DOES: Mapping[str, Literal["append", "replace"]] = {"append": "append", "replace": "replace"}


def commits_since(metadata: TableMetadata, start: int, end: int | None) -> list[Commit]:
    """Return the commits after one snapshot, up to and with another (None for a table without any), oldest first.

    Raises:
        ConfigError: the older snapshot is not an ancestor of the newer one, or has expired.
    """
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
class IcebergHistory(History[list[Entry]]):
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
    def added(self, run: Sequence[Commit]) -> list[Entry]:
        first, last = run[0].id if run[0].does == "replace" else run[0].parent, run[-1].id
        before, after = self._manifests_of(first), self._manifests_of(last)
        old = self._listed({path: each for path, each in before.items() if path not in after})
        new = self._listed({path: each for path, each in after.items() if path not in before})
        there, here = set(map(_same, old)), set(map(_same, new))
        gone = there - here
        added = [entry for entry in new if _same(entry) not in there]
        deleting = [entry for entry in added if entry.content]
        if gone or deleting:
            did = f"{len(gone)} files are gone" if gone else f"{len(deleting)} delete files were added"
            raise TableError(
                f"the snapshots after {first} up to {last} say that they append, but {did}; the writer broke the "
                "format: read the whole table instead"
            )
        return added

    def appended_entries(self) -> tuple[list[Entry], tuple[str, ...]]:
        """Return the files that were appended and that the filter keeps, and notes.

        Merged manifests may have lost statistics, so files are compared before they are left out.
        """
        parts, notes = self.appended()
        appended = [entry for part in parts for entry in part]
        kept = [entry for entry in appended if entry.path not in self.pruned]
        note = (
            f"the filter prunes {len(appended) - len(kept):,} of {len(appended):,} appended files by partition values "
            "and statistics"
        )
        return kept, (*notes, note) if self.filtered else notes

    @override
    def touched(self, commit: Commit, last: Commit) -> tuple[Sequence[DataFile], Sequence[DataFile]]:
        if commit.does == "replace":
            return (), ()
        snapshots = (commit.parent, commit.id)
        deletes = [self._listed(self._manifests_of(each, deletes=True)) for each in snapshots]
        before, after = (DeleteIndex(entries, self.naming) for entries in deletes)
        data = [self._manifests_of(each, deletes=False) for each in snapshots]
        same_deletes = set(map(_same, deletes[0])) == set(map(_same, deletes[1]))
        shared = data[0].keys() & data[1].keys() if same_deletes else frozenset()
        old, new = (
            {entry.path: entry for entry in self._listed({path: each[path] for path in each.keys() - shared})}
            for each in data
        )
        both = old.keys() & new.keys()
        same = {path for path in both if same_deletes or before.deletes_of(old[path]) == after.deletes_of(new[path])}
        return self._files(old, before, same), self._files(new, after, same)

    def _files(self, entries: Mapping[str, Entry], index: DeleteIndex, same: set[str]) -> list[DataFile]:
        changed = [entry for path, entry in entries.items() if path not in same]
        changed.sort(key=lambda entry: (entry.sequence_number, entry.path))
        name = self.naming.name_of
        return [self.naming.file_of(entry, name(entry.path), index.deletes_of(entry)) for entry in changed]

    def _manifests_of(self, snapshot: int | None, *, deletes: bool | None = None) -> dict[str, Manifest]:
        """Return a snapshot's manifests by their paths: all, or those of data or of deletes."""
        assert snapshot is not None  # noqa: S101 it comes before another, or after it
        if snapshot not in self._manifests:
            found = self.metadata.snapshot(snapshot_id=snapshot)
            self.storage.require([] if found.manifest_list is None else [found.manifest_list])
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
