"""Writes Delta Lake tables by hand, as the protocol says, with what delta-rs does not: deletion vectors, mappings.

https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import json
import math
import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

Row = dict[str, Any]
_MAGIC = 1681511377
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_KINDS = {"long": pa.int64(), "integer": pa.int32(), "string": pa.string(), "double": pa.float64(), "date": pa.date32()}


def field_of(name: str, kind: Any, *, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    """Describe a column; `metadata` gives the mapping's ``id`` and ``physicalName``."""
    mapped = {f"delta.columnMapping.{key}": value for key, value in metadata.items()}
    return {"name": name, "type": kind, "nullable": nullable, "metadata": mapped}


COLUMNS = [field_of("x", "long"), field_of("k", "integer"), field_of("s", "string")]


@dataclass
class Data:
    """A live file: its add action, and its rows as positions in it."""

    add: dict[str, Any]
    rows: list[Row]
    deleted: frozenset[int] = frozenset()

    @property
    def path(self) -> str:
        """Its name in the log."""
        return str(self.add["path"])


@dataclass
class DeltaWriter:
    """A table that grows by commits, and knows itself which rows live."""

    root: Path
    columns: Sequence[Mapping[str, Any]] = field(default_factory=lambda: COLUMNS)
    partition_by: Sequence[str] = ()
    features: Sequence[str] = ("deletionVectors",)
    settings: Mapping[str, str] = field(default_factory=dict)
    reader: int = 3
    table_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    data: list[Data] = field(default_factory=list)
    actions: list[dict[str, Any]] = field(default_factory=list)
    version: int = -1

    def __post_init__(self) -> None:
        """Begin the log."""
        (self.root / "_delta_log").mkdir(parents=True)
        self.protocol()
        self.metadata()

    @property
    def uri(self) -> str:
        """Where the table is."""
        return str(self.root)

    def protocol(self) -> None:
        """Say what it takes to read the table."""
        protocol: dict[str, Any] = {"minReaderVersion": self.reader, "minWriterVersion": 7 if self.reader > 2 else 5}
        if self.reader > 2:
            writer = ["inCommitTimestamp"] if "delta.enableInCommitTimestamps" in self.settings else []
            protocol |= {"readerFeatures": list(self.features), "writerFeatures": [*self.features, *writer]}
        self.actions.append({"protocol": protocol})

    def metadata(self) -> None:
        """Say what columns there are now."""
        schema = {"type": "struct", "fields": list(self.columns)}
        told: dict[str, Any] = {
            "id": self.table_id,
            "format": {"provider": "parquet", "options": {}},
            "configuration": self.settings,
        }
        told |= {"schemaString": json.dumps(schema), "partitionColumns": list(self.partition_by), "createdTime": 0}
        self.actions.append({"metaData": told})

    def append(
        self,
        rows: Sequence[Row],
        partition: Mapping[str, str | None] | None = None,
        *,
        group: int = 5,
        table: pa.Table | None = None,
        name: str | None = None,
        stats: Any = True,
    ) -> str:
        """Write a data file.

        Args:
            rows: that it gives, partition columns included.
            partition: values as the log has them, by the names that it has.
            group: rows of a row group.
            table: what the file holds; None for the rows' other columns.
            name: of the file, below the root, or its absolute path.
            stats: of the log: True for those of `rows`; None for none.
        """
        if table is None:
            apart = set(self.partition_by)
            kinds = {each["name"]: _KINDS[each["type"]] for each in self.columns if each["name"] not in apart}
            table = pa.table({name: pa.array([row.get(name) for row in rows], kind) for name, kind in kinds.items()})
        name = name or f"part-{uuid.uuid4()}.parquet"
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=group)
        add: dict[str, Any] = {
            "path": quote(name if not Path(name).is_absolute() else f"file://{name}", safe="/:"),
            "partitionValues": partition or {},
            "size": path.stat().st_size,
            "modificationTime": 1_000 * (self.version + 2),
            "dataChange": True,
        }
        if stats is not None:
            add["stats"] = json.dumps(stats_of(table) if stats is True else stats)
        self.actions.append({"add": add})
        self.data.append(Data(add, list(rows)))
        return str(add["path"])

    def adopt(self, path: Path, num_rows: int) -> str:
        """Take a file in that lies elsewhere, without its rows; its columns have no statistics."""
        add = {
            "path": quote(path.as_uri(), safe="/:%"),
            "partitionValues": {},
            "size": path.stat().st_size,
            "modificationTime": 1_000 * (self.version + 2),
            "dataChange": True,
            "stats": json.dumps({"numRecords": num_rows}),
        }
        self.actions.append({"add": add})
        self.data.append(Data(add, []))
        return str(add["path"])

    def remove(self, path: str) -> None:
        """Take a file out."""
        self.data = [each for each in self.data if each.add["path"] != path]
        self.actions.append({"remove": {"path": path, "deletionTimestamp": 0, "dataChange": True}})

    def delete(self, path: str, positions: Iterable[int], stored: str = "u") -> None:
        """Write a deletion vector, in place of the one that the file had: in a file ("u", "p") or inline ("i").

        A vector that says the same as before is left out: no commit may remove and add one logical file, which is a
        path with a vector.
        """
        [data] = [each for each in self.data if each.add["path"] == path]
        vector = self._vector(frozenset(positions), stored)
        if vector == data.add.get("deletionVector"):
            return
        data.deleted = frozenset(positions)
        if fresh := [each for each in self.actions if each.get("add") is data.add]:
            self.actions.remove(fresh[0])
        old = data.add.get("deletionVector")
        gone = {"path": path, "deletionTimestamp": 0, "dataChange": True} | ({"deletionVector": old} if old else {})
        data.add = {**data.add, "deletionVector": vector}
        if "stats" in data.add:
            data.add["stats"] = json.dumps({**json.loads(data.add["stats"]), "tightBounds": False})
        self.actions += [*([] if fresh else [{"remove": gone}]), {"add": data.add}]

    def _vector(self, positions: frozenset[int], stored: str) -> dict[str, Any]:
        body = struct.pack("<i", _MAGIC) + bytes(BitMap64(positions).serialize())
        told = {"storageType": stored, "sizeInBytes": len(body), "cardinality": len(positions)}
        if stored == "i":
            return {**told, "pathOrInlineDv": z85(body + b"\0" * (-len(body) % 4))}
        name = uuid.uuid4()
        path = self.root / f"deletion_vector_{name}.bin"
        path.write_bytes(b"\1" + struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body)))
        return {**told, "pathOrInlineDv": z85(name.bytes) if stored == "u" else path.as_uri(), "offset": 1}

    def commit(self) -> int:
        """Write the next version; of one that changes nothing, writers say what they did."""
        self.version += 1
        self.actions = self.actions or [{"commitInfo": {"operation": "WRITE", "timestamp": 0}}]
        path = self.root / "_delta_log" / f"{self.version:020}.json"
        path.write_text("".join(json.dumps(action) + "\n" for action in self.actions))
        self.actions = []
        return self.version

    def restore(self, path: str) -> None:
        """Bring all rows of a file back: it is there without a deletion vector."""
        [data] = [each for each in self.data if each.add["path"] == path]
        gone = {"path": path, "deletionTimestamp": 0, "dataChange": True, "deletionVector": data.add["deletionVector"]}
        data.add = {name: value for name, value in data.add.items() if name != "deletionVector"}
        data.deleted = frozenset()
        self.actions += [{"remove": gone}, {"add": data.add}]

    def checkpoint(self, form: str) -> None:
        """Write what the log says now as a checkpoint: "one file", "parts", "sidecars", or "sidecars, json"."""
        commits = [self.root / "_delta_log" / f"{version:020}.json" for version in range(self.version + 1)]
        lines = [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]
        head = [next(each for each in lines[::-1] if kind in each) for kind in ("protocol", "metaData")]
        adds = [{"add": each.add} for each in self.data]
        begin = self.root / "_delta_log" / f"{self.version:020}.checkpoint"
        if form == "one file":
            _write_actions(begin.with_name(f"{begin.name}.parquet"), [*head, *adds])
        elif form == "parts":
            for part, some_actions in enumerate((head, adds[:1], adds[1:]), 1):
                _write_actions(begin.with_name(f"{begin.name}.{part:010}.{3:010}.parquet"), some_actions)
        else:
            folder = self.root / "_delta_log" / "_sidecars"
            folder.mkdir()
            actions = [*head, {"checkpointMetadata": {"version": self.version}}]
            for listed in (adds[:1], adds[1:]):
                path = folder / f"{uuid.uuid4()}.parquet"
                _write_actions(path, listed)
                told = {"path": path.name, "sizeInBytes": path.stat().st_size, "modificationTime": 0}
                actions.append({"sidecar": told})
            name = f"{begin.name}.{uuid.uuid4()}"
            if "json" in form:
                text = "".join(json.dumps(action) + "\n" for action in actions)
                begin.with_name(f"{name}.json").write_text(text)
            else:
                _write_actions(begin.with_name(f"{name}.parquet"), actions)

    def live(self) -> list[Row]:
        """Return the rows that deletion vectors leave."""
        return [row for data in self.data for place, row in enumerate(data.rows) if place not in data.deleted]


