"""The way into the room: a table's address and a filter become a source and what is left of the filter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch_table_loader.source.iceberg.catalog import as_it_is_now, open_table
from torch_table_loader.source.iceberg.source import IcebergSource
from torch_table_loader.source.plan_cache import PlanCache

if TYPE_CHECKING:
    from torch_table_loader.source.iceberg.address import TableAddress


def open_source(
    at: TableAddress,
    chosen: Mapping[str, Any],
    agree: Callable[[str, Any], Any],
    *,
    columns: Sequence[str] | None = None,
    filters: Any = None,
    scan_filter: Any = None,
    plan_cache: str | None = None,
) -> tuple[IcebergSource, Any, PlanCache | None]:
    """Find a table, choose its snapshot and plan its files.

    Args:
        at: where the table is.
        chosen: the arguments of `TableMetadata.snapshot`.
        agree: gives rank 0's value of a name; takes this rank's.
        columns: that will be read; None for all.
        filters: a pyarrow Expression, or None.
        scan_filter: a pyiceberg expression or text, or None.
        plan_cache: a directory that keeps plans, footers and counts; or None.

    Returns:
        The source, the filter for rows, and the cache.
    """
    found = open_table(at)
    snapshot = found.metadata.snapshot(**chosen)
    snapshot_id, schema_id = agree("snapshot", [snapshot.id, snapshot.schema_id])
    if (snapshot_id, schema_id) != (snapshot.id, snapshot.schema_id):
        if not found.metadata.has(snapshot_id, schema_id):
            found = open_table(as_it_is_now(at))  # rank 0 came later, and saw a commit that this rank did not
        snapshot = found.metadata.snapshot_as(snapshot_id, schema_id)
    cache = None if plan_cache is None else PlanCache.open(plan_cache, at.storage_options, found.storage.place)
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
