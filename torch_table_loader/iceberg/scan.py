"""The files of a snapshot, each with the deletes that apply to it (https://iceberg.apache.org/spec/#scan-planning)."""

from __future__ import annotations

import datetime as dt
import math
import struct
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from pyiceberg.utils.datetime import datetime_to_micros

from torch_table_loader.errors import TableError
from torch_table_loader.iceberg.manifests import (
    EQUALITY_DELETES,
    PATH_FIELD,
    POSITION_DELETES,
    POSITION_FIELD,
    Entry,
    Spans,
    by_id,
    partition_key,
)
from torch_table_loader.table_formats import (
    DataFile,
    DeleteFile,
    Facts,
    FileColumns,
    FileVersion,
    TableColumns,
    shown_url,
)

if TYPE_CHECKING:
    from torch_table_loader.iceberg.manifests import Raw
    from torch_table_loader.iceberg.metadata import Schema, SpecField

FORMATS = {"PARQUET": "parquet", "ORC": "orc", "AVRO": "avro", "PUFFIN": "puffin"}
_MAY_HIDE = frozenset("@?#")
"""A URL without any of these has no login, query or fragment."""

_REWRITE = "the writer broke the format: write the table's metadata again, or read an older snapshot"
T = TypeVar("T")
_Scope = tuple[int, tuple[Any, ...]]
"""Spec and partition values."""

