"""Tables with snapshots as sources of data files; what all their formats have in common.

A table format lists its commits, and the files that each touched. What the commits between two snapshots did, the rows
that were appended, or all that came and went, is the same for all formats.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

import pyarrow as pa

from torch_table_loader.errors import ConfigError, ConfigTypeError, TableError
from torch_table_loader.planning.listed_files import ListedFiles, packed
from torch_table_loader.records import Column

if TYPE_CHECKING:
    from torch_table_loader.records import DataFile, DeleteFile, FileColumns
    from torch_table_loader.source.plan_cache import PlanCache
    from torch_table_loader.source.table_storage import TableStorage

T = TypeVar("T")

_DECIMAL = re.compile(r"decimal\(\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\)")
_MOST_DIGITS = 38


@dataclass(frozen=True, kw_only=True)
class SnapshotFiles:
    """A table at one snapshot, with its files planned (implements `contracts.HistorySource`).

    Args:
        files: the data files, oldest first, then by path.
        fingerprint: a hash of the table's id and the snapshot's.
        snapshot_id: None for a table without a snapshot, which is empty.
        row_filter: the filter that rows must pass: the caller's filters, joined.
        pin: the argument that chooses a snapshot, for messages.
        pinned: whether the caller chose the snapshot.
        request: how the table was found, to open it at another snapshot; None in another process.
        start_snapshot_id: if only appended rows are read, the snapshot after which they were appended; else None.
        changelog: whether rows deleted after it are read as well, with the kind of change of each row.
        deletes: what reads them and knows those that were read (`read.deletes.Deletes`), of a dataset that this was
            made of; None for a table that was just opened.
    """

    storage: TableStorage
    files: Sequence[DataFile]
    schema: pa.Schema
    fingerprint: str
    snapshot_id: int | None
    description: str
    notes: tuple[str, ...]
    partition_schema: pa.Schema
    cache: PlanCache | None = field(repr=False, compare=False)
    row_filter: Any = field(repr=False, compare=False)
    pin: str
    pinned: bool
    request: TableRequest | None = field(repr=False, compare=False)
    start_snapshot_id: int | None
    changelog: bool
    deletes: Any = field(default=None, repr=False, compare=False)

    def at_snapshot(self, snapshot_id: int) -> SnapshotFiles:
        """Return the same table at another snapshot (`contracts.TimeTravelSource`)."""
        if self.request is None:
            raise ConfigError(
                f"{self.description} was opened in another process, and stays at its {self.pin.removesuffix('_id')}"
            )
        return replace(self.request.open({self.pin: snapshot_id}), pinned=self.pinned)

    def asked_anew(self, columns: Sequence[str] | None, filters: Any, part: Any = None) -> SnapshotFiles:
        """Return the same snapshot for other options; its files are planned again only where these may need others.

        Args:
            columns: the columns to read; None for all.
            filters: the caller's whole filter.
            part: what `filters` has beyond this source's own filter, if it only has more.
        """
        if self.request is None:
            raise ConfigError(f"{self.description} was opened in another process; ask the dataset there")
        request = replace(self.request, columns=columns, filters=filters)
        if not (columns == self.request.columns or (columns and set(columns) <= set(self.schema.names))):
            return self._planned_anew(request)
        if part is not None:
            rows = part if self.row_filter is None else self.row_filter & part
        elif _same(filters, self.request.filters):
            rows = self.row_filter
        elif self.row_filter is None:
            rows = filters
        else:
            return self._planned_anew(request)
        return replace(self, request=request, row_filter=rows)

    def _planned_anew(self, request: TableRequest) -> SnapshotFiles:
        found = request.open({self.pin: self.snapshot_id})
        if found.fingerprint != self.fingerprint:
            raise TableError(f"{self.description} is another table by now; open it anew")
        return replace(found, pinned=self.pinned)

    def changes_since(self, snapshot_id: int) -> Sequence[str]:
        """Describe commits after another snapshot that did more than append (`contracts.HistorySource`)."""
        if self.request is None or self.snapshot_id is None:
            return ()
        try:
            commits = self.request.commits(snapshot_id, self.snapshot_id)
        except ConfigError as error:
            return [str(error)]
        noun = self.pin.removesuffix("_id")
        return [f"{noun} {each.id}: {each.operation}" for each in commits if each.does != "append"]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what reopens the table: catalogs may not be picklable."""
        return {**self.__dict__, "request": None}


