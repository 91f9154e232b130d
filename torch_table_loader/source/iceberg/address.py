"""Where a caller's Iceberg table is; known without pyiceberg, which only finding it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    """

    table: Any = None
    catalog_config: Any = field(default=None, repr=False)
    metadata_location: str | None = None
    location_override: Mapping[str, str] | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    credentials: Callable[[], Mapping[str, Any]] | None = field(default=None, repr=False)


__all__ = ["TableAddress"]
