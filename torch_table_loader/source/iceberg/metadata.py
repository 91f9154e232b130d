"""A table's metadata, from its JSON: schemas, partition specs, snapshots and refs."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch_table_loader.errors import ConfigError, ConfigTypeError, TableError
from torch_table_loader.messages import the_nearest
from torch_table_loader.scrubbing import shown_url
from torch_table_loader.source.iceberg.checked import mapping, shown, torn
from torch_table_loader.source.iceberg.shape import NO_SNAPSHOT, check_metadata
from torch_table_loader.source.table_storage import MOST_BYTES, read_whole, too_large

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage

_REMEDY = "restore the file, or let the table's catalog point to an older one"


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A state of a table.

    Args:
        id: its id; None for an empty table without snapshots.
        timestamp_ms: when it was made, in milliseconds since the epoch.
        schema_id: the schema to read it as.
        manifest_list: the file that lists its manifests; None if `manifests` names them (v1).
        num_files: data files according to its summary, if it has a count.
    """

    id: int | None
    timestamp_ms: int | None
    schema_id: int
    manifest_list: str | None = None
    manifests: tuple[str, ...] = ()
    num_files: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TableMetadata:
    """The metadata of one version of a table.

    Args:
        place: the file that it comes from, as messages may show it.
    """

    raw: Mapping[str, Any] = field(repr=False)
    place: str

    def __post_init__(self) -> None:
        """Refuse anything but metadata of a version that this library knows."""
        version = self.raw.get("format-version")
        if version not in (1, 2, 3) or not isinstance(version, int) or isinstance(version, bool):
            raise TableError(
                f"{self.place}: expected Iceberg metadata of format version 1, 2 or 3, got {shown(version)}; "
                "upgrade torch-table-loader, or check the metadata file"
            )
        try:
            check_metadata(self.raw)
        except (ValueError, RecursionError) as error:
            raise torn(f"{self.place} must follow the Iceberg format, but does not", error, _REMEDY) from error

    @property
    def uuid(self) -> str:
        """The table's id, which never changes; for an old table without one, its location."""
        return str(self.raw.get("table-uuid") or self.raw["location"])

    @property
    def location(self) -> str:
        """The table's root."""
        return str(self.raw["location"]).rstrip("/")

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self.raw.get("properties") or {}

    @property
    def schemas(self) -> dict[int, Mapping[str, Any]]:
        """Schemas by id."""
        if schemas := self.raw.get("schemas"):
            return {schema.get("schema-id", 0): schema for schema in schemas}
        return {self.raw["schema"].get("schema-id", 0): self.raw["schema"]}

    @property
    def current_schema_id(self) -> int:
        """The id of the table's current schema."""
        if self.raw.get("schemas") and self.raw.get("current-schema-id") is not None:
            return int(self.raw["current-schema-id"])
        return int(next(iter(self.schemas)))

    @property
    def specs(self) -> dict[int, list[Mapping[str, Any]]]:
        """Fields of partition specs, by spec id."""
        if specs := self.raw.get("partition-specs"):
            return {spec["spec-id"]: list(spec["fields"]) for spec in specs}
        return {0: list(self.raw.get("partition-spec") or [])}

    @property
    def snapshot_ids(self) -> list[int]:
        """Ids of the snapshots that have not expired."""
        return [snapshot["snapshot-id"] for snapshot in self.raw.get("snapshots") or []]

    @property
    def refs(self) -> Mapping[str, Mapping[str, Any]]:
        """Branches and tags by name."""
        return self.raw.get("refs") or {}

    def snapshot(
        self,
        *,
        snapshot_id: int | None = None,
        branch: str | None = None,
        tag: str | None = None,
        as_of: dt.datetime | str | int | None = None,
    ) -> Snapshot:
        """Choose a snapshot; without any argument, the current one.

        Args:
            branch: a branch, for its newest snapshot.
            tag: a tag, for the snapshot that it names.
            as_of: the snapshot current at a time: a datetime or ISO text with a time zone, or milliseconds.

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
        current = self.raw.get("current-snapshot-id")
        return self._at(NO_SNAPSHOT if current is None else current, self.current_schema_id)

    def has(self, snapshot_id: int | None, schema_id: int) -> bool:
        """Whether `snapshot_as` finds both."""
        return schema_id in self.schemas and (snapshot_id is None or snapshot_id in self.snapshot_ids)

    def snapshot_as(self, snapshot_id: int | None, schema_id: int) -> Snapshot:
        """Return the snapshot and schema that another process chose.

        Args:
            snapshot_id: its id; None for a table that has none.
            schema_id: the schema to read it as.

        Raises:
            ConfigError: there is no such snapshot.
        """
        return self._at(NO_SNAPSHOT if snapshot_id is None else snapshot_id, schema_id)

    def _at(self, snapshot_id: int, schema_id: int | None) -> Snapshot:
        if snapshot_id == NO_SNAPSHOT:
            return Snapshot(None, None, schema_id if schema_id in self.schemas else self.current_schema_id)
        for raw in self.raw.get("snapshots") or []:
            if raw["snapshot-id"] == snapshot_id:
                return self._read(raw, schema_id)
        known = self.snapshot_ids
        logged = any(entry["snapshot-id"] == snapshot_id for entry in self.raw.get("snapshot-log") or [])
        shown = ", ".join(map(str, known[-5:])) or "none"
        raise ConfigError(
            f"the table has no snapshot {snapshot_id}: "
            + ("it has expired" if logged else "it has expired, or is of another table")
            + f"; the newest of {len(known)} are {shown}"
        )

    def _read(self, raw: Mapping[str, Any], schema_id: int | None) -> Snapshot:
        """Read a snapshot, as its own schema or another."""
        number, wanted = raw["snapshot-id"], raw.get("schema-id") if schema_id is None else schema_id
        if wanted is None or (schema_id is not None and wanted not in self.schemas):
            wanted = self.current_schema_id
        if wanted not in self.schemas:
            raise TableError(
                f"{self.place}: the snapshot {number} is of the schema-id {wanted}, and the table has only the schemas "
                f"{', '.join(map(str, sorted(self.schemas)))}; {_REMEDY}"
            )
        if raw.get("manifest-list") is None and raw.get("manifests") is None:
            raise TableError(
                f"{self.place}: the snapshot {number} must name its manifest-list, and names none, so that its files "
                f"are not known; {_REMEDY}, or read another snapshot"
            )
        num_files = (raw.get("summary") or {}).get("total-data-files")
        return Snapshot(
            number,
            raw.get("timestamp-ms"),
            wanted,
            raw.get("manifest-list"),
            tuple(raw.get("manifests") or ()),
            None if num_files is None else int(num_files),
        )

    def _ref(self, kind: str, name: str) -> int:
        names = [each for each, ref in self.refs.items() if ref.get("type") == kind]
        if name in names:
            return int(self.refs[name]["snapshot-id"])
        if kind == "branch" and name == "main":
            current = self.raw.get("current-snapshot-id")
            return NO_SNAPSHOT if current is None else int(current)
        if name in self.refs:
            other = self.refs[name].get("type")
            raise ConfigError(f"{name!r} is a {other} of the table, not a {kind}; pass {other}={name!r}")
        raise ConfigError(f"the table has no {kind} {name!r}; {the_nearest(name, sorted(names))}")

    def _as_of(self, as_of: dt.datetime | str | int) -> int:
        wanted = _milliseconds(as_of)
        log = self.raw.get("snapshot-log") or [
            snapshot for snapshot in self.raw.get("snapshots") or [] if "timestamp-ms" in snapshot
        ]
        passed = [entry for entry in log if entry["timestamp-ms"] <= wanted]
        if not passed:
            first = min((entry["timestamp-ms"] for entry in log), default=None)
            begun = "it has none" if first is None else f"its first is from {_shown_time(first)}"
            raise ConfigError(f"the table had no snapshot at {_shown_time(wanted)}; {begun}")
        return int(max(passed, key=lambda entry: entry["timestamp-ms"])["snapshot-id"])


def read_metadata(storage: Storage, location: str) -> TableMetadata:
    """Read a metadata file, plain or compressed.

    Raises:
        TableError: the file is missing, or is not Iceberg metadata.
    """
    data = read_whole(storage, location)
    try:
        raw = mapping(json.loads(_decompressed(data, location)), "the file")
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


def _decompressed(data: bytes, location: str) -> bytes:
    if data[:2] != b"\x1f\x8b":
        return data
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as source:
        data = source.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise too_large(location, "more, once decompressed")
    return data


def _milliseconds(as_of: dt.datetime | str | int) -> int:
    if isinstance(as_of, int) and not isinstance(as_of, bool):
        return as_of
    if isinstance(as_of, str):
        try:
            as_of = dt.datetime.fromisoformat(as_of)
        except ValueError as error:
            raise ConfigError(f"as_of must look like '2026-01-31T12:00:00+00:00', got {as_of!r}") from error
    if not isinstance(as_of, dt.datetime):
        raise ConfigTypeError(f"as_of must be a datetime, ISO text or milliseconds, got {type(as_of).__name__}")
    if as_of.tzinfo is None:
        raise ConfigError(f"as_of must say its time zone, got {as_of.isoformat()}; add +00:00 for UTC")
    return int(as_of.timestamp() * 1000)


def _shown_time(milliseconds: int) -> str:
    try:
        return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC).isoformat()
    except (ValueError, OverflowError, OSError):  # beyond the range of calendars
        return f"{milliseconds} ms"