_TEXTS = pa.map_(pa.string(), pa.string())
_VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_FORMAT = pa.struct([("provider", pa.string()), ("options", _TEXTS)])
_ACTIONS = {
    "add": pa.struct(
        [
            ("path", pa.string()),
            ("partitionValues", _TEXTS),
            ("size", pa.int64()),
            ("modificationTime", pa.int64()),
            ("dataChange", pa.bool_()),
            ("stats", pa.string()),
            ("deletionVector", _VECTOR),
        ]
    ),
    "protocol": pa.struct(
        [
            ("minReaderVersion", pa.int32()),
            ("minWriterVersion", pa.int32()),
            ("readerFeatures", pa.list_(pa.string())),
            ("writerFeatures", pa.list_(pa.string())),
        ]
    ),
    "metaData": pa.struct(
        [
            ("id", pa.string()),
            ("format", _FORMAT),
            ("schemaString", pa.string()),
            ("partitionColumns", pa.list_(pa.string())),
            ("configuration", _TEXTS),
            ("createdTime", pa.int64()),
        ]
    ),
    "sidecar": pa.struct([("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64())]),
    "checkpointMetadata": pa.struct([("version", pa.int64())]),
}


def _write_actions(path: Path, actions: Sequence[Mapping[str, Any]]) -> None:
    """Write a file of a checkpoint, in which each kind of action has a column."""
    kinds = {kind: type_ for kind, type_ in _ACTIONS.items() if any(kind in action for action in actions)}
    maps = {"partitionValues", "configuration", "options"}

    def typed(value: Any, name: str = "") -> Any:
        if not isinstance(value, Mapping):
            return value
        return list(value.items()) if name in maps else {key: typed(inner, key) for key, inner in value.items()}

    columns = {kind: pa.array([typed(action.get(kind)) for action in actions], type_) for kind, type_ in kinds.items()}
    pq.write_table(pa.table(columns), path)


def some(start: int, stop: int) -> list[Row]:
    """Make rows of `COLUMNS`; `k` is null now and then."""
    return [{"x": i, "k": None if i % 11 == 3 else i * 7 % 10, "s": f"s{i % 3}"} for i in range(start, stop)]


def stats_of(table: pa.Table) -> dict[str, Any]:
    """Return the statistics of a file, of flat columns that JSON has."""
    stats: dict[str, Any] = {"numRecords": table.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for name in table.column_names:
        if pa.types.is_nested(table.schema.field(name).type):
            continue
        stats["nullCount"][name] = table[name].null_count
        values = [value for value in table[name].to_pylist() if value is not None and value == value]  # noqa: PLR0124
        if any(isinstance(value, float) and math.isinf(value) for value in values):
            continue  # JSON has no such number
        if values and isinstance(values[0], int | float | str):
            stats["minValues"][name], stats["maxValues"][name] = min(values), max(values)
        elif values:
            stats["minValues"][name], stats["maxValues"][name] = str(min(values)), str(max(values))
    return stats


def z85(data: bytes) -> str:
    """Encode bytes, four at a time, as ZeroMQ's RFC 32 says."""
    numbers = (int.from_bytes(data[at : at + 4], "big") for at in range(0, len(data), 4))
    return "".join(_Z85[number // 85**power % 85] for number in numbers for power in range(4, -1, -1))
