"""The dataset of an Apache Iceberg table, as its catalog sees it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Unpack

from torch_table_loader.dataset import TableDataset
from torch_table_loader.engine.jobs.modes import open_job
from torch_table_loader.engine.jobs.resolve import with_batch_size
from torch_table_loader.engine.plan_check import PlanCheck
from torch_table_loader.engine.rank_info import resolve_ranks
from torch_table_loader.errors import ConfigError, MissingExtraError, ResumeError
from torch_table_loader.keywords import make_options
from torch_table_loader.options import LoaderKeywords, LoaderOptions
from torch_table_loader.source.iceberg.address import TableAddress

if TYPE_CHECKING:
    from torch_table_loader.engine.jobs.job import Job
    from torch_table_loader.engine.rank_info import RankInfo


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
        allow_locations: Sequence[str] | None = None,
        split_deletes: bool = False,
        footers: Literal["eager", "lazy"] = "eager",
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
            allow_locations: URLs with a host or bucket, and folders of these or of this machine, where the table's
                files may lie besides the host or bucket of its metadata file; files elsewhere are refused.
            split_deletes: cut files that have deletes, too; rows that are shuffled one by one need no cut.
            footers: "lazy" plans by the rows that the manifests name, and opens the footers of this rank's own files
                alone, when it reads them; row groups are then estimates, so that filters rule out none of them, and
                the ends of splits may fall into one.
            credentials: gives storage properties as pyiceberg names them (``s3.access-key-id`` …), called again
                before ``s3.session-token-expires-at-ms`` and where the store refuses access; must pickle for worker
                processes. Without it a catalog that vends credentials is asked again.
            options: the fields of `LoaderOptions`.

        Raises:
            ConfigError: an option is wrong, or there is no such catalog, table, snapshot, branch or tag.
            TableError: a file is missing, torn, or of a format or type that is not read.
            StorageError: the catalog or the store refused.
        """
        asked = make_options(options, type(self))
        _refuse_others(asked, footers)
        ranks = resolve_ranks(asked)
        asked = with_batch_size(asked, ranks.num_ranks, given="batch_size" in options)
        chosen = {"snapshot_id": snapshot_id, "branch": branch, "tag": tag, "as_of": as_of}
        pinned = any(value is not None for value in chosen.values())
        at = TableAddress(
            table,
            catalog_config,
            metadata_location,
            location_override,
            asked.storage_options,
            credentials,
            allow_locations,
        )
        open_at = _Opening(at, scan_filter, asked, ranks, split_deletes=split_deletes, lazy=footers == "lazy")
        plan_check = PlanCheck(ranks.rank, ranks.num_ranks, check=asked.check_plan, pinned=pinned)
        with plan_check:
            job = open_at(chosen, plan_check.common_value)
            plan_check.check({**job.compared, **asdict(job.topology)})
        super().__init__(job, plan_check, None if pinned else open_at.at_snapshot_of)

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that is read; None of a table without one."""
        return self.table.snapshot_id


@dataclass(frozen=True, slots=True)
class _Opening:
    """Opens a rank's share of a table, at whichever snapshot is asked for.

    Args:
        at: where the table is.
        scan_filter: a pyiceberg expression or text, or None.
        options: the caller's.
        ranks: this rank, of how many.
        split_deletes: whether files that have deletes may be cut.
        lazy: whether footers are read with the files.
    """

    at: TableAddress
    scan_filter: Any
    options: LoaderOptions
    ranks: RankInfo
    split_deletes: bool
    lazy: bool

    def __call__(self, chosen: Mapping[str, Any], agree: Callable[[str, Any], Any]) -> Job:
        try:
            from torch_table_loader.source.iceberg.open import open_source
        except ImportError as error:
            raise MissingExtraError(
                f"Iceberg tables need pyiceberg and fastavro ({error}); pip install 'torch-table-loader[iceberg]'"
            ) from error
        options = self.options
        source, filters, cache = open_source(
            self.at,
            chosen,
            agree,
            columns=options.columns,
            filters=options.filters,
            scan_filter=self.scan_filter,
            plan_cache=options.plan_cache,
        )
        asked = replace(options, filters=filters)
        job = open_job(source, asked, self.ranks, cache, split_deletes=self.split_deletes, lazy=self.lazy)
        source.storage.close()
        return job

    def at_snapshot_of(self, job: Job, state: Mapping[str, Any]) -> Job:
        """Return the job over the snapshot that a state was saved with.

        Raises:
            ResumeError: that snapshot cannot be read.
        """
        theirs = state.get("table", {}).get("snapshot_id")
        if theirs is None or theirs == job.tables[""].snapshot_id:
            return job
        try:
            return self({"snapshot_id": theirs}, lambda _, value: value)
        except ConfigError as error:
            raise ResumeError(f"the state speaks of snapshot {theirs}, which cannot be read: {error}") from error


def _refuse_others(options: LoaderOptions, footers: str) -> None:
    for name, remedy in (
        ("schema", "an Iceberg table has its own"),
        ("files", "pass snapshot_id= to pin the table"),
        ("partitioning", "an Iceberg table knows its partitions"),
    ):
        if getattr(options, name) is not None:
            raise ConfigError(f"{name}= is for tables of plain files; {remedy}")
    if options.raw_files:
        raise ConfigError("raw_files=True is for StructuredDataset, which reads files without a table's metadata")
    if footers not in ("eager", "lazy"):
        raise ConfigError(f"footers must be one of 'eager', 'lazy', got {footers!r}")
    if footers == "lazy" and options.shuffle == "rows":
        raise ConfigError('footers="lazy" has no meaning with shuffle="rows", which reads every file; leave it out')
