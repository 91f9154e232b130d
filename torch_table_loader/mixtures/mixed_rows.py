"""The rows of several tables, shuffled one by one and mixed in shares that the caller chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import numpy as np
from typing_extensions import override

from torch_table_loader.cached import cached_property
from torch_table_loader.engine.exclusion_record import written_exclusions
from torch_table_loader.engine.items import ItemFacts, Items, TableItems
from torch_table_loader.engine.jobs.bound import of_source
from torch_table_loader.engine.jobs.gathering import Gathering
from torch_table_loader.engine.jobs.items_job import ItemsJob
from torch_table_loader.engine.jobs.resolve import topology_of
from torch_table_loader.engine.row_store import crosses_by_fork
from torch_table_loader.engine.saved_state import Bound
from torch_table_loader.errors import ConfigError, ResumeError
from torch_table_loader.mixtures.form import (
    checked_columns,
    checked_weights,
    common_columns,
    resolve_block,
    share_notes,
)
from torch_table_loader.mixtures.mixed_items import MixedStream
from torch_table_loader.mixtures.mixed_sources import AskedWeights, MixedSources
from torch_table_loader.mixtures.mixture import Mixture, NaturalShares, ShareUnit, natural_shares
from torch_table_loader.mixtures.record import RECORD, Weights, refuse, shares_of
from torch_table_loader.mixtures.row_position import MixedRowsPosition
from torch_table_loader.mixtures.turns import MixedTurns
from torch_table_loader.planning.distinct import distinct
from torch_table_loader.planning.exclusion import ExclusionVersions
from torch_table_loader.planning.global_batches import ENDLESS
from torch_table_loader.planning.rows_of import SourceRow

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.engine.jobs.by_step import ByStep
    from torch_table_loader.engine.jobs.job import Job
    from torch_table_loader.engine.rank_info import RankInfo
    from torch_table_loader.engine.saved_state import SavedState
    from torch_table_loader.engine.state_records import Written
    from torch_table_loader.mixtures.stop import Stop
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.ranks import Topology
    from torch_table_loader.schedules import Done

    Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class MixedRows(Items):
    """The items of several row stores, in the order of a mixture.

    Args:
        options: those of the mixture.
        block: rows in which each source has its share; 0: every row.
    """

    options: LoaderOptions
    columns: pa.Schema
    row_bytes: int
    mixed: MixedSources[TableItems]
    block: int

    @property
    @override
    def asked(self) -> AskedWeights:
        return self.mixed.asked

    @property
    @override
    def sources(self) -> Mapping[str, TableItems]:
        return self.mixed.by_name

    @property
    @override
    def bounds(self) -> Mapping[str, Bound]:
        return self.mixed.bounds

    @cached_property
    @override
    def bound(self) -> Bound:
        return Bound({}, {"shuffle_seed": self.options.shuffle_seed, "block": self.block, **self.mixed.stop.as_dict})

    @property
    @override
    def compared(self) -> Mapping[str, Any]:
        exclusions = {name: own.rows.exclusions.newest.digest for name, own in self.sources.items()}
        return {**self.mixed.compared(self.bound), "exclusions": exclusions}

    def having(self, sources: Mapping[str, TableItems]) -> MixedRows:
        """Return the same mixture over other versions of its sources."""
        mixed = self.mixed.others(sources)
        return replace(self, mixed=mixed, columns=common_columns(mixed.by_name, self.options))

    @property
    def turns(self) -> MixedTurns:
        """What comes of each source."""
        return MixedTurns(self.sources, self.columns, self.options.shuffle_seed)

    @override
    def start(self, epoch: int, by_step: ByStep) -> MixedRowsPosition:
        return self.begun(
            epoch, self.mixed.weights_at(epoch), self.turns.exclusions_of(epoch), self.mixed.coming(epoch), by_step
        )

    def begun(
        self,
        epoch: int,
        weights: Weights,
        versions: Mapping[str, ExclusionVersions],
        coming: frozenset[str],
        by_step: ByStep,
    ) -> MixedRowsPosition:
        """Return the start of an epoch that begins with some weights and exclusions.

        Args:
            coming: sources that may have a weight later.
        """
        length = by_step.length_at(epoch)
        rows, natural = self.turns.count(versions, epoch, length), isinstance(weights, str)
        shares = natural_shares(rows) if isinstance(weights, str) else weights
        about: dict[str, Any] = {"exclusions": versions, "rows": rows, "width": length}
        mixture = Mixture.of(shares, self.options.shuffle_seed, epoch, self.block, natural=natural)
        begun = MixedRowsPosition(epoch, by_step.stage_at(epoch), mixture=mixture, **about)
        mixture, total = begun.ending(self.mixed.stop, coming)
        return replace(begun, mixture=mixture, total=total)

    @override
    def next_stage(self, position: MixedRowsPosition, by_step: ByStep) -> MixedRowsPosition:
        return self.reweighted(position, self.mixed.weights_at(position.epoch, _done(position)), by_step)

    def reweighted(self, position: MixedRowsPosition, weights: Weights, by_step: ByStep) -> MixedRowsPosition:
        """Return a position with other weights for the steps that come; the position itself if it has them.

        Raises:
            ConfigError: a source with a weight has no row.
        """
        coming = self.mixed.coming(position.epoch, _done(position))
        position = position.reweighted(None if isinstance(weights, str) else weights, self.mixed.stop, coming)
        if position.width and self.options.samples.cut_anywhere:
            position = _cut_anew(self, position, by_step)
        if "global_batch_size" not in by_step.schedules or position.stage.topology.has_batches_of(
            by_step.topology_of(position.epoch, _done(position))
        ):
            return position
        return cast("MixedRowsPosition", super().next_stage(position, by_step))

    def had_of(self, position: MixedRowsPosition) -> dict[str, tuple[int, int]]:
        """Return how many items of each source an epoch has had before a position, and how many a round has.

        Items are rows or sequences; tokens, where documents are cut anywhere.
        """
        mixture = position.mixture
        turns = dict(zip(mixture.names, mixture.rows_before(position.consumed), strict=True))
        if not self.options.samples.cut_anywhere:
            return {name: (turn, position.rows[name]) for name, turn in turns.items()}
        return self.turns.tokens(position, turns)

    @override
    def enter(self, before: MixedRowsPosition, position: MixedRowsPosition) -> None:
        if before.width != position.width:
            self.turns.begin_at(position, self.turns.anchors(before))

    @property
    @override
    def own_records(self) -> tuple[str, ...]:
        return (RECORD.key, *self.options.samples.records)

    @override
    def records(self, position: MixedRowsPosition) -> dict[str, Written]:
        versions = {name: own.rows.versions(position.exclusions[name].running) for name, own in self.sources.items()}
        weights = self.mixed.weights_at(position.epoch, _done(position))
        found = {**self.mixed.written(self.bound, weights, [shares_of(position)]), **written_exclusions(versions)}
        samples = self.options.samples
        if not samples.are_rows:
            found |= samples.parts.record_of(position, self.turns.anchors(position))
        return found

    @override
    def resume(self, saved: SavedState, by_step: ByStep) -> tuple[Self, MixedRowsPosition]:
        """Return the mixture with the state's exclusions and weights, and where it continues.

        Sources may have come and gone since; weights that the loader was made with hold if they are others than then.
        """
        taken, samples = cast("MixedRowsPosition", saved.taken), self.options.samples
        epoch, versions, sources = taken.epoch, {}, dict(self.sources)
        for name, own in self.sources.items():
            if name not in saved.tables:
                versions[name] = own.rows.exclusions.of(epoch)
                continue
            with of_source(name):
                versions[name] = own.rows.exclusions_in(saved, name)
            sources[name] = own.having(own.rows.excluding(versions[name], epoch))
        mixed = replace(self, mixed=self.mixed.others(sources).resumed(saved))
        if not (taken.width and samples.cut_anywhere):  # a state of other sources alone may have another form
            taken = replace(taken, width=by_step.width, origin=by_step.width * taken.mixture.shares.start)
        rows = mixed.turns.count(versions, epoch, taken.width)
        position = _checked(mixed, replace(taken, exclusions=versions, rows=rows, ended=False))
        position = replace(position, stage=by_step.stage_at(epoch, _done(position)))
        position = mixed.reweighted(position, mixed.mixed.weights_at(epoch, _done(position)), by_step)
        origins = {name: origin for name, origin in position.origins.items() if name in sources}
        position = replace(position, origins=origins)
        if not samples.are_rows and (anchors := samples.parts.anchors_in(saved)):
            mixed.turns.begin_at(position, anchors)
        return mixed, position

    @override
    def stream(self, position: MixedRowsPosition) -> MixedStream:
        # Where samples are made of rows, these say which source they are of.
        return MixedStream(position.mixture, self.turns.streams(position), self.options.samples.are_rows)

    @override
    def locate(self, position: MixedRowsPosition, places: Ints) -> list[SourceRow]:
        """Return the source and the row ids of each place of the mixture's order."""
        source, turn = position.mixture.take(places)
        found: dict[int, list[list[int]]] = {}
        streams = self.stream(position).sources
        for number in distinct(source).tolist():
            ids, counts = streams[number].items.found(turn[source == number])
            found[number] = [part.tolist() for part in np.split(ids, np.cumsum(counts))]
        each = {number: iter(parts) for number, parts in found.items()}
        names = position.mixture.names
        return [SourceRow(names[number], row) for number in source.tolist() for row in next(each[number])]

    @override
    def gathering(self, topology: Topology) -> Gathering:
        largest = max(self.sources.values(), key=lambda own: own.row_bytes)
        found = largest.having(replace(largest.rows, options=self.options)).gathering(topology)
        # Items of several stores are gathered apart, then joined.
        return replace(found, lane_bytes=2 * found.lane_bytes)

    @override
    def facts(self, stages: Sequence[MixedRowsPosition], end: int, by_step: ByStep) -> ItemFacts:
        mixture, rows = stages[0].mixture, [own.rows for own in self.sources.values()]
        shares, word = sum(mixture.shares.weights), "row"
        if by_step.changes_length:
            word = "token"
        sizes, taken = _told_sizes(self, stages, end, by_step)
        weights = {name: weight / shares for name, weight in mixture.weights.items()}
        held = "after every row each source has its share, to within one row"
        if self.block:
            held = f"in every run of {mixture.block_rows:,} rows each source has its share"
        stores = [(name, own.rows.store.note) for name, own in self.sources.items()]
        notes = [
            *share_notes(tuple(self.sources), sizes, weights, taken, word),
            *self.options.samples.notes,
            *(f"source {name!r}: {note}" for name, note in stores if note),
            f"{held}; the epoch ends {self.mixed.stop.in_words()}",
        ]
        return ItemFacts(
            strategy="a mixture of rows",
            notes=notes,
            held_bytes=sum(each.held_bytes for each in rows),
            built_bytes=sum(each.built_bytes for each in rows),
        )


