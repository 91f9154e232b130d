"""The dataset of a Delta Lake table, as its log sees it."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

from torch_table_loader.dataset import TableDataset
from torch_table_loader.errors import ConfigError, ConfigTypeError, MissingExtraError
from torch_table_loader.keywords import LoaderKeywords, make_options
from torch_table_loader.opening import Opening, last_snapshot, open_snapshot
from torch_table_loader.options import LoaderOptions

if TYPE_CHECKING:
    from torch_table_loader.delta.delta_source import DeltaRequest
    from torch_table_loader.engine.plan_check import PlanCheck
    from torch_table_loader.source.snapshot_files import SnapshotFiles


class DeltaDataset(TableDataset):
    """One version of a Delta Lake table, chosen when the dataset is made.

    Put it into a ``DataLoader(dataset, batch_size=None)``. Or call `create_dataloader`, whose loader also knows its
    length, reads with threads, and can be resumed.
    """

    def __init__(
        self,
        table_uri: str | os.PathLike[str],
        *,
        version: int | None = None,
        timestamp: dt.datetime | str | None = None,
        start_version: int | None = None,
        end_version: int | None = None,
        changelog: bool = False,
        allow_locations: Sequence[str] | None = None,
        split_deletes: bool = False,
        footers: Literal["eager", "lazy"] = "eager",
        **options: Unpack[LoaderKeywords],
    ) -> None:
        """Read the log, choose the version, plan its files, and plan the first epoch.

        Args:
            table_uri: the folder of the table, which holds ``_delta_log``: a local path, or s3://, gs:// or Azure.
            version: the version to read; without this and `timestamp`, the newest.
            timestamp: read the version that was the newest at this time: a datetime or ISO text with time zone.
            start_version: read only rows appended after this version, up to the one that is read; commits in between
                that remove or change rows are refused, unless `changelog` is given.
            end_version: with `start_version`, the last version whose rows are read; by default the one that `version`
                or `timestamp` chooses.
            changelog: with `start_version`, read all rows that came or went after it. Two columns say what happened to
                a row: ``_change_type`` ("insert" or "delete") and ``_commit_version``.
            allow_locations: URLs with a host or bucket, and folders on these or on this machine, that may contain files
                of the table besides the table's own host or bucket; files elsewhere are refused.
            split_deletes: also cut files with deletion vectors; not needed with ``shuffle="rows"``.
            footers: "lazy" plans by the rows that the log names, and opens the footers of this rank's own files only
                when it reads them; row groups are then estimates, so filters rule out none of them, and the ends of
                splits may fall inside one.
            options: the fields of `LoaderOptions`.

        Raises:
            ConfigError: an option is wrong, or the table or version does not exist.
            TableError: a file is missing or torn, or the table needs an unsupported reader feature.
            StorageError: the store refused.
        """
        asked = make_options(options, type(self))
        interval = (start_version, end_version, version)
        version = last_snapshot(asked, "a Delta Lake table", "version", interval, changelog=changelog, footers=footers)
        _check_chosen(version, timestamp)
        pinned = version is not None or timestamp is not None
        lazy = footers == "lazy"

        def find(asked: LoaderOptions, plan_check: PlanCheck) -> SnapshotFiles:
            request = _request(table_uri, asked, allow_locations, start_version, changelog=changelog, lazy=lazy)
            return request.open({"version": version, "timestamp": timestamp}, plan_check.common_value)

        open_source = partial(open_snapshot, split_deletes=split_deletes, lazy=lazy)
        self._plan(asked, find, Opening(options, open_source, pinned))

    @property
    def version(self) -> int:
        """The version that is read."""
        version = self.snapshot_id
        assert version is not None  # noqa: S101 a Delta Lake table always has one
        return version


def _request(
    table_uri: Any,
    options: LoaderOptions,
    allow_locations: Sequence[str] | None,
    start: int | None,
    *,
    changelog: bool,
    lazy: bool,
) -> DeltaRequest:
    try:
        from torch_table_loader.delta.delta_options import find_table
        from torch_table_loader.delta.delta_source import DeltaRequest
        from torch_table_loader.source.table_storage import read_areas
    except ImportError as error:
        raise MissingExtraError(
            f"Delta Lake tables need deltalake ({error}); pip install 'torch-table-loader[delta]'"
        ) from error
    return DeltaRequest(
        find_table(table_uri, options.storage_options),
        columns=options.column_names,
        filters=options.filters,
        plan_cache=options.plan_cache,
        start=start,
        changelog=changelog,
        allowed=read_areas(allow_locations),
        storage_options=options.storage_options,
        lazy=lazy,
    )


def _check_chosen(version: Any, timestamp: Any) -> None:
    if version is not None and timestamp is not None:
        raise ConfigError("version and timestamp each choose a version; pass one of them")
    if version is not None and (not isinstance(version, int) or isinstance(version, bool)):
        raise ConfigTypeError(f"version must be a whole number, got {type(version).__name__}")
    if version is not None and version < 0:
        raise ConfigError(f"version must be 0 or more, got {version}")