_FLOATS = ("float", "double")
_LENGTHS = {
    "boolean": (1,),
    "int": (4, 8),
    "long": (4, 8),
    "date": (4,),
    "float": (4,),
    "double": (4, 8),
    **dict.fromkeys(("time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), (8,)),
}
"""How many bytes bounds have, by type; those of other types have any."""

_STATISTICS = ("lower_bounds", "upper_bounds", "null_value_counts", "nan_value_counts", "value_counts")


@dataclass(frozen=True, slots=True, eq=False)
class Naming:
    """How manifest entries become files: named relative to the table's root, with the columns of its partition specs.

    `names` has the names of the table's columns, by id.
    """

    location: str
    columns: TableColumns
    specs: Mapping[int, Sequence[SpecField]]
    names: Mapping[int, str]
    _known: dict[Any, tuple[FileColumns, tuple[tuple[str, Any], ...]]] = field(default_factory=dict, init=False)

    def name_of(self, path: str) -> str:
        """Return a path relative to the table or, for a file elsewhere, without its protocol; without secrets."""
        root = self.location + "/"
        if not _MAY_HIDE.isdisjoint(path):
            root, path = shown_url(root), shown_url(path)
        if path.startswith(root):
            return path[len(root) :]
        if "://" in path:
            return path.partition("://")[2].lstrip("/")
        return path.partition(":")[2].lstrip("/") or path

    def is_unpartitioned(self, entry: Entry) -> bool:
        """Return whether an entry's spec has no field that divides rows."""
        return all(each.transform == "void" for each in self.fields_of(entry))

    def fields_of(self, entry: Entry) -> Sequence[SpecField]:
        """Return the fields of an entry's partition spec."""
        fields = self.specs.get(entry.spec_id)
        if fields is None:
            raise TableError(
                f"the manifest of {self.name_of(entry.path)} must be of a partition spec of the table, which has "
                f"{', '.join(map(str, sorted(self.specs))) or 'none'}, got {entry.spec_id}; {_REWRITE}"
            )
        if len(fields) != len(entry.partition):
            raise TableError(
                f"the manifest must give {self.name_of(entry.path)} a partition value for each of the {len(fields)} "
                f"fields of the partition spec {entry.spec_id}, got {len(entry.partition)}; {_REWRITE}"
            )
        return fields

    def file_of(self, entry: Entry, name: str | None = None, deletes: tuple[DeleteFile, ...] = ()) -> DataFile:
        """Build a file from an entry."""
        name = name or self.name_of(entry.path)
        if entry.format not in FORMATS:
            raise TableError(f"{name} is of the format {entry.format}, which this library does not read")
        columns, partition = self._columns(entry)
        version = FileVersion(entry.num_bytes, immutable=True)
        counts = (entry.num_rows, entry.split_offsets)
        return DataFile(entry.path, name, version, FORMATS[entry.format], partition, columns, deletes, *counts)

    def _columns(self, entry: Entry) -> tuple[FileColumns, tuple[tuple[str, Any], ...]]:
        """Return how an entry's columns are found, and its partition values; many files share one object."""
        key = (entry.spec_id, partition_key(entry.partition), entry.sequence_number, entry.first_row_id)
        known = self._known.get(key)
        if known is None:
            constants = self._constants(entry)
            columns = FileColumns(self.columns, constants, entry.first_row_id, entry.sequence_number)
            known = columns, tuple((self.names[i], value) for i, value in constants.items() if i in self.names)
            if entry.first_row_id is None:
                self._known[key] = known
        return known

    def _constants(self, entry: Entry) -> dict[int, Any]:
        fields = self.fields_of(entry)
        return {
            field.source_id: constant(value)
            for field, value in zip(fields, entry.partition, strict=True)
            if field.transform == "identity" and field.source_id is not None
        }


def constant(value: Any) -> Any:
    """Return a partition value in the form that pyarrow takes.

    >>> constant(UUID(int=1))[-1]
    1
    """
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return datetime_to_micros(value)
    return value


_number_of = attrgetter("sequence_number")


def _by_number(entries: Mapping[T, Iterable[Entry]]) -> dict[T, list[Entry]]:
    """Return each group in the order of sequence numbers."""
    return {key: sorted(group, key=attrgetter("sequence_number", "path")) for key, group in entries.items()}


def _since(entries: Sequence[Entry], number: int) -> Sequence[Entry]:
    """Return those of this commit and later ones."""
    return entries[bisect_left(entries, number, key=_number_of) :]


def _after(entries: Sequence[Entry], number: int) -> Sequence[Entry]:
    """Return those of later commits."""
    return entries[bisect_right(entries, number, key=_number_of) :]


class DeleteIndex:
    """Finds the deletes that apply to a data file."""

    def __init__(self, entries: Iterable[Entry], naming: Naming) -> None:
        """Group the entries of a snapshot's delete manifests by the data files that they may apply to."""
        vectors: dict[str, list[Entry]] = defaultdict(list)
        by_path: dict[str, list[Entry]] = defaultdict(list)
        positions: dict[_Scope, list[Entry]] = defaultdict(list)
        keys: dict[_Scope | None, list[Entry]] = defaultdict(list)
        for entry in entries:
            scope = (entry.spec_id, entry.partition)
            if entry.content == EQUALITY_DELETES:
                keys[None if naming.is_unpartitioned(entry) else scope].append(entry)
            elif is_vector(entry):
                vectors[_vector_target(entry)].append(entry)
            elif (path := only_path(entry)) is not None:
                by_path[path].append(entry)
            else:
                positions[scope].append(entry)
        self._vectors = vectors
        self._by_path, self._positions, self._keys = _by_number(by_path), _by_number(positions), _by_number(keys)
        self._naming = naming
        self._made: dict[int, DeleteFile] = {}

    def deletes_of(self, entry: Entry) -> tuple[DeleteFile, ...]:
        """Return the deletes that apply to a data file."""
        scope, number = (entry.spec_id, entry.partition), entry.sequence_number
        found = list(self._vectors.get(entry.path, ()))
        if len(found) > 1:
            raise TableError(
                f"{self._naming.name_of(entry.path)} must have at most one deletion vector in a snapshot, got "
                f"{len(found)}; the writer broke the format: write the table's deletes again"
            )
        if found and found[0].sequence_number < number:
            raise TableError(
                f"the deletion vector of {self._naming.name_of(entry.path)} must be as new as the file, which is of "
                f"the sequence number {number}, got {found[0].sequence_number}; the writer broke the format: write the "
                "table's deletes again"
            )
        if found and entry.num_rows is not None and (found[0].num_rows or 0) > entry.num_rows:
            raise TableError(
                f"the deletion vector of {self._naming.name_of(entry.path)} must delete at most its {entry.num_rows} "
                f"rows, got {found[0].num_rows}; the writer broke the format: write the table's deletes again"
            )
        if not found:
            found = list(_since(self._by_path.get(entry.path, ()), number))
            found += [each for each in _since(self._positions.get(scope, ()), number) if _may_name(each, entry.path)]
        for where in (scope, None):
            # All of them or none, so that one set of keys serves the files of all commits.
            later = _after(self._keys.get(where, ()), number)
            if any(may_meet(each.spans, entry.spans) for each in later):
                found += later
        return tuple(self._file(each) for each in found)

    def _file(self, entry: Entry) -> DeleteFile:
        if id(entry) not in self._made:
            self._made[id(entry)] = self._make(entry)
        return self._made[id(entry)]

    def _make(self, entry: Entry) -> DeleteFile:
        file, info = self._naming.file_of(entry), entry.deletes
        num_rows = entry.num_rows
        assert info is not None  # noqa: S101 of a delete file both are there
        assert num_rows is not None  # noqa: S101
        if entry.content == EQUALITY_DELETES:
            if not info.key_ids:
                raise TableError(f"the equality delete file {file.name} must name its key columns, and names none")
            everywhere = self._naming.is_unpartitioned(entry)
            return DeleteFile(file, "equality", num_rows, info.key_ids, everywhere=everywhere)
        if file.format == "puffin":
            return DeleteFile(file, "vector", num_rows, blob=info.blob)
        return DeleteFile(file, "position", num_rows, (PATH_FIELD, POSITION_FIELD))


def listed_twice(name: str) -> TableError:
    """Return the error for a data file that manifests of one snapshot list twice."""
    return TableError(
        f"a data file must be in a snapshot once, and its manifests list {name} twice, so that its rows would come "
        "twice; delete the file from the table and add it once, or read an older snapshot"
    )


def plan_files(data: Iterable[Entry], deletes: DeleteIndex, naming: Naming) -> tuple[DataFile, ...]:
    """Build the data files of a snapshot, in an order that is the same on every rank: oldest first, then by path."""
    files: list[DataFile] = []
    seen: dict[str, int] = {}
    paths: set[str] = set()
    for entry in sorted(data, key=lambda each: (each.sequence_number, each.path)):
        name = naming.name_of(entry.path)
        if entry.path in paths:
            raise listed_twice(name)
        paths.add(entry.path)
        seen[name] = times = seen.get(name, 0) + 1
        if times > 1:  # two roots have a file of this name
            name += f"#{times}"
        files.append(naming.file_of(entry, name, deletes.deletes_of(entry)))
    return tuple(files)


def _vector_target(entry: Entry) -> str:
    info = entry.deletes
    if info is None or info.target is None or info.blob is None:
        raise TableError(
            f"the manifest must say of which data file {shown_url(entry.path)} deletes rows, and where in it the "
            "deletion vector lies, and does not; the writer broke the format: write the table's deletes again"
        )
    return info.target


def is_vector(entry: Entry) -> bool:
    """Return whether a file holds deletion vectors."""
    return entry.content == POSITION_DELETES and entry.format == "PUFFIN"


def only_path(entry: Entry) -> str | None:
    """Return the one data file that a position delete file names, if the manifest has it."""
    info = entry.deletes
    if info is None or info.target is not None:
        if info is None:
            return None
        return info.target
    low, high = info.paths
    if low is None or low != high:
        return None
    try:
        return bytes(low).decode("utf-8")
    except UnicodeDecodeError:
        return None


def _may_name(entry: Entry, path: str) -> bool:
    """Return whether a position delete file's bounds allow it to name a path; truncated upper bounds are larger."""
    if entry.deletes is None:
        return True
    encoded = path.encode("utf-8")
    low, high = entry.deletes.paths
    if low is not None and high is not None and low > high:
        return True  # a writer broke the format
    return (low is None or low <= encoded) and (high is None or encoded <= high)


@dataclass(frozen=True, slots=True)
class KeySpans:
    """Reads the statistics of key columns from manifests.

    Args:
        types: Iceberg types of the schema's top-level columns, by id.
        required: the columns that are never null.
        ids: the columns that are keys of some delete, needed for data files.
    """

    types: Mapping[int, str]
    required: frozenset[int]
    ids: frozenset[int] = frozenset()

    @classmethod
    def of(cls, schema: Schema) -> KeySpans:
        """Build from a schema."""
        plain = {field["id"]: field["type"] for field in schema.fields if isinstance(field["type"], str)}
        return cls(plain, frozenset(field["id"] for field in schema.fields if field["required"]))

    def read(self, raw: Raw) -> Spans:
        """Read a file's statistics: an equality delete's of its keys, a data file's of the columns in `ids`."""
        wanted: Iterable[int] = self.ids
        if raw.get("content") == EQUALITY_DELETES:
            wanted = raw.get("equality_ids") or ()
        known = sorted(field_id for field_id in wanted if field_id in self.types)
        if not known:
            return ()
        read = facts_of(raw)
        return tuple((field_id, read(field_id, self.types[field_id], field_id in self.required)) for field_id in known)


def facts_of(raw: Raw) -> Callable[[int, str, bool], Facts]:
    """Return what gives the facts of a column in a file, by id, from its type and whether it is never null."""
    lows, highs, nulls, nans, counts = (by_id(raw, name) for name in _STATISTICS)
    rows = raw["record_count"]

    def read(field_id: int, kind: str, required: bool) -> Facts:
        # If the file lacks the column, no count can be trusted: its rows have null there, or the default.
        missing = others = None
        if counts.get(field_id) == rows:
            missing = nulls.get(field_id)
        if missing is not None:
            others = missing + (nans.get(field_id) or 0)
        found = Facts(
            bound(lows.get(field_id), kind),
            bound(highs.get(field_id), kind),
            nulls=not required and missing != 0,
            nans=kind in _FLOATS and nans.get(field_id) != 0,
            values=others != rows or field_id in lows or field_id in highs,
        )
        return found.sound()

    return read


def bound(data: bytes | None, kind: str) -> Any:
    r"""Read a bound as `Facts` has them; None if there is none, or it does not compare.

    Writers order UUIDs in two ways. The encoding is https://iceberg.apache.org/spec/#binary-single-value-serialization.

    >>> bound(b"\x05\0\0\0", "long"), bound(b"\xff", "decimal(9, 2)"), bound(b"ab", "string")
    (5, -1, 'ab')
    """
    # A promoted column has bounds of its former width; days that became instants cannot be compared with them.
    if data is None or len(data) not in _LENGTHS.get(kind, (len(data),)):
        return None
    if kind in _LENGTHS:
        return _number(data, kind)
    if kind.startswith("decimal"):
        return int.from_bytes(data, "big", signed=True)
    if kind == "string":
        with suppress(UnicodeDecodeError):
            return bytes(data).decode()
    if kind == "binary" or kind.startswith("fixed"):
        return bytes(data)
    return None


def _number(data: bytes, kind: str) -> float | None:
    if kind not in _FLOATS:
        return int.from_bytes(data, "little", signed=True)
    number: float = struct.unpack("<f" if len(data) == 4 else "<d", data)[0]
    if math.isnan(number):
        return None
    return number


def may_meet(some: Spans, others: Spans) -> bool:
    """Return whether a row of one file may have the same key as a row of another; null and NaN count as keys.

    A column of which one file has no statistics decides nothing.

    >>> may_meet([(1, Facts(0, 5, nulls=False))], [(1, Facts(6, 9, nans=False))])
    False
    """
    theirs = dict(others)
    return all(_meet(mine, theirs[field_id]) for field_id, mine in some if field_id in theirs)


def _meet(mine: Facts, other: Facts) -> bool:
    both = mine.also(other)
    return both.nulls or both.nans or (both.values and (both.low is None or both.high is None or both.low <= both.high))
