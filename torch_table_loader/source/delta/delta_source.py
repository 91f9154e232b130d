"""A Delta Lake table at one version, as a source of data files."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.source.changed_files import check_names
from torch_table_loader.source.delta.appended_files import appended_parts, changes_since
from torch_table_loader.source.delta.delta_changelog import CHANGES, changed_files, changes_of
from torch_table_loader.source.delta.delta_options import TableAddress
from torch_table_loader.source.delta.delta_schema import DeltaColumns, read_delta_schema
from torch_table_loader.source.delta.live_files import live_files
from torch_table_loader.source.delta.log import Log, LogReader, in_order, read_time, without_statistics
from torch_table_loader.source.delta.log_files import LogFiles
from torch_table_loader.source.delta.skipping import kept_files
from torch_table_loader.source.plan_cache import PlanCache
from torch_table_loader.source.snapshot_files import SnapshotFiles
from torch_table_loader.source.table_storage import Area, TableStorage

if TYPE_CHECKING:
    from torch_table_loader.records import DataFile


@dataclass(frozen=True, kw_only=True)
class DeltaSource(SnapshotFiles):
    """A table at one version, which is its `snapshot_id` (implements `contracts.HistorySource`)."""

    pin = "version"

    def at_snapshot(self, snapshot_id: int) -> DeltaSource:
        """Return the same table at another version: see `contracts.TimeTravelSource`."""
        if self.request is None:
            raise ConfigError(f"{self.description} was opened in another process, and stays at its version")
        found: DeltaSource = self.request.open(version=snapshot_id)
        return replace(found, pinned=self.pinned)

    def changes_since(self, snapshot_id: int) -> Sequence[str]:
        """Return which commits after another version did more than to append: see `contracts.HistorySource`."""
        if self.request is None or self.snapshot_id is None:
            return ()
        found = changes_since(self.storage, self.request.at.root.rstrip("/"), snapshot_id, self.snapshot_id)
        self.storage.close()
        return found


@dataclass(frozen=True, slots=True, eq=False)
class DeltaRequest:
    """Which table the caller wants, and what of it.

    Args:
        columns: that will be read; None for all.
        filters: a pyarrow Expression, or None.
        plan_cache: a directory that keeps footers and counts; or None.
        allowed: where files may lie besides the table's own host, bucket or machine.
        retry_seconds: how long to try a request that the store does not serve.
        storage_options: the caller's, for the plan cache.
        lazy: whether nothing is asked of data files yet.
        start: the version after which the rows were appended that are read; None reads all.
        changelog: whether all rows are read that came or went after it.
    """

    at: TableAddress
    columns: Sequence[str] | None
    filters: Any
    plan_cache: str | None
    allowed: tuple[Area, ...]
    retry_seconds: float
    storage_options: Mapping[str, Any] | None = field(repr=False)
    lazy: bool = False
    start: int | None = None
    changelog: bool = False

    def open(
        self,
        version: int | None = None,
        timestamp: Any = None,
        agree: Callable[[str, Any], Any] = lambda _, value: value,
    ) -> DeltaSource:
        """Return the table at a version, with its files planned.

        Args:
            version: which; None, and no timestamp: the newest.
            timestamp: the one that was the newest then.
            agree: gives rank 0's value of a name; takes this rank's.

        Raises:
            ConfigError: there is no table here, or no such version.
            TableError: the log is torn, or the table takes more than this library reads.
            StorageError: the store failed.
        """
        storage = TableStorage(self.at.root, {}, self.at.options, (), None, self.allowed, self.retry_seconds)
        reader = LogReader(self.at, self.retry_seconds, LogFiles(storage, self.at.root), self.filters is not None)
        when = read_time(timestamp)
        log = reader.read(version, when)
        if when is not None and log.version == 0 and not log.tells_time:
            _refuse_younger(when, storage, self.at.root)
        agreed = agree("snapshot", log.version)
        if agreed != log.version:
            log = reader.read(agreed)  # rank 0 came earlier or later, and saw another commit as the newest
        pinned = version is not None or when is not None
        return replace(self._planned(reader, log, storage), pinned=pinned)

    def _planned(self, reader: LogReader, log: Log, storage: TableStorage) -> DeltaSource:
        """Plan the files of a version, or of what came and went before it."""
        root = self.at.root
        columns = read_delta_schema(log.fields, log.partition_columns, log.mode)
        _refuse_unreadable(columns, self.columns, root)
        if self.changelog:
            check_names(columns.physical, CHANGES)
            columns = columns.with_added(CHANGES)
        schema = columns.schema
        if missing := [name for name in log.partition_columns if name not in columns.physical]:
            raise TableError(f"the schema of {root} must have its partition column {missing[0]!r}; fix the table")
        partition = [name for name in log.partition_columns if name in schema.names]
        root = root.rstrip("/")
        files, elsewhere, notes = self._files(reader, log, storage, columns, partition)
        storage.require(elsewhere)
        if storage.is_local and not self.lazy:  # where asking costs nothing, a file that is written over is noticed
            files = tuple(replace(file, version=storage.version(file.path)) for file in files)
        which = f"delta 1\n{log.table_id}\n{log.version}"
        description = f"Delta Lake table {root} ({log.table_id}), version {log.version}"
        if self.start is not None:
            which = (
                f"delta {'changelog' if self.changelog else 'appended'} 1\n{log.table_id}\n{self.start}\n{log.version}"
            )
            description += f", rows {'changed' if self.changelog else 'appended'} after version {self.start}"
        return DeltaSource(
            storage=storage,
            files=files,
            schema=schema,
            fingerprint=hashlib.sha256(which.encode()).hexdigest(),
            snapshot_id=log.version,
            description=description,
            notes=notes,
            partition_schema=pa.schema([schema.field(name) for name in (*partition, *columns.added)]),
            cache=self._cache(log, storage),
            request=self,
            start_snapshot_id=self.start,
            changelog=self.changelog,
        )

    def _files(
        self, reader: LogReader, log: Log, storage: TableStorage, columns: DeltaColumns, partition: Sequence[str]
    ) -> tuple[Sequence[DataFile], list[str], tuple[str, ...]]:
        """Return the files that the filter leaves, those of them elsewhere, and what there is to say."""
        root = self.at.root.rstrip("/")

        def kept(adds: pa.Table) -> pa.Table:
            return adds if self.filters is None else kept_files(adds, columns, partition, self.filters)

        def notes_of(pruned: int, num_files: int, what: str) -> tuple[str, ...]:
            return () if self.filters is None else (f"the filter prunes {pruned:,} of {num_files:,} {what}",)

        if self.start is not None and self.changelog:
            changes = changes_of(reader, storage, self.start, log)
            changed, elsewhere, pruned = changed_files(changes, columns, partition, root, kept)
            return changed, elsewhere, notes_of(pruned, pruned + len(changed), "changed files")
        parts, notes = ([log], ()) if self.start is None else appended_parts(reader, storage, self.start, log)
        found = [kept(part.adds) for part in parts]
        adds = found[0] if len(found) == 1 else in_order(pa.concat_tables(map(without_statistics, found)))
        vectors = {path: vector for part in parts for path, vector in part.vectors.items()}
        files, elsewhere = live_files(adds, vectors, columns.table, partition, root)
        num_files = sum(len(part.adds) for part in parts)
        return files, elsewhere, (*notes, *notes_of(num_files - len(adds), num_files, "files"))

    def _cache(self, log: Log, storage: TableStorage) -> PlanCache | None:
        """Open the plan cache, for the table as its schema is now: a column may have had another's name before."""
        if self.plan_cache is None:
            return None
        shape = json.dumps([log.table_id, log.mode, log.partition_columns, list(log.fields)], sort_keys=True)
        scope = f"{storage.place} delta {hashlib.sha256(shape.encode()).hexdigest()}"
        return PlanCache.open(self.plan_cache, self.storage_options, scope, self.retry_seconds)


def _refuse_younger(when: dt.datetime, storage: TableStorage, root: str) -> None:
    """Refuse a time before the first version, which deltalake gives then."""
    try:
        written = storage.version(f"{root}/_delta_log/{0:020}.json").mtime_ns
    except TableError:  # a checkpoint took its place
        return
    if written is not None and written > when.timestamp() * 1e9:
        raise ConfigError(f"{root} had no version at {when.isoformat()}; its first version is newer")


def _refuse_unreadable(columns: DeltaColumns, wanted: Sequence[str] | None, root: str) -> None:
    names = [name for name in columns.unreadable if wanted is None or name in wanted]
    if names:
        raise TableError(
            f"column {names[0]!r} is of the type {columns.unreadable[names[0]]}, which this library does not read, as "
            f"the log of {root} says; name other columns in columns="
        )