@dataclass(frozen=True, kw_only=True, eq=False)
class TableRequest(ABC):
    """The caller's table, and which part of it to read.

    Args:
        columns: the columns to read; None for all.
        filters: a pyarrow Expression, or None.
        plan_cache: a directory that keeps plans, footers and counts.
        start: an older snapshot; only rows appended after it are read.
        changelog: whether to read all rows added or deleted after it.
    """

    columns: Sequence[str] | None = None
    filters: Any = None
    plan_cache: str | None = None
    start: int | None = None
    changelog: bool = False

    pin: ClassVar[str]
    """The argument that chooses a snapshot."""

    format: ClassVar[str]
    title: ClassVar[str]

    @abstractmethod
    def open(
        self, chosen: Mapping[str, Any], agree: Callable[[str, Any], Any] = lambda _, value: value
    ) -> SnapshotFiles:
        """Return the table at a snapshot, with its files planned.

        Args:
            chosen: the arguments that choose a snapshot; those that are None choose none.
            agree: takes this rank's value of a name, and returns rank 0's value.

        Raises:
            ConfigError: there is no such table or snapshot, or a filter does not fit it, or the commits after `start`
                include some that cannot be read.
            TableError: the metadata is missing, damaged, or needs more than this library reads.
            StorageError: the store failed.
        """

    @abstractmethod
    def commits(self, start: int, end: int) -> Sequence[Commit]:
        """Return the commits after one snapshot, up to and with another."""

    def made(self, name: str, table_id: str, snapshot_id: int | None, **known: Any) -> SnapshotFiles:
        """Return the source of a snapshot; `name` is the table's, without secrets.

        `known` has the other fields of `SnapshotFiles`.
        """
        noun, form = self.pin.removesuffix("_id"), "1"
        at = f"no {noun} (an empty table)" if snapshot_id is None else f"{noun} {snapshot_id}"
        ids: list[Any] = [table_id, snapshot_id]
        if self.start is not None:
            did, form = "appended", "appended 1"
            if self.changelog:
                did, form = "changed", "changelog 1"
            at += f", rows {did} after {noun} {self.start}"
            ids.insert(1, self.start)
        which = "\n".join([f"{self.format} {form}", *map(str, ids)])
        return SnapshotFiles(
            fingerprint=hashlib.sha256(which.encode()).hexdigest(),
            snapshot_id=snapshot_id,
            description=f"{self.title} {name} ({table_id}), {at}",
            pin=self.pin,
            request=self,
            start_snapshot_id=self.start,
            changelog=self.changelog,
            **known,
        )

    def cache_of(
        self, storage: TableStorage, storage_options: Mapping[str, Any] | None, shape: str | None = None
    ) -> PlanCache | None:
        """Open the plan cache for the table; None where the caller wants none.

        Args:
            shape: all that the schema is now, where files know columns by name, which another column may have had
                before; None where they know them by id.
        """
        if self.plan_cache is None:
            return None
        from torch_table_loader.source.plan_cache import PlanCache

        scope = storage.place
        if shape is not None:
            scope += f" {self.format} {hashlib.sha256(shape.encode()).hexdigest()}"
        return PlanCache.open(self.plan_cache, storage_options, scope)

    @staticmethod
    def cached(
        cache: PlanCache | None,
        key: str,
        make: Callable[[], T],
        write: Callable[[T], bytes | None],
        read: Callable[[bytes], T],
    ) -> T:
        """Return what the plan cache keeps under a key, which must say all that it depends on; make it if it has none.

        Args:
            write: returns it as bytes; None for what must not be kept, because it has secrets.
            read: returns what `write` wrote.
        """
        if cache is None:
            return make()
        if (data := cache.get_note(key)) is not None:
            return read(data)
        made = make()
        if (data := write(made)) is not None:
            cache.put_note(key, data)
        return made

    @staticmethod
    def listed(files: Sequence[DataFile], storage: TableStorage) -> Sequence[DataFile]:
        """Return the files as columns, because they are most of the memory of a lazy plan of very many files.

        If a query costs nothing, get each file's version, to notice one that is missing or overwritten. No two of these
        files have much in common then, so columns would save little.
        """
        if storage.is_local:
            return tuple(replace(file, version=storage.version(file.path)) for file in files)
        if isinstance(files, ListedFiles):
            return files
        return packed(files)

    @staticmethod
    def time_of(name: str, value: Any, kinds: str = "a datetime or ISO text") -> dt.datetime:
        """Check a point in time that chooses a snapshot; `name` is the argument that gives it."""
        if isinstance(value, str):
            try:
                value = dt.datetime.fromisoformat(value)
            except ValueError as error:
                raise ConfigError(f"{name} must look like '2026-01-31T12:00:00+00:00', got {value!r}") from error
        if not isinstance(value, dt.datetime):
            raise ConfigTypeError(f"{name} must be {kinds}, got {type(value).__name__}")
        if value.tzinfo is None:
            raise ConfigError(f"{name} must say its time zone, got {value.isoformat()}; add +00:00 for UTC")
        return value

    @staticmethod
    def shown_time(milliseconds: int) -> str:
        """Format a time since the epoch for a message."""
        try:
            return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC).isoformat()
        except (ValueError, OverflowError, OSError):  # beyond the range of calendars
            return f"{milliseconds} ms"

    def refuse_unreadable(self, unreadable: Mapping[str, str], place: str) -> None:
        """Refuse to read columns that are unreadable: their types, by name, are none that this library reads.

        `place` says where the schema stands.
        """
        for name, kind in unreadable.items():
            if self.columns is None or name in self.columns:
                raise TableError(
                    f"column {name!r} is of the type {kind}, which this library does not read, as {place} says; name "
                    "other columns in columns="
                )

    def changes(self, own: Iterable[str], changes: Sequence[Column]) -> Sequence[Column]:
        """Return the columns that the format's changelogs add to the table's own; none if a table is read as it is."""
        if not self.changelog:
            return ()
        names = set(own)
        if taken := [column.name for column in changes if column.name in names]:
            raise ConfigError(f"a changelog adds a column {taken[0]!r}, and the table has one of that name; rename it")
        return changes


