"""A Delta Lake table at one version, as a source of the data files that a filter leaves."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow import compute as pc
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.predicates.expressions import between, can_pass, equals, expression_columns, nan_can_pass
from torch_table_loader.records import Column
from torch_table_loader.remote_options import RemoteOptions
from torch_table_loader.source.delta.delta_options import DeltaAddress
from torch_table_loader.source.delta.delta_schema import DeltaColumns, read_delta_schema
from torch_table_loader.source.delta.live_files import live_files, partition_array
from torch_table_loader.source.delta.log import Log, LogReader, in_order, without_statistics
from torch_table_loader.source.delta.log_files import LogFiles, actions_of, commit_path, torn_commit
from torch_table_loader.source.history import Commit, History
from torch_table_loader.source.plan_cache import PlanCache
from torch_table_loader.source.snapshot_files import TableRequest, listed, read_time
from torch_table_loader.source.table_storage import Area, TableStorage, read_whole

if TYPE_CHECKING:
    from torch_table_loader.records import DataFile
    from torch_table_loader.source.delta.delta_schema import DeltaColumns
    from torch_table_loader.source.delta.log import LogReader
    from torch_table_loader.source.history import Commit
    from torch_table_loader.source.snapshot_files import SnapshotFiles
    from torch_table_loader.source.table_storage import TableStorage

CHANGES = (
    Column(2_147_483_500, "_change_type", pa.string(), required=True),
    Column(2_147_483_501, "_commit_version", pa.int64(), required=True),
)
"""Columns of a changelog about its rows, under the names of Delta's change data feed."""

_MILLISECOND = 1000
"""Microseconds; writers cut the statistics of times to milliseconds, downwards."""


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


@dataclass(frozen=True, eq=False)
class DeltaRequest(TableRequest):
    """A Delta Lake table, and which part of it to read.

    Args:
        storage_options: the caller's, of which the address has those of the store.
        lazy: whether nothing is asked of data files yet.
    """

    at: DeltaAddress
    allowed: tuple[Area, ...] = field(default=(), kw_only=True)
    storage_options: Mapping[str, Any] | None = field(default=None, kw_only=True, repr=False)
    lazy: bool = field(default=False, kw_only=True)

    pin = "version"
    format = "delta"
    title = "Delta Lake table"

    @override
    def open(
        self, chosen: Mapping[str, Any], agree: Callable[[str, Any], Any] = lambda _, value: value
    ) -> SnapshotFiles:
        """Return the table at the chosen "version", or at the newest one at a "timestamp"; by default, the newest."""
        storage = self._storage()
        reader = LogReader(self.at, self._retry_seconds, LogFiles(storage, self.at.root), self.filters is not None)
        version, timestamp = chosen.get("version"), chosen.get("timestamp")
        when = None if timestamp is None else read_time("timestamp", timestamp)
        log = reader.read(version, when)
        if when is not None and log.version == 0 and not log.tells_time:
            _refuse_younger(when, storage, self.at.root)
        agreed = agree("snapshot", log.version)
        if agreed != log.version:
            log = reader.read(agreed)  # rank 0 came earlier or later, and saw another commit as the newest
        return self._planned(reader, log, storage, pinned=version is not None or when is not None)

    @override
    def commits(self, start: int, end: int) -> Sequence[Commit]:
        storage = self._storage()
        found = read_commits(storage, self._root, start, end)
        storage.close()
        return found

    @property
    def _retry_seconds(self) -> float:
        return RemoteOptions.of(self.storage_options).retry_seconds

    @property
    def _root(self) -> str:
        return self.at.root.rstrip("/")

    def _storage(self) -> TableStorage:
        return TableStorage(self.at.root, {}, self.at.options, (), None, self.allowed, self._retry_seconds)

    def _planned(self, reader: LogReader, log: Log, storage: TableStorage, *, pinned: bool) -> SnapshotFiles:
        """Plan the files of a version, or of what came and went before it."""
        columns = read_delta_schema(log.fields, log.partition_columns, log.mode)
        self.refuse_unreadable(columns.unreadable, f"the log of {self._root}")
        changes = self.changes(columns.physical, CHANGES)
        columns = columns.with_added(changes)
        schema = columns.schema
        if missing := [name for name in log.partition_columns if name not in columns.physical]:
            raise TableError(f"the schema of {self._root} must have its partition column {missing[0]!r}; fix the table")
        partition = [name for name in log.partition_columns if name in schema.names]
        files, notes = self._files(reader, log, storage, columns, partition)
        return self.made(
            self._root,
            log.table_id,
            log.version,
            storage=storage,
            files=files if self.lazy else listed(files, storage),
            schema=schema,
            notes=notes,
            partition_schema=pa.schema([schema.field(name) for name in (*partition, *(each.name for each in changes))]),
            cache=self._cache(log, storage),
            row_filter=self.filters,
            pinned=pinned,
        )

    def _files(
        self, reader: LogReader, log: Log, storage: TableStorage, columns: DeltaColumns, partition: Sequence[str]
    ) -> tuple[Sequence[DataFile], tuple[str, ...]]:
        """Return the data files that the filter leaves, and notes."""

        def kept(adds: pa.Table) -> pa.Table:
            return adds if self.filters is None else kept_files(adds, columns, partition, self.filters)

        parts, notes = [log], tuple[str, ...]()
        if self.start is not None:
            history = DeltaHistory(
                storage=storage,
                place=self._root,
                start=self.start,
                end=log.version,
                commits=read_commits(storage, self._root, self.start, log.version),
                filtered=self.filters is not None,
                reader=reader,
                log=log,
                read_columns=columns,
                partition=partition,
                kept=kept,
            )
            if self.changelog:
                return history.changelog()
            parts, notes = history.appended()
            parts = [part for part in parts if part.adds.num_rows] or [replace(log, adds=log.adds.slice(0, 0))]
        found = [kept(part.adds) for part in parts]
        adds = found[0] if len(found) == 1 else in_order(pa.concat_tables(map(without_statistics, found)))
        vectors = {path: vector for part in parts for path, vector in part.vectors.items()}
        files, elsewhere = live_files(adds, vectors, columns.table, partition, self._root)
        storage.require(elsewhere)
        num_files = sum(len(part.adds) for part in parts)
        note = f"the filter prunes {num_files - len(adds):,} of {num_files:,} files"
        return files, (*notes, note) if self.filters is not None else notes

    def _cache(self, log: Log, storage: TableStorage) -> PlanCache | None:
        """Open the plan cache, for the table as its schema is now: a column may have had another's name before."""
        if self.plan_cache is None:
            return None
        shape = json.dumps([log.table_id, log.mode, log.partition_columns, list(log.fields)], sort_keys=True)
        scope = f"{storage.place} delta {hashlib.sha256(shape.encode()).hexdigest()}"
        return PlanCache.open(self.plan_cache, self.storage_options, scope)


