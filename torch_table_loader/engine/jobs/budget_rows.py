"""The rows of one table, shuffled one by one, in batches that hold a budget of tokens."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import numpy as np
from typing_extensions import override

from torch_table_loader.batching.uneven import UnevenCodec
from torch_table_loader.engine.jobs.batching import Batching
from torch_table_loader.engine.jobs.resolve import warn_of_uneven_batches
from torch_table_loader.engine.jobs.table_rows import TableRows
from torch_table_loader.engine.jobs.walk import Walk
from torch_table_loader.engine.newest import Newest
from torch_table_loader.engine.row_lengths import RowLengths
from torch_table_loader.engine.saved_state import Bound
from torch_table_loader.engine.sizing import batches_of_a_gather, blocks_of_a_process, rows_in_flight
from torch_table_loader.engine.work.indexed_work import BudgetWork
from torch_table_loader.errors import TableError
from torch_table_loader.option_values import Budget
from torch_table_loader.planning.budgets import BudgetPosition, FilledOrder, Limits, Measure, widths_of
from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.stages import SamplePosition
from torch_table_loader.ranges import FetchSettings

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from torch_table_loader.contracts import Source
    from torch_table_loader.engine.counting import Parts
    from torch_table_loader.engine.jobs.table_rows import SurveyedRows
    from torch_table_loader.engine.rank_info import RankInfo
    from torch_table_loader.engine.saved_state import SavedState
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.source.plan_cache import Plans

    Ints: TypeAlias = NDArray[np.int64]

_KEPT_ORDERS = 2


@dataclass(frozen=True, eq=False, kw_only=True)
class BudgetRows(TableRows):
    """One rank's share of the rows of one table, in batches that were cut before anybody takes one.

    Args:
        lengths: the tokens of each row.
        orders: the newest orders of epochs, by all that decides them.
    """

    lengths: RowLengths
    orders: Newest[tuple[Any, ...], FilledOrder] = field(default_factory=partial(Newest, _KEPT_ORDERS), repr=False)

    @classmethod
    @override
    def of(
        cls, source: Source, options: LoaderOptions, ranks: RankInfo, cache: Plans | None, parts: Parts | None = None
    ) -> Self:
        job = super().of(source, options, ranks, cache, parts)
        order, budget = job._first, job.budget
        if order.longer:
            budget.warn_of(order.longer, int(order.edges[-1]), f", the longest {order.longest[0]:,}")
        return job

    @classmethod
    @override
    def _more_of(cls, rows: SurveyedRows, options: LoaderOptions, folder: Path | None) -> dict[str, Any]:
        column, fetching = cast("Budget", options.budget).length, FetchSettings.of(options)
        return {"lengths": RowLengths.of(rows.table, options, rows.segments, column, folder, fetching)}

    @property
    def budget(self) -> Budget:
        """What a batch holds."""
        return cast("Budget", self.options.budget)

    @cached_property
    @override
    def bound(self) -> Bound:
        own = super().bound
        return Bound(own.table, {**own.options, "batch_size": repr(self.budget)})

    @override
    def start(self, epoch: int) -> BudgetPosition:
        return self._filled(super().start(epoch))

    @override
    def resume(self, saved: SavedState) -> tuple[Self, SamplePosition]:
        rows, position = super().resume(saved)
        filled = rows._filled(position)
        filled.batches(self.rank)  # refuses a place where no batch begins
        return rows, filled

    @override
    def order(self, position: SamplePosition) -> FilledOrder:
        return cast("BudgetPosition", position).order

    @override
    def work(self, position: SamplePosition) -> BudgetWork:
        self.open(position)
        common = self._common_work(position, self.planned(position))
        return BudgetWork(
            **{**common, "codec": UnevenCodec(common["codec"])},
            items=self.stream(position),
            gather_batches=self.gather_batches,
        )

    @override
    def kept_shape(self, position: SamplePosition) -> bool:
        begin = replace(position, start=0, steps_before=0, stage=self._stage(position.epoch))
        return position.start == begin.batches(self.rank).consumed(position.steps_before)

    @override
    def warn_of_uneven_steps(self) -> None:
        warn_of_uneven_batches(self.start(0).batches(self.rank))

    @property
    @override
    def walk(self) -> BudgetWalk:
        return BudgetWalk(self)

    def _filled(self, position: SamplePosition) -> BudgetPosition:
        """Return a position in the epoch as it is cut into batches."""
        own = {entry.name: getattr(position, entry.name) for entry in fields(SamplePosition)}
        key = position.epoch, position.exclusions[""].running.digest, position.extents, position.total
        return BudgetPosition(**own, order=self.orders.of(key, lambda: self._cut(position)))

    def _cut(self, position: SamplePosition) -> FilledOrder:
        budget, seed, epoch = self.budget, self.options.shuffle_seed, position.epoch
        limits = Limits(budget.tokens, budget.at_most, padded=budget.counts == "padded")
        measure = Measure(limits, self.lengths.take, partial(widths_of, pad=self.options.counted_pad))
        similar = None
        if budget.similar is not None:
            similar = budget.similar, partial(_key_of_window, seed, epoch)
        order = FilledOrder.of(self.permuted(position), position.total, self.live_rows, measure, similar)
        if order.longer and budget.longer == "error":
            longest, row = order.longest
            [span] = self.spans_of(self.ids_at(np.array([row])))
            raise TableError(
                f"row {span.row_start} of {span.file!r} has {longest} tokens, more than tokens={budget.tokens} of "
                'Budget; pass more tokens, leave such rows out with filters=, or pass longer="alone"'
            )
        return order

    @property
    def _first(self) -> FilledOrder:
        """The order of the first epoch, which stands for all where sizes are chosen."""
        return self.start(0).order

    @property
    def _rows_of_a_batch(self) -> int:
        return -(-int(self._sizes.sum()) // max(1, len(self._sizes)))

    @cached_property
    def _sizes(self) -> Ints:
        """The rows of each batch of the first epoch."""
        return np.diff(self._first.edges)

    @property
    @override
    def gather_batches(self) -> int:
        return batches_of_a_gather(self.row_bytes, max(1, self._rows_of_a_batch))

    @property
    @override
    def batching(self) -> Batching:
        options, rows = self.options, self._rows_of_a_batch
        collated = options.calls_functions
        blocks = blocks_of_a_process(self.row_bytes, max(1, rows), options.prefetch_batches, collated=collated)
        return Batching(rows=rows, unit_bytes=self.row_bytes, blocks=blocks)

    @property
    @override
    def lane_bytes(self) -> int:
        gathered = self.gather_batches * int(self._sizes.max(initial=1))
        return (rows_in_flight(self.options, gathered, self.batching.blocks) + gathered) * self.row_bytes

    @property
    @override
    def held_bytes(self) -> int:
        return super().held_bytes + self.lengths.memory_bytes + _KEPT_ORDERS * self._first.num_bytes

    @property
    @override
    def built_bytes(self) -> int:
        return super().built_bytes + 2 * self._first.rows.nbytes  # an order is cut from a copy

    @override
    def notes(self, position: SamplePosition) -> list[str]:
        order, budget = self.order(position), self.budget
        batches = len(order.edges) - 1
        fill = order.tokens / (max(1, batches) * budget.tokens)
        what = "tokens" if budget.counts == "rows" else "tokens, padding included,"
        of_rows = f"{batches:,} batches hold up to {budget.tokens:,} {what} of {budget.length!r} in up to "
        of_rows += (
            f"{budget.at_most:,} rows: {fill:.1%} are tokens of rows, {position.total / max(1, batches):.1f} rows a "
        )
        of_rows += f"batch; {order.longer:,} rows are longer, each a batch of its own"
        return [*super().notes(position), of_rows]


def _key_of_window(seed: int, epoch: int, place: int) -> Any:
    return derive_key(seed, epoch, f"batches of similar rows from {place}.")


class BudgetWalk(Walk):
    """The way through an epoch whose batches have several sizes."""

    job: BudgetRows

    @override
    def step_of_sample(self, epoch: int, sample: int) -> int:
        return self.job.start(epoch).batches(self.job.rank).step_of(sample)