def open_mixed_rows(
    jobs: Mapping[str, ItemsJob],
    options: LoaderOptions,
    ranks: RankInfo,
    weights: Mapping[str, float] | NaturalShares,
    stop: Stop,
    block: int | None,
    unit: ShareUnit = "rows",
) -> ItemsJob:
    """Check that the sources fit each other and the options, and mix their items.

    Raises:
        ConfigError: they do not; names what differs.
    """
    given = checked_weights(weights, jobs)
    block = resolve_block(given, unit, block, options.samples)
    own = {name: job.items.sources[""].apart() for name, job in jobs.items()}
    fork_safe = all(job.fork_safe for job in jobs.values())
    topology = topology_of(options, ranks.num_ranks)
    columns = checked_columns(own, options, topology)
    for name, each in own.items():
        if each.rows.store.in_memory and not crosses_by_fork(options, fork_safe=fork_safe):
            raise ConfigError(
                f"source {name!r} keeps its rows in memory, which worker processes that are not forked cannot "
                'share; pass it a directory as row_store=, or pass worker_type="thread" to the mixture'
            )
    mixed = MixedSources.of(own, given, stop, unused=("shuffle", "shuffle_seed"))
    row_bytes = max(each.row_bytes for each in own.values())
    items = MixedRows(options=options, columns=columns, row_bytes=row_bytes, mixed=mixed, block=block)
    return ItemsJob.of(items, options, ranks.rank, topology, fork_safe=fork_safe)


