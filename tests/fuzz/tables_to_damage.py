"""Small sound Iceberg tables, what damages their files, and which damage makes another table that is sound as well."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq

from tests.fuzz.mutations import damaged, damaged_tree
from tests.tables.iceberg import IcebergWriter, some
from tests.tables.iceberg_damage import decoded, encoded, local

_LOOSE = ["null", "boolean", "long", "double", "string", "bytes"]

_UNCHECKED_OF_A_FILE = (
    "partition",
    "lower_bounds",
    "upper_bounds",
    "value_counts",
    "null_value_counts",
    "equality_ids",
    "referenced_data_file",
)
"""Other values of these are those of another table: nothing in the table contradicts them."""


@dataclass(frozen=True, slots=True)
class Lake:
    """A sound table.

    Args:
        root: its folder.
        sound: a copy of the folder.
        location: of its metadata file.
        files: its files by what they are: "metadata", "list", "data manifest", …
    """

    root: Path
    sound: Path
    location: str
    files: Mapping[str, Path]


def _version_1(root: Path) -> tuple[IcebergWriter, dict[str, str]]:
    table = IcebergWriter(root, version=1, partition_by=2)
    for part in (0, 1):
        table.append([{"x": x, "k": part, "s": f"s{x}"} for x in range(10 * part, 10 * part + 10)], partition=part)
    table.commit()
    return table, {}


def _version_2(root: Path) -> tuple[IcebergWriter, dict[str, str]]:
    table = IcebergWriter(root)
    first = table.append(some(0, 20), group=6)
    table.append(some(20, 30))
    table.commit()
    positions = table.delete_rows({first: [3, 17]})
    keys = table.delete_keys([1], [{"x": 5}, {"x": 25}])
    table.commit()
    table.append(some(30, 40))
    table.commit()
    return table, {"position deletes": positions, "equality deletes": keys}


def _version_3(root: Path) -> tuple[IcebergWriter, dict[str, str]]:
    table = IcebergWriter(root, version=3)
    first = table.append(some(0, 20))
    table.append(some(20, 30))
    table.commit()
    vector = table.delete_vector(first, [0, 7, 19])
    table.commit()
    return table, {"deletion vector": vector}


_TABLES: dict[str, Callable[[Path], tuple[IcebergWriter, dict[str, str]]]] = {
    "v1": _version_1,
    "v2": _version_2,
    "v3": _version_3,
}

PLACES = {
    "v1": ("metadata", "list", "data manifest"),
    "v2": ("metadata", "list", "data manifest", "delete manifest", "position deletes", "equality deletes"),
    "v3": ("metadata", "list", "data manifest", "delete manifest", "deletion vector"),
}


def make_lake(name: str, folder: Path) -> Lake:
    """Write one of the tables, and a copy."""
    root = folder / "table"
    writer, deletes = _TABLES[name](root)
    for path in deletes.values():
        if path.endswith(".parquet"):
            _with_checksums(local(path))
    current = writer.snapshots[-1]
    current["summary"]["total-data-files"] = str(len(writer.data))
    writer.refs["main"] = {"snapshot-id": current["snapshot-id"], "type": "branch"}
    location = writer.metadata
    files = {"metadata": local(location), "list": local(current["manifest-list"])}
    _, _, rows = decoded(files["list"].read_bytes())
    for row in rows:
        files["delete manifest" if row["content"] else "data manifest"] = local(row["manifest_path"])
    files |= {what: local(path) for what, path in deletes.items()}
    sound = folder / "sound"
    shutil.copytree(root, sound)
    return Lake(root, sound, location, files)


def damage(lake: Lake, place: str, seed: int) -> tuple[bytes, str] | None:
    """Damage a file of a table.

    Args:
        lake: the table.
        place: which file.
        seed: says which damage: of bytes, or of what they say.

    Returns:
        The file's bytes and what was done; None where such a file cannot be written.
    """
    data = (lake.sound / lake.files[place].relative_to(lake.root)).read_bytes()
    by_bytes = seed % 3 == 0 or place in ("position deletes", "equality deletes", "deletion vector")
    if by_bytes:
        body = _body(data, place)
        new, what = damaged(data[:body], seed)
        return new + data[body:], what
    if place == "metadata":
        tree, what = damaged_tree(json.loads(data), seed)
        return json.dumps(tree).encode(), what
    schema, header, rows = decoded(data)
    rows, what = damaged_tree(rows, seed)
    for shape in (schema, _loose(schema)):
        try:
            return encoded(shape, header, rows, Random(seed).choice(("deflate", "null"))), what
        except Exception:  # noqa: BLE001, S112 - a record that no schema fits
            continue
    return None


def is_another(lake: Lake, place: str, data: bytes) -> bool:
    """Say whether a damaged file makes another table, which has rows of its own.

    Args:
        lake: the table.
        place: which file is damaged.
        data: its bytes.
    """
    sound = (lake.sound / lake.files[place].relative_to(lake.root)).read_bytes()
    if place == "metadata":
        return _is_another_metadata(json.loads(sound), json.loads(data))
    if "manifest" not in place and place != "list":
        return False
    _, _, before = decoded(sound)
    try:
        _, _, after = decoded(data)
    except Exception:  # noqa: BLE001 - what fastavro does not decode is no table
        return False
    if place == "list":
        return len(after) < len(before)
    files = [row["data_file"] for row in before], [row["data_file"] for row in after]
    numbers = [[row.get("sequence_number") for row in rows] for rows in (before, after)]
    return numbers[0] != numbers[1] or any(
        repr([file.get(name) for file in files[0]]) != repr([file.get(name) for file in files[1]])
        for name in _UNCHECKED_OF_A_FILE
    )


def _is_another_metadata(before: dict[str, Any], after: dict[str, Any]) -> bool:
    names = ("schemas", "current-schema-id", "partition-specs", "properties")
    changed = any(before.get(name) != after.get(name) for name in names)
    other_snapshot = all(before.get(name) != after.get(name) for name in ("current-snapshot-id", "refs"))
    return changed or other_snapshot


def _with_checksums(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table, path, write_page_checksum=True)


def _body(data: bytes, place: str) -> int:
    """So many of a file's first bytes are damaged: of Parquet those that checksums protect."""
    return (
        len(data)
        if place not in ("position deletes", "equality deletes")
        else (len(data) - 8 - int.from_bytes(data[-8:-4], "little"))
    )


def _loose(schema: Any) -> Any:
    """Let each plain value of a schema be of any plain type."""
    if isinstance(schema, list):
        others = [kind for kind in schema if isinstance(kind, dict)]
        return ["null", *map(_loose, others)] if others else _LOOSE
    if not isinstance(schema, dict):
        return _LOOSE if schema in ("int", "long", "string", "boolean", "double", "bytes") else schema
    inner = {name: _loose(schema[name]) for name in ("items",) if name in schema}
    fields = [{"name": each["name"], "type": _loose(each["type"])} for each in schema.get("fields", ())]
    return schema | inner | ({"fields": fields} if "fields" in schema else {})


__all__ = ["PLACES", "Lake", "damage", "is_another", "make_lake"]
