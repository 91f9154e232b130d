"""The datasets: a table that a loader of ours, or the caller's own DataLoader, iterates."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar, Unpack

import pyarrow as pa
import torch
from torch.utils.data import IterableDataset, get_worker_info

from torch_table_loader.calling import warn_caller
from torch_table_loader.engine.agreement import Agreement
from torch_table_loader.engine.job import Job
from torch_table_loader.engine.lane_iterator import LaneIterator, Taken, WorkersLane
from torch_table_loader.engine.lengths import UNCOUNTED, steps_of
from torch_table_loader.engine.ranks import resolve_ranks
from torch_table_loader.engine.row_job import RowJob, with_batch_size
from torch_table_loader.errors import ConfigError, ConfigTypeError, ResumeError
from torch_table_loader.explain import Explanation, explain
from torch_table_loader.explain_rows import explain_rows
from torch_table_loader.keywords import make_options, shown_classmethod, with_options
from torch_table_loader.loader import LoaderIterator, TableLoader
from torch_table_loader.options import LoaderKeywords, LoaderOptions
from torch_table_loader.planning.row_cursor import RowCursor
from torch_table_loader.read.formats import reader_for
from torch_table_loader.single_rows import SingleRows
from torch_table_loader.source.address import parse_address
from torch_table_loader.source.file_list import read_files, write_files
from torch_table_loader.source.listing import PathSource
from torch_table_loader.source.plan_cache import PlanCache

if TYPE_CHECKING:
    from torch_table_loader.contracts import Source
    from torch_table_loader.engine.ranks import RankInfo
    from torch_table_loader.engine.roles import Place, RankShare, TableShare
    from torch_table_loader.metrics import Metrics

P = ParamSpec("P")
D = TypeVar("D", bound="RankDataset")


class RankDataset(IterableDataset[Any]):
    """What a loader iterates: a rank's share of a table, or of several."""

    _job: RankShare[Any]
    _takes: ClassVar[frozenset[str] | None] = None
    """The options that the class takes; None for all."""

    def __init__(self, job: RankShare[Any], agreement: Agreement | None = None) -> None:
        """Take a job that is ready to be planned.

        Args:
            job: this rank's share.
            agreement: the other ranks, with which what is excluded is compared; None compares nothing.
        """
        super().__init__()
        self._job = job
        self._agreement = agreement
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._restored: Place | None = None
        self._begun: int | None = None
        """The epoch that was begun last, unless `set_epoch` or a state was heard since."""
        self._said_repetition = False
        self._loader: TableLoader | None = None
        self._goes_on = False
        """Whether the position that was loaded was loaded into the dataset, and serves whoever iterates it."""
        self._taken: Taken | None = None
        """What a DataLoader of the caller's took in this process."""

    @shown_classmethod
    def create_dataloader(
        cls: Callable[P, D],  # noqa: N805
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> tuple[TableLoader, D]:
        """Open the table and make its loader.

        Takes what the class takes.

        Returns:
            ``(loader, dataset)``.
        """
        dataset = cls(*args, **kwargs)
        dataset._loader = TableLoader(dataset)
        return dataset._loader, dataset

    @property
    def job(self) -> RankShare[Any]:
        """The rank's share, for loaders and tools."""
        return self._job

    @property
    def options(self) -> LoaderOptions:
        """What the caller asked for."""
        return self._job.options

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator reads."""
        return int(self._epoch.item())

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of what comes out."""
        return self._job.schema(self.cursor)

    @property
    def cursor(self) -> Place:
        """Where the next iterator begins: at a position that was loaded, else at the start of the epoch."""
        return self._restored or self._job.start(self.epoch)

    def begin(self) -> Place:
        """Take the position at which an iterator begins; one that was loaded serves once."""
        cursor, self._restored, self._goes_on = self.cursor, None, False
        self._job.begin(cursor)
        if self._agreement is not None and isinstance(cursor, RowCursor):
            self._agreement.check_exclusions(cursor.epoch, {"": cursor.exclusions.running.digest})
        return cursor

    def note_begun(self, epoch: int) -> None:
        """Note that an iterator gives its first batch of an epoch, and warn once where that repeats a shuffled one."""
        if self._begun == epoch and self.options.shuffle and not self._said_repetition:
            self._said_repetition = True
            again = f"epoch {epoch} is iterated again, in the same order"
            warn_caller(f"{again}; call loader.set_epoch(epoch) before each epoch to shuffle anew")
        self._begun = epoch

    def iterate(self, cursor: Place, loader: TableLoader) -> LoaderIterator:
        """Begin an iterator for the loader."""
        return LoaderIterator(self._job, cursor, loader)

    def resume(self, state: Mapping[str, Any]) -> tuple[RankShare[Any], Place]:
        """Find the job that goes on from a state, and where; see `RankShare.resume`."""
        return self._job.resume(state)

    def restore(self, cursor: Place, job: RankShare[Any]) -> None:
        """Begin the next iterator at a position.

        Args:
            cursor: where.
            job: the rank's, under the topology that goes on from there.
        """
        self._job = job
        self._epoch.fill_(cursor.epoch)
        self._restored, self._begun = cursor, None

    def state_dict(self) -> dict[str, Any]:
        """Return what the job has done; see `TableLoader.state_dict`.

        Without a loader of its own: what this process has taken, or, in a worker of a StatefulDataLoader (whose
        iterator says that), where the epoch begins.
        """
        info, taken = get_worker_info(), self._taken
        if info is None and (self._loader is not None or taken is None):
            return self._own_loader("state").state_dict()
        job = self._job.with_lanes(1 if info is None else info.num_workers)
        if info is None and taken is not None and taken.cursor.epoch == self.epoch:
            return job.state(taken.cursor.after(taken.batches))
        return job.state(job.start(self.epoch))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; see `TableLoader.load_state_dict`."""
        info = get_worker_info()
        if info is None and self._loader is not None:
            self._loader.load_state_dict(state)
        else:
            lanes = 1 if info is None else info.num_workers
            job, cursor = self._job.with_lanes(lanes).resume(state)
            if job.topology.lanes != lanes:
                raise ResumeError(
                    f"the state is of {job.topology.lanes} workers, and this DataLoader reads with {lanes}; load it "
                    "into a loader made by create_dataloader(...), which goes on with any number"
                )
            self.restore(cursor, job)
        self._goes_on = True

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iterator reads, here and in worker processes that exist.

        The epoch of a position that was loaded keeps that position; any other begins at its start.

        Args:
            epoch: from 0.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int):
            raise ConfigTypeError(f"epoch must be an int, got {type(epoch).__name__} {epoch!r}")
        if epoch < 0:
            raise ConfigError(f"epoch must be at least 0, got {epoch}")
        self._epoch.fill_(epoch)
        self._begun = None
        if self._restored is not None and self._restored.epoch != epoch:
            self._restored = None

    def metrics(self) -> Metrics:
        """Return what this rank's newest iterator has done; see `Metrics`.

        Raises:
            ConfigError: the dataset is iterated by a DataLoader of the caller's, whose workers we do not see.
        """
        return self._own_loader("metrics").metrics()

    def _own_loader(self, what: str) -> TableLoader:
        if self._loader is None:
            raise ConfigError(
                f"{what}: the batches of a DataLoader of your own are taken where the dataset cannot see it; "
                "make the loader with create_dataloader(...)"
            )
        return self._loader

    def __len__(self) -> int:
        """Batches of this rank in the epoch.

        Raises:
            TypeError: the caller gave the counting pass up.
        """
        if not self._job.counted:
            raise TypeError(UNCOUNTED)
        return steps_of(self._job.planned(self.cursor).plan)

    def __iter__(self) -> Iterator[Any]:
        """Return this worker's batches of the epoch; the lanes are the workers of the caller's DataLoader.

        In the process of a loader of ours, they are that loader's batches from the start of the epoch.
        """
        info = get_worker_info()
        if info is None and self._loader is not None:
            if not self._goes_on:  # Accelerate's skip_first_batches, to step over the right ones
                self._restored = self._begun = None
            return iter(self._loader)
        job, cursor = self._job, self._restored if self._goes_on else None
        if cursor is None:
            job = job.with_lanes(1 if info is None else info.num_workers)
            cursor = job.start(self.epoch)
        self._restored, self._goes_on = None, False
        self._job.begin(cursor)
        self._taken = Taken(cursor, cursor.stage.steps)
        work = job.work(cursor)
        return LaneIterator(work, 0, self._taken) if info is None else WorkersLane(work, info.id, self._taken)

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Show the options in the signature of an ``__init__``, where help() and inspect look for them."""
        super().__init_subclass__(**keywords)
        own = cls.__dict__.get("__init__")
        if inspect.isfunction(own):
            signature = with_options(own, super(cls, cls).__init__, cls._takes)
            own.__signature__ = signature  # type: ignore[attr-defined]


class TableDataset(SingleRows, RankDataset):
    """What the datasets of one table share; make a `StructuredDataset`."""

    _job: TableShare[Any]

    def __init__(self, job: TableShare[Any], agreement: Agreement | None = None) -> None:
        """Take a job that is ready to be planned; see `RankDataset`."""
        super().__init__(job, agreement)

    @property
    def job(self) -> TableShare[Any]:
        """The rank's share of the table, for loaders and tools."""
        return self._job

    def resume(self, state: Mapping[str, Any]) -> tuple[TableShare[Any], Place]:
        """Find the job that goes on from a state, and where; see `RankShare.resume`."""
        return self._job.resume(state)

    def save_files(self, path: str) -> None:
        """Keep the list of the table's files, so that ``files=path`` pins it.

        Args:
            path: where, on any fsspec file system; `storage_options` are used if it is the table's.
        """
        write_files(path, self._job.table.files, self.options.storage_options)

    def explain(self) -> Explanation:
        """Return what an epoch will read, and why; see `Explanation`."""
        job = self._job
        if isinstance(job, RowJob):
            return explain_rows(job, self.epoch)
        assert isinstance(job, Job)  # noqa: S101 there are two
        return explain(job, self.epoch)


def open_share(
    source: Source,
    options: LoaderOptions,
    ranks: RankInfo,
    cache: PlanCache | None,
    *,
    split_deletes: bool = False,
    lazy: bool = False,
) -> TableShare[Any]:
    """Open this rank's share of a table, in the order that the caller asked for; see `Job.open`."""
    if options.shuffle == "rows":
        return RowJob.open(source, options, ranks, cache)
    return Job.open(source, options, ranks, cache, split_deletes=split_deletes, lazy=lazy)


class StructuredDataset(TableDataset):
    """A table that is a set of files: a directory, a glob, a file, or a list of them.

    Put it into a ``DataLoader(dataset, batch_size=None)``, or let `create_dataloader` make a loader that also
    knows its length, takes batches from threads, and can be resumed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        format: str = "parquet",  # noqa: A002 the name that callers write
        **options: Unpack[LoaderKeywords],
    ) -> None:
        """List the files, read their footers, and plan the first epoch.

        Args:
            path: a directory (recursive), a glob, one file, or a list of them; any fsspec URL.
            format: "parquet", "orc", "csv", "json" ("jsonl") or "arrow" ("ipc", "feather").
            options: the fields of `LoaderOptions`.

        Raises:
            ConfigError: an option is wrong, or nothing is at `path`.
            TableError: a file is missing, torn, or does not fit the others.
            StorageError: the store refused.
        """
        asked = make_options(options, type(self))
        reader_for(format, path)
        ranks = resolve_ranks(asked)
        asked = with_batch_size(asked, ranks.num_ranks, given="batch_size" in options)
        agreement = Agreement(ranks.rank, ranks.num_ranks, check=asked.check_plan, pinned=asked.files is not None)
        with agreement:
            source = PathSource.open(
                path,
                format,
                storage_options=asked.storage_options,
                partitioning=asked.partitioning,
                schema=asked.schema,
                files=read_files(asked.files, asked.storage_options) if isinstance(asked.files, str) else asked.files,
                raw_files=asked.raw_files,
            )
            source = replace(source, files=agreement.common_files(source.files))
            cache = None
            if asked.plan_cache is not None:
                scope = f"{source.storage.place} {asked.schema or ''}"
                same_store = parse_address(asked.plan_cache).protocol == source.storage.protocol
                cache = PlanCache.open(asked.plan_cache, asked.storage_options if same_store else None, scope)
            job = open_share(source, asked, ranks, cache)
            agreement.check(job.identity["table"] | job.identity["options"] | asdict(job.topology))
        source.storage.close()
        if cache is not None:
            cache.storage.close()
        super().__init__(job, agreement)
