"""The files that the commits between two snapshots appended."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.source.iceberg.manifests import list_manifests, read_manifests

if TYPE_CHECKING:
    from torch_table_loader.source.iceberg.manifests import Entry, Manifest, Raw
    from torch_table_loader.source.iceberg.metadata import TableMetadata
    from torch_table_loader.source.iceberg.pruning import Pruner
    from torch_table_loader.source.table_storage import TableStorage

_APPEND, REPLACE = "append", "replace"


class Commit(NamedTuple):
    """The commit that created a snapshot.

    Args:
        parent: the previous snapshot; None for the first.
        operation: the operation in its summary; "" if there is none.
    """

    id: int
    parent: int | None
    operation: str


def commits_since(metadata: TableMetadata, start: int, end: int | None) -> list[Commit]:
    """Return the commits that lead from one snapshot to another, oldest first.

    Args:
        start: the older snapshot, whose own commit is left out.
        end: the newer snapshot; None for a table without snapshots.

    Raises:
        ConfigError: the older snapshot is not an ancestor of the newer one, or has expired.
    """
    commits = {raw["snapshot-id"]: _commit(raw) for raw in metadata.raw.get("snapshots") or []}
    if start not in commits:
        known = ", ".join(map(str, list(commits)[-5:])) or "none"
        raise ConfigError(
            f"the table has no snapshot {start}: it has expired, or is of another table; the newest of {len(commits)} "
            f"are {known}"
        )
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
        found.append(commits[at])
        at = commits[at].parent
    return found[::-1]


def changes_since(metadata: TableMetadata, start: int, end: int) -> list[str]:
    """Describe which commits between two snapshots did more than append files."""
    try:
        commits = commits_since(metadata, start, end)
    except ConfigError:
        return [f"it is not an ancestor of {end}"]
    return [f"snapshot {each.id}: {each.operation or 'unknown'}" for each in commits if each.operation != _APPEND]


def appended_entries(
    storage: TableStorage, metadata: TableMetadata, start: int, end: int | None, pruner: Pruner | None
) -> tuple[list[Entry], tuple[str, ...]]:
    """Return the data files that were appended after one snapshot, up to and including another.

    A commit that replaces files by others with the same rows is skipped: rows appended before it are read from the
    files with which they were appended.

    Args:
        end: the newer snapshot; None for a table without snapshots.
        pruner: leaves files out; or None.

    Raises:
        ConfigError: a commit in between deleted or overwrote rows, or the snapshots do not share a history.
        TableError: a commit that claims only to append did more.
    """
    commits = commits_since(metadata, start, end)
    for commit in commits:
        if commit.operation not in (_APPEND, REPLACE):
            operation = commit.operation or "unknown"
            raise ConfigError(
                f"snapshot {commit.id}, between {start} and {end}, has the operation {operation!r}, and only rows that "
                "were appended can be read by themselves; read up to the snapshot before it "
                f"(end_snapshot_id={commit.parent}) and from it on (start_snapshot_id={commit.id}), or what came and "
                "what went (changelog=True), or the whole table"
            )
    pruned: set[str] = set()
    appended = [
        entry for run in _runs(start, commits) for entry in _difference(storage, metadata, *run, pruner, pruned)
    ]
    found = [entry for entry in appended if entry.path not in pruned]
    replaced = [str(commit.id) for commit in commits if commit.operation == REPLACE]
    notes = [f"nothing is read from snapshots {', '.join(replaced)}, which replace files"] if replaced else []
    if pruner is not None:
        ruled_out = len(appended) - len(found)
        notes.append(
            f"the filter prunes {ruled_out:,} of {len(appended):,} appended files by partition values and statistics"
        )
    return found, tuple(notes)


def _commit(raw: Mapping[str, object]) -> Commit:
    number, parent, summary = raw["snapshot-id"], raw.get("parent-snapshot-id"), raw.get("summary")
    operation = summary.get("operation") if isinstance(summary, Mapping) else None
    assert isinstance(number, int)  # noqa: S101 the metadata was checked
    assert parent is None or isinstance(parent, int)  # noqa: S101
    return Commit(number, None if parent == -1 else parent, str(operation or ""))


def _runs(start: int, commits: Sequence[Commit]) -> list[tuple[int, int]]:
    """Return runs of appends: the snapshot before each run, and its last snapshot."""
    runs: list[tuple[int, int]] = []
    before = start
    for commit in commits:
        if commit.operation == _APPEND and runs and runs[-1][1] == before:
            runs[-1] = (runs[-1][0], commit.id)
        elif commit.operation == _APPEND:
            runs.append((before, commit.id))
        before = commit.id
    return runs


def _difference(
    storage: TableStorage, metadata: TableMetadata, first: int, last: int, pruner: Pruner | None, pruned: set[str]
) -> list[Entry]:
    """Return the files of a snapshot that an older one lacks, if only appends happened in between.

    Paths that the filter leaves out are added to `pruned`: merged manifests may have lost statistics, so files are
    compared first.
    """
    before, after = (manifests_of(storage, metadata, number) for number in (first, last))
    old = _entries(storage, [each for path, each in before.items() if path not in after], lambda *_: True)

    def note(entry: Entry, raw: Raw) -> bool:
        if pruner is not None and not entry.content and not pruner.keeps(entry, raw):
            pruned.add(entry.path)
        return True

    new = _entries(storage, [each for path, each in after.items() if path not in before], note)
    there, here = set(map(same_entry, old)), set(map(same_entry, new))
    gone = there - here
    added = [entry for entry in new if same_entry(entry) not in there]
    deleting = [entry for entry in added if entry.content]
    if gone or deleting:
        did = f"{len(gone)} files are gone" if gone else f"{len(deleting)} delete files were added"
        raise TableError(
            f"the snapshots after {first} up to {last} say that they append, but {did}; the writer broke the format: "
            "read the whole table instead"
        )
    return added


def same_entry(entry: Entry) -> Hashable:
    """Return a key that a file shares only with itself in other snapshots."""
    return entry.content, entry.path, entry.deletes


def manifests_of(storage: TableStorage, metadata: TableMetadata, number: int) -> dict[str, Manifest]:
    """Return the manifests of a snapshot, by their paths."""
    snapshot = metadata.snapshot(snapshot_id=number)
    storage.require([] if snapshot.manifest_list is None else [snapshot.manifest_list])
    return {manifest.path: manifest for manifest in list_manifests(storage, snapshot)}


def _entries(storage: TableStorage, manifests: Sequence[Manifest], keep: Callable[[Entry, Raw], bool]) -> list[Entry]:
    storage.require(manifest.path for manifest in manifests)
    return [entry for listed in read_manifests(storage, manifests, keep) for entry in listed]
