"""A Delta Lake table at one version, as a source of the data files that a filter leaves, and of what commits did."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from torch_table_loader.delta.delta_options import DeltaAddress, path_of
from torch_table_loader.delta.delta_schema import DeltaColumns, read_delta_schema
from torch_table_loader.delta.log import (
    Log,
    LogFiles,
    LogReader,
    actions_of,
    commit_path,
    torn_commit,
)
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.table_formats import (
    Column,
    Commit,
    DataFile,
    Facts,
    FileColumns,
    FileVersion,
    History,
    ListedFiles,
    TableRequest,
    TableStorage,
    predicate_of,
    shown_url,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.delta.vectors import Vector
    from torch_table_loader.table_formats import SnapshotFiles, TableColumns

CHANGES = (
    Column(2_147_483_500, "_change_type", pa.string(), required=True),
    Column(2_147_483_501, "_commit_version", pa.int64(), required=True),
)
"""Columns of a changelog about its rows, under the names of Delta's change data feed."""

_MILLISECOND = 1000
"""Microseconds; writers cut the statistics of times to milliseconds, downwards."""


def read_commits(storage: TableStorage, root: str, start: int, end: int) -> list[Commit]:
    """Read the commits after one version, up to and with another, oldest first."""
    if not 0 <= start <= end:
        raise ConfigError(f"version {start} of {root} must be one of 0 to {end}, the version that is read")
    return [_commit(storage, root, version) for version in range(start + 1, end + 1)]


def _commit(storage: TableStorage, root: str, version: int) -> Commit:
    path = commit_path(root, version)
    try:
        content = storage.read_whole(path)
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
    does: Literal["append", "replace", "change"] = "append"
    if removed:
        does = "change"
    elif removes:
        does = "replace"
    return Commit(version, version - 1, operation, does, added, removed)


@dataclass(slots=True, eq=False, kw_only=True)
class DeltaHistory(History):
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
    def touched(self, commits: Sequence[Commit], last: Commit) -> tuple[Sequence[DataFile], Sequence[DataFile]]:
        added = frozenset[str]().union(*(commit.added for commit in commits))
        removed = frozenset[str]().union(*(commit.removed for commit in commits))
        if removed:
            before, after = self._at(commits[0].id - 1), self._at(commits[-1].id)
            return self._files(before, _of(before, removed)), self._files(after, _of(after, added))
        if not added:
            return (), ()
        after = self._at(last.id)
        return (), self._files(after, self._only(after, added))

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
    allow_locations: Sequence[str] | None = field(default=None, kw_only=True)
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
        reader = LogReader(self.at, storage.retry_seconds, LogFiles(storage, self.at.root), self.filters is not None)
        version, timestamp = chosen.get("version"), chosen.get("timestamp")
        when = None if timestamp is None else self.time_of("timestamp", timestamp)
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
    def _root(self) -> str:
        return self.at.root.rstrip("/")

    def _storage(self) -> TableStorage:
        return TableStorage.at(self.at.root, self.at.options, self.storage_options, self.allow_locations)

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
        if not self.lazy:
            files = self.listed(files, storage)
        shape = json.dumps([log.table_id, log.mode, log.partition_columns, list(log.fields)], sort_keys=True)
        return self.made(
            self._root,
            log.table_id,
            log.version,
            storage=storage,
            files=files,
            schema=schema,
            notes=notes,
            partition_schema=pa.schema([schema.field(name) for name in (*partition, *(each.name for each in changes))]),
            cache=self.cache_of(storage, self.storage_options, shape),
            row_filter=self.filters,
            pinned=pinned,
        )

    def _files(
        self, reader: LogReader, log: Log, storage: TableStorage, columns: DeltaColumns, partition: Sequence[str]
    ) -> tuple[Sequence[DataFile], tuple[str, ...]]:
        """Return the data files that the filter leaves, and notes."""

        def kept(adds: pa.Table) -> pa.Table:
            if self.filters is None:
                return adds
            return kept_files(adds, columns, partition, self.filters)

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
            return history.files(changelog=self.changelog)
        adds = kept(log.adds)
        files, elsewhere = live_files(adds, log.vectors, columns.table, partition, self._root)
        storage.require(elsewhere)
        if self.filters is None:
            return files, ()
        return files, (f"the filter prunes {len(log.adds) - len(adds):,} of {len(log.adds):,} files",)


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
    predicate = predicate_of(filters, schema)
    used = predicate.columns
    values = {name: _partition_scalars(adds, name, schema.field(name).type) for name in used & set(partition)}
    stored = {name: schema.field(name).type for name in (used & columns.physical.keys()) - set(partition)}
    facts = {name: _facts(adds, columns.physical[name], kind) for name, kind in stored.items() if _is_bounded(kind)}
    passing = [
        predicate.can_pass(
            {(name,): known[place] for name, known in facts.items()},
            {name: known[place] for name, known in values.items()},
        )
        for place in range(adds.num_rows)
    ]
    if facts or values:
        return adds.filter(pa.array(passing, pa.bool_()))
    return adds


