"""The rows of one table, shuffled one by one, in batches that hold a budget of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import numpy as np
from typing_extensions import override

from torch_table_loader.cached import cached_property
from torch_table_loader.engine.items import ItemFacts, Items
from torch_table_loader.engine.jobs.batching import Batching
from torch_table_loader.engine.jobs.gathering import Gathering
from torch_table_loader.engine.jobs.items_job import ItemsJob
from torch_table_loader.engine.jobs.resolve import topology_of
from torch_table_loader.engine.jobs.table_rows import TableRows, surveyed_rows
from torch_table_loader.engine.newest import Newest
from torch_table_loader.engine.row_lengths import RowLengths
from torch_table_loader.engine.saved_state import Bound
from torch_table_loader.engine.sizing import batches_of_a_gather, blocks_of_a_process, rows_in_flight
from torch_table_loader.errors import TableError
from torch_table_loader.option_values import Budget
from torch_table_loader.planning.budgets import BudgetPosition, FilledOrder, Limits, Measure, widths_of
from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.stages import SamplePosition, Stage
from torch_table_loader.ranges import FetchSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.contracts import Source
    from torch_table_loader.engine.counting import Parts
    from torch_table_loader.engine.jobs.by_step import ByStep
    from torch_table_loader.engine.rank_info import RankInfo
    from torch_table_loader.engine.saved_state import SavedState
    from torch_table_loader.engine.state_records import Written
    from torch_table_loader.engine.work.indexed_work import RowStream
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.ranks import Topology
    from torch_table_loader.planning.rows_of import RowSpan
    from torch_table_loader.source.plan_cache import Plans

    Ints: TypeAlias = NDArray[np.int64]

_KEPT_ORDERS = 2


@dataclass(frozen=True, eq=False, kw_only=True)
class BudgetRows(Items):
    """The rows of one table, in batches that were cut before anybody takes one.

    Args:
        lengths: the tokens of each row.
        orders: the newest orders of epochs, by all that decides them.
    """

    rows: TableRows
    columns: pa.Schema
    row_bytes: int
    lengths: RowLengths
    orders: Newest[tuple[Any, ...], FilledOrder] = field(default_factory=partial(Newest, _KEPT_ORDERS), repr=False)

    @property
    def _options(self) -> LoaderOptions:
        return self.rows.rows.options

    @property
    def budget(self) -> Budget:
        """What a batch holds."""
        return cast("Budget", self._options.budget)

    @property
    @override
    def sources(self) -> Mapping[str, TableRows]:
        return {"": self.rows}

    @cached_property
    @override
    def bound(self) -> Bound:
        own = self.rows.bound
        return Bound(own.table, {**own.options, "batch_size": repr(self.budget)})

    @property
    @override
    def own_records(self) -> tuple[str, ...]:
        return self.rows.own_records

    @override
    def records(self, position: SamplePosition) -> dict[str, Written]:
        return self.rows.records(position)

    @override
    def start(self, epoch: int, by_step: ByStep) -> BudgetPosition:
        return self._filled(self.rows.start(epoch, by_step))

    @override
    def resume(self, saved: SavedState, by_step: ByStep) -> tuple[Self, BudgetPosition]:
        rows, position = self.rows.resume(saved, by_step)
        own = replace(self, rows=rows)
        filled = own._filled(position)
        filled.batches(0)  # refuses a place where no batch begins
        return own, filled

    @override
    def stream(self, position: BudgetPosition) -> RowStream:
        return self.rows.in_order(position.order)

    @override
    def locate(self, position: BudgetPosition, places: Ints) -> list[RowSpan]:
        return self.rows.rows.spans_of(self.stream(position).ids(places))

    def _filled(self, position: SamplePosition) -> BudgetPosition:
        """Return a position in the epoch as it is cut into batches."""
        key = position.epoch, position.exclusions[""].running.digest, position.extents, position.total
        return BudgetPosition.made_of(position, order=self.orders.of(key, lambda: self._cut(position)))

    def _cut(self, position: SamplePosition) -> FilledOrder:
        budget, seed, epoch = self.budget, self._options.shuffle_seed, position.epoch
        limits = Limits(budget.tokens, budget.at_most, padded=budget.counts == "padded")
        pad = budget.counted_pad(self._options.ragged)
        measure = Measure(limits, self.lengths.take, partial(widths_of, pad=pad))
        similar = None
        if budget.similar is not None:
            similar = budget.similar, partial(_key_of_window, seed, epoch)
        order = FilledOrder.of(self.rows.order(position), position.total, self.rows.num_places, measure, similar)
        if order.longer and budget.longer == "error":
            longest, row = order.longest
            [span] = self.rows.rows.spans_of(self.rows.ids_at(np.array([row])))
            raise TableError(
                f"row {span.row_start} of {span.file!r} has {longest} tokens, more than tokens={budget.tokens} of "
                'Budget; pass more tokens, leave such rows out with filters=, or pass longer="alone"'
            )
        return order

    def first(self, topology: Topology) -> FilledOrder:
        """Return the order of the first epoch, which stands for all where sizes are chosen."""
        return self._filled(self.rows.begun(0, Stage(topology))).order

    @override
    def gathering(self, topology: Topology) -> Gathering:
        options, sizes = self._options, np.diff(self.first(topology).edges)
        rows = -(-int(sizes.sum()) // max(1, len(sizes)))
        some, collated = max(1, rows), options.calls_functions
        blocks = blocks_of_a_process(self.row_bytes, some, options.prefetch_batches, collated=collated)
        batches = batches_of_a_gather(self.row_bytes, some)
        gathered = batches * int(sizes.max(initial=1))
        return Gathering(
            batching=Batching(rows=rows, unit_bytes=self.row_bytes, blocks=blocks),
            batches=batches,
            lane_bytes=(rows_in_flight(options, gathered, blocks) + gathered) * self.row_bytes,
        )

    @override
    def facts(self, stages: Sequence[BudgetPosition], end: int, by_step: ByStep) -> ItemFacts:
        start, budget, first = stages[0], self.budget, self.first(by_step.topology)
        order, of_rows = start.order, self.rows.facts(stages, end, by_step)
        batches = len(order.edges) - 1
        fill = order.tokens / (max(1, batches) * budget.tokens)
        what = "tokens" if budget.counts == "rows" else "tokens, padding included,"
        note = f"{batches:,} batches hold up to {budget.tokens:,} {what} of {budget.length!r} in up to "
        note += f"{budget.at_most:,} rows: {fill:.1%} are tokens of rows, {start.total / max(1, batches):.1f} rows a "
        note += f"batch; {order.longer:,} rows are longer, each a batch of its own"
        return replace(
            of_rows,
            notes=[*of_rows.notes, note],
            held_bytes=of_rows.held_bytes + self.lengths.memory_bytes + _KEPT_ORDERS * first.num_bytes,
            built_bytes=of_rows.built_bytes + 2 * first.rows.nbytes,  # an order is cut from a copy
        )


def open_budgets(
    source: Source, options: LoaderOptions, ranks: RankInfo, cache: Plans | None, parts: Parts | None = None
) -> ItemsJob:
    """Open this rank's share of the rows of a table, in batches of a budget; see `open_job`."""
    topology = topology_of(options, ranks.num_ranks)
    stored = surveyed_rows(source, options, cache, topology, parts)
    rows, column = TableRows.of(stored, options), cast("Budget", options.budget).length
    fetching = FetchSettings.of(options)
    lengths = RowLengths.of(stored.table, options, stored.segments, column, stored.folder, fetching)
    items = BudgetRows(rows=rows, columns=rows.columns, row_bytes=rows.row_bytes, lengths=lengths)
    if (first := items.first(topology)).longer:
        items.budget.warn_of(first.longer, int(first.edges[-1]), f", the longest {first.longest[0]:,}")
    return ItemsJob.of(items, options, ranks.rank, topology, fork_safe=stored.fork_safe, codecs=stored.codecs)


def _key_of_window(seed: int, epoch: int, place: int) -> Any:
    return derive_key(seed, epoch, f"batches of similar rows from {place}.")
