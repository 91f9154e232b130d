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
from torch_table_loader.source.delta.delta_options import TableAddress
from torch_table_loader.source.delta.delta_schema import DeltaColumns, read_delta_schema
from torch_table_loader.source.delta.live_files import live_files
from torch_table_loader.source.delta.log import Log, LogReader, read_time
from torch_table_loader.source.delta.skipping import kept_files
from torch_table_loader.source.iceberg.table_storage import IcebergStorage
from torch_table_loader.source.plan_cache import PlanCache

if TYPE_CHECKING:
    from torch_table_loader.records import DataFile
    from torch_table_loader.source.iceberg.places import Area


@dataclass(frozen=True)
class DeltaSource:
    """A table at one version (implements `contracts.TimeTravelSource`).

    Args:
        storage: where its files are.
        files: the data files, oldest first, then by path.
        schema: as the version is read.
        fingerprint: hash of the table's id and the version.
        snapshot_id: the version.
        description: table and version, in words.
        notes: what planning has to say.
        partition_schema: the columns that the log gives.
        cache: keeps footers and counts; or None.
        pinned: whether the caller chose the version.
        request: what the table was found by, to open it at another version.
    """

    storage: IcebergStorage
    files: tuple[DataFile, ...]
    schema: pa.Schema
    fingerprint: str
    snapshot_id: int
    description: str
    notes: tuple[str, ...] = ()
    partition_schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    cache: PlanCache | None = field(default=None, repr=False, compare=False)
    pinned: bool = True
    request: DeltaRequest | None = field(default=None, repr=False, compare=False)

    def at_snapshot(self, snapshot_id: int) -> DeltaSource:
        """Return the same table at another version: see `contracts.TimeTravelSource`."""
        if self.request is None:
            raise ConfigError(f"{self.description} was opened in another process, and stays at its version")
        return replace(self.request.open(version=snapshot_id), pinned=self.pinned)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what opens the table again."""
        return {**self.__dict__, "request": None}


@dataclass(frozen=True, slots=True, eq=False)
class DeltaRequest:
    """Which table the caller wants, and what of it.

    Args:
        at: where the table is.
        columns: that will be read; None for all.
        filters: a pyarrow Expression, or None.
        plan_cache: a directory that keeps footers and counts; or None.
        allowed: where files may lie besides the table's own host, bucket or machine.
        retry_seconds: how long to try a request that the store does not serve.
        storage_options: the caller's, for the plan cache.
        lazy: whether nothing is asked of data files yet.
    """

    at: TableAddress
    columns: Sequence[str] | None
    filters: Any
    plan_cache: str | None
    allowed: tuple[Area, ...]
    retry_seconds: float
    storage_options: Mapping[str, Any] | None = field(repr=False)
    lazy: bool = False

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
        reader, when = LogReader(self.at, self.retry_seconds), read_time(timestamp)
        storage = IcebergStorage(self.at.root, {}, self.at.options, (), None, self.allowed, self.retry_seconds)
        log = reader.read(version, when)
        if when is not None and log.version == 0 and not log.tells_time:
            _refuse_younger(when, storage, self.at.root)
        agreed = agree("snapshot", log.version)
        if agreed != log.version:
            log = reader.read(agreed)  # rank 0 came earlier or later, and saw another commit as the newest
        return replace(self._planned(log, storage), pinned=version is not None or when is not None)

    def _planned(self, log: Log, storage: IcebergStorage) -> DeltaSource:
        root = self.at.root
        columns = read_delta_schema(log.fields, log.partition_columns, log.mode)
        _refuse_unreadable(columns, self.columns, root)
        schema, adds = columns.schema, log.adds
        notes: tuple[str, ...] = ()
        if missing := [name for name in log.partition_columns if name not in columns.physical]:
            raise TableError(f"the schema of {root} must have its partition column {missing[0]!r}; mend the table")
        partition = [name for name in log.partition_columns if name in schema.names]
        if self.filters is not None:
            adds = kept_files(adds, columns, partition, self.filters)
            notes = (f"the filter rules {log.adds.num_rows - adds.num_rows:,} of {log.adds.num_rows:,} files out",)
        root = root.rstrip("/")
        files = live_files(adds, log.masks, columns.table, partition, root)
        storage.require(file.path for file in files if not file.path.startswith(f"{root}/"))
        if storage.is_local and not self.lazy:  # where asking costs nothing, a file that is written over is noticed
            files = tuple(replace(file, version=storage.version(file.path)) for file in files)
        digest = hashlib.sha256(f"delta 1\n{log.table_id}\n{log.version}".encode()).hexdigest()
        return DeltaSource(
            storage,
            files,
            schema,
            digest,
            log.version,
            f"Delta Lake table {root} ({log.table_id}), version {log.version}",
            notes,
            pa.schema([schema.field(name) for name in partition]),
            self._cache(log, storage),
            request=self,
        )

    def _cache(self, log: Log, storage: IcebergStorage) -> PlanCache | None:
        """Open the plan cache, for the table as its schema is now: a column may have had another's name before."""
        if self.plan_cache is None:
            return None
        shape = json.dumps([log.table_id, log.mode, log.partition_columns, list(log.fields)], sort_keys=True)
        scope = f"{storage.place} delta {hashlib.sha256(shape.encode()).hexdigest()}"
        return PlanCache.open(self.plan_cache, self.storage_options, scope, self.retry_seconds)


def _refuse_younger(when: dt.datetime, storage: IcebergStorage, root: str) -> None:
    """Refuse a time before the first version, which deltalake gives then."""
    try:
        written = storage.version(f"{root}/_delta_log/{0:020}.json").mtime_ns
    except TableError:  # a checkpoint took its place
        return
    if written is not None and written > when.timestamp() * 1e9:
        raise ConfigError(f"{root} had no version at {when.isoformat()}; its first is younger")


def _refuse_unreadable(columns: DeltaColumns, wanted: Sequence[str] | None, root: str) -> None:
    names = [name for name in columns.unreadable if wanted is None or name in wanted]
    if names:
        raise TableError(
            f"column {names[0]!r} is of the type {columns.unreadable[names[0]]}, which this library does not read, as "
            f"the log of {root} says; name other columns in columns="
        )
