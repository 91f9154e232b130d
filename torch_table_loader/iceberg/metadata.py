"""A table's metadata, from its JSON: schemas, partition specs, snapshots and refs."""

from __future__ import annotations

import datetime as dt
import decimal
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Annotated, Any

import pyarrow as pa
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.iceberg.checked import (
    flag,
    many,
    mapping,
    modelled,
    shown,
    text,
    torn,
    unfit,
    unlike,
    whole,
)
from torch_table_loader.table_formats import (
    Column,
    NamedIds,
    TableRequest,
    TableStorage,
    Types,
    UnreadableTypeError,
    load_json,
    shown_url,
    the_nearest,
)

NAME_MAPPING = "schema.name-mapping.default"

# https://iceberg.apache.org/spec/#reserved-field-ids
LINEAGE = (
    Column(2147483540, "_row_id", pa.int64(), lineage="row"),
    Column(2147483539, "_last_updated_sequence_number", pa.int64(), lineage="commit"),
)
"""Row lineage (v3): reserved columns, which are only read on request."""

CHANGES = (
    Column(2147483543, "_change_type", pa.string(), required=True),
    Column(2147483542, "_change_ordinal", pa.int32(), required=True),
    Column(2147483541, "_commit_snapshot_id", pa.int64(), required=True),
)
"""Columns of a changelog about its rows, under Spark's names."""

_PRIMITIVES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", "UTC"),
    "string": pa.string(),
    "uuid": pa.binary(16),
    "binary": pa.binary(),
    "unknown": pa.null(),
}
_FIXED = re.compile(r"fixed\[\s*(\d{1,9})\s*\]")
_MOST_FIXED = 1 << 30
_MOST_DEPTH = 64
_INNER = {"struct": (), "list": ("element",), "map": ("key", "value")}
"""What types contain beside fields."""

_ZONE = re.compile(r"(?:Z|[+-]\d\d:\d\d)$")


def _fixed(kind: str) -> pa.DataType | None:
    match = _FIXED.fullmatch(kind)
    if match and 0 < int(match[1]) <= _MOST_FIXED:
        return pa.binary(int(match[1]))
    return None


_TYPES = Types(_PRIMITIVES, _fixed)


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """A schema of a table.

    Args:
        columns: the top-level columns that can be read.
        unreadable: the types of those that cannot, by name.
        fields: all of them, as the metadata's JSON has them.
    """

    id: int
    columns: Sequence[Column]
    unreadable: Mapping[str, str]
    fields: Sequence[Mapping[str, Any]]


def read_schema(struct: Any, place: str = "schema") -> Schema:
    """Check and read a schema that stands at a place in the table's metadata.

    Raises:
        ValueError: it lacks the format's structure; the message says where.

    >>> read_schema({"fields": [{"id": 1, "name": "a", "required": True, "type": "long"}]}).columns[0].type
    DataType(int64)
    """
    known = mapping(struct, place)
    fields = many(known.get("fields"), f"{place}.fields")
    names = [text(mapping(each, f"{place}.fields").get("name"), f"{place}.fields: name") for each in fields]
    unlike(names, f"{place}.fields: name")
    reader = _SchemaReader()
    readers = {
        name: partial(reader.field, field, f"{place}.fields[{at}]", 0)
        for at, (name, field) in enumerate(zip(names, fields, strict=True))
    }
    columns, unreadable = _TYPES.readable(readers)
    unlike(reader.ids, f"{place}: id of a column")
    schema_id = known.get("schema-id")
    return Schema(0 if schema_id is None else whole(schema_id, f"{place}.schema-id"), columns, unreadable, fields)


