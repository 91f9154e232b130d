"""The contract of items: what is gathered by index from the rows of a table.

Items are rows, or samples that are made of rows. `Items` are those of one table. They are asked for in three ways: as
the epoch of a job or in the turns of a source of a mixture, which give an `ItemStream`, and as a map, in the table's
own order. A stream finds many items at once, and pickles: a process that has it opens the stores itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.engine.row_store import RowStoreHandle
    from torch_table_loader.planning.exclusion import Exclusions
    from torch_table_loader.planning.orders import Order, Selects
    from torch_table_loader.ranges import Fetcher

    Ints: TypeAlias = NDArray[np.int64]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class TurnsOf(ABC):
    """What decides which items of a source of a mixture come in an epoch, and in which order.

    Args:
        number: what the column `source` says.
        width: that of samples; 0 where they are rows.
        origin: `since` and `origin` of a `PackedStream`.
    """

    name: str
    number: int
    columns: pa.Schema
    exclusions: Exclusions
    seed: int
    epoch: int
    width: int = 0
    origin: tuple[int, int] = (0, 0)

    @abstractmethod
    def order_of(self, rows: Selects) -> Order:
        """Return the order of the source's rows, by how many of them came before."""


class Items(ABC):
    """The items of one table."""

    columns: pa.Schema

    @abstractmethod
    def count(self, turns: TurnsOf) -> int:
        """Return how many items the first round of a source of a mixture has."""

    @abstractmethod
    def by_turn(self, turns: TurnsOf) -> TurnStream:
        """Return the items as a source of a mixture, which goes round as often as it is asked to."""

    @property
    @abstractmethod
    def num_places(self) -> int:
        """Items of the table in its own order, nothing excluded, as `as_map()` counts them."""

    @abstractmethod
    def columns_at(self, places: Ints) -> list[pa.Array]:
        """Return the items at some places of the table's own order, one array a column."""

    @abstractmethod
    def ids_at(self, places: Ints) -> Ints:
        """Return the row ids that the items at some places of the table's own order come of, item by item."""


class ItemStream(ABC):
    """The items of an epoch, by their place in its order."""

    @property
    @abstractmethod
    def stores(self) -> Sequence[RowStoreHandle]:
        """The stores that have the items."""

    @abstractmethod
    def columns(self, blocks: Iterator[tuple[Ints, T]], fetcher: Fetcher | None) -> Iterator[tuple[list[pa.Array], T]]:
        """Yield the items of consecutive blocks, each as one array for each column.

        Args:
            blocks: the places of each in the epoch's order, and a note of the caller's.
            fetcher: fetches the bytes of stores behind URLs; None if there are none.
        """

    @abstractmethod
    def name_of(self, place: int) -> str:
        """Return what a message calls the item at a place."""


class TurnStream(ItemStream):
    """The items of one source, by how many of them came before in the epoch."""

    @abstractmethod
    def columns(
        self, blocks: Iterator[tuple[Ints, T]], fetcher: Fetcher | None, most_blocks: int | None = None
    ) -> Iterator[tuple[list[pa.Array], T]]:
        """Yield the items of consecutive blocks, each as one array for each column.

        Args:
            blocks: the places of each, and a note of the caller's.
            most_blocks: the most blocks that are made ready together; None leaves that to the store.
        """

    def anchor(self, turn: int) -> list[int]:  # noqa: ARG002 rows are found at once
        """Return what lets another process continue at an item without a walk; empty where there is no walk."""
        return []

    def begin_at(self, anchor: list[int]) -> None:
        """Take what `anchor` returned as known.

        Raises:
            ResumeError: it is of something else.
        """

    @abstractmethod
    def found(self, turns: Ints) -> tuple[Ints, Ints]:
        """Return the row ids that some items come of, item by item, and how many each item has."""


class CutStream(Protocol):
    """A `TurnStream` of samples that are cut from concatenated rows, each as wide as its pack says."""

    @property
    def tokens_of_a_round(self) -> int:
        """The width of all samples of a round."""
        ...

    def came_before(self, turn: int) -> tuple[int, int]:
        """Return the round of a sample, and the width of that round before it."""
        ...

    def turn_behind(self, number: int, tokens: int) -> tuple[int, int]:
        """Return the sample that begins after some width of a round, and the `origin` that makes it begin there."""
        ...

    def has_at(self, turn: int) -> bool:
        """Return whether a sample can be the next after `origin`."""
        ...
