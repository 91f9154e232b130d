"""Writes Iceberg tables as the spec says, deletes included, and knows which rows are live: the tests' own oracle."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
from pyroaring import BitMap64

Row = dict[str, Any]

_BYTES_BY_ID = {
    "type": "array",
    "logicalType": "map",
    "items": {
        "type": "record",
        "name": "bound",
        "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": "bytes"}],
    },
}
_ARROW = {
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "float": pa.float32(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_PACKED = {"int": "<i", "long": "<q", "double": "<d", "float": "<f"}


def column(field_id: int, name: str, kind: str, **more: Any) -> dict[str, Any]:
    """Describe a column of a schema."""
    return {"id": field_id, "name": name, "required": False, "type": kind, **more}


COLUMNS = (column(1, "x", "long"), column(2, "k", "int"), column(3, "s", "string"))


def some(start: int, stop: int, **more: Any) -> list[Row]:
    """Make rows of `COLUMNS` whose `x` counts from start to before stop; every fifth `k` is null."""
    return [{"x": x, "k": x % 5 or None, "s": f"s{x % 3}", **more} for x in range(start, stop)]


@dataclass
class Written:
    """A data file, and its rows by the ids of their columns."""

    path: str
    rows: list[dict[int, Any]]
    sequence: int
    partition: Any
    entry: dict[str, Any]


@dataclass
class Deleted:
    """A delete: of positions in a file, or of keys."""

    sequence: int
    partition: Any
    entry: dict[str, Any]
    path: str | None = None
    positions: frozenset[int] = frozenset()
    key_ids: tuple[int, ...] = ()
    keys: frozenset[tuple[Any, ...]] = frozenset()


@dataclass
class IcebergWriter:
    """A table that grows by commits.

    `partition_by` is the id of an identity partition column; `served` is a folder above all files, and its URL, which
    metadata name files by.
    """

    root: Path
    columns: Sequence[Mapping[str, Any]] = COLUMNS
    partition_by: int | None = None
    version: int = 2
    properties: dict[str, str] = field(default_factory=dict)
    served: tuple[str, str] = ("/", "file:///")
    table_id: str = "11111111-2222-3333-4444-555555555555"
    data: list[Written] = field(default_factory=list)
    deletes: list[Deleted] = field(default_factory=list)
    schemas: list[dict[str, Any]] = field(default_factory=list)
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    refs: dict[str, Any] = field(default_factory=dict)
    _count: int = 0

    def __post_init__(self) -> None:
        for name in ("data", "metadata"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self.evolve(self.columns)

    def url(self, path: Path | str) -> str:
        """Give the URL of a local path."""
        folder, url = self.served
        return url + str(path).removeprefix(folder)

    def _local(self, url: str) -> Path:
        folder, start = self.served
        return Path(folder + url.removeprefix(start))

    @property
    def sequence(self) -> int:
        """The sequence number of the commit that is being made."""
        return len(self.snapshots) + 1

    def evolve(self, columns: Sequence[Mapping[str, Any]]) -> None:
        """Give the table another schema."""
        self.columns = columns
        self.schemas.append({"type": "struct", "schema-id": len(self.schemas), "fields": list(columns)})

    def append(
        self,
        rows: Iterable[Row],
        form: str = "parquet",
        partition: Any = None,
        names: Sequence[str] | None = None,
        **how: Any,
    ) -> str:
        """Write a data file, of all columns or of those named; returns its path."""
        rows = list(rows)
        path = self._write(self._arrow(rows, names), form, **how)
        by_id = [{c["id"]: row.get(c["name"]) for c in self.columns} for row in rows]
        entry = self._entry(path, form, len(rows), partition)
        if form == "parquet" and "bounds" not in how:
            self._add_bounds(entry, by_id)
            entry["split_offsets"] = _group_starts(self._local(path))
        self.data.append(Written(path, by_id, self.sequence, partition, entry))
        return path

    def adopt(self, file: Path) -> str:
        """Make a Parquet file that lies elsewhere a data file, unread; returns its path."""
        path = self.url(file.resolve())
        self.data.append(
            Written(path, [], self.sequence, None, self._entry(path, "parquet", pq.read_metadata(file).num_rows, None))
        )
        return path

    def delete_rows(self, positions: Mapping[str, Iterable[int]], form: str = "parquet", partition: Any = None) -> str:
        """Write a position delete file."""
        pairs = sorted((path, at) for path, each in positions.items() for at in each)
        meta = [{b"PARQUET:field_id": b"2147483546"}, {b"PARQUET:field_id": b"2147483545"}]
        schema = pa.schema(
            [pa.field("file_path", pa.string(), False, meta[0]), pa.field("pos", pa.int64(), False, meta[1])]
        )
        table = pa.table([[path for path, _ in pairs], [at for _, at in pairs]], schema=schema)
        path = self._write(table, form)
        entry = self._entry(path, form, len(pairs), partition, content=1)
        for target, each in positions.items():
            self.deletes.append(Deleted(self.sequence, partition, entry, target, frozenset(each)))
        return path

    def delete_vector(self, target: str, positions: Iterable[int], partition: Any = None) -> str:
        """Write a deletion vector, which takes the place of the file's other position deletes."""
        rows = frozenset(positions)
        path = self._new("puffin")
        [blob] = _write_puffin(path, [(target, rows)])
        entry = self._entry(self.url(path), "puffin", len(rows), partition, content=1)
        entry |= {"referenced_data_file": target, "content_offset": blob[0], "content_size_in_bytes": blob[1]}
        self.deletes = [each for each in self.deletes if each.path != target or each.entry["file_format"] != "PUFFIN"]
        self.deletes.append(Deleted(self.sequence, partition, entry, target, rows))
        return path

    def join_vectors(self, *, compressed: bool) -> None:
        """Write all deletion vectors again, into one file, whose footer may be compressed."""
        path = self._new("puffin")
        vectors = [each for each in self.deletes if each.entry["file_format"] == "PUFFIN"]
        blobs = _write_puffin(path, [(str(each.path), each.positions) for each in vectors], compressed=compressed)
        for delete, (offset, length) in zip(vectors, blobs, strict=True):
            delete.entry |= self._entry(self.url(path), "puffin", len(delete.positions), delete.partition, content=1)
            delete.entry |= {"content_offset": offset, "content_size_in_bytes": length}

    def delete_keys(
        self,
        key_ids: Sequence[int],
        keys: Sequence[Row],
        form: str = "parquet",
        partition: Any = None,
        *,
        bounds: bool = True,
    ) -> str:
        """Write an equality delete file; `keys` are rows by name."""
        names = [c["name"] for c in self.columns if c["id"] in key_ids]
        path = self._write(self._arrow(keys, names), form)
        entry = self._entry(path, form, len(keys), partition, content=2) | {"equality_ids": list(key_ids)}
        if bounds:
            self._add_bounds(entry, [{c["id"]: row.get(c["name"]) for c in self.columns} for row in keys])
        ordered = [c["id"] for c in self.columns if c["id"] in key_ids]
        found = frozenset(tuple(row.get(name) for name in names) for row in keys)
        self.deletes.append(Deleted(self.sequence, partition, entry, key_ids=tuple(ordered), keys=found))
        return path

    def commit(self, branch: str | None = None, operation: str = "append") -> int:
        """Make a snapshot of what was written; returns its id."""
        snapshot_id = 1000 + self.sequence
        parent = {"parent-snapshot-id": self.snapshots[-1]["snapshot-id"]} if self.snapshots else {}
        manifests = [self._manifest([d.entry | {"_seq": d.sequence} for d in self.data], deletes=False)]
        entries = {id(d.entry): d.entry | {"_seq": d.sequence} for d in self.deletes}
        manifests += [self._manifest(list(entries.values()), deletes=True)] if entries else []
        path = self.root / "metadata" / f"snap-{snapshot_id}.avro"
        _write_avro(path, _MANIFEST_FILE, manifests)
        self.snapshots.append(
            {
                "snapshot-id": snapshot_id,
                "sequence-number": self.sequence,
                "timestamp-ms": 1_700_000_000_000 + 1000 * self.sequence,
                "manifest-list": self.url(path),
                "schema-id": len(self.schemas) - 1,
                "summary": {"operation": operation},
                **parent,
            }
        )
        if branch is not None:
            self.refs[branch] = {"snapshot-id": snapshot_id, "type": "branch"}
        return snapshot_id

    @property
    def metadata(self) -> str:
        """Write the metadata file; returns its location."""
        transform = [c for c in self.columns if c["id"] == self.partition_by]
        fields = [
            {"source-id": c["id"], "field-id": 1000, "name": c["name"], "transform": "identity"} for c in transform
        ]
        path = self.root / "metadata" / f"v{len(self.snapshots)}.metadata.json"
        path.write_text(
            json.dumps(
                {
                    "format-version": self.version,
                    "table-uuid": self.table_id,
                    "location": self.url(self.root),
                    "last-sequence-number": len(self.snapshots),
                    "last-updated-ms": 1_700_000_000_000,
                    "last-column-id": 1000,
                    "schemas": self.schemas,
                    "current-schema-id": len(self.schemas) - 1,
                    "partition-specs": [{"spec-id": 0, "fields": fields}],
                    "default-spec-id": 0,
                    "last-partition-id": 1000,
                    "properties": self.properties,
                    "snapshots": self.snapshots,
                    "current-snapshot-id": self.snapshots[-1]["snapshot-id"] if self.snapshots else -1,
                    "snapshot-log": [
                        {"snapshot-id": each["snapshot-id"], "timestamp-ms": each["timestamp-ms"]}
                        for each in self.snapshots
                    ],
                    "refs": self.refs,
                    "sort-orders": [{"order-id": 0, "fields": []}],
                    "default-sort-order-id": 0,
                }
            )
        )
        return self.url(path)

    def live(self) -> list[Row]:
        """The rows of the newest snapshot, by the rules of the spec, one by one."""
        found: list[Row] = []
        for file in self.data:
            vectors = [d for d in self.deletes if d.path == file.path and d.entry["file_format"] == "PUFFIN"]
            for at, row in enumerate(file.rows):
                if not any(self._hits(delete, file, at, row, vectors) for delete in self.deletes):
                    found.append({c["name"]: row.get(c["id"], c.get("initial-default")) for c in self.columns})
        return found

    def _hits(self, delete: Deleted, file: Written, at: int, row: dict[int, Any], vectors: list[Deleted]) -> bool:
        if delete.key_ids:
            in_scope = self.partition_by is None or delete.partition == file.partition
            key = tuple(row.get(i) for i in delete.key_ids)
            return in_scope and file.sequence < delete.sequence and key in delete.keys
        if vectors and delete not in vectors:
            return False
        same = delete.partition == file.partition
        return same and file.sequence <= delete.sequence and delete.path == file.path and at in delete.positions

    def _arrow(self, rows: Sequence[Row], names: Sequence[str] | None = None) -> pa.Table:
        fields = [
            pa.field(c["name"], _ARROW[c["type"]], metadata={"PARQUET:field_id": str(c["id"])})
            for c in self.columns
            if names is None or c["name"] in names
        ]
        return pa.table([[row.get(f.name) for row in rows] for f in fields], schema=pa.schema(fields))

    def _write(self, table: pa.Table, form: str, group: int | None = None, **_: Any) -> str:
        path = self._new(form)
        if form == "parquet":
            pq.write_table(table, path, row_group_size=group)
        elif form == "orc":
            pyarrow.orc.write_table(_orc(table), path)
        else:
            _write_avro(Path(path), _avro_schema(table.schema), table.to_pylist())
        return self.url(path)

    def _new(self, form: str) -> str:
        self._count += 1
        return str(self.root / "data" / f"{self._count:04}.{form}")

    def _entry(self, path: str, form: str, count: int, partition: Any, content: int = 0) -> dict[str, Any]:
        return {
            "content": content,
            "file_path": path,
            "file_format": form.upper(),
            "partition": {} if self.partition_by is None else {"p": partition},
            "record_count": count,
            "file_size_in_bytes": self._local(path).stat().st_size,
        }

    def _add_bounds(self, entry: dict[str, Any], rows: list[dict[int, Any]]) -> None:
        low, high, nulls, values = [], [], [], []
        for c in self.columns:
            known = [row[c["id"]] for row in rows if row[c["id"]] is not None]
            values.append({"key": c["id"], "value": len(rows)})
            nulls.append({"key": c["id"], "value": len(rows) - len(known)})
            if known and c["type"] in _PACKED:
                low.append({"key": c["id"], "value": struct.pack(_PACKED[c["type"]], min(known))})
                high.append({"key": c["id"], "value": struct.pack(_PACKED[c["type"]], max(known))})
            elif known and c["type"] == "string":
                low.append({"key": c["id"], "value": min(known)[:1].encode()})  # writers cut long ones
                high.append({"key": c["id"], "value": max(known).encode()})
        entry |= {"lower_bounds": low, "upper_bounds": high, "null_value_counts": nulls, "value_counts": values}

    def _manifest(self, entries: list[dict[str, Any]], *, deletes: bool) -> dict[str, Any]:
        self._count += 1
        path = self.root / "metadata" / f"m{self._count}.avro"
        kind = {c["id"]: c["type"] for c in self.columns}.get(self.partition_by or -1)
        rows = [
            {
                "status": 1,
                "snapshot_id": 1,
                "sequence_number": entry["_seq"],
                "file_sequence_number": 1,
                "data_file": entry,
            }
            for entry in entries
        ]
        header = {
            "format-version": str(self.version),
            "partition-spec-id": "0",
            "content": "deletes" if deletes else "data",
        }
        _write_avro(path, _manifest_entry(kind), rows, header)
        return {
            "manifest_path": self.url(path),
            "manifest_length": path.stat().st_size,
            "partition_spec_id": 0,
            "content": int(deletes),
            "sequence_number": self.sequence,
            "min_sequence_number": 1,
            "added_files_count": len(rows),
            "existing_files_count": 0,
            "deleted_files_count": 0,
            "added_rows_count": sum(entry["record_count"] for entry in entries),
            "existing_rows_count": 0,
            "deleted_rows_count": 0,
        }