class _SchemaReader:
    """Reads the columns of one schema, however nested."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def field(self, value: Any, place: str, depth: int) -> Column:
        """Read a field of a struct."""
        field = mapping(value, place)
        name, required = text(field.get("name"), f"{place}.name"), flag(field.get("required"), f"{place}.required")
        column = self._column(field.get("id"), name, field.get("type"), required, place, depth)
        return replace(column, default=_default(name, field.get("initial-default"), column.type))

    def _column(self, field_id: Any, name: str, kind: Any, required: bool, place: str, depth: int) -> Column:
        self.ids.append(known := whole(field_id, f"{place}: id"))
        if not isinstance(kind, dict):
            return Column(known, name, _TYPES.primitive(text(kind, f"{place}.type")), required)
        if depth >= _MOST_DEPTH:
            raise ValueError(f"{place[:80]}… must be a type at most {_MOST_DEPTH} deep, got a deeper one")
        children = tuple(self._children(kind, f"{place}.type", depth + 1))
        return Column(known, name, _TYPES.nested(kind["type"], children), required, None, children)

    def _children(self, kind: Mapping[str, Any], place: str, depth: int) -> Iterator[Column]:
        name = text(kind.get("type"), f"{place}.type")
        if name not in _INNER:
            raise UnreadableTypeError(name)
        if name == "struct":
            fields = many(kind.get("fields"), f"{place}.fields")
            columns = [self.field(each, f"{place}.fields[{at}]", depth) for at, each in enumerate(fields)]
            unlike((column.name for column in columns), f"{place}.fields: name")
            yield from columns
        for inner in _INNER[name]:
            required = inner == "key" or flag(kind.get(f"{inner}-required"), f"{place}.{inner}-required")
            yield self._column(kind.get(f"{inner}-id"), inner, kind.get(inner), required, f"{place}.{inner}", depth)


def all_columns(columns: Sequence[Column]) -> Iterator[Column]:
    """Yield columns and everything nested inside them."""
    for column in columns:
        yield column
        yield from all_columns(column.children)


class _NamedField(BaseModel):
    """A field of the property ``schema.name-mapping.default``."""

    model_config = ConfigDict(strict=True)

    names: Annotated[list[str], Field(fail_fast=True)]
    field_id: int | None = Field(None, alias="field-id", ge=-(1 << 63), lt=1 << 63)
    fields: Annotated[list[_NamedField], Field(fail_fast=True)] | None = None


def read_name_mapping(text: str) -> NamedIds:
    """Parse the property ``schema.name-mapping.default``.

    Raises:
        ValueError: it lacks the format's structure; the message says where.

    >>> read_name_mapping('[{"field-id": 1, "names": ["a", "b"]}]').ids["b"][0]
    1
    """
    try:
        entries = many(load_json(text, NAME_MAPPING), NAME_MAPPING)
    except TableError as error:  # it nests too deep
        raise ValueError(str(error)) from error
    return _named_ids([modelled(_NamedField, each, f"{NAME_MAPPING}[{at}]") for at, each in enumerate(entries)])


def contradicts(names: NamedIds, parents: Mapping[int, int], parent: int = 0) -> bool:
    """Return whether a name mapping places an id differently from the table's schemas.

    Some migrations wrote mappings with ids of their own numbering. `parents` is as `parents_of` returns it.
    """
    for field_id, inner in names.ids.values():
        if field_id is not None:
            if parents.get(field_id, parent) != parent:
                return True
            if contradicts(inner, parents, field_id):
                return True
    return False


def parents_of(columns: Sequence[Column], parent: int = 0) -> dict[int, int]:
    """Return the id of the column around each column; 0 for top-level ones."""
    found = {column.field_id: parent for column in columns}
    for column in columns:
        found |= parents_of(column.children, column.field_id)
    return found


def names_of(columns: Sequence[Column]) -> NamedIds:
    """Return the name mapping that a schema implies."""
    return NamedIds({column.name: (column.field_id, names_of(column.children)) for column in columns})


def _named_ids(entries: Sequence[_NamedField]) -> NamedIds:
    ids: dict[str, tuple[int | None, NamedIds]] = {}
    for entry in entries:
        inner = _named_ids(entry.fields or ())
        ids |= dict.fromkeys(entry.names, (entry.field_id, inner))
    return NamedIds(ids)


def _default(name: str, value: Any, kind: pa.DataType) -> Any:
    try:
        return read_value(value, kind)
    except (ValueError, TypeError, AttributeError, ArithmeticError, pa.ArrowException) as error:
        raise unfit(f"the initial-default of the column {name!r}", f"a value of the type {kind}", value) from error


def read_value(value: Any, kind: pa.DataType) -> Any:
    r"""Convert a value of the metadata's JSON (see "single-value serialization" in the spec) to what pyarrow takes.

    >>> read_value("0f", pa.binary()), read_value("2020-01-01", pa.date32())
    (b'\x0f', datetime.date(2020, 1, 1))
    >>> read_value("1970-01-01T00:00:01.5+00:00", pa.timestamp("us", "UTC"))
    1500000
    """
    if value is None:
        return None
    types = pa.types
    if types.is_struct(kind):
        # The spec keys a struct's default by field id, and allows only an empty default or null.
        return {field.name: value.get(field.name) for field in kind}
    if isinstance(value, str):
        return _read_text(value, kind)
    if types.is_decimal(kind):
        return decimal.Decimal(str(value))
    return value


def _read_text(value: str, kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_binary(kind) or types.is_fixed_size_binary(kind):
        if "-" in value:
            return uuid.UUID(value).bytes
        return bytes.fromhex(value)
    if types.is_time(kind):
        return dt.time.fromisoformat(value)
    if types.is_timestamp(kind):
        zone = "UTC" if _ZONE.search(value) else None
        return pa.scalar(value).cast(pa.timestamp(kind.unit, zone)).value
    return pa.scalar(value).cast(kind).as_py()


NO_SNAPSHOT = -1

_REMEDY = "restore the file, or let the table's catalog point to an older one"

_Whole = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
_SnapshotId = Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)]
"""Some writers make unsigned ones."""

_Text = Annotated[str, Field(min_length=1)]


def _number(value: Any) -> Any:
    """Read a count in a summary, where values are texts."""
    if isinstance(value, str) and value.isascii() and value.lstrip("-").isdigit():
        return int(value)
    return value


class _Part(BaseModel):
    """A part of the metadata (https://iceberg.apache.org/spec/#table-metadata), as far as it is read.

    pyiceberg's models are no alternative: they refuse a table for the type of one column and for manifests that a
    snapshot names itself (v1), turn values into others, and make up an id for a table that has none.
    """

    model_config = ConfigDict(strict=True, frozen=True, alias_generator=lambda name: name.replace("_", "-"))


class SpecField(_Part):
    """A field of a partition spec."""

    transform: _Text
    name: _Text | None = None
    field_id: _Whole | None = None
    source_id: _Whole | None = None


class _Spec(_Part):
    spec_id: _Whole
    fields: Annotated[list[SpecField], Field(fail_fast=True)]


class _Logged(_Part):
    snapshot_id: _SnapshotId
    timestamp_ms: _Whole


class _Ref(_Part):
    snapshot_id: _SnapshotId
    type: _Text


class _Summary(_Part):
    operation: Any = None
    total_data_files: Annotated[int, BeforeValidator(_number)] | None = None


class _Snapshot(_Part):
    snapshot_id: _SnapshotId
    parent_snapshot_id: _SnapshotId | None = None
    sequence_number: _Whole | None = None
    timestamp_ms: _Whole | None = None
    schema_id: _Whole | None = None
    manifest_list: _Text | None = None
    manifests: Annotated[list[_Text], Field(fail_fast=True)] | None = None
    summary: _Summary | None = None


class _Properties(_Part):
    name_mapping: _Text | None = Field(None, alias="schema.name-mapping.default")


class _Metadata(_Part):
    location: _Text
    table_uuid: _Text | None = None
    properties: _Properties | None = None
    schemas: list[Any] | None = None
    v1_schema: Any = Field(None, alias="schema")
    current_schema_id: _Whole | None = None
    partition_specs: Annotated[list[_Spec], Field(fail_fast=True)] | None = None
    partition_spec: Annotated[list[SpecField], Field(fail_fast=True)] | None = None
    current_snapshot_id: _SnapshotId | None = None
    snapshots: Annotated[list[_Snapshot], Field(fail_fast=True)] | None = None
    snapshot_log: Annotated[list[_Logged], Field(fail_fast=True)] | None = None
    refs: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A state of a table.

    Args:
        id: None for an empty table without snapshots.
        schema_id: the schema to read it as.
        manifest_list: the file that lists its manifests; None if `manifests` names them (v1).
        num_files: data files according to its summary, if it has a count.
    """

    id: int | None
    schema_id: int
    manifest_list: str | None = None
    manifests: Sequence[str] = ()
    num_files: int | None = None

    @property
    def lists(self) -> tuple[str, ...]:
        """The file that lists its manifests, if there is one."""
        if self.manifest_list is None:
            return ()
        return (self.manifest_list,)


class TableMetadata:
    """The metadata of one version of a table, checked.

    Attributes:
        place: the file that it comes from, as messages may show it.
        uuid: the table's id, which never changes; for an old table without one, its location.
        location: the table's root.
        properties: what those who may write the table say; data, of which the name mapping alone is followed.
        specs: fields of partition specs, by spec id.
        snapshots: those that have not expired, by id, in the order of the file.
        names: ids for files without, by the names of columns; None if the table gives none.
    """

    def __init__(self, raw: Mapping[str, Any], place: str) -> None:
        """Check the metadata."""
        version = raw.get("format-version")
        if version not in (1, 2, 3) or not isinstance(version, int) or isinstance(version, bool):
            raise TableError(
                f"{place}: expected Iceberg metadata of format version 1, 2 or 3, got {shown(version)}; "
                "upgrade torch-table-loader, or check the metadata file"
            )
        self.place = place
        try:
            self._parsed = parsed = modelled(_Metadata, raw)
            self._refs = {name: modelled(_Ref, each, f"refs.{name}") for name, each in (parsed.refs or {}).items()}
            mapped = None if parsed.properties is None else parsed.properties.name_mapping
            self.names = None if mapped is None else read_name_mapping(mapped)
            self.schemas = _schemas_of(parsed)
            self.specs = {spec.spec_id: spec.fields for spec in parsed.partition_specs or ()} or {
                0: parsed.partition_spec or []
            }
            self._check()
        except (ValueError, RecursionError) as error:
            raise torn(f"{place} must follow the Iceberg format, but does not", error, _REMEDY) from error
        self.uuid = parsed.table_uuid or parsed.location
        self.location = parsed.location.rstrip("/")
        self.properties: Mapping[str, Any] = raw.get("properties") or {}
        self.snapshots = {snapshot.snapshot_id: snapshot for snapshot in parsed.snapshots or ()}

    def _check(self) -> None:
        """Refuse metadata that contradicts itself."""
        parsed = self._parsed
        if parsed.schemas and parsed.current_schema_id is not None:
            _one_of(parsed.current_schema_id, list(self.schemas), "current-schema-id", "schema")
        unlike((spec.spec_id for spec in parsed.partition_specs or ()), "spec-id")
        for field in (each for fields in self.specs.values() for each in fields):
            if field.transform == "identity" and field.source_id is None:
                raise ValueError("the source-id of an identity transform must be there, but is missing")
        ids = [snapshot.snapshot_id for snapshot in parsed.snapshots or ()]
        unlike(ids, "snapshot-id")
        if self._current != NO_SNAPSHOT:
            _one_of(self._current, ids, "current-snapshot-id", "snapshot")
        main = self._refs.get("main")
        if main is not None and main.snapshot_id != self._current:
            raise ValueError(
                f"current-snapshot-id must be {main.snapshot_id}, the snapshot of the branch main, got "
                f"{'none' if self._current == NO_SNAPSHOT else self._current}"
            )

    @property
    def current_schema_id(self) -> int:
        """The id of the table's current schema."""
        current = self._parsed.current_schema_id
        if not self._parsed.schemas or current is None:
            return next(iter(self.schemas))
        return current

    @property
    def _current(self) -> int:
        if self._parsed.current_snapshot_id is None:
            return NO_SNAPSHOT
        return self._parsed.current_snapshot_id

    def snapshot(
        self,
        *,
        snapshot_id: int | None = None,
        branch: str | None = None,
        tag: str | None = None,
        as_of: dt.datetime | str | int | None = None,
    ) -> Snapshot:
        """Choose a snapshot: by id, the newest of a branch, a tag's, or that of a time; by default, the current one.

        A time is a datetime or ISO text with a time zone, or milliseconds.

        Raises:
            ConfigError: there is no such snapshot; the message names the existing ones.
        """
        chosen = {"snapshot_id": snapshot_id, "branch": branch, "tag": tag, "as_of": as_of}
        given = [name for name, value in chosen.items() if value is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} each choose a snapshot; pass one of them")
        if branch is not None:
            return self._at(self._ref("branch", branch), self.current_schema_id)
        if tag is not None:
            return self._at(self._ref("tag", tag), None)
        if as_of is not None:
            return self._at(self._as_of(as_of), None)
        if snapshot_id is not None:
            return self._at(snapshot_id, None)
        return self._at(self._current, self.current_schema_id)

    def has(self, snapshot_id: int | None, schema_id: int) -> bool:
        """Whether `snapshot_as` finds both."""
        return schema_id in self.schemas and (snapshot_id is None or snapshot_id in self.snapshots)

    def snapshot_as(self, snapshot_id: int | None, schema_id: int) -> Snapshot:
        """Return the snapshot (None for a table without any) and schema that another process chose."""
        return self._at(NO_SNAPSHOT if snapshot_id is None else snapshot_id, schema_id)

    def known(self, snapshot_id: int) -> _Snapshot:
        """Return what the metadata says of a snapshot."""
        if snapshot_id in self.snapshots:
            return self.snapshots[snapshot_id]
        logged = any(entry.snapshot_id == snapshot_id for entry in self._parsed.snapshot_log or ())
        newest = ", ".join(map(str, list(self.snapshots)[-5:])) or "none"
        raise ConfigError(
            f"the table has no snapshot {snapshot_id}: "
            + ("it has expired" if logged else "it has expired, or is of another table")
            + f"; the newest of {len(self.snapshots)} are {newest}"
        )

    def _at(self, snapshot_id: int, schema_id: int | None) -> Snapshot:
        """Read a snapshot, as its own schema or another."""
        if snapshot_id == NO_SNAPSHOT:
            return Snapshot(None, schema_id if schema_id in self.schemas else self.current_schema_id)
        found = self.known(snapshot_id)
        wanted = schema_id
        if schema_id is None:
            wanted = found.schema_id
        elif schema_id not in self.schemas:
            wanted = None
        if wanted is None:
            wanted = self.current_schema_id
        if wanted not in self.schemas:
            raise TableError(
                f"{self.place}: the snapshot {snapshot_id} is of the schema-id {wanted}, and the table has only the "
                f"schemas {', '.join(map(str, sorted(self.schemas)))}; {_REMEDY}"
            )
        if found.manifest_list is None and found.manifests is None:
            raise TableError(
                f"{self.place}: the snapshot {snapshot_id} must name its manifest-list, and names none, so that its "
                f"files are not known; {_REMEDY}, or read another snapshot"
            )
        num_files = None if found.summary is None else found.summary.total_data_files
        return Snapshot(snapshot_id, wanted, found.manifest_list, found.manifests or (), num_files)

    def _ref(self, kind: str, name: str) -> int:
        ref = self._refs.get(name)
        if ref is not None and ref.type == kind:
            return ref.snapshot_id
        if kind == "branch" and name == "main":
            return self._current
        if ref is not None:
            raise ConfigError(f"{name!r} is a {ref.type} of the table, not a {kind}; pass {ref.type}={name!r}")
        names = sorted(each for each, ref in self._refs.items() if ref.type == kind)
        raise ConfigError(f"the table has no {kind} {name!r}; {the_nearest(name, names)}")

    def _as_of(self, as_of: dt.datetime | str | int) -> int:
        if isinstance(as_of, int) and not isinstance(as_of, bool):
            wanted = as_of
        else:
            when = TableRequest.time_of("as_of", as_of, "a datetime, ISO text or milliseconds")
            wanted = int(when.timestamp() * 1000)
        known = self._parsed.snapshot_log or self.snapshots.values()
        log = [(each.timestamp_ms, each.snapshot_id) for each in known if each.timestamp_ms is not None]
        passed = [entry for entry in log if entry[0] <= wanted]
        if not passed:
            begun = "it has none"
            if log:
                begun = f"its first is from {TableRequest.shown_time(min(time for time, _ in log))}"
            raise ConfigError(f"the table had no snapshot at {TableRequest.shown_time(wanted)}; {begun}")
        return max(passed, key=itemgetter(0))[1]


def _schemas_of(parsed: _Metadata) -> dict[int, Schema]:
    raw = parsed.schemas or ([parsed.v1_schema] if parsed.v1_schema else [])
    if not raw:
        raise ValueError("schemas must hold a schema, and hold none")
    schemas = [read_schema(each, f"schemas[{at}]") for at, each in enumerate(raw)]
    unlike((schema.id for schema in schemas), "schema-id")
    return {schema.id: schema for schema in schemas}


def _one_of(value: int, known: Sequence[int], place: str, what: str) -> None:
    if value not in known:
        listed = ", ".join(map(str, known[-5:])) or "none"
        raise ValueError(f"{place} must be the id of a {what} of the table, whose newest are {listed}, got {value}")


def read_metadata(storage: TableStorage, location: str) -> TableMetadata:
    """Read a metadata file, plain or compressed."""
    data = storage.read_whole(location)
    try:
        raw = mapping(load_json(storage.unzipped(data, location), shown_url(location)), "the file")
    except TableError:
        raise
    except Exception as error:  # gzip, zlib and json raise many kinds of errors
        what = f"{shown_url(location)} must be the metadata.json of an Iceberg table, but does not parse"
        raise torn(what, error, "pass the path of a file such as table/metadata/v3.metadata.json") from error
    if "view-uuid" in raw:
        raise TableError(
            f"{shown_url(location)} is the metadata of an Iceberg view, which has no files of its own; read the tables "
            "that it is made of, or write its rows into a table"
        )
    return TableMetadata(raw, shown_url(location))
