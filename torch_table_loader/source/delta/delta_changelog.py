"""What the commits between two versions of a Delta Lake table changed: which rows came, and which went."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from torch_table_loader.arrow import compute as pc
from torch_table_loader.errors import ConfigError
from torch_table_loader.records import Column, DataFile
from torch_table_loader.source.changed_files import marked
from torch_table_loader.source.delta.appended_files import only_paths, read_commits, runs_of
from torch_table_loader.source.delta.live_files import live_files

if TYPE_CHECKING:
    from torch_table_loader.source.delta.delta_schema import DeltaColumns
    from torch_table_loader.source.delta.log import Log, LogReader
    from torch_table_loader.source.delta.vectors import Vector
    from torch_table_loader.source.table_storage import TableStorage

INSERT, DELETE = "insert", "delete"

CHANGES = (
    Column(2_147_483_500, "_change_type", pa.string(), required=True),
    Column(2_147_483_501, "_commit_version", pa.int64(), required=True),
)
"""What a changelog says of its rows, under the names of Delta's change data feed. No file has columns of these ids."""


class Change(NamedTuple):
    """Rows of data files that a commit put into the table, or took out of it.

    Args:
        there: deletes other rows, by the path of the file.
        only: where a path is here, only the rows that its deletion vector deletes are meant.
    """

    kind: str
    version: int
    adds: pa.Table
    there: Mapping[str, Vector]
    only: Mapping[str, Vector]


def changes_of(reader: LogReader, storage: TableStorage, start: int, log: Log) -> list[Change]:
    """Return what the commits after one version did, up to and with another, in their order.

    Of one commit come the rows that went, then those that came. A commit that replaces files by others with the same
    rows changes none.

    Raises:
        ConfigError: a commit was cleaned up, or the table was replaced or partitioned anew in between.
        TableError: a commit is torn.
    """
    logs, found = _Versions(reader, log), list[Change]()
    commits = read_commits(storage, reader.at.root.rstrip("/"), start, log.version)
    for last, run in runs_of(commits):
        for commit in run:
            if commit.removed:
                found += _changes(logs.at(commit.version - 1), logs.at(commit.version), commit.removed, commit.appended)
            elif commit.appended:
                after = logs.at(last)
                adds = only_paths(after, commit.appended, reader.at.root)
                found.append(Change(INSERT, commit.version, adds, after.vectors, {}))
    return found


@dataclass(slots=True, eq=False)
class _Versions:
    """The versions of a table that were read; commits that follow one another share them."""

    reader: LogReader
    newest: Log
    _logs: dict[int, Log] = field(default_factory=dict)

    def at(self, version: int) -> Log:
        """Return a version, which must be of the table as it is now."""
        if version == self.newest.version:
            return self.newest
        if version not in self._logs:
            log = self.reader.read(version)
            now = (self.newest.table_id, self.newest.partition_columns, self.newest.mode)
            if (log.table_id, log.partition_columns, log.mode) != now:
                raise ConfigError(
                    f"after version {version} of {self.reader.at.root} the table was replaced, partitioned by other "
                    "columns, or its columns were mapped in another way, so that one changelog cannot hold what came "
                    "before and after; choose a later start_version, or read the whole table"
                )
            self._logs[version] = log
        return self._logs[version]


def _changes(before: Log, after: Log, removed: frozenset[str], appended: frozenset[str]) -> Iterator[Change]:
    """Yield what a commit did that took files out, or gave them other deletion vectors."""
    version, both = after.version, removed & appended
    went = {path: after.vectors[path] for path in both if _adds_to(before.vectors.get(path), after.vectors.get(path))}
    came = {path: before.vectors[path] for path in both if _adds_to(after.vectors.get(path), before.vectors.get(path))}
    for kind, there, gone, only in (
        (DELETE, before, removed - both, went),
        (INSERT, after, appended - both, came),
    ):
        adds = _only(there.adds, gone | only.keys())
        if adds.num_rows:
            yield Change(kind, version, adds, there.vectors, only)


def _adds_to(was: Vector | None, now: Vector | None) -> bool:
    """Whether a deletion vector may delete rows that another one leaves."""
    return now is not None and was != now


def _only(adds: pa.Table, paths: frozenset[str]) -> pa.Table:
    return adds.filter(pc.is_in(adds["path"], pa.array(sorted(paths), adds["path"].type)))


def changed_files(
    changes: Sequence[Change],
    columns: DeltaColumns,
    partition: Sequence[str],
    root: str,
    kept: Callable[[pa.Table], pa.Table],
) -> tuple[tuple[DataFile, ...], list[str], int]:
    """Return the data files of a changelog: one for each change of a file's rows.

    Args:
        partition: its partition columns, as far as they can be read.
        kept: leaves out the files in which no row passes a filter.

    Returns:
        The files, the paths of those that do not lie below the root, and how many the filter leaves out.
    """
    found: list[tuple[DataFile, tuple[str, int]]] = []
    elsewhere: list[str] = []
    pruned = 0
    for change in changes:
        adds = kept(change.adds)
        pruned += len(change.adds) - len(adds)
        files, apart = live_files(adds, change.there, columns.table, partition, root)
        elsewhere += apart
        for path, file in zip(adds["path"].to_pylist(), files, strict=True):
            said = (change.kind, change.version)
            if (vector := change.only.get(path)) is None:
                found.append((file, said))
                continue
            only = vector.delete_of(file, root, keeps=True)
            found.append((replace(file, deletes=(*file.deletes, only)), said))
    return marked(found, CHANGES), elsewhere, pruned
