"""The dataset of a mixture: several tables, row by row, in shares that the caller chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from torch_table_loader.dataset import RankDataset, TableDataset
from torch_table_loader.engine.agreement import Agreement
from torch_table_loader.engine.exclusion_book import warn_of_undone
from torch_table_loader.engine.mixed_job import MixedJob
from torch_table_loader.engine.mixed_state import MixedPosition, resumed
from torch_table_loader.engine.mixed_work import common_form
from torch_table_loader.engine.ranks import RankInfo, resolve_ranks
from torch_table_loader.engine.row_job import RowJob, with_batch_size
from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.explain_mixture import explain_mixture
from torch_table_loader.keywords import check_names, make_options
from torch_table_loader.loader import LoaderIterator
from torch_table_loader.planning.mixture import BLOCK_ROWS, StopRule

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_table_loader.engine.roles import Place, RankShare
    from torch_table_loader.explain import Explanation
    from torch_table_loader.loader import TableLoader
    from torch_table_loader.options import EvenRanks, LoaderKeywords, WorkerType
    from torch_table_loader.planning.exclusion import Exclusions
    from torch_table_loader.planning.mixed_cursor import MixedCursor


class MixedKeywords(TypedDict, total=False):
    """Those fields of `LoaderOptions` that speak of the job and of how it is served."""

    batch_size: int
    global_batch_size: int | None
    num_ranks: int | str
    rank: int | None
    mesh: Any
    shuffle_seed: int
    num_workers: int | None
    worker_type: WorkerType
    multiprocessing_context: Any
    prefetch_batches: int | None
    drop_last: bool
    even_ranks: EvenRanks | None
    collate_fn: Callable[[Any], Any] | None
    device: Any
    pin_memory: bool
    show_progress: bool
    check_plan: bool


class MixedDataset(RankDataset):
    """Several tables as one: every batch draws its rows from all of them, in shares that the caller chooses.

    The sources say which rows come and in what form: columns, filters, `nulls`, `strings`, `row_id` and the like,
    which they must have in common. The mixture says how the job takes them: batch size, ranks, workers, seed. Each
    batch has the int64 column ``source``: the number of the source that a row is of, in the order of `sources`.
    """

    _job: MixedJob
    _takes = frozenset(MixedKeywords.__annotations__)

    def __init__(
        self,
        sources: Mapping[str, TableDataset],
        weights: Mapping[str, float],
        *,
        stop: StopRule = "first_exhausted",
        block: int = BLOCK_ROWS,
        **options: Unpack[MixedKeywords],
    ) -> None:
        """Check that the sources fit each other, and plan the first epoch.

        Args:
            sources: datasets with ``shuffle="rows"`` by name. The names are part of the order and of the state.
            weights: how much of each source, by name, in any unit; 0 leaves a source out.
            stop: when an epoch ends: "first_exhausted": before any source that has a weight would repeat a row;
                "all_exhausted": when each has delivered all its rows; "forever".
            block: over every run of so many rows, from the epoch's start, each source has its share, but for less
                than one row. More where a source is rarer than one in so many.
            options: as `LoaderOptions` has them. Without `num_ranks`, `rank` and `mesh` the ranks are the sources'.

        Raises:
            ConfigError: an option or weight is wrong, or the sources differ in what comes out.
        """
        check_names(options, type(self))
        if wrong := sorted(set(options) - self._takes):
            raise ConfigError(f"{wrong[0]}= is for the sources of a mixture to say; pass it to each of them")
        jobs = _row_jobs(sources)
        keywords: LoaderKeywords = {**options, "shuffle": "rows"}  # type: ignore[typeddict-item]
        asked = make_options(keywords, type(self))
        named = {"num_ranks", "rank", "mesh"} & set(options)
        ranks = resolve_ranks(asked) if named else _common_ranks(jobs)
        asked = with_batch_size(asked, ranks.num_ranks, given="batch_size" in options)
        agreement = Agreement(ranks.rank, ranks.num_ranks, check=asked.check_plan, pinned=True)
        with agreement:
            asked = replace(asked, **common_form({name: job.options for name, job in jobs.items()}))
            job = MixedJob.open(jobs, asked, ranks, weights, stop, block)
            agreement.check(job.said | asdict(job.topology))
        super().__init__(job, agreement)
        self._agreement: Agreement = agreement
        self._sources = dict(sources)

    @property
    def job(self) -> MixedJob:
        """The rank's share of the sources, for loaders and tools."""
        return self._job

    @property
    def source_names(self) -> tuple[str, ...]:
        """The sources, in the order that the column ``source`` counts."""
        return tuple(self._job.sources)

    @property
    def weights(self) -> dict[str, int]:
        """The newest weights, as the smallest integers."""
        return {name: self._job.book.newest[name] for name in self.source_names}

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Change the weights, from the next step or the next ``iter()`` on; no row is repeated or skipped for it.

        Every rank must be told the same after the same step. An epoch that has ended stays ended.

        Args:
            weights: for every source, by name.

        Raises:
            ConfigError: a weight is wrong, a source is missing, or one with a weight has no row, in the epoch that
                runs or in those to come.
        """
        newest = None if self._loader is None else self._loader._newest
        runs = newest is not None and newest.cursor.epoch == self.epoch
        stands: Any = newest.now() if newest is not None and runs else self._restored
        self._job.set_weights(weights, stands)

    def exclude(self, row_ids: Mapping[str, Any]) -> None:
        """Take rows out of every epoch that begins from now on; the epoch that runs keeps its order.

        What a source had excluded when the mixture was made is excluded here, too; from then on each has its own say.
        A state that is loaded later brings its own exclusions, in place of these; a warning says so.

        Args:
            row_ids: by name of the source, integers as its column ``row_id`` gives them.

        Raises:
            ConfigError: a source that is not there, or an id that no row has.
        """
        self._change(
            [(job, job.book.newest.exclude(ids, job.table.layout.num_rows)) for job, ids in self._told(row_ids)]
        )

    def include(self, row_ids: Mapping[str, Any]) -> None:
        """Take rows in again that were excluded; see `exclude`."""
        self._change(
            [(job, job.book.newest.include(ids, job.table.layout.num_rows)) for job, ids in self._told(row_ids)]
        )

    @staticmethod
    def _change(newest: list[tuple[RowJob, Exclusions]]) -> None:
        for job, exclusions in newest:
            job.book.change(exclusions)

    def _told(self, row_ids: Mapping[str, Any]) -> list[tuple[RowJob, Any]]:
        if not isinstance(row_ids, Mapping):
            raise ConfigTypeError(f"row ids must be given by name of their source, got {type(row_ids).__name__}")
        if unknown := [name for name in row_ids if name not in self._job.sources]:
            raise ConfigError(f"the mixture has no source {unknown[0]!r}; it has {', '.join(self.source_names)}")
        return [(self._job.sources[name], ids) for name, ids in row_ids.items()]

    def explain(self) -> Explanation:
        """Return what an epoch will read, and why; see `Explanation`."""
        return explain_mixture(self._job, self.epoch)

    @property
    def cursor(self) -> Place:
        """Where the next iterator begins, with the newest weights."""
        cursor: Any = super().cursor
        return self._job.current(cursor)

    def begin(self) -> Place:
        """Take the position at which an iterator begins, and compare what is excluded with the other ranks."""
        place = super().begin()
        cursor: Any = place
        digests = {name: versions.running.digest for name, versions in cursor.exclusions.items()}
        self._agreement.check_exclusions(cursor.epoch, digests)
        return place

    def restore(self, cursor: Place, job: RankShare[Any]) -> None:
        """Begin the next iterator at a position; say so where rows come back that were excluded here."""
        assert isinstance(job, MixedJob)  # noqa: S101 what `resume` gave
        for name, source in self._job.sources.items():
            warn_of_undone(source.book, job.sources[name].book, f" of source {name!r}")
        super().restore(cursor, job)

    def iterate(self, cursor: Place, loader: TableLoader) -> LoaderIterator:
        """Begin an iterator that heeds new weights."""
        return _MixedIterator(self._job, cursor, loader, self._agreement)

    def resume(self, state: Mapping[str, Any]) -> tuple[MixedJob, MixedCursor]:
        """Find the job that goes on from a state, each source at the snapshot that the state speaks of."""
        job = self._job
        if isinstance(state, Mapping) and "sources" in state:
            position = MixedPosition.from_state(state)
            both = {name: source for name, source in self._sources.items() if name in position.names}
            job = job.with_sources({name: resumed(name, source, position) for name, source in both.items()})
        return job.resume(state)


class _MixedIterator(LoaderIterator):
    """Begins anew where the trainer stands when the weights change."""

    def __init__(self, job: MixedJob, cursor: Any, loader: TableLoader, agreement: Agreement) -> None:
        super().__init__(job, cursor, loader)
        self._mixed, self._agreement = job, agreement
        self._weights = job.book.newest
        self._over = False

    def __next__(self) -> Any:
        with self._turn:
            if not self._over:
                try:
                    self._heed()
                except BaseException as error:
                    self._fail(error)
                    raise
            try:
                return super().__next__()
            except BaseException:
                self._over = True
                raise

    def _heed(self) -> None:
        """Go on with the newest weights, and compare with the other ranks those that begin to hold."""
        begins = self._entry is None
        if begins:
            self._enter()  # it may find that another epoch was set
        if not begins and self._weights is self._mixed.book.newest:
            return
        self._weights = self._mixed.book.newest
        stands: Any = self.progress.now()
        if (cursor := self._mixed.current(stands)) is not stands:
            self.go_on(cursor)
        self._agreement.check_weights(cursor.epoch, cursor.consumed, cursor.mixture.weights, begins=begins)

    def close(self) -> None:
        """End threads and processes now."""
        self._over = True
        super().close()


def _row_jobs(sources: Mapping[str, TableDataset]) -> dict[str, RowJob]:
    if not isinstance(sources, Mapping) or not sources or not all(isinstance(name, str) and name for name in sources):
        raise ConfigTypeError(f"sources must be datasets by name, at least one, got {sources!r}")
    jobs: dict[str, RowJob] = {}
    for name, source in sources.items():
        job = getattr(source, "job", None)
        if not isinstance(job, RowJob):
            raise ConfigError(
                f'source {name!r} must be a dataset of one table with shuffle="rows", got {type(source).__name__}'
            )
        if job.options.collate_fn is not None:
            raise ConfigError(f"source {name!r} has a collate_fn, which would never be called; pass it to the mixture")
        jobs[name] = job
    return jobs


def _common_ranks(jobs: Mapping[str, RowJob]) -> RankInfo:
    found = {name: (job.rank, job.topology.num_ranks) for name, job in jobs.items()}
    if len(set(found.values())) > 1:
        said = "; ".join(f"{name!r} is rank {rank} of {ranks}" for name, (rank, ranks) in found.items())
        raise ConfigError(f"the sources speak of different ranks: {said}; pass num_ranks= and rank= to the mixture")
    return RankInfo(*next(iter(found.values())), "the sources")
