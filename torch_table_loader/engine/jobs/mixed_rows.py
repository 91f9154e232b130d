"""The rows of several tables, shuffled one by one and mixed in shares that the caller chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.engine.jobs.indexed_job import Items
from torch_table_loader.engine.jobs.mixture_form import (
    checked_weights,
    common_columns,
    end_of,
    places_of,
    resolve_block,
    share_notes,
)
from torch_table_loader.engine.jobs.resolve import with_padding
from torch_table_loader.engine.jobs.table_rows import TableItems, TurnsOf
from torch_table_loader.engine.mixture_state import (
    MixtureState,
    Weights,
    mixture_identity,
    of_source,
    write_mixture_state,
)
from torch_table_loader.engine.row_store import crosses_by_fork
from torch_table_loader.engine.work.indexed_work import MixedStream, SourceStream
from torch_table_loader.errors import ConfigError, ConfigTypeError, ResumeError
from torch_table_loader.planning.distinct import distinct
from torch_table_loader.planning.exclusion import Exclusions, ExclusionVersions
from torch_table_loader.planning.global_batches import ENDLESS
from torch_table_loader.planning.mixture import Mixture, NaturalShares, ShareUnit, StopRule, natural_shares
from torch_table_loader.planning.rows_of import SourceRow
from torch_table_loader.planning.stages import SamplePosition, Stage, refuse_ended

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.engine.table import Table
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.ranks import Topology

    Ints: TypeAlias = NDArray[np.int64]


@dataclass(slots=True)
class WeightState:
    """The weights that were asked for last; epochs and steps that begin take them.

    Args:
        newest: the weights, by name; or the word for those of what is left of each source.
    """

    newest: Weights
    changes: int = 0

    def change(self, newest: Weights) -> None:
        """Ask for other weights."""
        self.newest = newest
        self.changes += 1


@dataclass(frozen=True, eq=False)
class MixedRows(Items):
    """The rows of several tables in the order of a mixture.

    Args:
        options: the caller's, with `batch_size` resolved, and the form of rows as the sources have it.
        sources: by name, in the caller's order, which the column `source` counts.
        given: the weights that the loader was made with; see `WeightState`.
    """

    options: LoaderOptions
    sources: Mapping[str, TableItems]
    columns: pa.Schema
    given: Weights
    stop: StopRule
    block: int
    weights: WeightState
    row_bytes: int = field(init=False)
    live_rows: int = field(init=False)

    copies = 2  # rows of several stores are gathered apart and then joined
    strategy = "a mixture of rows"

    def __post_init__(self) -> None:
        """Sum the sources up."""
        object.__setattr__(self, "row_bytes", max(rows.row_bytes for rows in self.sources.values()))
        object.__setattr__(self, "live_rows", sum(rows.live_rows for rows in self.sources.values()))

    def refuse_nulls(self) -> None:
        """Refuse columns of the sources in which statistics prove a null, and the output cannot hold one."""
        for rows in self.sources.values():
            rows.refuse_nulls()

    @classmethod
    def of(
        cls,
        sources: Mapping[str, TableItems],
        options: LoaderOptions,
        weights: Mapping[str, float] | NaturalShares,
        stop: StopRule,
        block: int | None,
        unit: ShareUnit = "rows",
    ) -> MixedRows:
        """Check that the sources fit each other and the options.

        Args:
            sources: by name, in the caller's order.
            options: the caller's, with `batch_size` resolved, and the form of rows as the sources have it.
            weights: by name of the source, or a word for natural shares.

        Raises:
            ConfigError: they do not; names what differs.
        """
        given = checked_weights(weights, sources)
        block = resolve_block(given, unit, block, options.pack)
        own = {name: rows.apart() for name, rows in sources.items()}
        columns = common_columns({name: rows.columns for name, rows in own.items()}, options)
        mixed = cls(options, own, columns, given, stop, block, WeightState(given))
        make_codec(with_padding(columns, marks=options.even_ranks == "pad"), TypePolicy.of(options))
        for name, rows in own.items():
            if rows.store.place is None and not crosses_by_fork(options, fork_safe=mixed.fork_safe):
                raise ConfigError(
                    f"source {name!r} keeps its rows in memory, which worker processes that are not forked cannot "
                    'share; pass it a directory as row_store=, or pass worker_type="thread" to the mixture'
                )
        mixed.length  # noqa: B018 refuses sources without rows
        return mixed

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables, by name of their source."""
        return {name: rows.table for name, rows in self.sources.items()}

    @property
    def identity(self) -> dict[str, Any]:
        """The tables and options that a state is bound to; weights are not part of it."""
        options = {"shuffle_seed": self.options.shuffle_seed, "stop": self.stop, "block": self.block}
        return mixture_identity({name: rows.identity for name, rows in self.sources.items()}, options)

    @property
    def compared(self) -> Mapping[str, Any]:
        """All that decides the order, by name."""
        identity = self.identity
        return {
            **identity["options"],
            "names": list(self.sources),
            "sources": identity["sources"],
            "exclusions": {name: rows.exclusions.newest.digest for name, rows in self.sources.items()},
            "weights": self.given,
        }

    @property
    def fork_safe(self) -> bool:
        """Whether planning left no threads behind that a fork would break."""
        return all(rows.fork_safe for rows in self.sources.values())

    @property
    def length(self) -> int:
        """Items of the first epoch; `ENDLESS` where it has no end."""
        return self._start(0)[1]

    @property
    def changes(self) -> int:
        """How often weights were changed."""
        return self.weights.changes

    def with_sources(self, sources: Mapping[str, TableItems]) -> MixedRows:
        """Return the same mixture over other versions of its sources."""
        both = {**self.sources, **sources}
        columns = common_columns({name: rows.columns for name, rows in both.items()}, self.options)
        return replace(self, sources=both, columns=columns)

    def start(self, epoch: int, topology: Topology) -> SamplePosition:
        """Return the start of an epoch.

        Raises:
            ConfigError: a source that has a weight has no row.
        """
        mixture, total, rows, versions = self._start(epoch)
        stage = Stage(topology)
        return SamplePosition(epoch, stage, total=total, exclusions=versions, mixture=mixture, rows=rows)

    def _start(self, epoch: int) -> tuple[Mixture, int, tuple[int, ...], dict[str, ExclusionVersions]]:
        versions = {name: rows.exclusions.of(epoch) for name, rows in self.sources.items()}
        rows = self._rows(versions, epoch)
        mixture = self._mixture(self.weights.newest, rows, epoch)
        counts = tuple(rows[name] for name in mixture.names)
        return mixture, mixture.length(counts, self.stop), counts, versions

    def begin(self, position: SamplePosition) -> None:
        """Note that an epoch runs: what is excluded from now on waits for the next."""
        for name, rows in self.sources.items():
            rows.exclusions.begin(position.epoch, position.exclusions[name].running)

    def current(self, position: SamplePosition) -> SamplePosition:
        """Return the position with the newest weights; the position itself if it has them."""
        return self._reweighted(position, self.weights.newest)

    @property
    def shares(self) -> dict[str, int]:
        """The newest weights, as the smallest integers; natural ones as they are at an epoch's start."""
        newest = self.weights.newest
        if not isinstance(newest, str):
            return newest
        return natural_shares(self._rows(self._newest_exclusions, 0))

    def _mixture(self, weights: Weights, rows: Mapping[str, int], epoch: int) -> Mixture:
        natural = isinstance(weights, str)
        shares = natural_shares(rows) if isinstance(weights, str) else weights
        return Mixture.of(shares, self.options.shuffle_seed, epoch, self.block, natural=natural)

    def _reweighted(self, position: SamplePosition, weights: Weights) -> SamplePosition:
        by_name = None if isinstance(weights, str) else weights
        return position.reweighted(by_name, position.rows_by_name, self.stop)

    @property
    def _newest_exclusions(self) -> dict[str, ExclusionVersions]:
        return {name: ExclusionVersions(own.exclusions.newest) for name, own in self.sources.items()}

    def set_weights(self, weights: Mapping[str, float] | NaturalShares, position: SamplePosition | None) -> None:
        """Ask for other weights from the next step on.

        Args:
            weights: by name, or a word for those of what is left of each source.
            position: of the epoch that runs, which must be able to take them; None if none does.

        Raises:
            ConfigError: a weight is wrong, a source is missing or unknown, or one with a weight has no row.
        """
        newest, epoch = checked_weights(weights, self.sources), 0 if position is None else position.epoch
        resolve_block(newest, "rows", self.block, self.options.pack)
        rows = self._rows(self._newest_exclusions, epoch)
        mixture = self._mixture(newest, rows, epoch)
        mixture.length([rows[name] for name in mixture.names], self.stop)
        if position is not None:
            self._reweighted(position, newest)
        self.weights.change(newest)

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

    def state(self, position: SamplePosition) -> dict[str, Any]:
        """Write where the job is, with what was excluded and which weights were asked for since."""
        exclusions = {
            name: ExclusionVersions(position.exclusions[name].running, rows.exclusions.newest)
            for name, rows in self.sources.items()
        }
        now = self.current(position)
        given, newest = self.given, self.weights.newest
        return write_mixture_state(self.identity, now, given, newest, exclusions, self._anchors(now))

    def _anchors(self, position: SamplePosition) -> dict[str, list[int]]:
        """Return from where sources that are walked find their next items."""
        if self.options.pack is None or not position.consumed:
            return {}
        mixture, streams = position.mixed, self.stream(position).sources
        turns = zip(mixture.names, mixture.rows_before(position.consumed), streams, strict=True)
        found = {name: entry.items.anchor(turn) for name, turn, entry in turns if turn}
        return {name: anchor for name, anchor in found.items() if anchor}

    def resume(self, state: Mapping[str, Any], topology: Topology) -> tuple[MixedRows, SamplePosition]:
        """Return the mixture as a state has it, and the position.

        Sources may have come and gone since, and the loader may have been made with other weights: they hold from
        there on. Otherwise the state's weights continue.
        """
        saved = MixtureState.from_state(self.identity["options"], state)
        sources = {
            name: self._resumed(name, saved, topology) if name in saved.names else rows
            for name, rows in self.sources.items()
        }
        newest = saved.newest if saved.given == self.given else self.given
        mixed = replace(self.with_sources(sources), weights=WeightState(newest))
        consumed = saved.consumed
        refuse_ended(consumed, saved.total, ended=saved.ended)
        versions = {name: rows.exclusions.of(saved.epoch) for name, rows in sources.items()}
        seed, natural = self.options.shuffle_seed, isinstance(saved.newest, str)
        mixture = Mixture(saved.names, saved.shares, seed, saved.epoch, self.block, natural)
        rows = mixed._rows(versions, saved.epoch)
        over = saved.shares.start == consumed == saved.total  # it stays so, whatever comes and goes
        if not over and all(name in rows for name in mixture.names):
            self._refuse_other_orders(mixture, rows, saved)
        if isinstance(newest, str):
            mixture = mixture.of_what_is_left(consumed, rows)
        else:
            mixture = mixture.reweighted(consumed, newest)
        counts = tuple(rows[name] for name in mixture.names)
        position = SamplePosition(
            saved.epoch,
            Stage(topology),
            total=saved.total if consumed == saved.total else mixture.length(counts, self.stop),
            start=consumed,
            steps_before=saved.steps,
            exclusions=versions,
            mixture=mixture,
            rows=counts,
        )
        if saved.anchors:
            for name, entry in zip(mixture.names, mixed.stream(position).sources, strict=True):
                if name in saved.anchors:
                    entry.items.begin_at(saved.anchors[name])
        return mixed, position

    def _refuse_other_orders(self, mixture: Mixture, rows: Mapping[str, int], saved: MixtureState) -> None:
        """Refuse an epoch of another length than its weights give, and natural weights that are not what was left.

        Args:
            rows: rows of each source in the epoch, by name.
            saved: the state; all its sources are here.

        Raises:
            ResumeError: no mixture of these sources has such an epoch.
        """
        counts, start = tuple(rows[name] for name in mixture.names), mixture.shares
        total = mixture.length(counts, self.stop)
        left = {name: max(0, rows[name] - had) for name, had in zip(mixture.names, start.before, strict=True)}
        asked = natural_shares(left if any(left.values()) else dict(zip(mixture.names, counts, strict=True)))
        if saved.total != total or (mixture.natural and mixture.weights != asked and saved.consumed < total):
            raise ResumeError(
                f"the state is of an epoch of {saved.total} rows with the weights {mixture.weights} from row "
                f"{start.start} on, and these sources then have one of {total}, natural weights being {asked}; pass "
                "the value of state_dict() unchanged"
            )

    def _resumed(self, name: str, saved: MixtureState, topology: Topology) -> TableItems:
        """Let a source find its own part of a state; nothing need be left of it."""
        rows = self.sources[name]
        start = {"epoch": saved.epoch, "consumed": [0, 0], "origin": 0}
        with of_source(name):
            rows, _ = rows.resume(saved.source_state(name, rows.identity) | start, topology)
            excluded = ExclusionVersions.from_state(saved.exclusions[name], rows.table.layout.num_rows)
        return rows.resumed(excluded, saved.epoch)

    def warn_of_undone(self, other: Items) -> None:
        """Warn of what was excluded or included here and is not in what a state brings."""
        if isinstance(other, MixedRows):
            for name, rows in self.sources.items():
                rows.warn_of_undone(other.sources[name], f" of source {name!r}")

    def open(self, position: SamplePosition) -> None:
        """Build and open the stores of sources that have a weight."""
        for name, weight in position.mixed.weights.items():
            if weight:
                self.sources[name].store.rows()

    def stream(self, position: SamplePosition) -> MixedStream:
        """Return the rows of an epoch by their place in the mixture's order."""
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
    def held_bytes(self) -> int:
        """Bytes of the stores that are held in memory."""
        return sum(rows.held_bytes for rows in self.sources.values())

    def notes(self, position: SamplePosition) -> list[str]:
        """What `explain()` says of the sources, their shares and their stores."""
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
            f"{held}; the epoch ends {end_of(self.stop)}",
        ]

    def close_clients(self) -> None:
        """Close this process's clients of the tables' stores, and of row stores."""
        for rows in self.sources.values():
            rows.close_clients()

    def _rows(self, versions: Mapping[str, ExclusionVersions], epoch: int) -> dict[str, int]:
        """Count what is left of each source in an epoch."""
        return {
            name: rows.count(self._turns(name, versions[name].running, epoch)) for name, rows in self.sources.items()
        }

    def _turns(self, name: str, exclusions: Exclusions, epoch: int) -> TurnsOf:
        number = list(self.sources).index(name)
        return TurnsOf(name, number, self.columns, exclusions, self.options.shuffle_seed, epoch)
