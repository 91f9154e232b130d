"""The rows of one table, shuffled one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeAlias, cast

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow.datatypes import width_of
from torch_table_loader.engine.exclusion_record import saved_exclusions, written_exclusions
from torch_table_loader.engine.items import Items, TurnsOf
from torch_table_loader.engine.jobs.bound import bound, of_source, refuse_unknown
from torch_table_loader.engine.jobs.codecs import Codecs
from torch_table_loader.engine.jobs.exclusion_state import ExclusionState
from torch_table_loader.engine.jobs.indexed_job import IndexedJob
from torch_table_loader.engine.jobs.resolve import (
    columns_of,
    counter_of,
    delivered,
    surveyed,
    topology_of,
    with_padding,
)
from torch_table_loader.engine.row_draws import row_draws
from torch_table_loader.engine.row_store import RowStoreHandle
from torch_table_loader.engine.saved_state import Bound
from torch_table_loader.engine.sizing import rows_of_a_read
from torch_table_loader.engine.table import Table
from torch_table_loader.engine.work.indexed_work import RowStream
from torch_table_loader.errors import ConfigError
from torch_table_loader.options import LoaderOptions
from torch_table_loader.planning.exclusion import Exclusions, ExclusionVersions, Remaining, checked_ids
from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.orders import EachOnce, RowOrder
from torch_table_loader.planning.permutation import Permutation
from torch_table_loader.planning.rows_of import RowSpan, spans_of_ids
from torch_table_loader.planning.splits import whole_files
from torch_table_loader.planning.stages import SamplePosition
from torch_table_loader.ranges import FetchSettings
from torch_table_loader.records import ROW_ID
from torch_table_loader.units import Size

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from torch_table_loader.contracts import Source
    from torch_table_loader.engine.counting import Parts
    from torch_table_loader.engine.rank_info import RankInfo
    from torch_table_loader.engine.row_store import FilesInPlace
    from torch_table_loader.engine.saved_state import SavedState
    from torch_table_loader.engine.state_records import Written
    from torch_table_loader.planning.orders import Draws, EpochOrder, Order, Selects
    from torch_table_loader.planning.ranks import Topology
    from torch_table_loader.planning.splits import SegmentTable
    from torch_table_loader.planning.stages import Extent
    from torch_table_loader.read.row_stage import RowStage
    from torch_table_loader.source.plan_cache import Plans

    Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class TableItems(IndexedJob, Items):
    """One rank's share of items made from the rows of one table, gathered from its row store.

    Args:
        draws: how often each row comes.
    """

    table: Table
    store: RowStoreHandle
    draws: Draws
    exclusions: ExclusionState = field(default_factory=ExclusionState)
    word_of_rows: ClassVar[str] = "rows"

    @property
    @override
    def exclusion_states(self) -> Mapping[str, ExclusionState]:
        return {"": self.exclusions}

    def _bound_to(self, columns: pa.Schema) -> Bound:
        """Return the table and the options that a state is bound to."""
        whole = bound(self.table, columns, self.options, "", "")
        kept = {name: whole.options[name] for name in ("columns", "filters", "shuffle_seed")}
        return Bound(whole.table, {**kept, "shuffle": "rows", **self.draws.bound})

    @property
    @override
    def own_records(self) -> tuple[str, ...]:
        return self.samples.records

    @override
    def records(self, position: SamplePosition) -> dict[str, Written]:
        return written_exclusions({"": self.versions(position.exclusions[""].running)})

    def versions(self, running: Exclusions) -> ExclusionVersions:
        """Return what is excluded now, given what the running epoch excludes."""
        return ExclusionVersions(running, self.exclusions.newest)

    def exclusions_in(self, saved: SavedState, name: str = "") -> ExclusionVersions:
        """Return what a state excludes of the table, which is the source of a mixture by a name.

        Raises:
            ResumeError: the table has no such rows.
        """
        with of_source(name):
            return saved_exclusions(saved, name, self.table.layout.num_rows)

    def ids_of(self, row_ids: Any) -> Ints:
        """Return the row ids that the caller names, checked."""
        return checked_ids(row_ids, self.table.layout.num_rows)

    def exclude(self, row_ids: Any) -> Exclusions:
        """Return the exclusions with some rows more."""
        return self.exclusions.newest.exclude(row_ids, self.table.layout.num_rows)

    def include(self, row_ids: Any) -> Exclusions:
        """Return the exclusions with some rows fewer."""
        return self.exclusions.newest.include(row_ids, self.table.layout.num_rows)

    def remaining(self, exclusions: Exclusions) -> Remaining:
        """Return the rows of the store that are left."""
        return Remaining(self.live_rows, self._gone(exclusions))

    def _gone(self, exclusions: Exclusions) -> Ints:
        """Return the rows of the store that are excluded."""
        gone = exclusions.ids
        if len(gone) and self.store.spec.keeps_ids:  # rows that a filter leaves out have no place
            kept = self.store.rows().row_ids
            assert kept is not None  # noqa: S101 the store keeps them
            places = np.searchsorted(kept, gone)
            present = places < len(kept)
            present[present] = kept[places[present]] == gone[present]
            gone = places[present]
        return gone

    def _some(self, exclusions: Exclusions) -> Remaining:
        """Return the rows of the store that are left, and refuse an epoch that has none."""
        remaining = self.remaining(exclusions)
        if self.live_rows and not remaining.num_rows:
            raise ConfigError(
                f"all {self.live_rows} rows are excluded, so the epoch has no rows; include() some of them"
            )
        return remaining

    def _total(self, rows: int) -> int:
        """Return how many places of an order of some rows an epoch has."""
        if self.draws.most is None:
            return rows
        return min(rows, self.draws.most)

    def _of_epoch(self, exclusions: Exclusions, epoch: int) -> Selects:
        """Return the rows that are left, or are drawn of those, and refuse an epoch that has none."""
        return self.draws.selected(self._some(exclusions), self.options.shuffle_seed, epoch)

    def _of_source(self, turns: TurnsOf) -> Selects:
        return self.draws.selected(self.remaining(turns.exclusions), turns.seed, turns.epoch, turns.name)

    def _note_of_rows(self, epoch_rows: int, position: SamplePosition) -> str:
        """Say how many rows an epoch has, and which."""
        left, word = self.remaining(position.exclusions[""].running).num_rows, self.word_of_rows
        said = self.draws.in_words(f"{epoch_rows:,} {word}", f"{left:,} of {self.live_rows:,} live {word}")
        return f"{said}; the others are excluded"

    @override
    def open(self, position: SamplePosition) -> None:
        self.store.open()

    def apart(self) -> Self:
        """Return the same with exclusions of its own, which begin with what is excluded now."""
        return replace(self, exclusions=self.exclusions.apart())

    @property
    @override
    def held_bytes(self) -> int:
        return self.store.memory_bytes + self.draws.memory_bytes

    @property
    @override
    def built_bytes(self) -> int:
        return self.store.building_bytes(self.table)

    @property
    def where(self) -> str:
        """Where the rows are, for `explain()`."""
        store = self.store
        if store.in_place is not None:
            return "the table's own files"
        where = "the memory of this rank" if store.place is None else f"files, as {store.place.name}"
        where = where if store.url is None else f"{store.url.shown}, or this machine's copy of it"
        return f"a row store in {where}"

    @override
    def close_clients(self) -> None:
        self.table.storage.close()
        self.store.close_clients()

    def spans_of(self, ids: Ints) -> list[RowSpan]:
        """Return the file and the row of each row id."""
        return spans_of_ids(self.table.layout, ids)


class SurveyedRows(NamedTuple):
    """The counted live rows of a table, and the row store for them with its columns (the row id if asked for)."""

    table: Table
    store: RowStoreHandle
    columns: pa.Schema
    segments: SegmentTable
    row_bytes: int
    codecs: Codecs

    @property
    def folder(self) -> Path | None:
        """What has the row stores, if they are in files."""
        if self.store.place is None:
            return None
        return self.store.place.parent

    @property
    def fork_safe(self) -> bool:
        """Whether planning left no threads behind that a fork would break."""
        return bool(getattr(self.table.storage, "fork_safe", False)) and self.store.fork_safe


def stored_rows(
    table: Table,
    options: LoaderOptions,
    cache: Plans | None,
    stage: RowStage | None = None,
    in_place: FilesInPlace | None = None,
    parts: Parts | None = None,
    topology: Topology | None = None,
) -> SurveyedRows:
    """Check the options against a table, and count its live rows; for parts see `counter_of`.

    Args:
        stage: makes one row to keep from each row of the table; None keeps rows as they are.
        in_place: the table's own files, where they serve as the store.
        topology: that of the batches of these rows; None: batches are of what is made of them.

    Raises:
        ConfigError: an option does not fit the table or another option.
        TableError: the table cannot be read as it was asked for.
    """
    columns = columns_of(table, options)
    schema = pa.schema([table.schema.field(name) for name in columns])
    schema = schema if stage is None else stage.schema(schema)
    if options.row_id and ROW_ID in columns:
        raise ConfigError(
            f"row_id=True adds a column {ROW_ID!r}, but the table has one of that name; leave one of them out"
        )
    with_ids = schema.append(pa.field(ROW_ID, pa.int64(), nullable=False)) if options.row_id else schema
    with_ids = delivered(table, with_ids, options)
    codecs = Codecs()
    codecs.of(with_ids if topology is None else with_padding(with_ids, topology), options)
    segments = whole_files(table.layout, filtered=table.filtered)
    fetching = FetchSettings.of(options)
    if (counter := counter_of(table, options, cache, fetching, parts=parts)) is not None:
        segments = counter.count(segments, np.arange(len(segments.splits)))
    row_bytes = table.row_bytes(columns) if stage is None else sum(map(width_of, schema.types)) or 1
    keeps_ids = int(segments.live.sum()) != table.layout.num_rows
    max_rows = rows_of_a_read(row_bytes, 1, int(table.layout.group_rows.max(initial=0)))
    ids = keeps_ids or (stage is not None and stage.takes_ids)
    reader = table.reader(columns, row_ids=ids, max_rows=max_rows, stage=stage)
    made, flat = (None, 0) if stage is None else (stage.key, stage.flat_lists)
    store = RowStoreHandle(table, options, schema, segments, reader, fetching, made, flat, in_place=in_place)
    return SurveyedRows(table, store, with_ids, segments, row_bytes, codecs)


def draws_of(rows: SurveyedRows, options: LoaderOptions) -> Draws:
    """Return how often each row of a table comes.

    Raises:
        ConfigError: what decides it does not fit the table.
        MissingExtraError: this build has no guest that draws rows.
        TableError: the table has not what it is read from.
    """
    if options.each_row_once:
        return EachOnce()
    return row_draws().draws_of(rows.table, options, rows.segments, rows.folder)


@dataclass(frozen=True, eq=False, kw_only=True)
class TableRows(TableItems):
    """One rank's share of the rows of one table, in an order that permutes all of them.

    Args:
        live_starts: int64[F+1] the row of the store that is the first of each file.
    """

    live_starts: Ints
    files_of: Mapping[Extent, Ints] = field(default_factory=dict)

    @classmethod
    def of(
        cls, source: Source, options: LoaderOptions, ranks: RankInfo, cache: Plans | None, parts: Parts | None = None
    ) -> Self:
        """Survey a table, check the options against it, and count its live rows; see `stored_rows`."""
        topology = topology_of(options, ranks.num_ranks)
        rows = stored_rows(*surveyed(source, options, cache), cache, parts=parts, topology=topology)
        return cls(
            options=options,
            rank=ranks.rank,
            topology=topology,
            schedules=options.schedules,
            row_bytes=rows.row_bytes,
            fork_safe=rows.fork_safe,
            columns=rows.columns,
            codecs=rows.codecs,
            live_rows=int(rows.segments.live.sum()),
            table=rows.table,
            store=rows.store,
            live_starts=np.concatenate(([0], np.cumsum(rows.segments.live_rows))).astype(np.int64),
            draws=draws_of(rows, options),
            **cls._more_of(rows, options, rows.folder),
        )

    @classmethod
    def _more_of(cls, rows: SurveyedRows, options: LoaderOptions, folder: Path | None) -> dict[str, Any]:  # noqa: ARG003
        """Return fields of a subclass, read of the table; `folder` has row stores, if they are in files."""
        return {}

    @cached_property
    @override
    def bound(self) -> Bound:
        return self._bound_to(self.columns)

    @property
    @override
    def length(self) -> int:
        whole = Remaining(self.live_rows, np.empty(0, dtype=np.int64))
        return self._total(self.draws.selected(whole, self.options.shuffle_seed, 0).num_rows)

    @override
    def start(self, epoch: int) -> SamplePosition:
        versions = self.exclusions.of(epoch)
        total = self._total(int(self._order(epoch, versions.running).ends[-1]))
        return SamplePosition(epoch, self._stage(epoch), total=total, exclusions={"": versions})

    @override
    def resume(self, saved: SavedState) -> tuple[Self, SamplePosition]:
        """Return the job with the state's exclusions, and where it continues."""
        taken = cast("SamplePosition", saved.taken)
        epoch, (excluded, extents) = taken.epoch, self._now(saved)
        rows = replace(self, exclusions=ExclusionState(excluded, epoch), files_of=saved.files_of or self.files_of)
        refuse_unknown(extents, rows.files_of)
        order = rows._order(epoch, excluded.running, extents)
        total = self._total(int(order.ends[-1]))
        taken.check(min(total, int(order.ends[len(taken.extents)])))
        stage, exclusions = self._stage(epoch, taken), {"": excluded}
        return rows, replace(taken, stage=stage, ended=False, total=total, exclusions=exclusions, extents=extents)

    def _now(self, saved: SavedState) -> tuple[ExclusionVersions, tuple[Extent, ...]]:
        """Return what a state excludes of the table as it is now, and what the table was before."""
        extents, then = cast("SamplePosition", saved.taken).extents, saved.grown
        if then is None:
            return self.exclusions_in(saved), extents
        files, layout = saved.files_of[then], self.table.layout
        excluded = saved_exclusions(saved, "", layout.part(files).num_rows)
        return row_draws().exclusions_now(layout, files, excluded), (*extents, then)

    def _order(self, epoch: int, running: Exclusions, extents: Sequence[Extent] = ()) -> EpochOrder:
        """Return the order of an epoch that has some exclusions, in which the table was less before."""
        seed = self.options.shuffle_seed
        if not extents:
            rows = self._of_epoch(running, epoch)
            return RowOrder(Permutation(rows.num_rows, derive_key(seed, epoch, "rows")), rows)
        tables = [*(self.files_of[each] for each in extents), np.arange(len(self.table.files), dtype=np.int64)]
        gone = self.remaining(running).gone
        return row_draws().order_of_arrivals(self.live_starts, tables, gone, seed, epoch)

    @override
    def stream(self, position: SamplePosition) -> RowStream:
        together = self.codecs.of(self.schema, self.options).together
        return RowStream(self.order(position), self.store, self.options.row_id, together)

    def order(self, position: SamplePosition) -> Order:
        """Return which row comes at each place of an epoch."""
        return self.permuted(position)

    def permuted(self, position: SamplePosition) -> EpochOrder:
        """Return which row comes at each place of an epoch, before batches are cut of it."""
        return self._order(position.epoch, position.exclusions[""].running, position.extents)

    @override
    def locate(self, position: SamplePosition, places: Ints) -> list[RowSpan]:
        return self.spans_of(self.stream(position).ids(places))

    @override
    def count(self, turns: TurnsOf) -> int:
        return self._total(self._of_source(turns).num_rows)

    @override
    def by_turn(self, turns: TurnsOf) -> RowStream:
        return RowStream(turns.order_of(self._of_source(turns)), self.store, self.options.row_id)

    @property
    @override
    def num_places(self) -> int:
        return self.live_rows

    @override
    def columns_at(self, places: Ints) -> list[pa.Array]:
        stored = self.store.rows()
        columns = stored.gather(places)
        if self.options.row_id:
            return [*columns, pa.array(stored.ids(places))]
        return columns

    @override
    def ids_at(self, places: Ints) -> Ints:
        if self.store.spec.keeps_ids:
            return self.store.rows().ids(places)
        return places

    @property
    @override
    def strategy(self) -> str:
        return self.draws.strategy

    @override
    def notes(self, position: SamplePosition) -> list[str]:
        store = self.store
        return [
            f"rows are shuffled one by one, from {self.where}, of about {Size(store.spec.num_bytes)}",
            self._note_of_rows(position.total, position),
            *([store.note] if store.note else []),
        ]