def _same(one: Any, other: Any) -> bool:
    return one is other or (one is not None and other is not None and one.equals(other))


class UnreadableTypeError(Exception):
    """A column has a type that this library does not read; the message is the type's name."""


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of columns, in their order."""
    return pa.schema([_arrow_field(column) for column in columns])


@dataclass(frozen=True, slots=True)
class Types:
    """The types of a table format, by which fields of its schemas become columns.

    Args:
        primitives: Arrow's types of those without parameters, by name.
        others: returns Arrow's type of another one by its name, as the format writes it; None if it knows none.
    """

    primitives: Mapping[str, pa.DataType]
    others: Callable[[str], pa.DataType | None] = lambda _: None

    def primitive(self, kind: str) -> pa.DataType:
        """Return Arrow's type of one that has nothing inside: one of the format's, or a decimal.

        >>> Types({}).primitive("decimal(9, 2)")
        Decimal128Type(decimal128(9, 2))
        """
        known = self.primitives.get(kind)
        if known is None:
            known = self.others(kind)
        if known is not None:
            return known
        if (match := _DECIMAL.fullmatch(kind)) and 0 < int(match[1]) <= _MOST_DIGITS and int(match[2]) <= int(match[1]):
            return pa.decimal128(int(match[1]), int(match[2]))
        raise UnreadableTypeError(kind)

    @staticmethod
    def nested(kind: str, children: Sequence[Column]) -> pa.DataType:
        """Return Arrow's type of a "struct" or "map", or of a list, whatever the format calls it."""
        fields = [_arrow_field(child) for child in children]
        if kind == "struct":
            return pa.struct(fields)
        if kind == "map":
            return pa.map_(*fields)
        return pa.list_(fields[0])

    @staticmethod
    def readable(fields: Mapping[str, Callable[[], T]]) -> tuple[list[T], dict[str, str]]:
        """Read the top level of a schema, given a function that reads each field.

        Returns:
            What can be read, and the types of the fields that cannot, by name.
        """
        found: list[T] = []
        unreadable: dict[str, str] = {}
        for name, read in fields.items():
            try:
                found.append(read())
            except UnreadableTypeError as error:
                unreadable[name] = str(error)
        return found, unreadable


