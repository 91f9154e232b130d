"""Tables with snapshots as sources of data files; what all their formats have in common."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pyarrow as pa

from torch_table_loader.errors import ConfigError, ConfigTypeError, TableError
from torch_table_loader.planning.listed_files import ListedFiles, packed
from torch_table_loader.records import Column

if TYPE_CHECKING:
    from torch_table_loader.records import DataFile
    from torch_table_loader.source.history import Commit
    from torch_table_loader.source.plan_cache import PlanCache
    from torch_table_loader.source.table_storage import TableStorage


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
        noun, did = self.pin.removesuffix("_id"), "changed" if self.changelog else "appended"
        at = f"no {noun} (an empty table)" if snapshot_id is None else f"{noun} {snapshot_id}"
        ids: list[Any] = [table_id, snapshot_id]
        form = "1"
        if self.start is not None:
            at += f", rows {did} after {noun} {self.start}"
            form = "changelog 1" if self.changelog else "appended 1"
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


def listed(files: Sequence[DataFile], storage: TableStorage) -> Sequence[DataFile]:
    """Return the files as columns, because they are most of the memory of a lazy plan of very many files.

    If a query costs nothing, get each file's version, to notice one that is missing or overwritten. No two of these
    files have much in common then, so columns would save little.
    """
    if storage.is_local:
        return tuple(replace(file, version=storage.version(file.path)) for file in files)
    return files if isinstance(files, ListedFiles) else packed(files)


def read_time(name: str, value: Any, kinds: str = "a datetime or ISO text") -> dt.datetime:
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


def shown_time(milliseconds: int) -> str:
    """Format a time since the epoch for a message."""
    try:
        return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC).isoformat()
    except (ValueError, OverflowError, OSError):  # beyond the range of calendars
        return f"{milliseconds} ms"


T = TypeVar("T")

_DECIMAL = re.compile(r"decimal\(\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\)")
_MOST_DIGITS = 38


class UnreadableTypeError(Exception):
    """A column has a type that this library does not read; the message is the type's name."""


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of columns, in their order."""
    return pa.schema([_arrow_field(column) for column in columns])


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


def primitive_type(kind: str, known: Mapping[str, pa.DataType]) -> pa.DataType:
    """Return the Arrow type of a primitive type: one of the format's types without parameters, or a decimal.

    >>> primitive_type("decimal(9, 2)", {})
    Decimal128Type(decimal128(9, 2))
    """
    if kind in known:
        return known[kind]
    if (match := _DECIMAL.fullmatch(kind)) and 0 < int(match[1]) <= _MOST_DIGITS and int(match[2]) <= int(match[1]):
        return pa.decimal128(int(match[1]), int(match[2]))
    raise UnreadableTypeError(kind)


def nested_type(kind: str, children: Sequence[Column]) -> pa.DataType:
    """Return the Arrow type of a "struct" or "map", or of a list, whatever the format calls it."""
    fields = [_arrow_field(child) for child in children]
    if kind == "struct":
        return pa.struct(fields)
    return pa.map_(*fields) if kind == "map" else pa.list_(fields[0])


def _arrow_field(column: Column) -> pa.Field:
    return pa.field(column.name, column.type, nullable=not column.required)
