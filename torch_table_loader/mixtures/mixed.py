"""The dataset of a mixture: several tables in shares that the caller chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from torch_table_loader.dataset import TableDataset
from torch_table_loader.engine.jobs.bound import of_source
from torch_table_loader.engine.jobs.modes import stream_job
from torch_table_loader.engine.jobs.resolve import with_batch_size
from torch_table_loader.engine.plan_check import PlanCheck
from torch_table_loader.engine.rank_info import RankInfo, resolve_ranks
from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.keywords import check_names, make_options
from torch_table_loader.mixtures.asking import (
    Mixture,
    ask_for_weights,
    change_exclusions,
    ids_of_sources,
    mixture_of,
    newest_shares,
    taken_of_sources,
    with_schedule,
)
from torch_table_loader.mixtures.form import checked_stop, common_form, same, scheduled_weights
from torch_table_loader.mixtures.mixed_rows import open_mixed_rows
from torch_table_loader.mixtures.mixed_streams import MixedStreams
from torch_table_loader.mixtures.mixture import NaturalShares, ShareUnit
from torch_table_loader.mixtures.stop import StopRule
from torch_table_loader.options import ABOUT
from torch_table_loader.rank_dataset import RankDataset
from torch_table_loader.samples import SamplesOption
from torch_table_loader.schedules import Done, Schedule
from torch_table_loader.units import integer

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from torch_table_loader.engine.jobs.job import Job
    from torch_table_loader.engine.jobs.live_rows import LiveRows
    from torch_table_loader.engine.saved_state import SavedState
    from torch_table_loader.keywords import LoaderKeywords, MixedKeywords
    from torch_table_loader.mixtures.asking import SourceTaken
    from torch_table_loader.options import LoaderOptions


_OF_SOURCES = frozenset(name for name, about in ABOUT.items() if about.mixture == "sources")

_HANDED = _OF_SOURCES | {name for name, about in ABOUT.items() if about.mixture == "both"}
"""What the mixture hands to the sources that it opens."""


class MixedDataset(RankDataset):
    """Several tables as one: every batch draws its rows from all tables, in shares that the caller chooses.

    The sources decide which rows come and in what form: columns, filters, `nulls`, `strings`, `row_id` and the like.
    All sources must agree on these; the mixture passes them to sources that it opens. The mixture decides how the job
    takes the rows: batch size, ranks, workers, seed. Each batch has the int64 column ``source``: the number of each
    row's source, in the order of `sources`.
    """

    _takes = frozenset(name for name, about in ABOUT.items() if about.mixture)

    def __init__(
        self,
        sources: Mapping[str, TableDataset | Callable[..., TableDataset]],
        weights: Mapping[str, float] | NaturalShares | Mapping[int, Mapping[str, float] | NaturalShares] | Schedule,
        *,
        unit: ShareUnit = "rows",
        stop: StopRule = "first_exhausted",
        block: int | None = None,
        **options: Unpack[MixedKeywords],
    ) -> None:
        """Check that the sources fit each other, and plan the first epoch.

        Args:
            sources: by name, datasets with ``shuffle="rows"``, or streams (``shuffle=True`` or False), or functions
                that open one, such as ``functools.partial(StructuredDataset, path)``. The functions are called with
                ``shuffle="rows"``, unless they choose another, and the `options` that concern a source. The names are
                part of the order and of the state.
            weights: weight of each source, by name, on any scale; 0 leaves a source out. "rows" or "tokens": all of
                each source, so every row or sequence comes once, and the sizes are the shares. A schedule gives either
                by the step from which it holds, from 0 on: ``{0: {"web": 9, "code": 1}, 1000: {"web": 1, "code": 1}}``.
                Steps are those of the first epoch; later epochs have the last weights. A `Schedule` counts samples or
                tokens.
            unit: "rows", or "tokens" of packed sequences: each source then has its share after every sequence, to
                within one; in streams, after every step in either unit.
            stop: when an epoch ends: "first_exhausted": before any source that has a weight would repeat a row;
                "all_exhausted": when each has delivered all its rows; "forever". Or the most times that sources may
                come, by name, such as ``{"books": 4}``: before a row of theirs would come a fifth time. Or a `Stop`,
                which also drops sources that came so often, and ends an epoch after so many rows or tokens.
            block: number of rows in which each source has its share to within one row, from the epoch's start; inside a
                block, every order is equally likely. A rarer source makes blocks longer. 0: after every row. None: 256;
                0 with unit="tokens" or without numbers as weights; in streams, as few steps as give each source a row.
            options: fields of `LoaderOptions`. Without `num_ranks` and `rank` the ranks are those of the sources.

        Raises:
            ConfigError: an option or weight is wrong, a source has other options, or sources differ in their output.
        """
        check_names(options, type(self))
        if wrong := sorted(set(options) - self._takes):
            raise ConfigError(f"{wrong[0]}= belongs to the sources of a mixture; pass it to each of them")
        opened = _opened(sources, options)
        jobs = _jobs_of(opened)
        asked, ranks = self._asked_of(options, jobs)
        plan_check = PlanCheck(ranks.rank, ranks.num_ranks, check=asked.check_plan, pinned=True)
        with plan_check:
            asked = replace(asked, **common_form({name: job.options for name, job in jobs.items()}))
            by_step = scheduled_weights(weights, jobs)
            first, rule = by_step.at(0, Done()), checked_stop(stop, jobs)
            job = with_schedule(_mixed_job(jobs)(asked, ranks, first, rule, block, unit), by_step)
            if plan_check.compares:
                plan_check.check({**job.compared, **asdict(job.topology)})
        super().__init__(job, plan_check, self._with_snapshots_of)
        self._sources = opened

    @classmethod
    def _asked_of(cls, options: Mapping[str, Any], jobs: Mapping[str, Job]) -> tuple[LoaderOptions, RankInfo]:
        """Return what the caller asks of the mixture, without what sources take, and its ranks."""
        own = {name: value for name, value in options.items() if name not in _OF_SOURCES}
        keywords: LoaderKeywords = {**own, "shuffle": "rows"}  # type: ignore[typeddict-item]
        asked = make_options(keywords, cls)
        if asked.budget is not None:
            raise ConfigError(
                "the batches of a mixture have as many rows each, of which each source has its share, got "
                "batch_size=Budget(...); pass a number of rows, and pack=Pack(...) to each source for batches of as "
                "many tokens, or read one table"
            )
        named = {"num_ranks", "rank"} & set(options)
        of_sources = any(job.options.num_ranks is not None for job in jobs.values())
        ranks = resolve_ranks(asked) if named or not of_sources else _common_ranks(jobs)
        samples = next(iter(jobs.values())).samples
        asked = with_batch_size(asked, ranks.num_ranks, given="batch_size" in options, samples=samples)
        if of_sources:
            asked = replace(asked, num_ranks=ranks.num_ranks, rank=ranks.rank)  # the caller named them
        return asked, ranks

    @classmethod
    def _is_compared(cls, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
        sources = keywords.get("sources", arguments[0] if arguments else None)
        opened = sources.values() if isinstance(sources, Mapping) else ()
        named = any(isinstance(each, RankDataset) and each.job.topology.num_ranks > 1 for each in opened)
        if named and not {"num_ranks", "rank"} & keywords.keys():  # they are the sources'
            return keywords.get("check_plan") is not False
        return super()._is_compared(arguments, keywords)

    @property
    def _mixture(self) -> Mixture:
        return mixture_of(self.job)

    @property
    def _live_rows(self) -> Mapping[str, LiveRows]:
        if not (rows := self.job.live_rows):
            raise ConfigError('exclude and include work on single rows; pass shuffle="rows" to the sources')
        return rows

    @property
    def source_names(self) -> tuple[str, ...]:
        """The names of the sources, in the order of the column ``source``."""
        return tuple(self.job.tables)

    @property
    def weights(self) -> dict[str, int]:
        """The newest weights, as the smallest integers; for natural shares, those at an epoch's start."""
        shares = newest_shares(self._mixture)
        return {name: shares[name] for name in self.source_names}

    def set_weights(self, weights: Mapping[str, float] | NaturalShares) -> None:
        """Change the weights from the next step or ``iter()`` on; this repeats and skips no row.

        Call it on every rank, with the same weights, after the same step. An epoch that has ended stays ended.

        Args:
            weights: one for every source, by name. "rows" or "tokens": what is left of each, if the mixture has its
                shares after every row.

        Raises:
            ConfigError: a weight is wrong, a source is missing, or a source with a weight has no row in the running
                epoch or in later ones.
        """
        ask_for_weights(self._mixture, weights, self._position.running)

    def taken(self, ahead: int = 0) -> dict[str, SourceTaken]:
        """Count what all ranks together have taken of each source in this epoch, for a log; nothing is read.

        Args:
            ahead: count as if so many global batches more had been taken; at most those that the epoch has.

        Returns:
            Rows, or tokens, and epochs of each source by name.
        """
        return taken_of_sources(self.job, self._position.now, integer("ahead", ahead, 0))

    @property
    def excluded(self) -> dict[str, NDArray[np.int64]]:
        """The row ids of each source excluded from the next epoch: int64[n], sorted; copies."""
        return {name: rows.exclusions.newest.ids.copy() for name, rows in self._live_rows.items()}

    def exclude(self, row_ids: Mapping[str, Any], *, gather: bool = False) -> None:
        """Take rows out of all later epochs; the running epoch keeps its order.

        Rows that a source excluded before the mixture was made are excluded here, too; later calls are independent. A
        state that is loaded later replaces these exclusions by its own; a warning says so.

        Args:
            row_ids: by name of the source, as `StructuredDataset.exclude` takes them.
            gather: exclude the rows that any rank of the process group names; every rank must make the call.

        Raises:
            ConfigError: a source does not exist, an id belongs to no row, or a mask has another length; nothing
                changes.
            StorageTimeoutError: with `gather`, a rank did not make the call within the timeout of the process group.
        """
        change_exclusions(self._live_rows, self._asked(row_ids, gather=gather), include=False)

    def include(self, row_ids: Mapping[str, Any], *, gather: bool = False) -> None:
        """Put excluded rows back; see `exclude`."""
        change_exclusions(self._live_rows, self._asked(row_ids, gather=gather), include=True)

    def _asked(self, row_ids: Mapping[str, Any], *, gather: bool) -> dict[str, NDArray[np.int64]]:
        rows = self._live_rows
        if not gather:
            return ids_of_sources(rows, row_ids)
        return self._position.of_all_ranks(lambda: ids_of_sources(rows, row_ids))

    def _with_snapshots_of(self, job: Job, saved: SavedState) -> tuple[Job, SavedState]:
        """Return the job with each source at the snapshot that a state was saved with, and the state."""
        reopened: dict[str, Any] = {}
        for name, dataset in self._sources.items():
            table, theirs = job.tables[name], saved.tables.get(name)
            if theirs is not None and theirs.table["fingerprint"] != table.fingerprint:
                with of_source(name):
                    source, _ = dataset._position.reopen(dataset._position.job, saved, name)
                if source.tables[""] is not table:
                    reopened[name] = source
        return mixture_of(job).with_sources(reopened) if reopened else job, saved


