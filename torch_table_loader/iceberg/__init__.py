"""The dataset of an Apache Iceberg table, as its catalog sees it."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

from torch_table_loader.errors import ConfigError, MissingExtraError
from torch_table_loader.table_formats import LoaderKeywords, SnapshotDataset

if TYPE_CHECKING:
    from torch_table_loader.iceberg.source import IcebergRequest


class IcebergDataset(SnapshotDataset):
    """One snapshot of an Iceberg table, chosen when the dataset is made.

    Put it into a ``DataLoader(dataset, batch_size=None)``. Or call `create_dataloader`, whose loader also knows its
    length, reads with threads, and can be resumed.
    """

    title = "an Iceberg table"
    pin = "snapshot_id"

    def __init__(
        self,
        table: Any = None,
        catalog_config: Any = None,
        *,
        catalog: Any = None,
        scan_filter: Any = None,
        snapshot_id: int | None = None,
        branch: str | None = None,
        tag: str | None = None,
        as_of: dt.datetime | str | int | None = None,
        start_snapshot_id: int | None = None,
        end_snapshot_id: int | None = None,
        changelog: bool = False,
        metadata_location: str | os.PathLike[str] | None = None,
        location_override: Mapping[str, str] | None = None,
        allow_locations: Sequence[str] | None = None,
        split_deletes: bool = False,
        footers: Literal["eager", "lazy"] = "eager",
        credentials: Callable[[], Mapping[str, Any]] | None = None,
        **options: Unpack[LoaderKeywords],
    ) -> None:
        """Find the table, choose the snapshot, plan its files, and plan the first epoch.

        Args:
            table: its name ("db.table", "db.schema.table"), or a pyiceberg Table.
            catalog_config: the properties for pyiceberg's ``load_catalog`` (``{"type": "sql", "uri": …}``), the name of
                a catalog in ``.pyiceberg.yaml`` or the environment (``PYICEBERG_CATALOG__PROD__URI``), or a pyiceberg
                Catalog.
            catalog: another name for `catalog_config`: ``IcebergDataset("db.table", catalog="prod")``.
            scan_filter: a pyiceberg expression, or text such as ``"x > 3 and day = '2026-01-31'"``; leaves out rows for
                which it is not true.
            snapshot_id: the snapshot to read; without this and the next three, the current one.
            branch: read the newest snapshot of this branch.
            tag: read the snapshot with this tag.
            as_of: read the snapshot that was current at this time: a datetime or ISO text with time zone, or
                milliseconds.
            start_snapshot_id: read only rows appended after this snapshot, an ancestor of the one that is read; commits
                in between that delete or overwrite rows are refused, unless `changelog` is given.
            end_snapshot_id: with `start_snapshot_id`, the last snapshot whose rows are read; by default the one that
                the options above choose.
            changelog: with `start_snapshot_id`, read all rows that came or went after it. Three columns say what
                happened to a row: ``_change_type`` ("INSERT" or "DELETE"), ``_change_ordinal`` (of the commit, from 0)
                and ``_commit_snapshot_id``.
            metadata_location: a metadata.json, or a folder with ``metadata/version-hint.text``, instead of a catalog.
            location_override: for a table that was moved, prefixes of paths in the metadata, and their replacements.
            allow_locations: URLs with a host or bucket, and folders on these or on this machine, that may contain files
                of the table besides the host or bucket of its metadata file; files elsewhere are refused.
            split_deletes: also cut files with deletes; not needed with ``shuffle="rows"``.
            footers: "lazy" plans by the rows that the manifests name, and opens the footers of this rank's own files
                only when it reads them; row groups are then estimates, so filters rule out none of them, and the ends
                of splits may fall inside one.
            credentials: callable that returns storage properties under pyiceberg's names (``s3.access-key-id`` …). It
                is called again before ``s3.session-token-expires-at-ms`` and when the store refuses access, and must be
                picklable for worker processes. Without it, a catalog that vends credentials is asked again.
            options: the fields of `LoaderOptions`.

        Raises:
            ConfigError: an option is wrong, or the catalog, table, snapshot, branch or tag does not exist.
            TableError: a file is missing, torn, or of an unsupported format or type.
            StorageError: the catalog or the store refused.
        """
        catalog_config = _one_of(catalog, catalog_config)
        interval = (start_snapshot_id, end_snapshot_id, snapshot_id)
        asked, snapshot_id = self._understood(options, interval, changelog=changelog, footers=footers)
        chosen = {"snapshot_id": snapshot_id, "branch": branch, "tag": tag, "as_of": as_of}
        address = {
            "table": table,
            "catalog_config": catalog_config,
            "metadata_location": metadata_location,
            "location_override": location_override,
            "credentials": credentials,
            "allow_locations": allow_locations,
        }
        parts = {"scan_filter": scan_filter, "start": start_snapshot_id, "changelog": changelog}
        request = partial(_request, address, parts)
        self._open(asked, options, request, chosen, footers=footers, split_deletes=split_deletes)


def _one_of(catalog: Any, catalog_config: Any) -> Any:
    if catalog is None:
        return catalog_config
    if catalog_config is not None:
        raise ConfigError("catalog= and catalog_config= name one catalog; pass one of them")
    return catalog


def _request(
    address: Mapping[str, Any], parts: Mapping[str, Any], *, storage_options: Mapping[str, Any] | None, **asked: Any
) -> IcebergRequest:
    try:
        from torch_table_loader.iceberg.catalog import TableAddress
        from torch_table_loader.iceberg.source import IcebergRequest
    except ImportError as error:
        raise MissingExtraError(
            f"Iceberg tables need pyiceberg and fastavro ({error}); pip install 'torch-table-loader[iceberg]'"
        ) from error
    return IcebergRequest(TableAddress(**address, storage_options=storage_options), **asked, **parts)
