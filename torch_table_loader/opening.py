"""How a table is opened: what all ranks see of it, its plan cache, and the snapshot that a state names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_table_loader.contracts import HistorySource, SnapshotSource, TimeTravelSource, has_ranges
from torch_table_loader.engine.jobs.bound import oldest_files
from torch_table_loader.engine.jobs.modes import open_job
from torch_table_loader.errors import ConfigError, ConfigTypeError, ResumeError
from torch_table_loader.option_values import anywhere, of_the_store
from torch_table_loader.planning.stages import Extent
from torch_table_loader.read.formats import reader_by_suffix
from torch_table_loader.read.reader_base import HeldReader
from torch_table_loader.source.address import parse_address
from torch_table_loader.source.listing import PathSource, named_files
from torch_table_loader.source.plan_cache import HeldPlans, PlanCache
from torch_table_loader.units import integer, one_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.contracts import Source, Storage
    from torch_table_loader.engine.counting import Parts
    from torch_table_loader.engine.jobs.job import Job
    from torch_table_loader.engine.plan_check import PlanCheck
    from torch_table_loader.engine.rank_info import RankInfo
    from torch_table_loader.engine.saved_state import SavedState
    from torch_table_loader.engine.table import Table
    from torch_table_loader.format_contracts import FormatReader
    from torch_table_loader.keywords import LoaderKeywords
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.records import DataFile
    from torch_table_loader.source.arrow_source import ArrowSource
    from torch_table_loader.source.plan_cache import Plans
    from torch_table_loader.source.snapshot_files import SnapshotFiles

_SOURCE = ("storage", "files", "partition_schema")
_STORAGE = ("is_local", "open", "version", "close")
_RANGES = ("read_range", "checks", "place", "traffic")


class TimeTravel:
    """Finds the table of a state again: at its snapshot, or among the files of a table that has grown since."""

    def __init__(self, source: Source, open_job: Callable[[Any], Job]) -> None:
        """Keep a table, at any snapshot if it has some, and what makes this rank's job of it."""
        self.source = source
        """The table as it is read now."""
        self._open_job = open_job

    def __call__(self, job: Job, saved: SavedState, name: str = "") -> tuple[Job, SavedState]:
        """Return the job that can continue from a state, and the state with what the table's files were then.

        With ``on_growth="continue"`` this is the job that there is; else one over the state's snapshot, where the
        source can travel in time and the caller chose none.

        Args:
            job: the one that there is, which serves states of its own table.
            saved: what a loader of the table wrote, or one of a mixture in which it has this name.

        Raises:
            ResumeError: that snapshot cannot be read, or the table did not grow from it by new files alone.
        """
        theirs, own, wanted = saved.tables[name].table, job.bound.table, list(saved.taken.extents)
        grown: Extent | None = None
        if theirs["fingerprint"] != own["fingerprint"]:
            if job.options.continues:
                grown = Extent.of(theirs)
                wanted.append(grown)
            elif (other := theirs.get("snapshot_id")) not in (None, own.get("snapshot_id")):
                job = self._at(job, other)
        found = {extent: self._files_of(extent, job.tables[""]) for extent in wanted}
        files_of = {extent: files for extent, files in found.items() if files is not None}
        if grown not in files_of:
            grown = None
        return job, replace(saved, files_of=files_of, grown=grown)

    def _at(self, job: Job, snapshot_id: int) -> Job:
        """Return the job over another snapshot."""
        if not isinstance(self.source, TimeTravelSource) or self.source.pinned:
            return job
        source = self._snapshot(self.source, snapshot_id)
        try:
            reopened = self._open_job(source)
        except ConfigError as error:
            raise _unreadable(snapshot_id, error) from error
        self.source = source  # the files of the snapshot before need not be held
        return reopened

    def _files_of(self, extent: Extent, table: Table) -> NDArray[np.int64] | None:
        """Return which of a table's files it had before it grew; None where it cannot be told."""
        if not isinstance(self.source, SnapshotSource):
            old = oldest_files(table, extent.files, extent.fingerprint)
            if old is None:
                return None
            return np.array(old, dtype=np.int64)
        if not isinstance(self.source, TimeTravelSource) or extent.snapshot_id is None:
            return None
        before = self._snapshot(self.source, extent.snapshot_id)
        before.storage.close()
        if before.fingerprint != extent.fingerprint:
            return None
        here = {file.path: number for number, file in enumerate(table.files)}
        gone = [file.name for file in before.files if file.path not in here]
        thinned = [
            file.name
            for file in before.files
            if file.path in here and _deletes(file) != _deletes(table.files[here[file.path]])
        ]
        if gone or thinned:
            raise self._not_grown(extent.snapshot_id, table, gone, thinned)
        return np.array([here[file.path] for file in before.files], dtype=np.int64)

    @staticmethod
    def _snapshot(source: TimeTravelSource, snapshot_id: int) -> TimeTravelSource:
        try:
            return source.at_snapshot(snapshot_id)
        except ConfigError as error:
            raise _unreadable(snapshot_id, error) from error

    def _not_grown(self, snapshot_id: int, table: Table, gone: list[str], thinned: list[str]) -> ResumeError:
        from torch_table_loader.source.snapshot_files import SnapshotFiles

        found: list[str] = []
        if gone:
            found.append(f"{len(gone)} of its files are gone, such as {gone[0]!r}")
        if thinned:
            found.append(f"rows of {len(thinned)} of its files were deleted since, such as those of {thinned[0]!r}")
        happened, pin = "", "snapshot_id"
        if isinstance(self.source, HistorySource) and (changes := self.source.changes_since(snapshot_id)):
            happened = f" ({', '.join(changes)})"
        if isinstance(self.source, SnapshotFiles):
            pin = self.source.pin
        return ResumeError(
            f"the state is of snapshot {snapshot_id}, and snapshot {table.snapshot_id} did not grow from it only by "
            f"new files{happened}: {' and '.join(found)}; pass {pin}={snapshot_id} and no on_growth to finish "
            "the epoch there, or start a new epoch without the state"
        )


