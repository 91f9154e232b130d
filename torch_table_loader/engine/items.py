"""The contract of items: what is gathered by index from the rows of a table, or of several.

Items are rows, or samples that are made of rows. `Items` are what the epochs of a job have; a job holds them, and knows
the shape of its ranks and batches itself. Those of one table are `TableItems`, which may also be asked for in the turns
of a source of a mixture, and as a map, in the table's own order. Epochs and turns give an `ItemStream`: it finds many
items at once, and pickles, so that a process that has it opens the stores itself.

A position says all that decides the items of an epoch. What changes at a step is handed in as `ByStep`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypeVar

from torch_table_loader.cached import cached_property
from torch_table_loader.engine.jobs.asked import NOTHING, Asked
from torch_table_loader.engine.saved_state import Bound

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.engine.jobs.by_step import ByStep
    from torch_table_loader.engine.jobs.gathering import Gathering
    from torch_table_loader.engine.jobs.live_rows import LiveRows
    from torch_table_loader.engine.row_store import RowStoreHandle
    from torch_table_loader.engine.saved_state import SavedState
    from torch_table_loader.engine.state_records import Written
    from torch_table_loader.planning.exclusion import Exclusions
    from torch_table_loader.planning.orders import Order, Selects
    from torch_table_loader.planning.ranks import Topology
    from torch_table_loader.planning.rows_of import RowSpan, SourceRow
    from torch_table_loader.planning.stages import SamplePosition
    from torch_table_loader.ranges import Fetcher
    from torch_table_loader.samples import SampleCounts

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemFacts:
    """What `explain()` says of the items of an epoch.

    Args:
        strategy: what decides the order.
        notes: of the stores and the order.
        held_bytes: bytes of stores in memory.
        built_bytes: what building stores takes beside them, before the first batch.
        counts: what becomes of the table's rows; None where they are samples, or nobody knows.
    """

    strategy: str
    notes: Sequence[str]
    held_bytes: int
    built_bytes: int
    counts: SampleCounts | None = None


class Items(ABC):
    """What the epochs of a job have: the items of one table, or of several in the order of a mixture."""

    columns: pa.Schema
    row_bytes: int

    @property
    @abstractmethod
    def sources(self) -> Mapping[str, TableItems]:
        """The items of single tables that come, by name of their source; those of a table alone by the name ""."""

    @property
    @abstractmethod
    def bound(self) -> Bound:
        """The table and options that a state is bound to; of a mixture, the options alone."""

    @cached_property
    def bounds(self) -> Mapping[str, Bound]:
        """The tables and options that a state is bound to, by name of their source."""
        return {"": self.bound}

    @property
    def compared(self) -> Mapping[str, Any]:
        """All that decides the order, by name, but for what changes at a step: what ranks compare."""
        return {**self.bound.table, **self.bound.options}

    @property
    def asked(self) -> Asked:
        """What the caller asks of epochs that run; `next_stage` takes it up."""
        return NOTHING

    @property
    @abstractmethod
    def own_records(self) -> tuple[str, ...]:
        """The keys of what a state must say of items; see `StateRecord`."""

    @abstractmethod
    def records(self, position: Any) -> dict[str, Written]:
        """Return what a state says of items beside the samples that were taken, by key."""

    @abstractmethod
    def start(self, epoch: int, by_step: ByStep) -> SamplePosition:
        """Return the start of an epoch.

        Raises:
            ConfigError: the epoch has no item, since all rows are excluded or a source of a mixture is empty.
        """

    def next_stage(self, position: Any, by_step: ByStep) -> Any:
        """Return the position with a new stage for the steps that come; where the caller may ask, the same if fit."""
        stage = by_step.stage_at(position.epoch, position.done(by_step.width))
        return replace(position.on(stage.topology), stage=stage)

    def enter(self, before: Any, position: Any) -> None:  # noqa: B027 rows are found at once
        """Note that the job comes from one stage of an epoch to the next: a walk goes on where it has come."""

    @abstractmethod
    def resume(self, saved: SavedState, by_step: ByStep) -> tuple[Self, SamplePosition]:
        """Return the items with what a state says of them, and where they continue, in a new stage.

        Raises:
            ResumeError: no epoch of these items has such a position.
        """

    @abstractmethod
    def stream(self, position: Any) -> ItemStream:
        """Return the items of an epoch by their place in its order."""

    @abstractmethod
    def locate(self, position: Any, places: Ints) -> Sequence[RowSpan | SourceRow]:
        """Return where the items at some places of the epoch's order come from."""

    @abstractmethod
    def gathering(self, topology: Topology) -> Gathering:
        """Return how a lane gathers batches."""

    @abstractmethod
    def facts(self, stages: Sequence[Any], end: int, by_step: ByStep) -> ItemFacts:
        """Return what `explain()` says of an epoch.

        Args:
            stages: the begins of its stages.
            end: the place after the last that is delivered; `ENDLESS` if there is none.
        """


class TableItems(Items):
    """The items of one table, which may be those of a source of a mixture."""

    rows: LiveRows
    """The rows that items are, or are made of."""

    @property
    def sources(self) -> Mapping[str, TableItems]:
        """These alone."""
        return {"": self}

    @property
    def own_records(self) -> tuple[str, ...]:
        """Those of the samples."""
        return self.rows.options.samples.records

    def having(self, rows: LiveRows) -> Self:
        """Return the same of rows of which others are excluded."""
        own: Any = self
        other: Self = replace(own, rows=rows)
        return other

    def apart(self) -> Self:
        """Return the same with exclusions of its own, which begin with what is excluded now."""
        return self.having(self.rows.apart())

    def locate(self, position: Any, places: Ints) -> Sequence[RowSpan]:
        """Return the file and the row of each row at, or under, the items at some places."""
        return self.rows.spans_of(self.stream(position).found(places)[0])

    @abstractmethod
    def stream(self, position: Any) -> TurnStream:
        """Return the items of an epoch by their place in its order."""

    @abstractmethod
    def refuse_nulls(self) -> None:
        """Refuse columns in which statistics prove a null, and the output cannot hold one; see `Job.refuse_nulls`."""

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
    """A `TurnStream` of samples that are cut from concatenated rows, each as wide as its `TurnsOf` says."""

    @property
    def width_of_a_round(self) -> int:
        """The width of all samples of a round."""
        ...

    def came_before(self, turn: int) -> tuple[int, int]:
        """Return the round of a sample, and the width of that round before it."""
        ...

    def turn_behind(self, number: int, width: int) -> tuple[int, int]:
        """Return the sample that begins after some width of a round, and the `origin` that makes it begin there."""
        ...

    def has_at(self, turn: int) -> bool:
        """Return whether a sample can be the next after `origin`."""
        ...