def _arrow_field(column: Column) -> pa.Field:
    return pa.field(column.name, column.type, nullable=not column.required)


class Commit(NamedTuple):
    """What made the snapshot `id` from its parent, which is None for the first.

    Args:
        operation: as the commit says; "unknown" if it says none.
        does: whether it only appends files; or replaces files by others with the same rows; or changes rows.
        added: the paths of files whose rows it says are new; empty if only the snapshot's listing tells.
        removed: the paths of files with which it says that rows left, or were changed; empty likewise.
    """

    id: int
    parent: int | None
    operation: str
    does: Literal["append", "replace", "change"]
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False, kw_only=True)
class History(ABC):
    """The commits after one snapshot, up to and with another, oldest first."""

    storage: TableStorage
    place: str
    start: int
    end: int | None
    commits: Sequence[Commit]
    filtered: bool
    pruned: set[str] = field(default_factory=set, init=False)
    """The paths of files that a filter leaves out, whatever happened to their rows."""

    pin: ClassVar[str]
    """The argument that chooses a snapshot."""

    columns: ClassVar[tuple[Column, ...]]
    """What a changelog says of its rows. No file has columns of these ids."""

    went: ClassVar[str]
    came: ClassVar[str]

    @abstractmethod
    def touched(self, commits: Sequence[Commit], last: Commit) -> tuple[Sequence[DataFile], Sequence[DataFile]]:
        """Return the files of which commits may have changed rows, as they were before and after them, in order.

        They are one commit, or a run (see `_runs`). Each file has the deletes that applied then. `pruned` gets those
        that a filter leaves out. `last` is the last of the commits after them that only append.
        """

    def files(self, *, changelog: bool) -> tuple[tuple[DataFile, ...], tuple[str, ...]]:
        """Return the files whose rows were appended or, for a changelog, came or went, and notes."""
        found, what = self._appended(), "files"
        columns: Sequence[Column] = ()
        if changelog:
            found, what, columns = self._changes(), "changed files", self.columns
        changes = list(found)
        kept = [(file, values) for file, values in changes if file.path not in self.pruned]
        self.storage.require(file.path for file, _ in kept)
        self.storage.require(delete.file.path for file, _ in kept for delete in file.deletes)
        notes = []
        replaced = [str(commit.id) for commit in self.commits if commit.does == "replace"]
        if replaced and not changelog:
            notes.append(f"nothing is read from {self._noun}s {', '.join(replaced)}, which replace files")
        if self.filtered:
            pruned = len(changes) - len(kept)
            notes.append(f"the filter prunes {pruned:,} of {len(changes):,} {what} by partition values and statistics")
        return _marked(kept, columns), tuple(notes)

    def _appended(self) -> Iterator[tuple[DataFile, tuple[Any, ...]]]:
        """Yield each file whose rows were appended.

        A commit that replaces files by others with the same rows is skipped: rows appended before it are read from the
        files with which they were appended.
        """
        for commit in self.commits:
            if commit.does == "change":
                raise ConfigError(
                    f"{self._noun} {commit.id} of {self.place}, between {self.start} and {self.end}, removes or "
                    f"changes rows ({commit.operation}), and only rows that were appended can be read by themselves; "
                    f"{self._around(commit)}, or what came and what went (changelog=True), or the whole table"
                )
        for run in _runs(self.commits):
            before, after = self.touched(run, run[-1])
            if before:
                gone = {file.path for file in before} - {file.path for file in after}
                was, now = ({_identity(each) for file in files for each in file.deletes} for files in (before, after))
                did = f"{len(gone)} files are gone" if gone else f"{len(now - was)} delete files were added"
                raise TableError(
                    f"the {self._noun}s after {run[0].parent} up to {run[-1].id} say that they append, but {did}; the "
                    "writer broke the format: read the whole table instead"
                )
            yield from ((file, ()) for file in after)

    def _changes(self) -> Iterator[tuple[DataFile, tuple[Any, ...]]]:
        """Yield each file whose rows came or went, with what the changelog says of them, commit by commit.

        A file comes once for each change of its rows. Of one commit come the rows that went, then those that came. A
        commit that replaces files by others with the same rows changes none.
        """
        ordinal = 0
        for run in _runs(self.commits):
            for commit in run:
                before, after = self.touched([commit], run[-1])
                self._refuse_keys(commit, before, after)
                for kind, here, there in ((self.went, before, after), (self.came, after, before)):
                    known = {"_change_type": kind, "_change_ordinal": ordinal}
                    values = tuple(known.get(column.name, commit.id) for column in self.columns)
                    yield from ((file, values) for file in _rows_without(here, there))
                ordinal += commit.does != "replace"

    def _refuse_keys(self, commit: Commit, before: Sequence[DataFile], after: Sequence[DataFile]) -> None:
        """Refuse a commit by which other keys are deleted from a file than before."""
        was = {file.path: _keys(file) for file in before}
        for file in after:
            if was.get(file.path, now := _keys(file)) != now:
                raise ConfigError(
                    f"{self._noun} {commit.id} deletes rows of {file.name}, and maybe of others, by equality deletes, "
                    "which say keys and not rows: a changelog cannot tell which rows went without reading all that "
                    f"were there; {self._around(commit)}, or the whole table"
                )

    def _around(self, commit: Commit) -> str:
        """Say how to read what happened before and after a commit."""
        return (
            f"read up to the {self._noun} before it (end_{self.pin}={commit.parent}) and from it on "
            f"(start_{self.pin}={commit.id})"
        )

    @property
    def _noun(self) -> str:
        return self.pin.removesuffix("_id")