def _opened(
    sources: Mapping[str, TableDataset | Callable[..., TableDataset]], options: Mapping[str, Any]
) -> dict[str, TableDataset]:
    """Return the sources, those that are functions opened with the options of the mixture."""
    if not isinstance(sources, Mapping) or not sources or not all(isinstance(name, str) and name for name in sources):
        raise ConfigTypeError(f"sources must be datasets by name, at least one, got {sources!r}")
    handed = {name: value for name, value in options.items() if name in _HANDED}
    opened = {}
    for name, source in sources.items():
        if not callable(source):
            if isinstance(source, RankDataset):
                _refuse_others(name, source.options, handed)
            opened[name] = source
            continue
        own = source.keywords if isinstance(source, partial) else {}
        for option in handed.keys() & own.keys():
            if not same(handed[option], own[option]):
                raise ConfigError(
                    f"{option}= differs between the mixture and its source {name!r}; pass it to only one of them"
                )
        given = {"shuffle": "rows", **handed}
        opened[name] = source(**{option: value for option, value in given.items() if option not in own})
    return opened


def _refuse_others(name: str, own: LoaderOptions, handed: Mapping[str, Any]) -> None:
    """Refuse what a source that is open was not given; its ranks and workers have no meaning in a mixture."""
    for option in sorted(handed.keys() & _OF_SOURCES):
        has = getattr(own, option)
        if isinstance(given := handed[option], SamplesOption) and isinstance(has, SamplesOption):
            has = given.as_asked(has)
        if not same(given, has):
            raise ConfigError(
                f"{option}= belongs to the sources of a mixture, but source {name!r} is already open with another "
                "value; pass it to that source, or let the mixture open it, as functools.partial(StructuredDataset,"
                " path)"
            )


