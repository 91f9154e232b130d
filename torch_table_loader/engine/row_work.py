"""The work of a rank in row mode: places of the epoch's order become rows of the store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

import pyarrow as pa

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from torch_table_loader.batching.rows import Rows, RowsCodec
    from torch_table_loader.engine.row_store import StoreKeeper
    from torch_table_loader.planning.exclusion import Remaining
    from torch_table_loader.planning.global_batches import GlobalBatches
    from torch_table_loader.planning.permutation import Permutation

    Ints: TypeAlias = NDArray[np.int64]

T = TypeVar("T")


class _OneAtATime:
    """A lock that a forked process finds open, whoever held it."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.lock = threading.Lock()


_PERMUTING = _OneAtATime()
"""numpy lets the interpreter go at every call: two threads in hundreds of short ones wait for each other at each."""


@dataclass(frozen=True, slots=True, eq=False)
class RowOrder:
    """An epoch's order over the rows of a store.

    Args:
        permutation: of the rows that are left.
        remaining: which those are.
    """

    permutation: Permutation
    remaining: Remaining

    def take(self, places: Ints) -> Ints:
        """Return the row of the store at each place of the order."""
        return self.remaining.select(self.permutation.take(places))


class Order(Protocol):
    """Which row of a store comes at each place."""

    def take(self, places: Ints) -> Ints:
        """Return the row of the store at each place of the order."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class RowFeed:
    """The rows of one store, by their place in an order.

    Args:
        order: of the epoch.
        keeper: has the rows.
        row_id: whether the row ids come behind the columns.
    """

    order: Order
    keeper: StoreKeeper
    row_id: bool

    def columns(self, blocks: Iterator[tuple[Ints, T]], ahead: int | None = None) -> Iterator[tuple[list[pa.Array], T]]:
        """Return the rows of blocks that come after each other, each as one array a column.

        Args:
            blocks: the places of each, and a note of the caller's.
            ahead: blocks that are made ready together at most; None leaves that to the store.
        """
        found = ((self._found(places), note) for places, note in blocks)
        for stored, rows, note in self.keeper.rows().windows(found, ahead):
            columns = stored.gather(rows)
            yield [*columns, pa.array(stored.ids(rows))] if self.row_id else columns, note

    def ids(self, places: Ints) -> Ints:
        """Return the row ids at some places; the store is opened only where it alone knows them."""
        found = self._found(places)
        return self.keeper.rows().ids(found) if self.keeper.spec.keeps_ids else found

    def _found(self, places: Ints) -> Ints:
        with _PERMUTING.lock:
            return self.order.take(places)


class Feed(Protocol):
    """Where the rows of an epoch come from: one store, or several."""

    def columns(self, blocks: Iterator[tuple[Ints, T]]) -> Iterator[tuple[list[pa.Array], T]]:
        """Return the rows of blocks that come after each other, each as one array a column.

        Args:
            blocks: the places of each in the epoch's order, and a note of the caller's.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class RowWork:
    """All that a thread or process needs to make its batches; it pickles.

    Args:
        plan: what the rank delivers.
        feed: gives the rows.
        schema: of what comes out.
        codec: turns record batches into rows of the output form.
        epoch: the epoch.
        marks_padding: whether batches have the column `padding`.
        collate_fn: the caller's, called with each batch where it is made.
        drop_last: never looked at, since rows are counted.
        gather_batches: batches that are gathered together.
        block_batches: batches that cross a process together.
        blocks_ahead: blocks of a lane that wait to be taken from a process.
    """

    plan: GlobalBatches
    feed: Feed
    schema: pa.Schema
    codec: RowsCodec[Any]
    epoch: int
    marks_padding: bool
    collate_fn: Callable[[Any], Any] | None
    drop_last: bool
    gather_batches: int
    block_batches: int
    blocks_ahead: int

    @property
    def lanes(self) -> int:
        """Lanes of the rank."""
        return self.plan.topology.lanes

    @property
    def rank(self) -> int:
        """Which rank this is."""
        return self.plan.rank

    def joining(self, start: int) -> None:
        """Lanes leave no rows over, since each batch is gathered whole."""

    def rows(self, lane: int, start: int) -> Iterator[Rows]:
        """Gather a lane's rows, some batches at a time.

        Args:
            lane: which.
            start: batches of the lane that were delivered before.
        """
        for columns, padding in self.feed.columns(self._blocks(lane, start)):
            if self.marks_padding:
                columns.append(pa.array(padding))
            yield cast("Rows", self.codec.decode_plain(columns))

    def _blocks(self, lane: int, start: int) -> Iterator[tuple[Ints, NDArray[np.bool_]]]:
        """Return the places that are gathered together, and which of them are padding."""
        yield from map(self.plan.places_of, self.plan.steps_of(lane, start, self.gather_batches))
