"""The dataset of a Delta Lake table, as its log sees it."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

from torch_table_loader.errors import ConfigError, ConfigTypeError, MissingExtraError
from torch_table_loader.table_formats import LoaderKeywords, SnapshotDataset

if TYPE_CHECKING:
    from torch_table_loader.delta.delta_source import DeltaRequest


class DeltaDataset(SnapshotDataset):
    """One version of a Delta Lake table, chosen when the dataset is made.

    Put it into a ``DataLoader(dataset, batch_size=None)``. Or call `create_dataloader`, whose loader also knows its
    length, reads with threads, and can be resumed.
    """

    title = "a Delta Lake table"
    pin = "version"

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
        interval = (start_version, end_version, version)
        asked, version = self._understood(options, interval, changelog=changelog, footers=footers)
        _check_chosen(version, timestamp)
        which: dict[str, Any] = {"start": start_version, "changelog": changelog, "lazy": footers == "lazy"}
        request = partial(_request, table_uri, allow_locations=allow_locations, **which)
        chosen = {"version": version, "timestamp": timestamp}
        self._open(asked, options, request, chosen, footers=footers, split_deletes=split_deletes)

    @property
    def version(self) -> int:
        """The version that is read."""
        version = self.snapshot_id
        assert version is not None  # noqa: S101 a Delta Lake table always has one
        return version


def _request(table_uri: Any, storage_options: Mapping[str, Any] | None, **parts: Any) -> DeltaRequest:
    try:
        from torch_table_loader.delta.delta_options import find_table
        from torch_table_loader.delta.delta_source import DeltaRequest
    except ImportError as error:
        raise MissingExtraError(
            f"Delta Lake tables need deltalake ({error}); pip install 'torch-table-loader[delta]'"
        ) from error
    return DeltaRequest(find_table(table_uri, storage_options), storage_options=storage_options, **parts)


def _check_chosen(version: Any, timestamp: Any) -> None:
    if version is not None and timestamp is not None:
        raise ConfigError("version and timestamp each choose a version; pass one of them")
    if version is not None and (not isinstance(version, int) or isinstance(version, bool)):
        raise ConfigTypeError(f"version must be a whole number, got {type(version).__name__}")
    if version is not None and version < 0:
        raise ConfigError(f"version must be 0 or more, got {version}")