def _refuse_younger(when: dt.datetime, storage: TableStorage, root: str) -> None:
    """Refuse a time before the first version: deltalake returns that version for it."""
    try:
        written = storage.version(f"{root}/_delta_log/{0:020}.json").mtime_ns
    except TableError:  # a checkpoint took its place
        return
    if written is not None and written > when.timestamp() * 1e9:
        raise ConfigError(f"{root} had no version at {when.isoformat()}; its first version is newer")


def kept_files(adds: pa.Table, columns: DeltaColumns, partition: Sequence[str], filters: Any) -> pa.Table:
    """Return the files that may hold a row that passes a filter, a pyarrow Expression over the columns."""
    schema = columns.schema
    try:
        used = expression_columns(filters, schema)
    except pa.ArrowException:  # it does not fit the table, and is refused later
        return adds
    facts = [_partition_facts(adds, name, schema.field(name).type) for name in sorted(used & set(partition))]
    stored = sorted((used & columns.physical.keys()) - set(partition))
    bounded = [name for name in stored if _counts(schema.field(name), filters, schema)]
    facts += [_Bounds(adds, columns.physical[name]).facts(schema.field(name)) for name in bounded]
    if not facts or not adds.num_rows:
        return adds
    known = [[fact for fact in each if fact is not None] for each in zip(*facts, strict=True)]
    passing = [place for place, facts in enumerate(known) if can_pass(facts, filters, schema)]
    return adds.take(pa.array(passing, pa.int64()))


def _partition_facts(adds: pa.Table, name: str, kind: pa.DataType) -> list[Any]:
    facts: dict[Any, Any] = {}
    found = []
    for value in partition_array(adds, name).cast(kind):
        key = value if not value.is_valid else str(value)
        if key not in facts:
            nan = value.is_valid and pa.types.is_floating(kind) and value.as_py() != value.as_py()
            facts[key] = None if nan else equals(name, value)
        found.append(facts[key])
    return found


def _counts(field: pa.Field, filters: Any, schema: pa.Schema) -> bool:
    """Return whether a column's statistics can decide a filter: those of floats leave NaN out."""
    types, kind = pa.types, field.type
    if types.is_floating(kind):
        return not nan_can_pass(field.name, kind, (), filters, schema)
    alike = (types.is_signed_integer, types.is_date32, types.is_timestamp, types.is_string, types.is_decimal)
    return any(test(kind) for test in alike)


class _Bounds:
    """The statistics of one column in each file."""

    def __init__(self, adds: pa.Table, physical: str) -> None:
        self._rows = adds["num_records"].to_pylist()
        self._nulls, self._low, self._high = (_inside(adds, name, physical) for name in ("null_count", "min", "max"))

    def facts(self, field: pa.Field) -> list[Any]:
        """Return what is known of the column in each file; None for nothing."""
        return [self._fact(place, field) for place in range(len(self._rows))]

    def _fact(self, place: int, field: pa.Field) -> Any:
        rows = self._rows[place]
        nulls = None if self._nulls is None else self._nulls[place].as_py()
        if rows is not None and nulls == rows:
            return pc.field(field.name).is_null()
        if self._low is None or self._high is None:
            return None
        low, high = self._low[place], self._high[place]
        if not low.is_valid or not high.is_valid:
            return None
        try:
            low, high = _widened(low, field.type, 0), _widened(high, field.type, _MILLISECOND)
        except pa.ArrowException:  # of another type than the column is now
            return None
        return between(field.name, low, high, nulls=nulls != 0)


def _widened(value: pa.Scalar, kind: pa.DataType, by: int) -> pa.Scalar:
    if not pa.types.is_timestamp(kind):
        return value.cast(kind)
    return pa.scalar(value.cast(kind).value + by, pa.int64()).cast(kind)


def _inside(adds: pa.Table, name: str, physical: str) -> Any:
    """Return a column's part of a struct of statistics; None if it has none."""
    if name not in adds.schema.names:
        return None
    kind = adds.schema.field(name).type
    if kind.get_field_index(physical) < 0:
        return None
    return pa.chunked_array([chunk.field(physical) for chunk in adds[name].chunks], kind.field(physical).type)