def _runs(commits: Sequence[Commit]) -> list[list[Commit]]:
    """Return runs of commits in which no file leaves after it was appended: only the first may do more than append."""
    runs: list[list[Commit]] = []
    for commit in commits:
        if runs and commit.does == "append":
            runs[-1].append(commit)
        else:
            runs.append([commit])
    return runs


def _rows_without(files: Sequence[DataFile], others: Sequence[DataFile]) -> Iterator[DataFile]:
    """Yield files with those of their live rows that do not live in the other files."""
    there = {file.path: file for file in others}
    for file in files:
        if (other := there.get(file.path)) is None:
            yield file
            continue
        known = set(map(_identity, file.deletes))
        only = [replace(each, keeps=True) for each in other.deletes if _identity(each) not in known]
        if only:
            yield replace(file, deletes=(*file.deletes, *only))


def _identity(delete: DeleteFile) -> Hashable:
    return delete.file.path, delete.blob, delete.inline


def _keys(file: DataFile) -> frozenset[str]:
    return frozenset(delete.file.path for delete in file.deletes if delete.kind == "equality")


def _marked(changed: Iterable[tuple[DataFile, tuple[Any, ...]]], columns: Sequence[Column]) -> tuple[DataFile, ...]:
    """Return files, each with the changelog's values for all its rows.

    A file that comes several times gets another name each time, since plans and states know files by their names.
    """
    files: list[DataFile] = []
    times: dict[str, int] = {}
    shared: dict[tuple[FileColumns, tuple[Any, ...]], FileColumns] = {}
    for file, values in changed:
        assert file.columns is not None  # noqa: S101 tables with changelogs find columns by ids
        times[file.name] = nth = times.get(file.name, 0) + 1
        key = (file.columns, values)
        if key not in shared:
            constants = {column.field_id: value for column, value in zip(columns, values, strict=True)}
            shared[key] = replace(file.columns, constants={**file.columns.constants, **constants})
        pairs = tuple((column.name, value) for column, value in zip(columns, values, strict=True))
        name = file.name
        if nth > 1:
            name += f"#{nth}"
        files.append(replace(file, name=name, columns=shared[key], partition=(*file.partition, *pairs)))
    return tuple(files)