def _jobs_of(sources: Mapping[str, TableDataset]) -> dict[str, Job]:
    jobs: dict[str, Job] = {}
    for name, source in sources.items():
        job: Any = getattr(source, "job", None)
        if "" not in getattr(job, "tables", ()):
            raise ConfigError(f"source {name!r} must be a dataset of one table, got {type(source).__name__}")
        if job.options.collate_fn is not None:
            raise ConfigError(f"source {name!r} has a collate_fn, which would never be called; pass it to the mixture")
        if job.options.continues:
            raise ConfigError(
                f"source {name!r} has on_growth, but a mixture always reads the tables of its state; leave it out"
            )
        jobs[name] = job
    streams = [name for name, job in jobs.items() if stream_job(job) is not None]
    if others := [name for name in jobs if name not in streams] if streams else []:
        raise ConfigError(
            f'source {streams[0]!r} is a stream, and {others[0]!r} has shuffle="rows"; pass the same shuffle= to all'
        )
    return jobs


def _mixed_job(jobs: Mapping[str, Any]) -> Callable[..., Job]:
    """Return what makes the job of sources, which are streams, or items that are gathered by index."""
    if any(stream_job(job) is not None for job in jobs.values()):
        return partial(MixedStreams.of, jobs)
    return partial(open_mixed_rows, jobs)


def _common_ranks(jobs: Mapping[str, Job]) -> RankInfo:
    found = {name: (job.rank, job.topology.num_ranks) for name, job in jobs.items()}
    if len(set(found.values())) > 1:
        found_ranks = "; ".join(f"{name!r} is rank {rank} of {ranks}" for name, (rank, ranks) in found.items())
        raise ConfigError(f"the sources have different ranks: {found_ranks}; pass num_ranks= and rank= to the mixture")
    return RankInfo(*next(iter(found.values())), "the sources")