@dataclass
class SharingWriter(IcebergWriter):
    """Writes no manifest twice, as other writers do: a commit of deletes alone has the data manifest before it."""

    made: dict[str, dict[str, Any]] = field(default_factory=dict)

    def _manifest(self, entries: list[dict[str, Any]], *, deletes: bool) -> dict[str, Any]:
        listed = json.dumps([deletes, entries], default=repr)
        if listed not in self.made:
            self.made[listed] = super()._manifest(entries, deletes=deletes)
        return self.made[listed]


def _write_puffin(
    path: str, vectors: Sequence[tuple[str, frozenset[int]]], *, compressed: bool = False
) -> list[tuple[int, int]]:
    """Write deletion vectors, each of a data file, into one file; return where they begin, and their lengths."""
    data, told, places = b"PFA1", [], []
    for target, rows in vectors:
        body = b"\xd1\xd3\x39\x64" + bytes(BitMap64(rows).serialize())
        blob = struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
        properties = {"referenced-data-file": target, "cardinality": str(len(rows))}
        kind = {"type": "deletion-vector-v1", "fields": [2147483645], "snapshot-id": -1, "sequence-number": -1}
        told.append({**kind, "offset": len(data), "length": len(blob), "properties": properties})
        places.append((len(data), len(blob)))
        data += blob
    footer = json.dumps({"blobs": told}).encode()
    if compressed:
        target_bytes = pa.BufferOutputStream()
        with pa.CompressedOutputStream(target_bytes, "lz4") as stream:
            stream.write(footer)
        footer = target_bytes.getvalue().to_pybytes()
    end = struct.pack("<iI", len(footer), int(compressed))
    Path(path).write_bytes(data + b"PFA1" + footer + end + b"PFA1")
    return places


