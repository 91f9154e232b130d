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
from torch_table_loader.engine.jobs.indexed_job import IndexedJob
from torch_table_loader.engine.jobs.mixture_form import (
    checked_weights,
    common_columns,
    places_of,
    resolve_block,
    share_notes,
)
from torch_table_loader.engine.jobs.mixture_job import AskedWeights, MixtureJob
from torch_table_loader.engine.jobs.resolve import topology_of, with_padding
from torch_table_loader.engine.jobs.table_rows import TableItems, TurnsOf
from torch_table_loader.engine.row_store import crosses_by_fork
from torch_table_loader.engine.state import Bound, Weights, of_source, running_shares
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
    from torch_table_loader.engine.state import SavedMixture, SavedState, SavedTable
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.stages import SampleCount
    from torch_table_loader.schedules import Stop

    Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class MixedRows(MixtureJob, IndexedJob):
    """One rank's share of the items of several row stores, in the order of a mixture.

    Args:
        block: rows in which each source has its share; 0: every row.
    """

    sources: Mapping[str, TableItems]
    block: int
    copies = 2  # rows of several stores are gathered apart and then joined
    strategy = "a mixture of rows"
    unused = ("shuffle", "shuffle_seed")

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
        block = resolve_block(given, unit, block, options.pack)
        own = {name: rows.apart() for name, rows in sources.items()}
        fork_safe = all(rows.fork_safe for rows in own.values())
        columns = common_columns(own, options)
        make_codec(with_padding(columns, marks=options.even_ranks == "pad"), TypePolicy.of(options))
        for name, rows in own.items():
            if rows.store.in_memory and not crosses_by_fork(options, fork_safe=fork_safe):
                raise ConfigError(
                    f"source {name!r} keeps its rows in memory, which worker processes that are not forked cannot "
                    'share; pass it a directory as row_store=, or pass worker_type="thread" to the mixture'
                )
        mixed = cls(
            options=options,
            rank=ranks.rank,
            topology=topology_of(options, ranks.num_ranks),
            row_bytes=max(rows.row_bytes for rows in own.values()),
            fork_safe=fork_safe,
            columns=columns,
            live_rows=sum(rows.live_rows for rows in own.values()),
            sources=own,
            given=given,
            stop=stop,
            block=block,
            asked=AskedWeights(newest=given),
        )
        mixed.length  # noqa: B018 refuses sources without rows
        return mixed

    @cached_property
    @override
    def bound(self) -> Bound:
        return Bound({}, {"shuffle_seed": self.options.shuffle_seed, "block": self.block, **self.stop.said})

    @property
    @override
    def compared(self) -> Mapping[str, Any]:
        exclusions = {name: rows.exclusions.newest.digest for name, rows in self.sources.items()}
        return {**super().compared, "exclusions": exclusions}

    @override
    def with_sources(self, sources: Mapping[str, TableItems]) -> MixedRows:
        mixed = super().with_sources(sources)
        return replace(mixed, live_rows=sum(rows.live_rows for rows in mixed.sources.values()))

    @property
    @override
    def length(self) -> int:
        return self.start(0).total

    @override
    def start(self, epoch: int) -> SamplePosition:
        return self._started(epoch, self._weights_at(epoch), self._exclusions_of(epoch))

    def _started(self, epoch: int, weights: Weights, versions: Mapping[str, ExclusionVersions]) -> SamplePosition:
        rows = self._rows(versions, epoch)
        natural = isinstance(weights, str)
        shares = natural_shares(rows) if isinstance(weights, str) else weights
        mixture = Mixture.of(shares, self.options.shuffle_seed, epoch, self.block, natural=natural)
        counts = tuple(rows[name] for name in mixture.names)
        (mixture, total), stage = mixture.ending(counts, self.stop), self._stage(epoch)
        return SamplePosition(epoch, stage, total=total, exclusions=versions, mixture=mixture, rows=counts)

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
    @override
    def sizes(self) -> dict[str, int]:
        return self._rows(self._newest_exclusions, 0)

    @override
    def check_weights(self, weights: Mapping[str, float] | NaturalShares, epoch: int) -> Weights:
        newest = checked_weights(weights, self.sources)
        resolve_block(newest, "rows", self.block, self.options.pack)
        self._started(epoch, newest, self._newest_exclusions)
        return newest

    @override
    def reweighted(self, position: SamplePosition, weights: Weights) -> SamplePosition:
        by_name = None if isinstance(weights, str) else weights
        return position.reweighted(by_name, position.rows_by_name, self.stop)

    @override
    def current(self, position: SamplePosition) -> SamplePosition:
        current: SamplePosition = super().current(position)
        if current.stage.topology.has_batches_of(self._topology_of(current.epoch, self._done(current))):
            return current
        return IndexedJob.next_stage(self, current)

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

    @override
    def saved_tables(self, position: SamplePosition) -> dict[str, SavedTable]:
        anchors, exclusions = self._anchors(position), position.exclusions
        return {
            name: self.sources[name].saved_table(exclusions[name].running, own, anchors.get(name, ()))
            for name, own in self.bound_sources.items()
        }

    def _anchors(self, position: SamplePosition) -> dict[str, list[int]]:
        """Return from where sources that are walked find their next items."""
        if self.options.pack is None or not position.consumed:
            return {}
        mixture, streams = position.mixed, self.stream(position).sources
        turns = zip(mixture.names, mixture.rows_before(position.consumed), streams, strict=True)
        found = {name: entry.items.anchor(turn) for name, turn, entry in turns if turn}
        return {name: anchor for name, anchor in found.items() if anchor}

    @override
    def continued(self, saved: SavedState, mixture: SavedMixture) -> tuple[MixedRows, SamplePosition]:
        count = cast("SampleCount", saved.taken)
        total, shares = count.total, running_shares(tuple(saved.tables), count, mixture)
        mixed = replace(self, sources={name: self._resumed(name, saved) for name in self.sources})
        done = self._did(count.steps, count.consumed)
        newest = self._weights_at(count.epoch, done)
        consumed, epoch = count.consumed, count.epoch
        versions = mixed._exclusions_of(epoch)
        seed, natural = self.options.shuffle_seed, isinstance(mixture.newest, str)
        order = Mixture(tuple(saved.tables), shares, seed, epoch, self.block, natural)
        rows = mixed._rows(versions, epoch)
        over = shares.start == consumed == total  # it stays so, whatever comes and goes
        if not over and all(name in rows for name in order.names):
            order = self._checked_order(order, rows, total, consumed)
        order = order.of_what_is_left(consumed, rows) if isinstance(newest, str) else order.reweighted(consumed, newest)
        counts = tuple(rows[name] for name in order.names)
        order, length = order.ending(counts, self.stop)
        position = SamplePosition(
            epoch,
            self._stage(epoch, done),
            total=total if consumed == total else length,
            start=consumed,
            steps_before=count.steps,
            exclusions=versions,
            mixture=order,
            rows=counts,
        )
        if anchors := {name: theirs.anchor for name, theirs in saved.tables.items() if theirs.anchor}:
            for name, entry in zip(order.names, mixed.stream(position).sources, strict=True):
                if name in anchors:
                    entry.items.begin_at(list(anchors[name]))
        return mixed, position

    def _checked_order(self, mixture: Mixture, rows: Mapping[str, int], total: int, consumed: int) -> Mixture:
        """Return the mixture of a state without what its rule dropped.

        Refuse an epoch of another length than its weights give, and natural weights that are not what was left.

        Raises:
            ResumeError: no mixture of these sources has such an epoch.
        """
        counts, start = {name: rows[name] for name in mixture.names}, mixture.shares
        mixture, length = mixture.ending(tuple(counts.values()), self.stop)
        asked = None
        if mixture.natural and consumed < length:
            left = {name: max(0, rows[name] - had) for name, had in zip(mixture.names, start.before, strict=True)}
            asked = natural_shares(left if any(left.values()) else counts)
        if total != length or asked not in (None, mixture.weights):
            raise ResumeError(
                f"the state is of an epoch of {total} rows with the weights {mixture.weights} from row "
                f"{start.start} on, and these sources then have one of {length}"
                f"{'' if asked is None else f', natural weights being {asked}'}; pass the value of state_dict() "
                "unchanged"
            )
        return mixture

    def _resumed(self, name: str, saved: SavedState) -> TableItems:
        """Return a source with the exclusions of a state, if it is in the state."""
        rows = self.sources[name]
        if name not in saved.tables:
            return rows
        with of_source(name):
            versions = ExclusionVersions.from_state(saved.tables[name].exclusions, rows.table.layout.num_rows)
        return rows.resumed(versions, saved.taken.epoch)

    @override
    def warn_of_undone(self, other: Job) -> None:
        if isinstance(other, MixedRows):
            for name, rows in self.sources.items():
                rows.exclusions.warn_of_undone(other.sources[name].exclusions, f" of source {name!r}")

    @override
    def open(self, position: SamplePosition) -> None:
        """Build and open the stores of sources that have a weight."""
        for name, weight in position.mixed.weights.items():
            if weight:
                self.sources[name].store.open()

    @override
    def stream(self, position: SamplePosition) -> MixedStream:
        streams = []
        for name in position.mixed.names:
            rows, turns = self.sources[name], self._turns(name, position.exclusions[name].running, position.epoch)
            places = places_of(self.columns, rows.columns)
            streams.append(SourceStream(turns.number, rows.by_turn(turns), places))
        return MixedStream(position.mixed, tuple(streams), self._marks_source)

    @property
    def _marks_source(self) -> bool:
        """Whether there is a column that says which source a row is of; of sequences, documents have it."""
        return self.options.pack is None

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

    @override
    def notes(self, position: SamplePosition) -> list[str]:
        mixture = position.mixed
        shares = sum(mixture.shares.weights)
        taken = None if position.total == ENDLESS else mixture.rows_before(position.total)
        sources = share_notes(
            tuple(self.sources),
            dict(zip(mixture.names, position.rows, strict=True)),
            {name: weight / shares for name, weight in mixture.weights.items()},
            None if taken is None else dict(zip(mixture.names, taken, strict=True)),
        )
        held = (
            f"in every run of {mixture.block_rows:,} rows each source has its share"
            if self.block
            else "after every row each source has its share, to within one row"
        )
        stores = [f"source {name!r}: {own.store.note}" for name, own in self.sources.items() if own.store.note]
        return [
            *sources,
            *stores,
            f"{held}; the epoch ends {self.stop.told()}",
        ]

    def _rows(self, versions: Mapping[str, ExclusionVersions], epoch: int) -> dict[str, int]:
        """Count what is left of each source in an epoch."""
        return {
            name: rows.count(self._turns(name, versions[name].running, epoch)) for name, rows in self.sources.items()
        }

    def _turns(self, name: str, exclusions: Exclusions, epoch: int) -> TurnsOf:
        number = list(self.sources).index(name)
        return TurnsOf(name, number, self.columns, exclusions, self.options.shuffle_seed, epoch)
