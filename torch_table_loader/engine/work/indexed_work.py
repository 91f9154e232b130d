"""The work of a rank whose items are gathered by index: places of the epoch's order become rows of a store."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.batching.decoders import RowError
from torch_table_loader.engine.items import ItemStream, TurnStream
from torch_table_loader.engine.work.lane_work import LaneWork
from torch_table_loader.errors import TableError
from torch_table_loader.forks import OfProcess

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.batching.rows import PlainCodec, Rows
    from torch_table_loader.batching.uneven import UnevenCodec, UnevenRows
    from torch_table_loader.engine.row_store import RowStoreHandle
    from torch_table_loader.planning.budgets import BudgetBatches
    from torch_table_loader.planning.global_batches import GlobalBatches
    from torch_table_loader.planning.orders import Order
    from torch_table_loader.ranges import Fetcher

    Ints: TypeAlias = NDArray[np.int64]

T = TypeVar("T")


PERMUTING = OfProcess(threading.Lock)
"""numpy releases the GIL on every call, so two threads making hundreds of short calls contend for it each time."""


@dataclass(frozen=True, slots=True, eq=False)
class RowStream(TurnStream):
    """The rows of one store by their place in an order, with row ids as the last column if `row_id` is set.

    `together` are columns that are gathered as one array; see `PlainCodec.together`.
    """

    order: Order
    store: RowStoreHandle
    row_id: bool
    together: Sequence[Mapping[int, np.dtype[Any]]] = ()

    @property
    def stores(self) -> Sequence[RowStoreHandle]:
        """The one store."""
        return [self.store]

    @override
    def columns(
        self, blocks: Iterator[tuple[Ints, T]], fetcher: Fetcher | None, most_blocks: int | None = None
    ) -> Iterator[tuple[list[pa.Array], T]]:
        found = ((self._found(places), note) for places, note in blocks)
        for stored, rows, note in self.store.windows(found, most_blocks, fetcher):
            columns = stored.gather(rows, self.together)
            yield [*columns, pa.array(stored.ids(rows))] if self.row_id else columns, note

    def ids(self, places: Ints) -> Ints:
        """Return the row ids at some places; the store is opened only where it alone knows them."""
        found = self._found(places)
        if self.store.spec.keeps_ids:
            return self.store.rows().ids(found)
        return found

    def found(self, turns: Ints) -> tuple[Ints, Ints]:
        """Return the row id of each row."""
        return self.ids(turns), np.ones(len(turns), dtype=np.int64)

    def name_of(self, place: int) -> str:
        """Return what a message calls the row at a place."""
        return f"the row whose row_id is {self.ids(np.array([place]))[0]}"

    def _found(self, places: Ints) -> Ints:
        with PERMUTING.own:
            return self.order.take(places)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class IndexedWork(LaneWork):
    """Everything that a thread or process needs to make its batches; it pickles."""

    plan: GlobalBatches
    codec: PlainCodec[Any]
    items: ItemStream
    gather_batches: int

    def fetch_ahead(self, begun: Mapping[int, int], *, joins: bool) -> Fetcher | None:  # noqa: ARG002
        """Return what fetches rows of stores behind URLs, with one budget for all; see `LaneWork.fetch_ahead`."""
        return next((fetcher for store in self.items.stores if (fetcher := store.begin_fetching()) is not None), None)

    @override
    def rows(self, lane: int, start: int, ahead: Fetcher | None = None) -> Iterator[Rows]:
        found = ((steps, *self.plan.places_of(steps)) for steps in self.plan.steps_of(lane, start, self.gather_batches))
        blocks = ((places, (steps, places, padding)) for steps, places, padding in found)
        for columns, (steps, places, padding) in self.items.columns(blocks, ahead):
            if self.marks_padding:
                columns.append(pa.array(padding))
            try:
                rows = self.codec.decode_plain(columns)
            except RowError as error:
                if error.row is None:
                    raise
                raise TableError(f"{self.items.name_of(int(places[error.row]))}: {error}") from error
            yield self.formed(rows, steps)

    def formed(self, rows: Rows, steps: list[int]) -> Rows:  # noqa: ARG002 batches of one size need no more
        """Return the decoded rows of some steps as they are cut into batches."""
        return rows


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BudgetWork(IndexedWork):
    """The same for batches of different sizes; the codec counts batches."""

    plan: BudgetBatches
    codec: UnevenCodec

    @override
    def formed(self, rows: Rows, steps: list[int]) -> Rows:
        return self.codec.of_sizes(cast("UnevenRows", rows), self.plan.sizes_of(steps))


def work_of(*, plan: GlobalBatches, codec: PlainCodec[Any], **fields: Any) -> IndexedWork:
    """Return the work of a plan, whose batches have one size or several; a codec then counts batches."""
    if plan.same_size:
        return IndexedWork(plan=plan, codec=codec, **fields)
    from torch_table_loader.batching.uneven import UnevenCodec

    return BudgetWork(plan=cast("BudgetBatches", plan), codec=UnevenCodec(codec), **fields)