@dataclass(frozen=True, slots=True)
class MixtureOfRows:
    """A job of a mixture of rows, as its callers ask it; see `Mixture` in `asking.py`."""

    job: ItemsJob

    @property
    def _items(self) -> MixedRows:
        return cast("MixedRows", self.job.items)

    @property
    def mixed(self) -> MixedSources[TableItems]:
        """The sources, and the weights that were asked for."""
        return self._items.mixed

    def with_sources(self, sources: Mapping[str, Job]) -> ItemsJob:
        """Return the same mixture over other versions of its sources."""
        own = {name: cast("ItemsJob", job).items.sources[""] for name, job in sources.items()}
        return self.job.having(self._items.having(own))

    @property
    def sizes(self) -> dict[str, int]:
        """Items of each source in an epoch that begins later."""
        turns = self._items.turns
        return turns.count(turns.newest_exclusions, 0, self.job.by_step.length_at(0))

    def check_weights(
        self, weights: Mapping[str, float] | NaturalShares, epoch: int, coming: frozenset[str] = frozenset()
    ) -> Weights:
        """Return weights that an epoch can begin with, as the smallest integers."""
        items = self._items
        newest = checked_weights(weights, items.sources)
        resolve_block(newest, "rows", items.block, items.options.samples)
        items.begun(epoch, newest, items.turns.newest_exclusions, coming, self.job.by_step)
        return newest

    def reweighted(self, position: MixedRowsPosition, weights: Weights) -> MixedRowsPosition:
        """Return a position with other weights for the steps that come; see `MixedRows.reweighted`."""
        return self._items.reweighted(position, weights, self.job.by_step)

    def had_of(self, position: MixedRowsPosition) -> dict[str, tuple[int, int]]:
        """Return how many items of each source an epoch has had before a position; see `MixedRows.had_of`."""
        return self._items.had_of(position)


