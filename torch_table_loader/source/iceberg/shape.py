"""Checks the structure of a table's metadata JSON (https://iceberg.apache.org/spec/#table-metadata) that is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch_table_loader.source.iceberg.checked import (
    Check,
    anything,
    deeper,
    flag,
    many,
    mapping,
    named,
    record,
    shown,
    text,
    unlike,
    whole,
)

NO_SNAPSHOT = -1
NAME_MAPPING = "schema.name-mapping.default"


def check_metadata(raw: Mapping[str, Any]) -> None:
    """Refuse metadata that lacks the format's structure, or contradicts itself.

    Raises:
        ValueError: the metadata is malformed; the message says where.
    """
    _METADATA(raw, "")
    schemas = raw.get("schemas") or ([raw["schema"]] if raw.get("schema") else [])
    if not schemas:
        raise ValueError("schemas must hold a schema, and hold none")
    ids = [schema.get("schema-id", 0) for schema in schemas]
    unlike(ids, "schema-id")
    if raw.get("current-schema-id") is not None and raw.get("schemas"):
        _one_of(raw["current-schema-id"], ids, "current-schema-id", "schema")
    unlike((spec["spec-id"] for spec in raw.get("partition-specs") or ()), "spec-id")
    _check_snapshots(raw)


def _check_snapshots(raw: Mapping[str, Any]) -> None:
    ids = [snapshot["snapshot-id"] for snapshot in raw.get("snapshots") or ()]
    unlike(ids, "snapshot-id")
    current = NO_SNAPSHOT if raw.get("current-snapshot-id") is None else raw["current-snapshot-id"]
    if current != NO_SNAPSHOT:
        _one_of(current, ids, "current-snapshot-id", "snapshot")
    main = (raw.get("refs") or {}).get("main")
    if main is not None and main["snapshot-id"] != current:
        raise ValueError(
            f"current-snapshot-id must be {main['snapshot-id']}, the snapshot of the branch main, got "
            f"{'none' if current == NO_SNAPSHOT else current}"
        )


def _one_of(value: int, known: list[int], place: str, what: str) -> None:
    if value not in known:
        listed = ", ".join(map(str, known[-5:])) or "none"
        raise ValueError(f"{place} must be the id of a {what} of the table, whose newest are {listed}, got {value}")


def _check_names(value: Any, place: str, depth: int) -> None:
    depth = deeper(depth, place)
    inner: dict[str, Check] = {"field-id": whole, "fields": lambda fields, at: _check_names(fields, at, depth)}
    many(record({"names": many(text)}, inner))(value, place)


def _check_fields(value: Any, place: str, depth: int, ids: list[int]) -> None:
    def check_kind(kind: Any, at: str) -> None:
        _check_kind(kind, at, depth, ids)

    many(record({"id": whole, "name": text, "required": flag, "type": check_kind}))(value, place)
    ids += [field["id"] for field in value]
    unlike((field["name"] for field in value), f"{place}: name")


def _check_kind(kind: Any, place: str, depth: int, ids: list[int]) -> None:
    """Check a type: a name, or a struct, list or map object with types inside."""
    if not isinstance(kind, dict):
        text(kind, place)
        return
    depth = deeper(depth, place)

    def check_inner(inner: Any, at: str) -> None:
        _check_kind(inner, at, depth, ids)

    name = text(kind.get("type"), f"{place}.type")
    if name == "struct":
        record({"fields": lambda value, at: _check_fields(value, at, depth, ids)})(kind, place)
    elif name == "list":
        record({"element-id": whole, "element": check_inner, "element-required": flag})(kind, place)
        ids.append(kind["element-id"])
    elif name == "map":
        sides: dict[str, Check] = {
            "key-id": whole,
            "key": check_inner,
            "value-id": whole,
            "value": check_inner,
            "value-required": flag,
        }
        record(sides)(kind, place)
        ids += [kind["key-id"], kind["value-id"]]


def _check_schema(value: Any, place: str) -> None:
    ids: list[int] = []
    inner = {"fields": lambda fields, at: _check_fields(fields, at, 0, ids)}
    record(inner, {"schema-id": whole})(value, place)
    unlike(ids, f"{place}: id of a column")


def _check_spec_field(value: Any, place: str) -> None:
    field = record({"transform": text}, {"name": text, "field-id": whole, "source-id": whole})(value, place)
    if field["transform"] == "identity" and field.get("source-id") is None:
        raise ValueError(f"{place}.source-id must be there, but is missing")


def _id(value: Any, place: str) -> int:
    """Check the id of a snapshot; some writers make unsigned ones."""
    return whole(value, place, -(1 << 63), (1 << 64) - 1)


def _check_properties(value: Any, place: str) -> None:
    mapping_of_names = mapping(value, place).get(NAME_MAPPING)
    if mapping_of_names is not None:
        _check_names(json.loads(text(mapping_of_names, NAME_MAPPING)), NAME_MAPPING, 0)


def _count(value: Any, place: str) -> None:
    """Check a count in a summary, where values are texts."""
    if not (isinstance(value, int) or (isinstance(value, str) and value.isascii() and value.lstrip("-").isdigit())):
        raise ValueError(f"{place} must be a number, got {shown(value)}")


_LOGGED = {"snapshot-id": _id, "timestamp-ms": whole}
_METADATA = record(
    {"location": text},
    {
        "table-uuid": text,
        "properties": _check_properties,
        "schemas": many(_check_schema),
        "schema": _check_schema,
        "current-schema-id": whole,
        "partition-specs": many(record({"spec-id": whole, "fields": many(_check_spec_field)})),
        "partition-spec": many(_check_spec_field),
        "current-snapshot-id": _id,
        "snapshots": many(
            record(
                {"snapshot-id": _id},
                {
                    "timestamp-ms": whole,
                    "schema-id": whole,
                    "parent-snapshot-id": _id,
                    "manifest-list": text,
                    "manifests": many(text),
                    "summary": record({}, {"operation": anything, "total-data-files": _count}),
                },
            )
        ),
        "snapshot-log": many(record(_LOGGED)),
        "refs": named(record({"snapshot-id": _id, "type": text})),
    },
)