def _group_starts(path: Path) -> list[int]:
    """Say at which bytes the row groups of a Parquet file begin."""
    meta = pq.read_metadata(path)
    columns = [meta.row_group(group).column(0) for group in range(meta.num_row_groups)]
    return [first.dictionary_page_offset or first.data_page_offset for first in columns]


def _orc(table: pa.Table) -> pa.Table:
    """ORC says ids as attributes, which pyarrow writes from metadata of that name."""
    fields = [f.with_metadata({"iceberg.id": f.metadata[b"PARQUET:field_id"]}) for f in table.schema]
    return table.cast(pa.schema(fields))


def _avro_schema(schema: pa.Schema) -> dict[str, Any]:
    names = {
        pa.int32(): "int",
        pa.int64(): "long",
        pa.float64(): "double",
        pa.string(): "string",
        pa.bool_(): "boolean",
    }
    fields = [
        {
            "name": f.name,
            "type": ["null", names[f.type]],
            "default": None,
            "field-id": int(f.metadata[b"PARQUET:field_id"]),
        }
        for f in schema
    ]
    return {"type": "record", "name": "row", "fields": fields}


def _write_avro(
    path: Path, schema: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], header: dict[str, str] | None = None
) -> None:
    with path.open("wb") as target:
        fastavro.writer(target, fastavro.parse_schema(dict(schema)), rows, codec="deflate", metadata=header)