def _partition_scalars(adds: pa.Table, name: str, kind: pa.DataType) -> list[pa.Scalar | None]:
    """Return the value of a partition column in each file; None for NaN, which equals nothing."""
    values = list(partition_array(adds, name).cast(kind))
    nan = pa.types.is_floating(kind)
    return [None if nan and value.is_valid and math.isnan(value.as_py()) else value for value in values]


def _is_bounded(kind: pa.DataType) -> bool:
    types = pa.types
    alike = (types.is_signed_integer, types.is_floating, types.is_date32, types.is_timestamp, types.is_string)
    return any(test(kind) for test in (*alike, types.is_decimal))


def _facts(adds: pa.Table, physical: str, kind: pa.DataType) -> list[Facts]:
    """Return what the statistics state of a column in each file."""
    nothing = [None] * adds.num_rows
    nulls, low, high = (_inside(adds, name, physical) or nothing for name in ("null_count", "min", "max"))
    rows = adds["num_records"].to_pylist()
    counts = [None if each is None else each.as_py() for each in nulls]
    spare = _MILLISECOND if pa.types.is_timestamp(kind) else 0
    return [Facts.of_statistics(kind, *each, spare=spare) for each in zip(rows, counts, low, high, strict=True)]


def _inside(adds: pa.Table, name: str, physical: str) -> Any:
    """Return a column's part of a struct of statistics; None if it has none."""
    if name not in adds.schema.names:
        return None
    kind = adds.schema.field(name).type
    if kind.get_field_index(physical) < 0:
        return None
    return pa.chunked_array([chunk.field(physical) for chunk in adds[name].chunks], kind.field(physical).type)


_ESCAPED = re.compile(rb"(?:\\u00[0-9A-Fa-f]{2})+")
_PLAIN = re.compile("^[^/:%][^:%]*$")
"""Paths of the log that are relative to the table, and written as they are."""

Pairs = tuple[tuple[str, Any], ...]
"""Column and value of each partition column."""


def live_files(
    adds: pa.Table, vectors: Mapping[str, Vector], columns: TableColumns, partition: Sequence[str], root: str
) -> tuple[ListedFiles, list[str]]:
    """List the data files of a version, in the order of its adds, and the paths of those that lie outside the root.

    `adds` are those of `Log` that a filter leaves; `partition` has the partition columns that can be read.
    """
    paths = adds["path"].to_pylist()
    sizes, rows = (_numbers(adds, name, root) for name in ("size_bytes", "num_records"))
    maker = _FileMaker(columns, root, paths, partition_values(adds, partition), vectors, sizes, rows)
    if len(set(paths)) < len(paths):
        twice = next(path for path, times in Counter(paths).items() if times > 1)
        raise TableError(
            f"a data file must be in a version once, and the log of {root} has {maker.named(twice)[1]} twice, so that "
            "its rows would come twice; fix the table, or read another version"
        )
    deleted = [place for place, path in enumerate(paths) if path in vectors]
    for place in deleted:
        if 0 <= rows[place] < (num_rows := vectors[paths[place]].num_rows):
            raise TableError(
                f"the deletion vector of {maker.named(paths[place])[1]} must delete at most its {rows[place]} rows, "
                f"as the log of {root} says, got {num_rows}; fix the table's log, or read another version"
            )
    files = ListedFiles(sizes, rows, np.array(deleted, dtype=np.int64), maker)
    others = adds["path"].filter(pc.invert(pc.match_substring_regex(adds["path"], _PLAIN.pattern))).to_pylist()
    located = (maker.named(written)[0] for written in others)
    return files, [path for path in located if not path.startswith(f"{root.rstrip('/')}/")]


