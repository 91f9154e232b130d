"""The rows of one table, shuffled one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, cast

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow.datatypes import width_of
from torch_table_loader.cached import cached_property
from torch_table_loader.engine.exclusion_record import saved_exclusions, written_exclusions
from torch_table_loader.engine.items import ItemFacts, TableItems, TurnsOf
from torch_table_loader.engine.jobs.bound import bound, refuse_unknown
from torch_table_loader.engine.jobs.gathering import Gathering
from torch_table_loader.engine.jobs.items_job import ItemsJob
from torch_table_loader.engine.jobs.job import Codecs, with_padding
from torch_table_loader.engine.jobs.live_rows import LiveRows
from torch_table_loader.engine.jobs.resolve import (
    columns_of,
    counter_of,
    delivered,
    surveyed,
    topology_of,
)
from torch_table_loader.engine.row_draws import row_draws
from torch_table_loader.engine.row_store import RowStoreHandle
from torch_table_loader.engine.saved_state import Bound
from torch_table_loader.engine.sizing import rows_of_a_read
from torch_table_loader.engine.table import Table
from torch_table_loader.engine.work.indexed_work import RowStream
from torch_table_loader.errors import ConfigError
from torch_table_loader.options import LoaderOptions
from torch_table_loader.planning.exclusion import Exclusions, ExclusionVersions
from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.orders import EachOnce, RowOrder
from torch_table_loader.planning.permutation import Permutation
from torch_table_loader.planning.splits import whole_files
from torch_table_loader.planning.stages import SamplePosition
from torch_table_loader.ranges import FetchSettings
from torch_table_loader.records import ROW_ID
from torch_table_loader.units import Size

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from torch_table_loader.batching.rows import PlainCodec
    from torch_table_loader.contracts import Source
    from torch_table_loader.engine.counting import Parts
    from torch_table_loader.engine.jobs.by_step import ByStep
    from torch_table_loader.engine.rank_info import RankInfo
    from torch_table_loader.engine.row_store import FilesInPlace
    from torch_table_loader.engine.saved_state import SavedState
    from torch_table_loader.engine.state_records import Written
    from torch_table_loader.planning.orders import Draws, EpochOrder, Order, Selects
    from torch_table_loader.planning.ranks import Topology
    from torch_table_loader.planning.splits import SegmentTable
    from torch_table_loader.planning.stages import Extent, Stage
    from torch_table_loader.read.row_stage import RowStage
    from torch_table_loader.source.plan_cache import Plans

    Ints: TypeAlias = NDArray[np.int64]


class SurveyedRows(NamedTuple):
    """The counted live rows of a table, and the row store for them with its columns (the row id if asked for).

    Args:
        codec: what decodes these columns.
    """

    table: Table
    store: RowStoreHandle
    columns: pa.Schema
    segments: SegmentTable
    row_bytes: int
    codecs: Codecs
    codec: PlainCodec[Any]

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
    of_batch = with_ids if topology is None else with_padding(with_ids, topology)
    codec = cast("PlainCodec[Any]", codecs.of(of_batch, options, options.samples.width))
    segments = whole_files(table.layout, filtered=table.filters is not None)
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
    return SurveyedRows(table, store, with_ids, segments, row_bytes, codecs, codec)


def live_rows_of(rows: SurveyedRows, options: LoaderOptions, word: str = "rows", refusal: str = "") -> LiveRows:
    """Return the live rows of a table, of which nothing is excluded, and how often each comes; see `LiveRows`.

    Raises:
        ConfigError: what decides it does not fit the table.
        MissingExtraError: this build has no guest that draws rows.
        TableError: the table has not what it is read from.
    """
    draws: Draws = EachOnce()
    if not options.each_row_once:
        draws = row_draws().draws_of(rows.table, options, rows.segments, rows.folder)
    count = int(rows.segments.live.sum())
    return LiveRows(
        options=options, table=rows.table, store=rows.store, count=count, draws=draws, word=word, refusal=refusal
    )


def bound_to_rows(rows: LiveRows, columns: pa.Schema) -> Bound:
    """Return the table and the options that a state of items with some columns is bound to."""
    whole = bound(rows.table, columns, rows.options, "", "")
    kept = {name: whole.options[name] for name in ("columns", "filters", "shuffle_seed")}
    return Bound(whole.table, {**kept, "shuffle": "rows", **rows.draws.bound})


@dataclass(frozen=True, eq=False, kw_only=True)
class TableRows(TableItems):
    """The rows of one table, in an order that permutes all of them.

    Args:
        codec: what decodes the columns.
        live_starts: int64[F+1] the row of the store that is the first of each file.
    """

    rows: LiveRows
    columns: pa.Schema
    row_bytes: int
    codec: PlainCodec[Any] = field(repr=False)
    live_starts: Ints
    files_of: Mapping[Extent, Ints] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: SurveyedRows, options: LoaderOptions) -> Self:
        """Return the rows of a table that was surveyed."""
        return cls(
            rows=live_rows_of(rows, options),
            columns=rows.columns,
            row_bytes=rows.row_bytes,
            codec=rows.codec,
            live_starts=np.concatenate(([0], np.cumsum(rows.segments.live_rows))).astype(np.int64),
        )

    @cached_property
    @override
    def bound(self) -> Bound:
        return bound_to_rows(self.rows, self.columns)

    @override
    def records(self, position: SamplePosition) -> dict[str, Written]:
        return written_exclusions({"": self.rows.versions(position.exclusions[""].running)})

    @override
    def start(self, epoch: int, by_step: ByStep) -> SamplePosition:
        return self.begun(epoch, by_step.stage_at(epoch))

    def begun(self, epoch: int, stage: Stage) -> SamplePosition:
        """Return the start of an epoch, in a stage."""
        versions = self.rows.exclusions.of(epoch)
        total = self.rows.total(int(self._order(epoch, versions.running).ends[-1]))
        return SamplePosition(epoch, stage, total=total, exclusions={"": versions})

    @override
    def resume(self, saved: SavedState, by_step: ByStep) -> tuple[Self, SamplePosition]:
        taken = cast("SamplePosition", saved.taken)
        epoch, (excluded, extents) = taken.epoch, self._now(saved)
        own = replace(self, rows=self.rows.excluding(excluded, epoch), files_of=saved.files_of or self.files_of)
        refuse_unknown(extents, own.files_of)
        order = own._order(epoch, excluded.running, extents)
        total = self.rows.total(int(order.ends[-1]))
        taken.check(min(total, int(order.ends[len(taken.extents)])))
        stage = by_step.stage_at(epoch, taken.done(by_step.width))
        now: dict[str, Any] = {"total": total, "exclusions": {"": excluded}, "extents": extents}
        return own, replace(taken, stage=stage, ended=False, **now)

    def _now(self, saved: SavedState) -> tuple[ExclusionVersions, tuple[Extent, ...]]:
        """Return what a state excludes of the table as it is now, and what the table was before."""
        extents, then = cast("SamplePosition", saved.taken).extents, saved.grown
        if then is None:
            return self.rows.exclusions_in(saved), extents
        files, layout = saved.files_of[then], self.rows.table.layout
        excluded = saved_exclusions(saved, "", layout.part(files).num_rows)
        return row_draws().exclusions_now(layout, files, excluded), (*extents, then)

    def _order(self, epoch: int, running: Exclusions, extents: Sequence[Extent] = ()) -> EpochOrder:
        """Return the order of an epoch that has some exclusions, in which the table was less before."""
        seed = self.rows.options.shuffle_seed
        if not extents:
            rows = self.rows.of_epoch(running, epoch)
            return RowOrder(Permutation(rows.num_rows, derive_key(seed, epoch, "rows")), rows)
        files = len(self.rows.table.files)
        tables = [*(self.files_of[each] for each in extents), np.arange(files, dtype=np.int64)]
        gone = self.rows.remaining(running).gone
        return row_draws().order_of_arrivals(self.live_starts, tables, gone, seed, epoch)

    def order(self, position: SamplePosition) -> EpochOrder:
        """Return which row comes at each place of an epoch."""
        return self._order(position.epoch, position.exclusions[""].running, position.extents)

    @override
    def stream(self, position: SamplePosition) -> RowStream:
        return self.in_order(self.order(position))

    def in_order(self, order: Order) -> RowStream:
        """Return the rows of an epoch by their place in an order."""
        return RowStream(order, self.rows.store, self.rows.options.row_id, self.codec.together)

    @override
    def refuse_nulls(self) -> None:
        table = self.rows.table
        table.refuse_nulls(self.codec.null_sensitive.intersection(table.schema.names))

    @override
    def count(self, turns: TurnsOf) -> int:
        return self.rows.total(self._of_source(turns).num_rows)

    @override
    def by_turn(self, turns: TurnsOf) -> RowStream:
        return RowStream(turns.order_of(self._of_source(turns)), self.rows.store, self.rows.options.row_id)

    def _of_source(self, turns: TurnsOf) -> Selects:
        return self.rows.of_source(turns.name, turns.exclusions, turns.seed, turns.epoch)

    @property
    @override
    def num_places(self) -> int:
        return self.rows.count

    @override
    def columns_at(self, places: Ints) -> list[pa.Array]:
        stored = self.rows.store.rows()
        columns = stored.gather(places)
        if self.rows.options.row_id:
            return [*columns, pa.array(stored.ids(places))]
        return columns

    @override
    def ids_at(self, places: Ints) -> Ints:
        if self.rows.store.spec.keeps_ids:
            return self.rows.store.rows().ids(places)
        return places

    @override
    def gathering(self, topology: Topology) -> Gathering:
        return Gathering.of(self.rows.options, topology, self.row_bytes, self.columns)

    @override
    def facts(self, stages: Sequence[SamplePosition], end: int, by_step: ByStep) -> ItemFacts:
        rows, store, start = self.rows, self.rows.store, stages[0]
        notes = [
            f"rows are shuffled one by one, from {rows.where}, of about {Size(store.spec.num_bytes)}",
            rows.note(start.total, start.exclusions[""].running),
            *filter(None, [store.note]),
        ]
        return ItemFacts(
            strategy=rows.draws.strategy, notes=notes, held_bytes=rows.held_bytes, built_bytes=rows.built_bytes
        )


def surveyed_rows(
    source: Source, options: LoaderOptions, cache: Plans | None, topology: Topology, parts: Parts | None
) -> SurveyedRows:
    """Survey a table, check the options against it, and count its live rows; see `stored_rows`."""
    return stored_rows(*surveyed(source, options, cache), cache, parts=parts, topology=topology)


def open_rows(
    source: Source, options: LoaderOptions, ranks: RankInfo, cache: Plans | None, parts: Parts | None = None
) -> ItemsJob:
    """Open this rank's share of the rows of a table; see `open_job`."""
    topology = topology_of(options, ranks.num_ranks)
    rows = surveyed_rows(source, options, cache, topology, parts)
    items = TableRows.of(rows, options)
    return ItemsJob.of(items, options, ranks.rank, topology, fork_safe=rows.fork_safe, codecs=rows.codecs)
