"""The commits between two versions of a Delta Lake table, and the files that they touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow import compute as pc
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.records import Column
from torch_table_loader.source.delta.live_files import live_files
from torch_table_loader.source.delta.log import Log
from torch_table_loader.source.delta.log_files import actions_of, commit_path, torn_commit
from torch_table_loader.source.history import Commit, History
from torch_table_loader.source.table_storage import read_whole

if TYPE_CHECKING:
    from torch_table_loader.records import DataFile
    from torch_table_loader.source.delta.delta_schema import DeltaColumns
    from torch_table_loader.source.delta.log import LogReader
    from torch_table_loader.source.table_storage import TableStorage

CHANGES = (
    Column(2_147_483_500, "_change_type", pa.string(), required=True),
    Column(2_147_483_501, "_commit_version", pa.int64(), required=True),
)
"""Columns of a changelog about its rows, under the names of Delta's change data feed."""


def read_commits(storage: TableStorage, root: str, start: int, end: int) -> list[Commit]:
    """Read the commits after one version, up to and with another, oldest first.

    Raises:
        ConfigError: the older version is none of those before the newer one, or a commit was cleaned up.
        TableError: a commit is torn.
    """
    if not 0 <= start <= end:
        raise ConfigError(f"version {start} of {root} must be one of 0 to {end}, the version that is read")
    return [_commit(storage, root, version) for version in range(start + 1, end + 1)]


def _commit(storage: TableStorage, root: str, version: int) -> Commit:
    path = commit_path(root, version)
    try:
        content = read_whole(storage, path)
    except TableError:
        raise ConfigError(
            f"the commit of version {version} of {root} is not there: it was cleaned up, and what it appended cannot "
            "be told from the rest; choose a later start_version, or read the whole table"
        ) from None
    try:
        return _read(version, actions_of(content, path))
    except (KeyError, TypeError, AttributeError) as error:
        raise torn_commit(path, f"one is not as the protocol says ({error!r})") from error


def _read(version: int, actions: Sequence[Mapping[str, Any]]) -> Commit:
    adds, removes, infos = (
        [each[name] for each in actions if name in each] for name in ("add", "remove", "commitInfo")
    )
    added, removed = (
        frozenset(str(each["path"]) for each in files if each.get("dataChange", True)) for files in (adds, removes)
    )
    operation = str((infos and infos[0].get("operation")) or "unknown")
    return Commit(
        version, version - 1, operation, "change" if removed else "replace" if removes else "append", added, removed
    )


@dataclass(slots=True, eq=False, kw_only=True)
class DeltaHistory(History[Log]):
    """The commits between two versions of a table.

    Args:
        log: the newer version.
        partition: its partition columns, as far as they can be read.
        kept: leaves out the files in which no row passes a filter.
    """

    reader: LogReader
    log: Log
    read_columns: DeltaColumns
    partition: Sequence[str]
    kept: Callable[[pa.Table], pa.Table]
    _logs: dict[int, Log] = field(default_factory=dict)

    pin = "version"
    columns = CHANGES
    went, came = "delete", "insert"

    @override
    def added(self, run: Sequence[Commit]) -> Log:
        paths = frozenset[str]().union(*(commit.added for commit in run))
        version, last = self.log, run[-1].id
        if paths and last != self.end:
            version = self.reader.read(last)
        return replace(version, adds=self._only(version, paths))

    @override
    def touched(self, commit: Commit, last: Commit) -> tuple[Sequence[DataFile], Sequence[DataFile]]:
        if commit.removed:
            before, after = self._at(commit.id - 1), self._at(commit.id)
            return self._files(before, _of(before, commit.removed)), self._files(after, _of(after, commit.added))
        if not commit.added:
            return (), ()
        after = self._at(last.id)
        return (), self._files(after, self._only(after, commit.added))

    def _files(self, log: Log, adds: pa.Table) -> Sequence[DataFile]:
        files = live_files(adds, log.vectors, self.read_columns.table, self.partition, self.place)[0][:]
        if self.filtered:
            kept = set(self.kept(adds)["path"].to_pylist())
            written = adds["path"].to_pylist()
            self.pruned |= {file.path for file, path in zip(files, written, strict=True) if path not in kept}
        return files

    def _only(self, log: Log, paths: frozenset[str]) -> pa.Table:
        """Return some of the files of a version, which must have all of them."""
        adds = _of(log, paths)
        if adds.num_rows != len(paths):
            raise TableError(
                f"version {log.version} of {self.place} must have the {len(paths)} files that its commits appended, "
                f"and has {adds.num_rows} of them; the writer broke the format: read the whole table instead"
            )
        return adds

    def _at(self, version: int) -> Log:
        """Return a version, whose id, partition columns and column mapping must be those of the table now."""
        if version == self.log.version:
            return self.log
        if version not in self._logs:
            log = self.reader.read(version)
            now = (self.log.table_id, self.log.partition_columns, self.log.mode)
            if (log.table_id, log.partition_columns, log.mode) != now:
                raise ConfigError(
                    f"after version {version} of {self.place} the table was replaced, partitioned by other columns, "
                    "or its columns were mapped in another way, so that one changelog cannot hold what came before "
                    "and after; choose a later start_version, or read the whole table"
                )
            self._logs[version] = log
        return self._logs[version]


def _of(log: Log, paths: frozenset[str]) -> pa.Table:
    return log.adds.filter(pc.is_in(log.adds["path"], pa.array(sorted(paths), log.adds["path"].type)))