def _unreadable(snapshot_id: int, error: ConfigError) -> ResumeError:
    return ResumeError(f"the state is of snapshot {snapshot_id}, which cannot be read: {error}")


def _deletes(file: DataFile) -> set[tuple[Any, ...]]:
    """Return what tells the deletes of a file from others."""
    return {(each.kind, each.file.path, each.blob, each.key_ids, each.inline, each.keeps) for each in file.deletes}


def list_files(
    path: Any, reader: FormatReader | None, storage: Storage | None, options: LoaderOptions, *, by_name: bool
) -> Source:
    """Return the table that a path is.

    Args:
        reader: of the files' format; None for the one that their names ask for.
        storage: the caller's, which cannot list; None for what the path says.
        by_name: whether the reader's name says which one it is.
    """
    settings: dict[str, Any] = {
        "reader": reader,
        "by_name": by_name,
        "choose": reader_by_suffix,
        "schema": options.schema,
    }
    if storage is not None:
        return named_files(storage, path, options.files, **settings)
    return PathSource.open(
        path,
        **settings,
        storage_options=options.storage_options,
        files=options.files,
    )


def agreed_source(source: Source, plan_check: PlanCheck) -> Source:
    """Return the table as rank 0 sees it: at the same snapshot, or with the same files."""
    if not isinstance(source, SnapshotSource):
        files = plan_check.common_files(source.files)
        more = getattr(source, "unread_keys", ()), getattr(source, "folder", None)
        return PathSource(source.storage, files, source.partition_schema, *more)
    snapshot_id = plan_check.common_value("snapshot", source.snapshot_id)
    if snapshot_id != source.snapshot_id and isinstance(source, TimeTravelSource):
        return source.at_snapshot(snapshot_id)
    return source


@dataclass(frozen=True, slots=True)
class Opening:
    """How a dataset was opened, to make others of the same table.

    Args:
        keywords: the caller's options.
        open_source: takes options, ranks, source, plans and parts; returns the job, and closes the source's storage.
        pinned: whether the caller said which files or snapshot to read.
        plans: what these datasets know of the table's files together, where no plan cache keeps it.
        parts: those of which the dataset is one, if `split` made it.
    """

    keywords: LoaderKeywords
    open_source: Callable[..., Job]
    pinned: bool
    plans: HeldPlans = field(default_factory=HeldPlans)
    parts: Parts | None = None


def open_plain(
    options: LoaderOptions, ranks: RankInfo, source: Source, plans: Plans, parts: Parts | None = None
) -> Job:
    """Open this rank's share of a table of files, and close its storage; see `open_job`."""
    cache = open_plan_cache(options, source.storage) or plans
    job = open_job(source, options, ranks, cache, split_deletes=True, parts=parts)
    source.storage.close()
    cache.close()
    return job


