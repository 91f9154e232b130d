"""The place between rows and batches where the number of rows may change, such as for packing by tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from torch_table_loader.planning.pack_counts import PackCounts, sum_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.keys import Key


class RowStage(ABC):
    """Turns each live row of a table into the rows that batches are made of: none, one or several. A value; it pickles.

    The plan counts the rows that come out. Length, equal steps, tails, lanes, states and rescaling are then the
    arithmetic that rows have without a stage, and resuming inside the rows that come of one row needs nothing more.
    What comes out of a row must depend on that row alone, or on those of its block where `block_rows` asks for blocks.
    """

    @property
    def block_rows(self) -> int | None:
        """How many live rows of a row group the stage takes together; None where each row stands alone.

        Blocks begin with a split's first row of the row group; only the last of a row group is shorter.
        """
        return None

    @property
    def orders_blocks(self) -> bool:
        """Whether what comes out of a block may come in another order; see `in_order_of`."""
        return False

    def in_order_of(self, key: Key) -> RowStage:  # noqa: ARG002 the rows of most stages have one order
        """Return the same with the rows of a block made in an order of the key's; as many come out under any."""
        return self

    @property
    @abstractmethod
    def key(self) -> str:
        """A name that differs wherever the rows differ. It stands in states and in caches of counts."""

    @property
    @abstractmethod
    def reads(self) -> tuple[str, ...]:
        """The columns that `count` needs."""

    @property
    def measured_by(self) -> str | None:
        """The list column whose lengths tell `count_of`; None where rows must be looked at."""
        return None

    def count_of(self, lengths: NDArray[np.int64]) -> tuple[int, PackCounts | None]:
        """Return what `counted` does, by how long the lists of `measured_by` are: as many rows as values.

        Args:
            lengths: of the rows that the stage takes together.
        """
        return int(lengths.sum()), None

    @property
    def counted_by(self) -> str | None:
        """The list column whose number of values tells `known_count`; None where rows must be looked at."""
        return None

    def known_count(self, values: int, lists: int) -> int:  # noqa: ARG002 a row a value needs the values alone
        """Return how many rows come out of rows, by what their lists of `counted_by` hold: as many as values."""
        return values

    @abstractmethod
    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the schema of what comes out of rows of a schema.

        Raises:
            ConfigError: the columns do not fit the stage.
        """

    @abstractmethod
    def count(self, batch: pa.RecordBatch) -> int:
        """Return how many rows come out of a batch.

        Args:
            batch: rows with at least the columns of `reads`.
        """

    def counted(self, batch: pa.RecordBatch) -> tuple[int, PackCounts | None]:
        """Return what `count` does, and what packing makes of the rows; None where it does not say."""
        return self.count(batch), None

    @abstractmethod
    def rows(self, batch: pa.RecordBatch) -> StagedRows:
        """Return the rows that come out of a batch, in the order of the rows that they come of.

        Args:
            batch: rows of the schema that `schema` was given.
        """


class StagedRows(ABC):
    """The rows that a stage makes of a batch."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """How many; what `RowStage.count` says."""

    @abstractmethod
    def slice(self, start: int, stop: int) -> pa.RecordBatch:
        """Return the rows `start` to `stop` (exclusive), in [0, num_rows]."""


class RowBlocks:
    """Joins record batches to what a stage takes together."""

    __slots__ = ("_num_rows", "_size", "_waiting")

    def __init__(self, size: int | None) -> None:
        """Start empty.

        Args:
            size: rows of a block; None where each batch is taken as it comes.
        """
        self._size = size
        self._waiting: list[pa.RecordBatch] = []
        self._num_rows = 0

    def push(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Add a batch; return the blocks that are full."""
        if self._size is None:
            return [batch]
        self._waiting.append(batch)
        self._num_rows += batch.num_rows
        if self._num_rows < self._size:
            return []
        [joined] = self.rest()
        full = joined.num_rows // self._size
        if left := joined.num_rows - full * self._size:
            self._waiting, self._num_rows = [joined.slice(full * self._size, left)], left
        return [joined.slice(number * self._size, self._size) for number in range(full)]

    def rest(self) -> list[pa.RecordBatch]:
        """Return what waits as one block, if anything does; nothing waits then."""
        waiting, self._waiting, self._num_rows = self._waiting, [], 0
        return [pa.concat_batches(waiting)] if len(waiting) > 1 else waiting


Counted: TypeAlias = tuple[int, PackCounts | None]
"""Rows that live, or that a stage makes of them; and what packing makes of them, where it is known."""


def measured(stage: RowStage, lengths: NDArray[Any]) -> Counted:
    """Return what a stage makes of consecutive rows, by how long their lists are."""
    size = stage.block_rows or max(1, len(lengths))
    blocks = (lengths[first : first + size].astype(np.int64) for first in range(0, len(lengths), size))
    return summed(((0, stage.count_of(block)) for block in blocks), 1)[0]


def summed(made: Iterable[tuple[int, Counted]], segments: int) -> list[Counted]:
    """Add up what was counted, segment by segment."""
    live = [0] * segments
    counts: list[list[PackCounts | None]] = [[] for _ in range(segments)]
    for segment, (more, found) in made:
        live[segment] += more
        counts[segment].append(found)
    return [(number, sum_of(found)) for number, found in zip(live, counts, strict=True)]
