"""The way into the room: a table's name and a filter become a source and what is left of the filter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch_table_loader.source.iceberg.catalog import as_it_is_now, open_table
from torch_table_loader.source.iceberg.source import IcebergSource
from torch_table_loader.source.plan_cache import PlanCache


def open_source(
    table: Any,
    catalog_config: Any,
    *,
    chosen: Mapping[str, Any],
    agree: Callable[[str, Any], Any],
    metadata_location: str | None,
    location_override: Mapping[str, str] | None,
    storage_options: Mapping[str, Any] | None,
    credentials: Callable[[], Mapping[str, Any]] | None,
    columns: Sequence[str] | None,
    filters: Any,
    scan_filter: Any,
    plan_cache: str | None = None,
) -> tuple[IcebergSource, Any, PlanCache | None]:
    """Find a table, choose its snapshot and plan its files.

    Args:
        table: see `open_table`.
        catalog_config: see `open_table`.
        chosen: the arguments of `TableMetadata.snapshot`.
        agree: gives rank 0's value of a name; takes this rank's.
        metadata_location: see `open_table`.
        location_override: see `open_table`.
        storage_options: see `open_table`.
        credentials: see `open_table`.
        columns: that will be read; None for all.
        filters: a pyarrow Expression, or None.
        scan_filter: a pyiceberg expression or text, or None.
        plan_cache: a directory that keeps plans, footers and counts; or None.

    Returns:
        The source, the filter for rows, and the cache.
    """
    find = partial(
        open_table,
        catalog_config=catalog_config,
        metadata_location=metadata_location,
        location_override=location_override,
        storage_options=storage_options,
        credentials=credentials,
    )
    found = find(table)
    snapshot = found.metadata.snapshot(**chosen)
    snapshot_id, schema_id = agree("snapshot", [snapshot.id, snapshot.schema_id])
    if (snapshot_id, schema_id) != (snapshot.id, snapshot.schema_id):
        if not found.metadata.has(snapshot_id, schema_id):
            found = find(as_it_is_now(table))  # rank 0 came later, and saw a commit that this rank did not
        snapshot = found.metadata.snapshot_as(snapshot_id, schema_id)
    cache = None if plan_cache is None else PlanCache.open(plan_cache, storage_options, found.storage.place)
    source, rows = IcebergSource.open(
        found.metadata,
        found.storage,
        snapshot,
        name=found.name,
        columns=columns,
        filters=filters,
        scan_filter=scan_filter,
        cache=cache,
    )
    return source, rows, cache


__all__ = ["open_source"]