def open_snapshot(
    options: LoaderOptions,
    ranks: RankInfo,
    source: SnapshotFiles,
    plans: Plans,
    parts: Parts | None = None,
    *,
    split_deletes: bool,
    lazy: bool,
) -> Job:
    """Open this rank's share of a table with snapshots, and close its storage; see `open_job`."""
    asked = options.with_checked(filters=source.row_filter)
    cache = source.cache or plans
    job = open_job(source, asked, ranks, cache, split_deletes=split_deletes, lazy=lazy, parts=parts)
    source.storage.close()
    return job


def open_plan_cache(options: LoaderOptions, storage: Storage) -> PlanCache | None:
    """Open the caller's plan cache for the files of a storage; None where there is none."""
    if options.plan_cache is None:
        return None
    place = getattr(storage, "place", None)
    if not isinstance(place, str):
        raise ConfigError(
            f"plan_cache= needs a storage with a name of its own, and {type(storage).__name__} has no attribute place: "
            "give it one, a string without secrets that no other store has, or leave plan_cache= out"
        )
    scope = f"{place} {options.schema or ''}"
    storage_options = options.storage_options
    if parse_address(options.plan_cache).protocol != getattr(storage, "protocol", None):  # another store's login
        storage_options = anywhere(storage_options)
    return PlanCache.open(options.plan_cache, storage_options, scope)


def last_snapshot(
    options: LoaderOptions, table: str, name: str, interval: tuple[Any, Any, Any], *, changelog: Any, footers: str
) -> int | None:
    """Return the snapshot that the caller names as the last to be read, or None.

    Refuse options that are for tables of plain files, and arguments that contradict each other.

    Args:
        table: what kind of table it is, for messages.
        name: what the argument for a snapshot is called.
        interval: the snapshot after which rows are read, the last one beside it, and the one of which all is read; each
            may be None.
    """
    for option, remedy in (("schema", f"{table} has its own"), ("files", f"pass {name}= to pin the table")):
        if getattr(options, option) is not None:
            raise ConfigError(f"{option}= is for tables of plain files; {remedy}")
    one_of(("eager", "lazy"), "footers", footers)
    if footers == "lazy" and options.shuffle == "rows":
        raise ConfigError('footers="lazy" does not work with shuffle="rows", which reads every file; leave it out')
    start, end, whole = interval
    _check_changelog(changelog, start, name, options)
    for edge, value in (("start", start), ("end", end)):
        if value is not None:
            integer(f"{edge}_{name}", value)
    if end is None:
        return whole  # type: ignore[no-any-return]
    if start is None or whole is not None:
        beside = f"no start_{name}"
        if start is not None:
            beside = f"{name}, which names the same"
        raise ConfigError(
            f"end_{name}={end} is the end of an interval that start_{name} begins, got it with {beside}; pass both, or "
            f"{name} alone to read a whole snapshot"
        )
    return int(end)


def _check_changelog(changelog: Any, start: Any, name: str, options: LoaderOptions) -> None:
    if not isinstance(changelog, bool):
        raise ConfigTypeError(f"changelog must be a bool, got {type(changelog).__name__}")
    what = name.removesuffix("_id")
    if changelog and start is None:
        raise ConfigError(f"changelog=True reads what came and went after a {what}; say which by start_{name}=")
    if changelog and options.continues:
        raise ConfigError(
            f"changelog=True reads what happened up to one {what}, and on_growth= goes on with another; leave "
            "on_growth= out, and read what came after it as a changelog of its own"
        )


def arrow_source(data: Any) -> ArrowSource:
    """Return rows in memory as a source; see `ArrowSource.of`."""
    from torch_table_loader.source.arrow_source import ArrowSource

    return ArrowSource.of(data, HeldReader())


def check_source(source: Any, path: Any, format: Any, storage: Any, options: LoaderOptions) -> None:  # noqa: A002
    """Refuse what is not a source, and what the caller said beside it that a source says by itself."""
    _check_attributes("source", "Source", source, _SOURCE)
    _check_storage("source.storage", source.storage)
    given = {
        "path": path is not None,
        "format": format is not None,
        "storage": storage is not None,
        "files": options.files is not None,
        "schema": options.schema is not None and isinstance(source, SnapshotSource),
    }
    if alien := [name for name, is_given in given.items() if is_given]:
        raise ConfigError(f"{alien[0]}= cannot be passed with source=, which decides that itself; leave it out")


def check_storage(storage: Any, options: LoaderOptions) -> None:
    """Refuse what is not a storage, and `storage_options` beside it that are not `RemoteOptions`."""
    _check_storage("storage", storage)
    if own := sorted(of_the_store(options.storage_options)):
        raise ConfigError(
            "storage_options= cannot be passed with storage=, which has a login and options of its own, got "
            f"{', '.join(own)}; leave them out"
        )


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
