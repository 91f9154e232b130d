"""What a loader needs of a rank's share of a table, whichever order its rows come in.

`Job` and `RowJob` are such shares; `EpochWork` and `RowWork` are the work that they make of an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_table_loader.batching.rows import Rows, RowsCodec
    from torch_table_loader.engine.survey import Table
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.cursor import Stage
    from torch_table_loader.planning.ranks import Topology
    from torch_table_loader.planning.rows_of import LiveSpan, RowSpan, SourceRow


class Place(Protocol):
    """Where a job stands, as a value: `Cursor` and `RowCursor`."""

    @property
    def epoch(self) -> int:
        """Which epoch."""
        ...

    @property
    def stage(self) -> Stage:
        """The topology, and the steps that the job took under it."""
        ...

    def after(self, steps: int, *, ended: bool = False) -> Self:
        """Stand where the stage has taken so many steps."""
        ...


class Steps(Protocol):
    """What one rank takes step by step: `RankPlan` and `GlobalBatches`."""

    @property
    def batch_size(self) -> int:
        """Rows of a full batch."""
        ...

    @property
    def steps(self) -> int:
        """Batches of the rank; meaningless where rows are not counted."""
        ...

    @property
    def num_rows(self) -> int:
        """Rows that the rank delivers, padding included."""
        ...

    @property
    def counted(self) -> bool:
        """Whether live rows are known before reading."""
        ...

    @property
    def endless(self) -> bool:
        """Whether the epoch has no end."""
        ...

    def schedule(self, start: int = 0) -> Iterator[int]:
        """Yield the lane that each step's batch comes from."""
        ...

    def batches_before(self, step: int) -> list[int]:
        """Count the batches that each lane has delivered when the rank has taken `step`."""
        ...


class Planned(Protocol):
    """A rank's plan, and that of the longest rank."""

    @property
    def plan(self) -> Steps:
        """What this rank takes."""
        ...

    @property
    def longest(self) -> int | None:
        """Steps of the rank that takes most; None where a rank knows its own rows alone."""
        ...


class LaneWork(Protocol):
    """All that a thread or process needs to make a rank's batches; it pickles."""

    @property
    def plan(self) -> Steps:
        """What the rank delivers."""
        ...

    @property
    def lanes(self) -> int:
        """Lanes of the rank."""
        ...

    @property
    def rank(self) -> int:
        """Which rank this is."""
        ...

    @property
    def codec(self) -> RowsCodec[Any]:
        """Turns record batches into rows of the output form."""
        ...

    @property
    def epoch(self) -> int:
        """The epoch."""
        ...

    @property
    def collate_fn(self) -> Callable[[Any], Any] | None:
        """The caller's, called with each batch where it is made."""
        ...

    @property
    def drop_last(self) -> bool:
        """Whether a short last batch is dropped; used only where rows are not counted."""
        ...

    @property
    def block_batches(self) -> int:
        """Batches that cross a process together."""
        ...

    @property
    def blocks_ahead(self) -> int:
        """Blocks of a lane that wait to be taken from a process."""
        ...

    def rows(self, lane: int, start: int) -> Iterator[Rows]:
        """Return a lane's rows in the order in which they are delivered, from its batch `start` on."""
        ...

    def joining(self, start: int) -> JoiningWork | None:
        """Return the work itself, where whoever has what all lanes left over makes the rank's last batches of it."""
        ...


class JoiningWork(LaneWork, Protocol):
    """Work whose lanes may be read to their very end; what they leave over makes the last batches."""

    def rows_to_the_end(self, lane: int, start: int) -> Iterator[Rows]:
        """Return a lane's rows, its tail included."""
        ...

    def tails(self, rests: Sequence[Rows]) -> list[Rows]:
        """Join what the lanes left over, in lane order, to the rows of the rank's last batches, one run a batch."""
        ...


P = TypeVar("P", bound=Place)


class RankShare(Protocol[P]):
    """What one rank reads, epoch by epoch; it pickles."""

    @property
    def options(self) -> LoaderOptions:
        """The caller's."""
        ...

    @property
    def topology(self) -> Topology:
        """The job's shape."""
        ...

    @property
    def counted(self) -> bool:
        """Whether live rows are known before reading."""
        ...

    @property
    def servers(self) -> int:
        """Threads or processes that serve the lanes on this machine."""
        ...

    @property
    def fork_safe(self) -> bool:
        """Whether planning left no threads behind that a fork would break."""
        ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """Of which table and options this is; see `engine.state`."""
        ...

    def with_lanes(self, lanes: int) -> RankShare[P]:
        """Return the same share with another number of lanes."""
        ...

    def start(self, epoch: int) -> P:
        """Stand at the start of an epoch."""
        ...

    def begin(self, cursor: P) -> None:
        """Take note that an epoch begins."""
        ...

    def state(self, cursor: P) -> dict[str, Any]:
        """Write where the job stands."""
        ...

    def resume(self, state: Mapping[str, Any]) -> tuple[RankShare[P], P]:
        """Find where a state says to go on. Raises ResumeError where it does not fit."""
        ...

    def schema(self, cursor: P) -> pa.Schema:
        """The Arrow schema of what comes out."""
        ...

    def planned(self, cursor: P) -> Planned:
        """Plan this rank's stage of an epoch."""
        ...

    def work(self, cursor: P) -> LaneWork:
        """Make a value that threads and processes can work on."""
        ...

    def rows_of(self, cursor: P, step: int) -> Sequence[RowSpan | LiveSpan | SourceRow]:
        """Return which rows a batch delivers; see `TableLoader.rows_of`."""
        ...

    def close_clients(self) -> None:
        """Close the stores' clients of this process, so that none crosses into another."""
        ...


class TableShare(RankShare[P], Protocol[P]):
    """A rank's share of one table."""

    @property
    def table(self) -> Table:
        """The table, surveyed."""
        ...

    def with_lanes(self, lanes: int) -> TableShare[P]:
        """Return the same share with another number of lanes."""
        ...

    def resume(self, state: Mapping[str, Any]) -> tuple[TableShare[P], P]:
        """Find where a state says to go on. Raises ResumeError where it does not fit."""
        ...
