"""The data files that deletes name, and whether the snapshot has them.

A deletion vector without its data file is left over from a commit that removed the file; readers pass over it. It may
also be meant for a file that the metadata spell another way, or for none that ever was: then rows that somebody
deleted would come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from torch_table_loader.errors import TableError
from torch_table_loader.iceberg.manifests import list_manifests, read_manifests
from torch_table_loader.iceberg.scan import is_vector, only_path
from torch_table_loader.table_formats import TableStorage, shown_url

if TYPE_CHECKING:
    from torch_table_loader.iceberg.manifests import Entry, Manifest, Raw
    from torch_table_loader.iceberg.metadata import Snapshot, TableMetadata
    from torch_table_loader.iceberg.scan import Naming

_REWRITE = "the writer broke the format: write the table's deletes again, or read a snapshot before them"
Keep = Callable[["Entry", "Raw"], bool]


class Targets:
    """The data files that delete files of a snapshot name, and which of them its manifests list."""

    def __init__(self, deletes: Iterable[Entry]) -> None:
        """Take the deletes that name one data file."""
        named = [(path, entry) for entry in deletes if (path := only_path(entry)) is not None]
        self._named = dict(sorted(named, key=lambda each: is_vector(each[1])))
        self._met: set[str] = set()

    def noting(self, keep: Keep | None) -> Keep | None:
        """Return a function for `read_manifests` that also notes the files that it is asked about."""
        if not self._named:
            return keep

        def note(entry: Entry, raw: Raw) -> bool:
            if entry.path in self._named:
                self._met.add(entry.path)
            return keep is None or keep(entry, raw)

        return note

    def refuse_respelled(self, data: Iterable[Entry], naming: Naming) -> None:
        """Refuse a delete that names a data file otherwise than the snapshot does, so that it would not be applied."""
        lost = self._lost()
        known = {_place_of(path): path for path in lost}
        if not known:
            return
        for entry in data:
            path = known.get(_place_of(entry.path))
            if path is not None and path != entry.path:
                raise TableError(
                    f"{_shown(lost[path], naming)} must name its data file as the snapshot does, "
                    f"{shown_url(entry.path)}, got {shown_url(path)}, so that its deletes would not be applied; "
                    f"{_REWRITE}"
                )

    def unmet(
        self, metadata: TableMetadata, storage: TableStorage, manifests: Sequence[Manifest], naming: Naming
    ) -> tuple[str, ...]:
        """Return a note about deletion vectors of which the snapshot lacks the data files.

        Raises:
            TableError: no snapshot of the table has such a file, though that of the commit of the vector is there.
        """
        lost = {path: entry for path, entry in self._lost().items() if is_vector(entry)}
        if not lost:
            return ()
        judged = {path: entry for path, entry in lost.items() if _is_remembered(entry, metadata)}
        for path in _never_listed(judged, metadata, storage, {manifest.path for manifest in manifests}):
            raise TableError(
                f"{_shown(lost[path], naming)} must be of a data file of the table, got {shown_url(path)}, which no "
                f"snapshot has, so that its deletes would not be applied; {_REWRITE}"
            )
        example = naming.name_of(next(iter(lost)))
        told = f"{len(lost):,} deletion vectors delete nothing: their data files, such as {example}, "
        return (f"{told}are not in the snapshot",)

    def _lost(self) -> Mapping[str, Entry]:
        return {path: entry for path, entry in self._named.items() if path not in self._met}


def _is_remembered(vector: Entry, metadata: TableMetadata) -> bool:
    """Return whether the table still has the snapshot of a vector's commit, and the one before it."""
    known = metadata.snapshots
    made = [each for each in known.values() if each.sequence_number == vector.sequence_number]
    return any(each.parent_snapshot_id is None or each.parent_snapshot_id in known for each in made)


def _never_listed(
    vectors: Mapping[str, Entry], metadata: TableMetadata, storage: TableStorage, read: set[str]
) -> Sequence[str]:
    """Return those of the vectors' data files that no snapshot up to the vector's has; `read` are manifests without.

    The search begins with the newest vector's snapshot, which has the file unless the vector's writer broke the format.
    """
    wanted = set(vectors)
    last = max((entry.sequence_number for entry in vectors.values()), default=-1)
    until = [each for each in metadata.snapshots.values() if (each.sequence_number or 0) <= last]
    for known in sorted(until, key=lambda each: each.sequence_number or 0, reverse=True):
        if not wanted:
            break
        try:
            wanted -= _listed_in(metadata.snapshot(snapshot_id=known.snapshot_id), storage, wanted, read)
        except TableError:  # a snapshot that nobody asked for may be gone; then nothing is certain
            return ()
    return [path for path in vectors if path in wanted]


def _listed_in(snapshot: Snapshot, storage: TableStorage, wanted: set[str], read: set[str]) -> set[str]:
    """Return which data files a snapshot lists in manifests that were not read yet."""
    found: set[str] = set()

    def note(entry: Entry, _: Raw) -> bool:
        if entry.path in wanted:
            found.add(entry.path)
        return False

    storage.require(snapshot.lists)
    unread = [each for each in list_manifests(storage, snapshot) if not each.deletes and each.path not in read]
    storage.require(manifest.path for manifest in unread)
    read_manifests(storage, unread, note)
    read.update(manifest.path for manifest in unread)
    return found


def _place_of(path: str) -> tuple[object, str]:
    """Return what paths that name one file share, however they are spelled.

    >>> _place_of("s3a://bucket/a//b%20c") == _place_of("s3://bucket/a/./b c")
    True
    """
    place, inner = TableStorage.place_of(path)
    return place, "/".join(part for part in unquote(inner).split("/") if part not in ("", "."))


def _shown(entry: Entry, naming: Naming) -> str:
    kind = "the deletion vector in" if is_vector(entry) else "the position delete file"
    return f"{kind} {naming.name_of(entry.path)}"
