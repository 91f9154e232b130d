"""The rows of several tables, shuffled one by one and mixed in shares that the caller chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from typing_extensions import override

from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.engine.exclusion_record import written_exclusions
from torch_table_loader.engine.jobs.indexed_job import IndexedJob
from torch_table_loader.engine.jobs.mixed_sources import AskedWeights, MixedSources
from torch_table_loader.engine.jobs.mixture_form import (
    checked_weights,
    common_columns,
    places_of,
    resolve_block,
    share_notes,
)
from torch_table_loader.engine.jobs.mixture_record import RECORD, Weights, refuse, shares_of
from torch_table_loader.engine.jobs.resolve import topology_of, warn_of_uneven_batches, with_padding
from torch_table_loader.engine.jobs.table_rows import ExclusionState, TableItems, TurnsOf
from torch_table_loader.engine.row_store import crosses_by_fork
from torch_table_loader.engine.saved_state import Bound
from torch_table_loader.engine.work.indexed_work import MixedStream, SourceStream
from torch_table_loader.errors import ConfigError, ConfigTypeError, ResumeError
from torch_table_loader.planning.distinct import distinct
from torch_table_loader.planning.exclusion import Exclusions, ExclusionVersions
from torch_table_loader.planning.global_batches import ENDLESS
from torch_table_loader.planning.mixture import Mixture, NaturalShares, ShareUnit, natural_shares
from torch_table_loader.planning.rows_of import SourceRow
from torch_table_loader.planning.stages import SamplePosition

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.engine.jobs.job import Job
    from torch_table_loader.engine.rank_info import RankInfo
    from torch_table_loader.engine.saved_state import SavedState
    from torch_table_loader.engine.state_records import Written
    from torch_table_loader.engine.table import Table
    from torch_table_loader.engine.work.indexed_work import CutStream
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.schedules import Stop

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
    def sources(self) -> Mapping[str, TableItems]:
        """The sources by name."""
        return self.mixed.by_name

    @property
    @override
    def tables(self) -> Mapping[str, Table]:
        return self.mixed.tables

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
        return {**self.mixed.compared(self.bound), **self._compared_options, "exclusions": exclusions}

    def with_sources(self, sources: Mapping[str, TableItems]) -> MixedRows:
        """Return the same mixture over other versions of its sources."""
        mixed = self.mixed.others(sources)
        own = mixed.by_name
        live_rows = sum(rows.live_rows for rows in own.values())
        return replace(self, mixed=mixed, columns=common_columns(own, self.options), live_rows=live_rows)

    @property
    @override
    def length(self) -> int:
        return self.start(0).total

    @override
    def start(self, epoch: int) -> SamplePosition:
        return self._started(epoch, self.mixed.weights_at(epoch), self._exclusions_of(epoch), self.mixed.coming(epoch))

    def _started(
        self, epoch: int, weights: Weights, versions: Mapping[str, ExclusionVersions], coming: frozenset[str]
    ) -> SamplePosition:
        length = self._length_at(epoch)
        rows, natural = self._rows(versions, epoch, length), isinstance(weights, str)
        shares = natural_shares(rows) if isinstance(weights, str) else weights
        about: dict[str, Any] = {"exclusions": versions, "rows": rows, "width": length}
        mixture = Mixture.of(shares, self.options.shuffle_seed, epoch, self.block, natural=natural)
        begun = SamplePosition(epoch, self._stage(epoch), mixture=mixture, **about)
        mixture, total = begun.ending(self.mixed.stop, coming)
        return replace(begun, mixture=mixture, total=total)

    def _exclusions_of(self, epoch: int) -> dict[str, ExclusionVersions]:
        return {name: rows.exclusions.of(epoch) for name, rows in self.sources.items()}

    @property
    def _newest_exclusions(self) -> dict[str, ExclusionVersions]:
        return {name: ExclusionVersions(own.exclusions.newest) for name, own in self.sources.items()}

    @override
    def begin(self, position: SamplePosition) -> None:
        for name, rows in self.sources.items():
            rows.exclusions.begin(position.epoch, position.exclusions[name].running)

    @property
    def sizes(self) -> dict[str, int]:
        """Items of each source in an epoch that begins later."""
        return self._rows(self._newest_exclusions, 0, self._length_at(0))

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
        self._started(epoch, newest, self._newest_exclusions, coming)
        return newest

    @override
    def current(self, position: SamplePosition) -> SamplePosition:
        return self.reweighted(position, self.mixed.weights_at(position.epoch, self._done(position)))

    @override
    def next_stage(self, position: SamplePosition) -> SamplePosition:
        return self.current(position)

    def _coming(self, position: SamplePosition) -> frozenset[str]:
        return self.mixed.coming(position.epoch, self._done(position))

    def reweighted(self, position: SamplePosition, weights: Weights) -> SamplePosition:
        """Return a position with other weights for the steps that come; the position itself if it has them.

        Raises:
            ConfigError: a source with a weight has no row.
        """
        coming = self._coming(position)
        position = position.reweighted(None if isinstance(weights, str) else weights, self.mixed.stop, coming)
        if position.width and self.samples.cut_anywhere:
            position = self._cut_anew(position)
        if "global_batch_size" not in self.schedules or position.stage.topology.has_batches_of(
            self._topology_of(position.epoch, self._done(position))
        ):
            return position
        return super().next_stage(position)

    def _cut_anew(self, position: SamplePosition) -> SamplePosition:
        """Return the position with sequences of the next step's length, in a new stage, if they have another.

        They begin at origins of their own.
        """
        length = self._length_at(position.epoch, position.steps_taken)
        if length == position.width or position.consumed == position.total:
            return position
        mixture, place = position.mixed, position.consumed
        rows = self._rows(position.exclusions, position.epoch, length)
        before, origins = dict(zip(mixture.names, mixture.rows_before(place), strict=True)), {}
        for name, own in self._turns(position).items():
            if not rows[name]:
                continue
            number, tokens = self._cut(own).came_before(before[name])
            anew = self._cut(own._replace(width=length, origin=(0, 0)))
            before[name], origin = anew.turn_behind(number, tokens)
            origins[name] = (number, origin)
        recounted = mixture.recounted(place, before, rows, (position.width, length))
        coming = self._coming(position)
        return position.mixed_anew(recounted, self.mixed.stop, coming, rows=rows, width=length, origins=origins)

    def had_of(self, position: SamplePosition) -> dict[str, tuple[int, int]]:
        """Return how many items of each source an epoch has had before a position, and how many a round has.

        Items are rows or sequences; tokens, where documents are cut anywhere.
        """
        mixture = position.mixed
        turns = dict(zip(mixture.names, mixture.rows_before(position.consumed), strict=True))
        if not self.samples.cut_anywhere:
            return {name: (turn, position.rows[name]) for name, turn in turns.items()}
        found = {}
        for name, own in self._turns(position).items():
            stream = self._cut(own)
            whole = stream.tokens_of_a_round
            number, tokens = stream.came_before(turns[name]) if whole else (0, 0)
            found[name] = number * whole + tokens, whole
        return found

    def _cut(self, turns: TurnsOf) -> CutStream:
        return cast("CutStream", self.sources[turns.name].by_turn(turns))

    @override
    def enter(self, before: SamplePosition, position: SamplePosition) -> None:
        """Note where the walk of sequences of one length has come, of which those of the next go on."""
        if before.width != position.width:
            self._begin_at(position, self._anchors(before))

    @override
    def kept_shape(self, position: SamplePosition) -> bool:
        steps = position.steps_before
        if not self.changes_length:
            return super().kept_shape(position)
        there = self.current(self.at(position.epoch, steps))
        return not steps or (there.consumed, there.origins) == (position.start, position.origins)

    def ids_of(self, row_ids: Mapping[str, Any]) -> dict[str, Ints]:
        """Return the ids that the caller names of each source, checked.

        Raises:
            ConfigError: a source that is not there, an id that no row has, or a mask of other rows.
        """
        if not isinstance(row_ids, Mapping):
            raise ConfigTypeError(f"row ids must be given by name of their source, got {type(row_ids).__name__}")
        if unknown := [name for name in row_ids if name not in self.sources]:
            raise ConfigError(f"the mixture has no source {unknown[0]!r}; it has {', '.join(self.sources)}")
        return {name: self.sources[name].ids_of(ids) for name, ids in row_ids.items()}

    def change_exclusions(self, row_ids: Mapping[str, Ints], *, include: bool) -> None:
        """Take rows out of some sources, or in again."""
        newest: dict[str, Exclusions] = {}
        for name, ids in row_ids.items():
            rows = self.sources[name]
            newest[name] = rows.include(ids) if include else rows.exclude(ids)
        for name, exclusions in newest.items():
            self.sources[name].exclusions.change(exclusions)

    @property
    @override
    def own_records(self) -> tuple[str, ...]:
        return (RECORD.key, *self.samples.records)

    @override
    def records(self, position: SamplePosition) -> dict[str, Written]:
        versions = {name: own.versions(position.exclusions[name].running) for name, own in self.sources.items()}
        weights = self.mixed.weights_at(position.epoch, self._done(position))
        found = {**self.mixed.written(self.bound, weights, [shares_of(position)]), **written_exclusions(versions)}
        if not self.samples.are_rows:
            found |= self.samples.parts.record_of(position, self._anchors(position))
        return found

    def _anchors(self, position: SamplePosition) -> dict[str, list[int]]:
        """Return from where sources that are walked find their next items."""
        if self.samples.are_rows or not position.consumed:
            return {}
        mixture, streams = position.mixed, self.stream(position).sources
        turns = zip(mixture.names, mixture.rows_before(position.consumed), streams, strict=True)
        found = {name: entry.items.anchor(turn) for name, turn, entry in turns if turn or position.origins}
        return {name: anchor for name, anchor in found.items() if anchor}

    def _begin_at(self, position: SamplePosition, anchors: Mapping[str, Sequence[int]]) -> None:
        for name, entry in zip(position.mixed.names, self.stream(position).sources, strict=True):
            if name in anchors:
                entry.items.begin_at(list(anchors[name]))

    @override
    def resume(self, saved: SavedState) -> tuple[MixedRows, SamplePosition]:
        """Return the mixture with the state's exclusions and weights, and where it continues.

        Sources may have come and gone since; weights that the loader was made with hold if they are others than then.
        """
        taken, tables, sources = cast("SamplePosition", saved.taken), saved.tables, dict(self.sources)
        epoch, versions = taken.epoch, {}
        for name, own in self.sources.items():
            if name not in tables:
                versions[name] = own.exclusions.of(epoch)
                continue
            versions[name] = own.exclusions_in(saved, name)
            sources[name] = replace(own, exclusions=ExclusionState(versions[name], epoch))
        mixed = replace(self, mixed=self.mixed.others(sources).resumed(saved))
        if not (taken.width and self.samples.cut_anywhere):  # a state of other sources alone may have another form
            taken = replace(taken, width=self._width, origin=self._width * taken.mixed.shares.start)
        rows = mixed._rows(versions, epoch, taken.width)
        position = mixed._checked(replace(taken, exclusions=versions, rows=rows, ended=False))
        position = replace(position, stage=mixed._stage(epoch, position))
        position = mixed.reweighted(position, mixed.mixed.weights_at(epoch, mixed._done(position)))
        origins = {name: origin for name, origin in position.origins.items() if name in sources}
        position = replace(position, origins=origins)
        if not self.samples.are_rows and (anchors := self.samples.parts.anchors_in(saved)):
            mixed._begin_at(position, anchors)
        return mixed, position

    def _checked(self, position: SamplePosition) -> SamplePosition:
        """Return the position of a state, with a mixture of the sources that its rule has not dropped.

        Refuse an epoch of another length than its weights give, whatever came later, and natural weights that are not
        what was left. What comes later is up to this job. An epoch that is over stays so, whatever comes and goes, and
        the rows of sources that are gone are not known.

        Raises:
            ResumeError: no mixture of these sources has such an epoch.
        """
        mixture, start, total, rows = position.mixed, position.mixed.shares, position.total, position.rows
        if position.origins:
            self._refuse_origins(position)
        if start.start == position.start == total or not all(name in rows for name in mixture.names):
            return position
        mixture, length = position.ending(self.mixed.stop, self._coming(position))
        lengths = {length, position.ending(self.mixed.stop, frozenset(rows))[1]}
        if total not in lengths:
            lengths.add(position.ending(self.mixed.stop)[1])
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

    def _refuse_origins(self, position: SamplePosition) -> None:
        """Refuse origins of sources at which no sequence begins.

        Raises:
            ResumeError: names the origin.
        """
        mixture, origins = position.mixed, position.origins
        if not self.samples.cut_anywhere:
            refuse(f"origins {origins!r} of sequences, and here documents are not cut anywhere")
        before = dict(zip(mixture.names, mixture.shares.before, strict=True))
        for name, own in self._turns(position).items():
            if name in origins and not self._cut(own).has_at(before[name]):
                refuse(f"the origin {origins[name]!r} of source {name!r}, before {before[name]} of its sequences")

    @override
    def warn_of_undone(self, other: Job) -> None:
        if isinstance(other, MixedRows):
            for name, rows in self.sources.items():
                rows.exclusions.warn_of_undone(other.sources[name].exclusions, f" of source {name!r}")

    @override
    def refuse_nulls(self) -> None:
        self.mixed.refuse_nulls()

    @override
    def close_clients(self) -> None:
        self.mixed.close_clients()

    @override
    def warn_of_uneven_steps(self) -> None:
        *_, last = self.stages(self.start(0))
        warn_of_uneven_batches(last.batches(self.rank))

    @override
    def open(self, position: SamplePosition) -> None:
        """Build and open the stores of sources that have a weight."""
        for name, weight in position.mixed.weights.items():
            if weight:
                self.sources[name].store.open()

    @override
    def stream(self, position: SamplePosition) -> MixedStream:
        streams = []
        for name, turns in self._turns(position).items():
            rows = self.sources[name]
            places = places_of(self.columns, rows.columns)
            streams.append(SourceStream(turns.number, rows.by_turn(turns), places))
        return MixedStream(position.mixed, tuple(streams), self._marks_source)

    @property
    def _marks_source(self) -> bool:
        """Whether a column says which source a sample is of; where samples are made of rows, these have it."""
        return self.samples.are_rows

    @override
    def locate(self, position: SamplePosition, places: Ints) -> list[SourceRow]:
        """Return the source and the row ids of each place of the mixture's order."""
        source, turn = position.mixed.take(places)
        found: dict[int, list[list[int]]] = {}
        streams = self.stream(position).sources
        for number in distinct(source).tolist():
            ids, counts = streams[number].items.found(turn[source == number])
            found[number] = [part.tolist() for part in np.split(ids, np.cumsum(counts))]
        each = {number: iter(parts) for number, parts in found.items()}
        names = position.mixed.names
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
    def notes(self, position: SamplePosition) -> list[str]:
        mixture = position.mixed
        shares = sum(mixture.shares.weights)
        sizes, taken = self._told_sizes(position)
        sources = share_notes(
            tuple(self.sources),
            sizes,
            {name: weight / shares for name, weight in mixture.weights.items()},
            taken,
            "row" if not self.changes_length else "token",
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

    def _told_sizes(self, position: SamplePosition) -> tuple[dict[str, int], dict[str, int] | None]:
        """Return the rows of each source and those that an epoch delivers; tokens, where sequences change length."""
        *_, last = self.stages(position)
        names, end = position.mixed.names, self._batches(last).total
        taken = None if end == ENDLESS else dict(zip(names, last.mixed.rows_before(end), strict=True))
        if not self.changes_length:
            return dict(position.rows), taken
        streams = {name: self._cut(own) for name, own in self._turns(last).items()}
        sizes = {name: own.tokens_of_a_round for name, own in streams.items()}
        if taken is None:
            return sizes, None
        came = {name: streams[name].came_before(turn) for name, turn in taken.items()}
        return sizes, {name: number * sizes[name] + tokens for name, (number, tokens) in came.items()}

    def _rows(self, versions: Mapping[str, ExclusionVersions], epoch: int, width: int) -> dict[str, int]:
        """Count what is left of each source in an epoch; where they are packed, in sequences of a length."""
        return {
            name: rows.count(self._turns_of(name, versions[name].running, epoch, width))
            for name, rows in self.sources.items()
        }

    def _turns(self, position: SamplePosition) -> dict[str, TurnsOf]:
        """Return what decides which items of each source come, in the order of the mixture's names."""
        return {
            name: self._turns_of(
                name,
                position.exclusions[name].running,
                position.epoch,
                position.width,
                position.origins.get(name, (0, 0)),
            )
            for name in position.mixed.names
            if name in self.sources
        }

    def _turns_of(
        self, name: str, exclusions: Exclusions, epoch: int, width: int, origin: tuple[int, int] = (0, 0)
    ) -> TurnsOf:
        number, seed = list(self.sources).index(name), self.options.shuffle_seed
        return TurnsOf(name, number, self.columns, exclusions, seed, epoch, width, origin)