def _optional(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None}


def _counts(name: str) -> dict[str, Any]:
    item = {
        "type": "record",
        "name": name[0] + "_count",
        "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": "long"}],
    }
    return _optional(name, {"type": "array", "logicalType": "map", "items": item})


def _manifest_entry(partition: str | None) -> dict[str, Any]:
    fields = [] if partition is None else [_optional("p", partition)]
    data_file = [
        {"name": "content", "type": "int"},
        {"name": "file_path", "type": "string"},
        {"name": "file_format", "type": "string"},
        {"name": "partition", "type": {"type": "record", "name": "r102", "fields": fields}},
        {"name": "record_count", "type": "long"},
        {"name": "file_size_in_bytes", "type": "long"},
        _counts("value_counts"),
        _counts("null_value_counts"),
        _optional("lower_bounds", _BYTES_BY_ID),
        _optional("upper_bounds", {**_BYTES_BY_ID, "items": "bound"}),
        _optional("split_offsets", {"type": "array", "items": "long"}),
        _optional("equality_ids", {"type": "array", "items": "int"}),
        _optional("referenced_data_file", "string"),
        _optional("content_offset", "long"),
        _optional("content_size_in_bytes", "long"),
    ]
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            {"name": "status", "type": "int"},
            _optional("snapshot_id", "long"),
            _optional("sequence_number", "long"),
            _optional("file_sequence_number", "long"),
            {"name": "data_file", "type": {"type": "record", "name": "r2", "fields": data_file}},
        ],
    }


_MANIFEST_FILE = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        {"name": "manifest_path", "type": "string"},
        {"name": "manifest_length", "type": "long"},
        {"name": "partition_spec_id", "type": "int"},
        {"name": "content", "type": "int"},
        {"name": "sequence_number", "type": "long"},
        {"name": "min_sequence_number", "type": "long"},
        *({"name": f"{what}_files_count", "type": "int"} for what in ("added", "existing", "deleted")),
        *({"name": f"{what}_rows_count", "type": "long"} for what in ("added", "existing", "deleted")),
    ],
}


def deletes_in_their_partition(root: Path) -> IcebergWriter:
    """Write a table of three partitions, in two of which keys are deleted that all three have."""
    table = IcebergWriter(root, partition_by=2)
    for part in (0, 1, None):
        table.append([{"x": x, "k": part, "s": "s"} for x in range(9)], partition=part)
    table.commit()
    table.delete_keys([1], [{"x": 0}, {"x": 7}], partition=0)
    table.delete_keys([1], [{"x": 1}], partition=None)
    table.commit()
    return table
