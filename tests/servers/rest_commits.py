"""What a REST catalog does for those who write: namespaces, new tables, and commits, over a catalog of pyiceberg's."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

import pyiceberg.table.update
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest, StagedTable, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import AddSchemaUpdate, SetLocationUpdate, UpgradeFormatVersionUpdate
from pyiceberg.typedef import IcebergBaseModel

Body = Mapping[str, Any]
Name = tuple[str, ...]


def keep_version_3() -> None:
    """Let pyiceberg keep metadata of version 3, which it reads and refuses to write: others commit it through us."""
    TableMetadataV3.model_dump_json = IcebergBaseModel.model_dump_json  # type: ignore[method-assign]
    TableMetadataV3.model_fields["next_row_id"].default = 0
    TableMetadataV3.model_rebuild(force=True)
    pyiceberg.table.update.SUPPORTED_TABLE_FORMAT_VERSION = 3  # type: ignore[attr-defined]


def as_json(metadata: TableMetadata) -> Any:
    """Give metadata as a server says it."""
    return json.loads(IcebergBaseModel.model_dump_json(metadata, by_alias=True, exclude_none=True))


def create_table(tables: Catalog, space: Name, body: Body) -> Table | TableMetadata:
    """Make a table, or where the writer wants to commit it later, what it would be."""
    blank = {"location": None, "partition-spec": None, "write-order": None}
    asked = CreateTableRequest.model_validate(blank | dict(body) | {"properties": body.get("properties") or {}})
    parts = (asked.partition_spec or UNPARTITIONED_PARTITION_SPEC, asked.write_order or UNSORTED_SORT_ORDER)
    properties = dict(asked.properties)
    if not body.get("stage-create"):
        name = (*space, asked.name)
        return tables.create_table(name, asked.table_schema, asked.location, *parts, properties)
    location = asked.location or _place(tables, (*space, asked.name))
    return new_table_metadata(asked.table_schema, *parts, location, properties)


def commit(tables: Catalog, name: Name, body: Body) -> Table:
    """Apply updates to a table, which they may make."""
    asked = CommitTableRequest.model_validate({"identifier": {"namespace": name[:-1], "name": name[-1]}} | dict(body))
    try:
        table = tables.load_table(name)
    except NoSuchTableError:
        table = _staged(tables, name, asked)
    tables.commit_table(table, tuple(asked.requirements), tuple(asked.updates))
    return tables.load_table(name)


def _staged(tables: Catalog, name: Name, asked: CommitTableRequest) -> StagedTable:
    """Make the table that updates begin with."""
    by_kind = {type(update): update for update in asked.updates}
    set_location, upgrade, schema = (
        by_kind.get(kind) for kind in (SetLocationUpdate, UpgradeFormatVersionUpdate, AddSchemaUpdate)
    )
    if not isinstance(schema, AddSchemaUpdate):
        raise NoSuchTableError(".".join(name))
    location = set_location.location if isinstance(set_location, SetLocationUpdate) else _place(tables, name)
    version = upgrade.format_version if isinstance(upgrade, UpgradeFormatVersionUpdate) else 2
    metadata = new_table_metadata(
        schema.schema_, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, location, {"format-version": str(version)}
    )
    path = f"{location}/metadata/00000-{uuid.uuid4()}.metadata.json"
    return StagedTable(name, metadata, path, tables._load_file_io(location=location), tables)


def _place(tables: Catalog, name: Name) -> str:
    assert isinstance(tables, MetastoreCatalog)
    return tables._resolve_table_location(None, ".".join(name[:-1]), name[-1])


__all__ = ["as_json", "commit", "create_table", "keep_version_3"]
