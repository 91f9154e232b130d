"""The rows of several tables, shuffled one by one and mixed in shares that the caller chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from typing_extensions import override

from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.engine.exclusion_record import written_exclusions
from torch_table_loader.engine.jobs.exclusion_state import ExclusionState
from torch_table_loader.engine.jobs.indexed_job import IndexedJob
from torch_table_loader.engine.jobs.resolve import topology_of, with_padding
from torch_table_loader.engine.jobs.table_rows import TableItems
from torch_table_loader.engine.row_store import crosses_by_fork
from torch_table_loader.engine.saved_state import Bound
from torch_table_loader.errors import ConfigError, ResumeError
from torch_table_loader.mixtures.form import (
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
    from numpy.typing import NDArray

    from torch_table_loader.engine.rank_info import RankInfo
    from torch_table_loader.engine.saved_state import SavedState
    from torch_table_loader.engine.state_records import Written
    from torch_table_loader.mixtures.stop import Stop
    from torch_table_loader.options import LoaderOptions

    Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class MixedRows(IndexedJob):
    """One rank's share of the items of several row stores, in the order of a mixture.

    Args:
        block: rows in which each source has its share; 0: every row.
    """

    mixed: MixedSources[TableItems]
    block: int
    copies = 2  # rows of several stores are gathered apart and then joined
    strategy = "a mixture of rows"

    @classmethod
    def of(
        cls,
        sources: Mapping[str, TableItems],
        options: LoaderOptions,
        ranks: RankInfo,
        weights: Mapping[str, float] | NaturalShares,
        stop: Stop,
        block: int | None,
        unit: ShareUnit = "rows",
    ) -> MixedRows:
        """Check that the sources fit each other and the options.

        Raises:
            ConfigError: they do not; names what differs.
        """
        given = checked_weights(weights, sources)
        block = resolve_block(given, unit, block, options.samples)
        own = {name: rows.apart() for name, rows in sources.items()}
        fork_safe = all(rows.fork_safe for rows in own.values())
        columns = common_columns(own, options)
        topology = topology_of(options, ranks.num_ranks)
        make_codec(with_padding(columns, topology), TypePolicy.of(options))
        for name, rows in own.items():
            if rows.store.in_memory and not crosses_by_fork(options, fork_safe=fork_safe):
                raise ConfigError(
                    f"source {name!r} keeps its rows in memory, which worker processes that are not forked cannot "
                    'share; pass it a directory as row_store=, or pass worker_type="thread" to the mixture'
                )
        return cls(
            options=options,
            rank=ranks.rank,
            topology=topology,
            schedules=options.schedules,
            row_bytes=max(rows.row_bytes for rows in own.values()),
            fork_safe=fork_safe,
            columns=columns,
            live_rows=sum(rows.live_rows for rows in own.values()),
            mixed=MixedSources(
                by_name=own,
                given=given,
                stop=stop,
                asked=AskedWeights(newest=given),
                unused=("shuffle", "shuffle_seed"),
            ),
            block=block,
        )

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
        exclusions = {name: rows.exclusions.newest.digest for name, rows in self.sources.items()}
        return {**self.mixed.compared(self.bound), **self.by_step.compared, "exclusions": exclusions}

    def with_sources(self, sources: Mapping[str, TableItems]) -> MixedRows:
        """Return the same mixture over other versions of its sources."""
        mixed = self.mixed.others(sources)
        own = mixed.by_name
        live_rows = sum(rows.live_rows for rows in own.values())
        return replace(self, mixed=mixed, columns=common_columns(own, self.options), live_rows=live_rows)

    @property
    def turns(self) -> MixedTurns:
        """What comes of each source."""
        return MixedTurns(self.sources, self.columns, self.options.shuffle_seed)

    @override
    def start(self, epoch: int) -> MixedRowsPosition:
        return self._started(
            epoch, self.mixed.weights_at(epoch), self.turns.exclusions_of(epoch), self.mixed.coming(epoch)
        )

    def _started(
        self, epoch: int, weights: Weights, versions: Mapping[str, ExclusionVersions], coming: frozenset[str]
    ) -> MixedRowsPosition:
        length = self.by_step.length_at(epoch)
        rows, natural = self.turns.count(versions, epoch, length), isinstance(weights, str)
        shares = natural_shares(rows) if isinstance(weights, str) else weights
        about: dict[str, Any] = {"exclusions": versions, "rows": rows, "width": length}
        mixture = Mixture.of(shares, self.options.shuffle_seed, epoch, self.block, natural=natural)
        begun = MixedRowsPosition(epoch, self._stage(epoch), mixture=mixture, **about)
        mixture, total = begun.ending(self.mixed.stop, coming)
        return replace(begun, mixture=mixture, total=total)

    @property
    @override
    def exclusion_states(self) -> Mapping[str, ExclusionState]:
        return {name: own.exclusions for name, own in self.sources.items()}

    @property
    def sizes(self) -> dict[str, int]:
        """Items of each source in an epoch that begins later."""
        return self.turns.count(self.turns.newest_exclusions, 0, self.by_step.length_at(0))

    def check_weights(
        self, weights: Mapping[str, float] | NaturalShares, epoch: int, coming: frozenset[str] = frozenset()
    ) -> Weights:
        """Return weights that an epoch can begin with, as the smallest integers.

        Args:
            coming: sources that may have a weight later.

        Raises:
            ConfigError: a weight is wrong, a source is missing or unknown, or one with a weight has no row.
        """
        newest = checked_weights(weights, self.sources)
        resolve_block(newest, "rows", self.block, self.samples)
        self._started(epoch, newest, self.turns.newest_exclusions, coming)
        return newest

    @override
    def current(self, position: MixedRowsPosition) -> MixedRowsPosition:
        return self.reweighted(position, self.mixed.weights_at(position.epoch, self.done(position)))

    @override
    def next_stage(self, position: Any) -> MixedRowsPosition:
        return self.current(position)

    def reweighted(self, position: MixedRowsPosition, weights: Weights) -> MixedRowsPosition:
        """Return a position with other weights for the steps that come; the position itself if it has them.

        Raises:
            ConfigError: a source with a weight has no row.
        """
        coming = self.mixed.coming(position.epoch, self.done(position))
        position = position.reweighted(None if isinstance(weights, str) else weights, self.mixed.stop, coming)
        if position.width and self.samples.cut_anywhere:
            position = _cut_anew(self, position)
        if "global_batch_size" not in self.schedules or position.stage.topology.has_batches_of(
            self.by_step.topology_of(position.epoch, self.done(position))
        ):
            return position
        return cast("MixedRowsPosition", super().next_stage(position))

    def had_of(self, position: MixedRowsPosition) -> dict[str, tuple[int, int]]:
        """Return how many items of each source an epoch has had before a position, and how many a round has.

        Items are rows or sequences; tokens, where documents are cut anywhere.
        """
        mixture = position.mixture
        turns = dict(zip(mixture.names, mixture.rows_before(position.consumed), strict=True))
        if not self.samples.cut_anywhere:
            return {name: (turn, position.rows[name]) for name, turn in turns.items()}
        return self.turns.tokens(position, turns)

    @override
    def enter(self, before: MixedRowsPosition, position: MixedRowsPosition) -> None:
        """Note where the walk of sequences of one length has come, of which those of the next go on."""
        if before.width != position.width:
            self.turns.begin_at(position, self.turns.anchors(before))

    @override
    def kept_shape(self, position: Any) -> bool:
        steps = position.steps_before
        if not self.by_step.changes_length:
            return self._kept_batches(position)
        there = self.current(self.walk.at(position.epoch, steps))
        return not steps or (there.consumed, there.origins) == (position.start, position.origins)

    @property
    @override
    def own_records(self) -> tuple[str, ...]:
        return (RECORD.key, *self.samples.records)

    @override
    def records(self, position: MixedRowsPosition) -> dict[str, Written]:
        versions = {name: own.versions(position.exclusions[name].running) for name, own in self.sources.items()}
        weights = self.mixed.weights_at(position.epoch, self.done(position))
        found = {**self.mixed.written(self.bound, weights, [shares_of(position)]), **written_exclusions(versions)}
        if not self.samples.are_rows:
            found |= self.samples.parts.record_of(position, self.turns.anchors(position))
        return found

    @override
    def resume(self, saved: SavedState) -> tuple[MixedRows, MixedRowsPosition]:
        """Return the mixture with the state's exclusions and weights, and where it continues.

        Sources may have come and gone since; weights that the loader was made with hold if they are others than then.
        """
        taken, tables, sources = cast("MixedRowsPosition", saved.taken), saved.tables, dict(self.sources)
        epoch, versions = taken.epoch, {}
        for name, own in self.sources.items():
            if name not in tables:
                versions[name] = own.exclusions.of(epoch)
                continue
            versions[name] = own.exclusions_in(saved, name)
            sources[name] = replace(own, exclusions=ExclusionState(versions[name], epoch))
        mixed = replace(self, mixed=self.mixed.others(sources).resumed(saved))
        if not (taken.width and self.samples.cut_anywhere):  # a state of other sources alone may have another form
            taken = replace(taken, width=self.by_step.width, origin=self.by_step.width * taken.mixture.shares.start)
        rows = mixed.turns.count(versions, epoch, taken.width)
        position = _checked(mixed, replace(taken, exclusions=versions, rows=rows, ended=False))
        position = replace(position, stage=mixed._stage(epoch, position))
        position = mixed.reweighted(position, mixed.mixed.weights_at(epoch, mixed.done(position)))
        origins = {name: origin for name, origin in position.origins.items() if name in sources}
        position = replace(position, origins=origins)
        if not self.samples.are_rows and (anchors := self.samples.parts.anchors_in(saved)):
            mixed.turns.begin_at(position, anchors)
        return mixed, position

    @override
    def refuse_nulls(self) -> None:
        self.mixed.refuse_nulls()

    @override
    def close_clients(self) -> None:
        self.mixed.close_clients()

    @override
    def open(self, position: Any) -> None:
        """Build and open the stores of sources that have a weight."""
        for name, weight in position.mixture.weights.items():
            if weight:
                self.sources[name].store.open()

    @override
    def stream(self, position: Any) -> MixedStream:
        # Where samples are made of rows, these say which source they are of.
        return MixedStream(position.mixture, self.turns.streams(position), self.samples.are_rows)

    @override
    def locate(self, position: Any, places: Ints) -> list[SourceRow]:
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

    @property
    @override
    def held_bytes(self) -> int:
        return sum(rows.held_bytes for rows in self.sources.values())

    @property
    @override
    def built_bytes(self) -> int:
        return sum(rows.built_bytes for rows in self.sources.values())

    @override
    def notes(self, position: Any) -> list[str]:
        mixture = position.mixture
        shares = sum(mixture.shares.weights)
        sizes, taken = _told_sizes(self, position)
        sources = share_notes(
            tuple(self.sources),
            sizes,
            {name: weight / shares for name, weight in mixture.weights.items()},
            taken,
            "row" if not self.by_step.changes_length else "token",
        )
        held = (
            f"in every run of {mixture.block_rows:,} rows each source has its share"
            if self.block
            else "after every row each source has its share, to within one row"
        )
        stores = [f"source {name!r}: {own.store.note}" for name, own in self.sources.items() if own.store.note]
        return [
            *sources,
            *self.samples.notes,
            *stores,
            f"{held}; the epoch ends {self.mixed.stop.in_words()}",
        ]


def _cut_anew(job: MixedRows, position: MixedRowsPosition) -> MixedRowsPosition:
    """Return the position with sequences of the next step's length, in a new stage, if they have another.

    They begin at origins of their own.
    """
    length = job.by_step.length_at(position.epoch, position.steps_taken)
    if length == position.width or position.consumed == position.total:
        return position
    rows = job.turns.count(position.exclusions, position.epoch, length)
    before, origins = job.turns.recut(position, length, rows)
    recounted = position.mixture.recounted(position.consumed, before, rows, (position.width, length))
    coming = job.mixed.coming(position.epoch, job.done(position))
    return position.mixed_anew(recounted, job.mixed.stop, coming, rows=rows, width=length, origins=origins)


def _checked(job: MixedRows, position: MixedRowsPosition) -> MixedRowsPosition:
    """Return the position of a state, with a mixture of the sources that its rule has not dropped.

    Refuse an epoch of another length than its weights give, whatever came later, and natural weights that are not
    what was left. What comes later is up to this job. An epoch that is over stays so, whatever comes and goes, and
    the rows of sources that are gone are not known.

    Raises:
        ResumeError: no mixture of these sources has such an epoch.
    """
    mixture, start, total, rows = position.mixture, position.mixture.shares, position.total, position.rows
    stop = job.mixed.stop
    if position.origins:
        if not job.samples.cut_anywhere:
            refuse(f"origins {position.origins!r} of sequences, and here documents are not cut anywhere")
        job.turns.refuse_origins(position)
    if start.start == position.start == total or not all(name in rows for name in mixture.names):
        return position
    mixture, length = position.ending(stop, job.mixed.coming(position.epoch, job.done(position)))
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


def _told_sizes(job: MixedRows, position: MixedRowsPosition) -> tuple[dict[str, int], dict[str, int] | None]:
    """Return the rows of each source and those that an epoch delivers; tokens, where sequences change length."""
    *_, last = job.walk.stages(position)
    names, end = position.mixture.names, job._batches(last).total
    taken = None if end == ENDLESS else dict(zip(names, last.mixture.rows_before(end), strict=True))
    if not job.by_step.changes_length:
        return dict(position.rows), taken
    tokens = job.turns.tokens(last, taken or dict.fromkeys(names, 0))
    sizes = {name: whole for name, (_, whole) in tokens.items()}
    return sizes, None if taken is None else {name: had for name, (had, _) in tokens.items()}
