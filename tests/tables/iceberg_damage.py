"""Changes the metadata files of a table in place, as damage and broken writers do."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro

Rows = list[dict[str, Any]]


def local(location: str) -> Path:
    """Give a location's path on this machine."""
    return Path(location.removeprefix("file://"))


def decoded(data: bytes) -> tuple[dict[str, Any], dict[str, str], Rows]:
    """Decode an Avro file: schema, the header's own entries, records."""
    reader: Any = fastavro.reader(io.BytesIO(data))
    header = {name: value for name, value in reader.metadata.items() if not name.startswith("avro.")}
    return json.loads(reader.metadata["avro.schema"]), header, list(reader)


def encoded(schema: dict[str, Any], header: dict[str, str], rows: Rows, codec: str = "deflate") -> bytes:
    """Write what `decoded` gave."""
    target = io.BytesIO()
    fastavro.writer(target, fastavro.parse_schema(schema), rows, codec=codec, metadata=header)
    return target.getvalue()


def edit_avro(path: Path, change: Callable[[Rows], Any], header: dict[str, str] | None = None) -> None:
    """Change the records of an Avro file, and entries of its header."""
    schema, said, rows = decoded(path.read_bytes())
    change(rows)
    path.write_bytes(encoded(schema, said | (header or {}), rows))


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a JSON file."""
    tree = json.loads(path.read_bytes())
    change(tree)
    path.write_text(json.dumps(tree))


class Files:
    """The metadata files of the newest snapshot of a table."""

    def __init__(self, metadata: str) -> None:
        """Find them.

        Args:
            metadata: the table's metadata file.
        """
        self.metadata = local(metadata)
        self.list = local(json.loads(self.metadata.read_bytes())["snapshots"][-1]["manifest-list"])
        _, _, rows = decoded(self.list.read_bytes())
        self.manifests = [local(row["manifest_path"]) for row in rows]


__all__ = ["Files", "decoded", "edit_avro", "edit_json", "encoded", "local"]