def _numbers(adds: pa.Table, name: str, root: str) -> NDArray[np.int64]:
    """Return a column of counts; −1 where there is none."""
    column = adds[name].cast(pa.int64())
    least, most = pc.min_max(column).values()
    if least.is_valid and not 0 <= least.as_py() <= most.as_py() <= DataFile.MOST:
        wrong = column.to_numpy()
        place = int(np.flatnonzero((wrong < 0) | (wrong > DataFile.MOST))[0])
        raise TableError(
            f"{name} of {adds['path'][place].as_py()} must be a number from 0 to {DataFile.MOST}, "
            f"got {column[place].as_py()} in the log of {root}; fix the table's log, or read another version"
        )
    found: NDArray[np.int64] = column.fill_null(-1).to_numpy()
    return found


def partition_values(adds: pa.Table, partition: Sequence[str]) -> list[Pairs]:
    """Return the partition values of each file, times as numbers: microseconds since 1970."""
    if not partition:
        return [()] * adds.num_rows
    lists = [_values(adds, name) for name in partition]
    return [tuple(zip(partition, row, strict=True)) for row in zip(*lists, strict=True)]


def partition_array(adds: pa.Table, name: str) -> pa.ChunkedArray:
    """Return the values of a partition column, one for each file."""
    kind = adds.schema.field("partition").type.field(name).type
    array = pa.chunked_array([chunk.field(name) for chunk in adds["partition"].chunks], kind)
    if not pa.types.is_binary(kind):
        return array
    return pa.chunked_array([pa.array([_unescaped(value) for value in array.to_pylist()], kind)])


def _unescaped(value: bytes | None) -> bytes | None:
    r"""Return binary as it was before it was written as the protocol says, which deltalake leaves to its callers.

    >>> _unescaped(rb"\u0001\u00FF"), _unescaped(b"abc")
    (b'\x01\xff', b'abc')
    """
    if value is None or not _ESCAPED.fullmatch(value):
        return value
    return bytes.fromhex(value.replace(rb"\u00", b"").decode("ascii"))


def _values(adds: pa.Table, name: str) -> list[Any]:
    array = partition_array(adds, name)
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    found: list[Any] = array.to_pylist()
    return found


class _FileMaker:
    """Makes files by their numbers; those of one partition share objects that are equal. It pickles."""

    def __init__(
        self,
        columns: TableColumns,
        root: str,
        paths: Sequence[str],
        values: Sequence[Pairs],
        vectors: Mapping[str, Vector],
        sizes: NDArray[np.int64],
        rows: NDArray[np.int64],
    ) -> None:
        self._columns = columns
        self._ids = {column.name: column.field_id for column in columns.current}
        self._root = f"{root.rstrip('/')}/"
        self._paths = paths
        self._values = values
        self._vectors = vectors
        self._sizes, self._rows = sizes, rows
        self._shared: dict[Pairs, FileColumns] = {}
        self._versions: dict[int, FileVersion] = {}

    def named(self, written: str) -> tuple[str, str]:
        """Return a file's path, and its name: relative to the table, or without its protocol; without secrets."""
        if _PLAIN.match(written):  # most are, of which there may be very many
            return self._root + written, written
        path = path_of(self._root, written)
        if path.startswith(self._root):
            return path, path[len(self._root) :]
        return path, shown_url(path).split("://", 1)[-1].lstrip("/")

    def __call__(self, place: int) -> DataFile:
        """Make the file that the log describes."""
        pairs, written = self._values[place], self._paths[place]
        columns = self._shared.get(pairs)
        if columns is None:
            constants = {self._ids[name]: value for name, value in pairs}
            columns = self._shared[pairs] = FileColumns(self._columns, constants)
        path, name = self.named(written)
        num_bytes, num_rows = int(self._sizes[place]), int(self._rows[place])
        version = self._versions.get(num_bytes)
        if version is None:
            version = self._versions[num_bytes] = FileVersion(num_bytes, immutable=True)
        file = DataFile(path, name, version, "parquet", pairs, columns, (), None if num_rows < 0 else num_rows)
        if (vector := self._vectors.get(written)) is None:
            return file
        return replace(file, deletes=(vector.delete_of(file, self._root),))
