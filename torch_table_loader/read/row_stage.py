"""A stage between rows and batches, in which the number of rows may change, such as packing by tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from torch_table_loader.samples import SampleCounts, sum_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.keys import EpochKey


Counted: TypeAlias = tuple[int, SampleCounts | None]
"""The number of rows that live, or that a stage makes of them; and what else it counts of these, if that is known."""

Made: TypeAlias = tuple[int, Callable[[int, int], pa.RecordBatch]]
"""The number of rows that a stage makes, and a function that returns those from one number to another."""


class RowStage(ABC):
    """Turns each live row of a table into the rows that batches are made of: none, one or several. A value; it pickles.

    The plan counts the rows that come out. Length, equal steps, tails, lanes, states and rescaling are then the same
    arithmetic as without a stage, and so is resuming inside the rows that one row gives. The rows that come out must
    depend on that row alone, or on those of its block if `block_rows` asks for blocks.
    """

    @property
    def block_rows(self) -> int | None:
        """How many live rows of a row group the stage takes together; None if it takes each row alone.

        Blocks begin with a split's first row of the row group; only the last of a row group is shorter.
        """
        return None

    makes: ClassVar[str] = "rows"
    """What a message calls the rows that come out."""

    @property
    def made_by(self) -> str | None:
        """What a message calls the caller's function that decides how many rows come out; None if there is none."""
        return None

    @property
    def must(self) -> str:
        """What a message says that function must do, where it makes other rows than were counted."""
        return "it must make as many in every process"

    @property
    def counts_by_epoch(self) -> bool:
        """Whether each epoch has another number of rows; `counted` then needs the column ``row_id``."""
        return False

    @property
    def orders_blocks(self) -> bool:
        """Whether rows come in another order under each key, within their block; see `of_epoch`."""
        return self.block_rows is not None

    def in_blocks(self, size: int | None) -> RowStage:  # noqa: ARG002 most order nothing
        """Return the same stage, of which each `size` live rows of a row group come in an order of the epoch's.

        None: as the stage asks for blocks. So rows are ordered where no window holds those of several row groups.
        """
        return self

    def of_epoch(self, key: EpochKey, *, shuffle: bool) -> RowStage:  # noqa: ARG002 most make the same in any epoch
        """Return the same stage for an epoch, whose key decides what is left to chance.

        That is how many rows come out only if `counts_by_epoch`. With `shuffle` the rows of a block come in an order
        of the key's.
        """
        return self

    @property
    @abstractmethod
    def key(self) -> str:
        """A name that differs if the rows differ; states and caches of counts hold it."""

    @property
    @abstractmethod
    def reads(self) -> tuple[str, ...]:
        """The columns that `counted` needs."""

    @property
    def flat_lists(self) -> int:
        """How many columns, from the first on, are lists that a row store keeps flat, so that any part is one range."""
        return 0

    @property
    def nothing(self) -> SampleCounts | None:
        """What the stage counts of no rows; None if it counts nothing but the rows that come out."""
        return None

    @property
    def takes_ids(self) -> bool:
        """Whether `rows` needs the column ``row_id``."""
        return False

    @property
    def row_bytes(self) -> int | None:
        """The bytes of a row that comes out, with what batches make of it; None if they are those of the live row."""
        return None

    def of_size(self, row_bytes: int) -> RowStage:  # noqa: ARG002 most know it without the table
        """Return the same stage, of which a row that comes out takes so many bytes, as was counted."""
        return self

    @property
    def held_bytes(self) -> int:
        """The bytes of a row that comes out, before batches are made of it."""
        return 1

    @property
    def measured_by(self) -> str | None:
        """The list column from whose lengths `count_of` counts; None if rows must be looked at."""
        return None

    def count_of(self, lengths: NDArray[np.int64]) -> Counted:
        """Return what `counted` does, from the lengths of `measured_by` of rows that the stage takes together."""
        return int(lengths.sum()), None

    def known_count(self, values: int, lists: int) -> int | None:  # noqa: ARG002 a row a value needs values alone
        """Return how many rows come out of so many values in the lists of `measured_by`, and of lists with any value.

        None, whatever they are, if that says too little.
        """
        return None

    @abstractmethod
    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the schema of the rows that come out of rows of a schema.

        Raises:
            ConfigError: the columns do not fit the stage.
        """

    @abstractmethod
    def counted(self, batch: pa.RecordBatch) -> Counted:
        """Return how many rows come out of a batch that has the columns of `reads`."""

    @abstractmethod
    def rows(self, batch: pa.RecordBatch) -> Made:
        """Return the rows that come out of a batch, as many as `counted` says, in the order of the batch's rows."""


class RowBlocks:
    """Joins record batches into blocks of `size` rows; None leaves each batch as it comes."""

    __slots__ = ("_num_rows", "_size", "_waiting")

    def __init__(self, size: int | None) -> None:
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
        """Return the waiting rows as one block, if there are any; afterwards none wait."""
        waiting, self._waiting, self._num_rows = self._waiting, [], 0
        if len(waiting) > 1:
            return [pa.concat_batches(waiting)]
        return waiting


def measured(stage: RowStage, lengths: NDArray[Any]) -> Counted:
    """Return what a stage makes of consecutive rows, from the lengths of their lists."""
    size = stage.block_rows or max(1, len(lengths))
    blocks = (lengths[first : first + size].astype(np.int64) for first in range(0, len(lengths), size))
    return summed(((0, stage.count_of(block)) for block in blocks), 1)[0]


def summed(made: Iterable[tuple[int, Counted]], segments: int) -> list[Counted]:
    """Return the sums of counts by segment."""
    live = [0] * segments
    counts: list[list[SampleCounts | None]] = [[] for _ in range(segments)]
    for segment, (more, found) in made:
        live[segment] += more
        counts[segment].append(found)
    return [(number, sum_of(found)) for number, found in zip(live, counts, strict=True)]