def _done(position: MixedRowsPosition) -> Done:
    return position.done(position.width)


def _cut_anew(items: MixedRows, position: MixedRowsPosition, by_step: ByStep) -> MixedRowsPosition:
    """Return the position with sequences of the next step's length, in a new stage, if they have another.

    They begin at origins of their own.
    """
    length = by_step.length_at(position.epoch, position.steps_taken)
    if length == position.width or position.consumed == position.total:
        return position
    rows = items.turns.count(position.exclusions, position.epoch, length)
    before, origins = items.turns.recut(position, length, rows)
    recounted = position.mixture.recounted(position.consumed, before, rows, (position.width, length))
    coming = items.mixed.coming(position.epoch, _done(position))
    return position.mixed_anew(recounted, items.mixed.stop, coming, rows=rows, width=length, origins=origins)


def _checked(items: MixedRows, position: MixedRowsPosition) -> MixedRowsPosition:
    """Return the position of a state, with a mixture of the sources that its rule has not dropped.

    Refuse an epoch of another length than its weights give, whatever came later, and natural weights that are not
    what was left. What comes later is up to this job. An epoch that is over stays so, whatever comes and goes, and
    the rows of sources that are gone are not known.

    Raises:
        ResumeError: no mixture of these sources has such an epoch.
    """
    mixture, start, total, rows = position.mixture, position.mixture.shares, position.total, position.rows
    stop = items.mixed.stop
    if position.origins:
        if not items.options.samples.cut_anywhere:
            refuse(f"origins {position.origins!r} of sequences, and here documents are not cut anywhere")
        items.turns.refuse_origins(position)
    if start.start == position.start == total or not all(name in rows for name in mixture.names):
        return position
    mixture, length = position.ending(stop, items.mixed.coming(position.epoch, _done(position)))
    lengths = {length, position.ending(stop, frozenset(rows))[1]}
    if total not in lengths:
        lengths.add(position.ending(stop)[1])
    asked = None
    if mixture.natural and position.start < length:
        counts = {name: rows[name] for name in mixture.names}
        left = {name: max(0, rows[name] - had) for name, had in zip(mixture.names, start.before, strict=True)}
        asked = natural_shares(left if any(left.values()) else counts)
    if total not in lengths or asked not in (None, mixture.weights):
        raise ResumeError(
            f"the state is of an epoch of {total} rows with the weights {mixture.weights} from row "
            f"{start.start} on, and these sources then have one of {length}"
            f"{'' if asked is None else f', natural weights being {asked}'}; pass the value of state_dict() "
            "unchanged"
        )
    return replace(position, mixture=mixture, total=max(position.start, length))


def _told_sizes(
    items: MixedRows, stages: Sequence[MixedRowsPosition], end: int, by_step: ByStep
) -> tuple[dict[str, int], dict[str, int] | None]:
    """Return the rows of each source and those that an epoch delivers; tokens, where sequences change length."""
    position, last = stages[0], stages[-1]
    names = position.mixture.names
    taken = None if end == ENDLESS else dict(zip(names, last.mixture.rows_before(end), strict=True))
    if not by_step.changes_length:
        return dict(position.rows), taken
    tokens = items.turns.tokens(last, taken or dict.fromkeys(names, 0))
    sizes = {name: whole for name, (_, whole) in tokens.items()}
    return sizes, None if taken is None else {name: had for name, (had, _) in tokens.items()}
