"""How a table is opened: what all ranks see of it, its plan cache, and the snapshot that a state names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch_table_loader.contracts import SnapshotSource, TimeTravelSource, has_ranges
from torch_table_loader.errors import ConfigError, ConfigTypeError, ResumeError
from torch_table_loader.read.held import HeldReader
from torch_table_loader.read.suffixes import reader_by_suffix
from torch_table_loader.source.address import parse_address
from torch_table_loader.source.arrow_source import ArrowSource
from torch_table_loader.source.file_list import FileSource
from torch_table_loader.source.listing import PathSource, named_files
from torch_table_loader.source.plan_cache import PlanCache

if TYPE_CHECKING:
    from torch_table_loader.contracts import FormatReader, Source, Storage
    from torch_table_loader.engine.jobs.job import Job
    from torch_table_loader.engine.plan_check import PlanCheck
    from torch_table_loader.options import LoaderOptions

_SOURCE = ("storage", "files", "partition_schema")
_STORAGE = ("is_local", "open", "version", "close")
_RANGES = ("read_range", "checks", "place", "traffic")


class TimeTravel:
    """Opens a table at the snapshot of a state."""

    def __init__(self, source: TimeTravelSource, open_job: Callable[[Any], Job]) -> None:
        """Keep how a table is opened.

        Args:
            source: the table at any snapshot.
            open_job: makes this rank's job of it.
        """
        self._source = source
        self._open_job = open_job

    def __call__(self, job: Job, state: Mapping[str, Any]) -> Job:
        """Return the job over the snapshot that a state was saved with.

        Args:
            job: the one that there is, which serves states of its own snapshot.
            state: what a loader of the table wrote.

        Raises:
            ResumeError: that snapshot cannot be read.
        """
        theirs = state.get("table", {}).get("snapshot_id")
        if theirs is None or theirs == job.tables[""].snapshot_id:
            return job
        try:
            source = self._source.at_snapshot(theirs)
            reopened = self._open_job(source)
        except ConfigError as error:
            raise ResumeError(f"the state speaks of snapshot {theirs}, which cannot be read: {error}") from error
        self._source = source  # the files of the snapshot before need not be held
        return reopened


def time_travel(source: Source, open_job: Callable[[Any], Job]) -> TimeTravel | None:
    """Return what opens other snapshots of a source; None where it cannot, or where the caller chose its snapshot."""
    return TimeTravel(source, open_job) if isinstance(source, TimeTravelSource) and not source.pinned else None


def list_files(
    path: Any, reader: FormatReader | None, storage: Storage | None, options: LoaderOptions, *, by_name: bool
) -> Source:
    """Return the table that a path is.

    Args:
        path: the caller's.
        reader: of the files' format; None for the one that their names ask for.
        storage: the caller's, which cannot list; None for what the path says.
        options: the caller's.
        by_name: whether the reader's name says which one it is.
    """
    settings: dict[str, Any] = {
        "format_name": None if reader is None else reader.name,
        "reader": None if by_name else reader,
        "naming": reader,
        "choose": reader_by_suffix if reader is None else None,
        "partitioning": options.partitioning,
        "schema": options.schema,
    }
    if storage is not None:
        return named_files(storage, path, options.files, **settings)
    return PathSource.open(
        path,
        **settings,
        storage_options=options.storage_options,
        files=options.files,
        raw_files=options.raw_files,
        retry_seconds=options.retry_seconds,
    )


def agreed_source(source: Source, plan_check: PlanCheck) -> Source:
    """Return the table as rank 0 sees it: at the same snapshot, or with the same files."""
    if not isinstance(source, SnapshotSource):
        files = plan_check.common_files(source.files)
        return FileSource(source.storage, files, source.partition_schema)
    snapshot_id = plan_check.common_value("snapshot", source.snapshot_id)
    if snapshot_id != source.snapshot_id and isinstance(source, TimeTravelSource):
        return source.at_snapshot(snapshot_id)
    return source


def open_plan_cache(options: LoaderOptions, storage: Storage) -> PlanCache | None:
    """Open the caller's plan cache for the files of a storage; None where there is none.

    Raises:
        ConfigError: the storage has no name that sets it apart from others.
    """
    if options.plan_cache is None:
        return None
    place = getattr(storage, "place", None)
    if not isinstance(place, str):
        raise ConfigError(
            f"plan_cache= needs a storage with a name of its own, and {type(storage).__name__} has no attribute place: "
            "give it one, a string without secrets that no other store has, or leave plan_cache= out"
        )
    same_store = parse_address(options.plan_cache).protocol == getattr(storage, "protocol", None)
    scope = f"{place} {options.schema or ''}"
    storage_options = options.storage_options if same_store else None
    return PlanCache.open(options.plan_cache, storage_options, scope, options.retry_seconds)


def arrow_source(data: Any) -> ArrowSource:
    """Return rows in memory as a source; see `ArrowSource.of`."""
    return ArrowSource.of(data, HeldReader())


def check_source(source: Any, path: Any, format: Any, storage: Any, options: LoaderOptions) -> None:  # noqa: A002
    """Refuse what is no source, and what a source says by itself.

    Args:
        source: what the caller gave.
        path: beside it; must be None.
        format: beside it; must be left out.
        storage: beside it; must be None.
        options: the caller's.

    Raises:
        ConfigTypeError: it is no source.
        ConfigError: something that has no meaning beside it.
    """
    _check_attributes("source", "Source", source, _SOURCE)
    _check_storage("source.storage", source.storage)
    given = {
        "path": path is not None,
        "format": format is not None,
        "storage": storage is not None,
        "files": options.files is not None,
        "partitioning": options.partitioning is not None,
        "raw_files": options.raw_files,
        "schema": options.schema is not None and isinstance(source, SnapshotSource),
    }
    if alien := [name for name, is_given in given.items() if is_given]:
        raise ConfigError(f"{alien[0]}= has no meaning beside source=, which says that by itself; leave it out")


def check_storage(storage: Any, options: LoaderOptions) -> None:
    """Refuse what is no storage, and options for another one.

    Raises:
        ConfigTypeError: it is no storage.
        ConfigError: `storage_options` beside it.
    """
    _check_storage("storage", storage)
    if options.storage_options is not None:
        raise ConfigError("storage_options= has no meaning beside storage=, which has its own; leave it out")


def _check_storage(name: str, storage: Any) -> None:
    _check_attributes(name, "Storage", storage, _STORAGE)
    if has_ranges(storage):
        _check_attributes(name, "RangeStorage, since it has read_range", storage, _RANGES)


def _check_attributes(name: str, contract: str, given: Any, attributes: tuple[str, ...]) -> None:
    if isinstance(given, type):
        raise ConfigTypeError(
            f"{name} must be an instance of a {contract}, got the class {given.__name__}; call it first"
        )
    if missing := [attribute for attribute in attributes if not hasattr(given, attribute)]:
        raise ConfigTypeError(f"{name} must be a {contract}, but {type(given).__name__} has no {', '.join(missing)}")
