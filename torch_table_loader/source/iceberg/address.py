"""Where a caller's Iceberg table is; known without pyiceberg, which only finding it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class TableAddress:
    """Which table, and how it is reached; checked when it is opened.

    Args:
        table: its name with two or more parts ("db.table"), or a pyiceberg Table.
        catalog_config: what pyiceberg's ``load_catalog`` takes; or the name of a catalog of ``.pyiceberg.yaml``; or a
            pyiceberg Catalog.
        metadata_location: a metadata.json, instead of a catalog.
        location_override: prefixes of the metadata's paths, and what stands there now.
        storage_options: for the file system; they win over the catalog's.
        credentials: gives fresh storage properties, as pyiceberg names them, wherever the known ones end.
        allow_locations: URLs of other places where the table's files may lie.
    """

    table: Any = None
    catalog_config: Any = field(default=None, repr=False)
    metadata_location: str | None = field(default=None, repr=False)
    location_override: Mapping[str, str] | None = field(default=None, repr=False)
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    credentials: Callable[[], Mapping[str, Any]] | None = field(default=None, repr=False)
    allow_locations: Sequence[str] | None = None
