"""The dataset of an Apache Iceberg table, as its catalog sees it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Unpack

from torch_table_loader.dataset import TableDataset, open_share
from torch_table_loader.engine.agreement import Agreement
from torch_table_loader.engine.ranks import resolve_ranks
from torch_table_loader.errors import ConfigError, MissingExtraError, ResumeError
from torch_table_loader.keywords import make_options
from torch_table_loader.options import LoaderKeywords, LoaderOptions
from torch_table_loader.source.plan_cache import PlanCache

if TYPE_CHECKING:
    from torch_table_loader.engine.roles import Place, TableShare


class IcebergDataset(TableDataset):
    """An Iceberg table at one snapshot, which is chosen at construction and stays.

    Put it into a ``DataLoader(dataset, batch_size=None)``, or let `create_dataloader` make a loader that also
    knows its length, takes batches from threads, and can be resumed.
    """

    def __init__(
        self,
        table: Any = None,
        catalog_config: Any = None,
        *,
        scan_filter: Any = None,
        snapshot_id: int | None = None,
        branch: str | None = None,
        tag: str | None = None,
        as_of: dt.datetime | str | int | None = None,
        metadata_location: str | None = None,
        location_override: Mapping[str, str] | None = None,
        split_deletes: bool = False,
        credentials: Callable[[], Mapping[str, Any]] | None = None,
        **options: Unpack[LoaderKeywords],
    ) -> None:
        """Find the table, choose the snapshot, plan its files, and plan the first epoch.

        Args:
            table: its name ("db.table", "db.schema.table"), or a pyiceberg Table.
            catalog_config: what pyiceberg's ``load_catalog`` takes (``{"type": "sql", "uri": …}``), the name of a
                catalog of ``.pyiceberg.yaml``, or a pyiceberg Catalog.
            scan_filter: a pyiceberg expression, or text such as ``"x > 3 and day = '2026-01-31'"``; rows for which
                it is not true do not come.
            snapshot_id: the snapshot to read; none of this and the next three: the current one.
            branch: the newest snapshot of a branch.
            tag: the snapshot that a tag names.
            as_of: the snapshot that was current then: a datetime or ISO text with time zone, or milliseconds.
            metadata_location: a metadata.json, instead of a catalog.
            location_override: prefixes of the metadata's paths, and what stands there now, of a table that moved.
            split_deletes: cut files that have deletes, too; rows that are shuffled one by one need no cut.
            credentials: gives storage properties as pyiceberg names them (``s3.access-key-id`` …), called again
                before ``s3.session-token-expires-at-ms`` and where the store refuses access; must pickle for worker
                processes. Without it a catalog that vends credentials is asked again.
            options: the fields of `LoaderOptions`.

        Raises:
            ConfigError: an option is wrong, or there is no such catalog, table, snapshot, branch or tag.
            TableError: a file is missing, torn, or of a format or type that is not read.
            StorageError: the catalog or the store refused.
        """
        asked = make_options(options)
        _refuse_others(asked)
        ranks = resolve_ranks(asked)
        try:
            from torch_table_loader.source.iceberg.open import open_source
        except ImportError as error:
            raise MissingExtraError(
                f"Iceberg tables need pyiceberg and fastavro ({error}); pip install 'torch-table-loader[iceberg]'"
            ) from error
        chosen = {"snapshot_id": snapshot_id, "branch": branch, "tag": tag, "as_of": as_of}
        agreement = Agreement(
            ranks.rank, ranks.num_ranks, check=asked.check_plan, pinned=any(v is not None for v in chosen.values())
        )

        def open_at(chosen: Mapping[str, Any], agree: Callable[[str, Any], Any]) -> TableShare[Any]:
            source, filters = open_source(
                table,
                catalog_config,
                chosen=chosen,
                agree=agree,
                metadata_location=metadata_location,
                location_override=location_override,
                storage_options=asked.storage_options,
                credentials=credentials,
                columns=asked.columns,
                filters=asked.filters,
                scan_filter=scan_filter,
            )
            cache = None
            if asked.plan_cache is not None:
                cache = PlanCache.open(asked.plan_cache, asked.storage_options, source.storage.place)
            job = open_share(source, replace(asked, filters=filters), ranks, cache, split_deletes=split_deletes)
            source.storage.close()
            return job

        job = open_at(chosen, agreement.common_value)
        agreement.check(job.identity["table"] | job.identity["options"] | asdict(job.topology))
        super().__init__(job)
        pinned = any(value is not None for value in chosen.values())
        self._open_at = None if pinned else open_at

    def resume(self, state: Mapping[str, Any]) -> tuple[TableShare[Any], Place]:
        """Find the job that goes on from a state: of the state's own snapshot, where the caller chose none."""
        theirs = state.get("table", {}).get("snapshot_id") if isinstance(state, Mapping) else None
        if self._open_at is None or theirs is None or theirs == self.snapshot_id:
            return super().resume(state)
        try:
            job = self._open_at({"snapshot_id": theirs}, lambda _, value: value)
        except ConfigError as error:
            raise ResumeError(f"the state speaks of snapshot {theirs}, which cannot be read: {error}") from error
        return job.resume(state)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what opens the table again: a worker's copy only reads."""
        return {**self.__dict__, "_open_at": None}

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that is read; None of a table without one."""
        return self.job.table.snapshot_id


def _refuse_others(options: LoaderOptions) -> None:
    for name, remedy in (
        ("schema", "an Iceberg table has its own"),
        ("files", "pass snapshot_id= to pin the table"),
        ("partitioning", "an Iceberg table knows its partitions"),
    ):
        if getattr(options, name) is not None:
            raise ConfigError(f"{name}= is for tables of plain files; {remedy}")


__all__ = ["IcebergDataset"]
