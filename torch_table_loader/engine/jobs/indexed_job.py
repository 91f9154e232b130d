"""One rank's share of items that are gathered by index: rows of a table, or of a mixture of tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from torch_table_loader.engine.jobs.job import Job, PlannedStage
from torch_table_loader.engine.jobs.resolve import topology_of, with_padding
from torch_table_loader.engine.sizing import batches_of_a_gather, rows_in_flight
from torch_table_loader.engine.work.indexed_work import IndexedWork, ItemStream
from torch_table_loader.errors import ResumeError
from torch_table_loader.messages import warn_caller
from torch_table_loader.planning.epoch import uneven_steps
from torch_table_loader.planning.global_batches import GlobalBatches, steps_of_ranks
from torch_table_loader.planning.stages import SamplePosition, Stage

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.engine.explanation import Explanation
    from torch_table_loader.engine.rank_info import RankInfo
    from torch_table_loader.engine.table import Table
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.pack_counts import PackCounts
    from torch_table_loader.planning.ranks import Topology
    from torch_table_loader.planning.rows_of import RowSpan, SourceRow
    from torch_table_loader.planning.stages import Extent

    Ints: TypeAlias = NDArray[np.int64]


class Items(ABC):
    """What can be gathered by index, and in which order an epoch takes it. A value; it pickles."""

    options: LoaderOptions
    columns: pa.Schema
    """The schema of what comes out, padding left out."""
    row_bytes: int
    """Decoded bytes of an item."""
    live_rows: int
    """Rows that deletes and filters leave."""
    copies: ClassVar[int] = 1
    """How often an item that is gathered lies in memory."""
    mixable: ClassVar[bool] = False
    """Whether these may become a source of a mixture."""

    @property
    @abstractmethod
    def tables(self) -> Mapping[str, Table]:
        """The tables, by name of their source; a table alone has the name ""."""

    @property
    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """The tables and options that a state is bound to; ranks, lanes and batch size are not part of it."""

    @property
    def compared(self) -> Mapping[str, Any]:
        """All that decides the order, by name: what ranks compare."""
        return {**self.identity["table"], **self.identity["options"]}

    @abstractmethod
    def refuse_nulls(self) -> None:
        """Refuse columns in which statistics prove a null, and the output cannot hold one; see `Job`."""

    @property
    @abstractmethod
    def fork_safe(self) -> bool:
        """Whether planning left no threads behind that a fork would break."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Items of the first epoch, where nothing is excluded."""

    @property
    def changes(self) -> int:
        """How often the order was changed for epochs that run."""
        return 0

    @abstractmethod
    def start(self, epoch: int, topology: Topology) -> SamplePosition:
        """Return the start of an epoch.

        Raises:
            ConfigError: the epoch has no row.
        """

    @abstractmethod
    def begin(self, position: SamplePosition) -> None:
        """Note that an epoch runs: what is excluded from now on waits for the next."""

    def current(self, position: SamplePosition) -> SamplePosition:
        """Return a position with what the caller changed since; the position itself if nothing did."""
        return position

    def next_stage(self, position: SamplePosition) -> SamplePosition:
        """Return the position with a new stage for the steps that come."""
        return position

    def enter(self, before: SamplePosition, position: SamplePosition) -> None:  # noqa: B027 rows are found at once
        """Note that an epoch comes from one stage to the next."""

    @abstractmethod
    def state(self, position: SamplePosition) -> dict[str, Any]:
        """Write where the job is, as plain data that is equal on every rank."""

    @abstractmethod
    def resume(self, state: Mapping[str, Any], topology: Topology) -> tuple[Self, SamplePosition]:
        """Return the items as a state of the current version has them, and the position.

        Raises:
            ResumeError: the state does not fit; names what differs.
        """

    def extents(self, state: Mapping[str, Any]) -> Collection[Extent]:  # noqa: ARG002
        """What the table was in earlier parts of a state's epoch; see `Job.extents`."""
        return ()

    def grown_from(self, files_of: Mapping[Extent, Ints]) -> Self:
        """Return the same items, which continue from states of the table as it was; see `Job.grown_from`.

        Raises:
            ResumeError: they cannot.
        """
        if files_of:
            raise ResumeError("the state was saved before the table grew; leave on_growth out")
        return self

    @abstractmethod
    def warn_of_undone(self, other: Self) -> None:
        """Warn of what was excluded or included here and is not in what a state brings."""

    @abstractmethod
    def open(self, position: SamplePosition) -> None:
        """Build and open the stores that an epoch needs, if they are not open."""

    @abstractmethod
    def stream(self, position: SamplePosition) -> ItemStream:
        """Return the items of an epoch by their place in its order."""

    @abstractmethod
    def locate(self, position: SamplePosition, places: Ints) -> Sequence[RowSpan | SourceRow]:
        """Return where the items at some places of the epoch's order come from."""

    @property
    @abstractmethod
    def strategy(self) -> str:
        """What decides the order, for `explain()`."""

    @property
    @abstractmethod
    def held_bytes(self) -> int:
        """Bytes of stores that are held in memory."""

    @abstractmethod
    def notes(self, position: SamplePosition) -> list[str]:
        """What `explain()` says of the stores and the order, at the start of an epoch."""

    def packing(self, position: SamplePosition) -> PackCounts | None:  # noqa: ARG002 rows are not packed
        """Return what packing makes of the documents of an epoch; None where rows are not packed, or nobody knows."""
        return None

    @abstractmethod
    def close_clients(self) -> None:
        """Close this process's clients of the tables' stores and of row stores."""


@dataclass(frozen=True, eq=False, kw_only=True)
class IndexedJob(Job):
    """One rank's share of items that are gathered by index.

    Every item has a place in an order that neither ranks nor lanes nor batch size decide; a step takes the next ones.

    Args:
        items: what is gathered, and in which order.
    """

    items: Items

    @classmethod
    def of(cls, items: Items, options: LoaderOptions, ranks: RankInfo) -> IndexedJob:
        """Return this rank's share of some items."""
        return cls(
            options=options,
            rank=ranks.rank,
            topology=topology_of(options, ranks.num_ranks),
            row_bytes=items.row_bytes,
            fork_safe=items.fork_safe,
            items=items,
        )

    @property
    def can_be_mixed(self) -> bool:
        """Whether the job may become a source of a mixture, which takes steps of its own."""
        return self.items.mixable

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables, by name of their source; a table alone has the name ""."""
        return self.items.tables

    @property
    def identity(self) -> Mapping[str, Any]:
        """The tables and options that a state is bound to."""
        return self.items.identity

    @property
    def compared(self) -> Mapping[str, Any]:
        """All that decides the order, by name: what ranks compare."""
        return {**self.items.compared, **self._compared_options}

    @property
    def changes(self) -> int:
        """How often the order was changed for epochs that run; `current` takes a change up."""
        return self.items.changes

    @property
    def gather_batches(self) -> int:
        """Batches that a lane gathers together."""
        return batches_of_a_gather(self.row_bytes, self.options.batch_size)

    def start(self, epoch: int) -> SamplePosition:
        """Return the start of an epoch; see `Job.start`."""
        return self.items.start(epoch, self.topology)

    def begin(self, position: SamplePosition) -> None:
        """Note that an epoch runs: what is excluded from now on waits for the next."""
        self.items.begin(position)

    def current(self, position: SamplePosition) -> SamplePosition:
        """Return a position with what the caller changed since; the position itself if nothing did."""
        return self.items.current(position)

    def kept_shape(self, position: SamplePosition) -> bool:
        """Return whether as many steps of this topology take the samples that were taken before a position's stage."""
        steps, pack = position.steps_before, self.options.pack
        if pack is not None and pack.schedule:
            return not steps or self.next_stage(self.at(position.epoch, steps)).origin == position.origin
        taken = GlobalBatches(position.total, 0, self.topology, self.rank).consumed(steps)
        return (position.origin, position.start) == (0, taken)

    def next_stage(self, position: SamplePosition) -> SamplePosition:
        """Return the position with a new stage for the steps that come."""
        return self.items.next_stage(position)

    def enter(self, before: SamplePosition, position: SamplePosition) -> None:
        """Note that the job comes from one stage of an epoch to the next."""
        self.items.enter(before, position)

    def state(self, position: SamplePosition) -> dict[str, Any]:
        """Write where the job is, with what was asked for since."""
        return self.items.state(position)

    def extents(self, state: Mapping[str, Any]) -> Collection[Extent]:
        """What the table was in earlier parts of a state's epoch; see `Job.extents`."""
        return self.items.extents(state)

    def grown_from(self, files_of: Mapping[Extent, Ints]) -> IndexedJob:
        """Return the same job, which continues from states of the table as it was; see `Job.grown_from`."""
        return replace(self, items=self.items.grown_from(files_of)) if files_of else self

    def resume(self, state: Mapping[str, Any]) -> tuple[IndexedJob, SamplePosition]:
        """Return the job that continues from a state, and where; see `Job.resume`."""
        items, position = self.items.resume(state, self.topology)
        return replace(self, items=items), position

    def warn_of_undone(self, other: Job) -> None:
        """Warn of what was excluded or included here and is not in a job that takes this one's place."""
        if isinstance(other, IndexedJob):
            self.items.warn_of_undone(other.items)

    def refuse_nulls(self) -> None:
        """Refuse columns in which statistics prove a null, and the output cannot hold one."""
        self.items.refuse_nulls()

    def warn_of_uneven_steps(self) -> None:
        """Warn if ranks take different numbers of steps, which hangs a job that synchronises each step."""
        batches = GlobalBatches(self.items.length, 0, self.topology, self.rank)
        if not batches.endless and (shown := uneven_steps(steps_of_ranks(batches))) is not None:
            warn_caller(
                f"ranks take different numbers of steps: {shown}; a job that synchronises each step (DDP) then hangs; "
                'pass even_ranks="pad", or drop_last=True'
            )

    def schema(self, position: SamplePosition | None = None) -> pa.Schema:  # noqa: ARG002 the same at every position
        """Return the Arrow schema of what comes out."""
        return with_padding(self.items.columns, marks=self._marks_padding)

    def planned(self, position: SamplePosition) -> PlannedStage:
        """Plan a stage of an epoch for this rank, on the lanes of this job."""
        plan = self._batches(position)
        return PlannedStage(plan, plan.longest)

    def work(self, position: SamplePosition) -> IndexedWork:
        """Return a value that threads and processes can work on; stores are built and opened if they are not."""
        self.items.open(position)
        return IndexedWork(
            **self._common_work(position, marks_padding=self._marks_padding),
            plan=self._batches(position),
            items=self.items.stream(position),
            gather_batches=self.gather_batches,
        )

    def rows_of(self, position: SamplePosition, step: int, most: int | None = None) -> Sequence[RowSpan | SourceRow]:
        """Return which rows a batch delivers; see `TableLoader.rows_of`."""
        position = self.current(position)
        places, padding = self.items.stream(position).dealt(self._batches(position), [step])
        return self.items.locate(position, places[~padding][:most])

    def explain(self, epoch: int) -> Explanation:
        """Return the plan of an epoch and the reasons for it."""
        position, lanes = self.start(epoch), range(self.topology.lanes)
        plans = [self._batches(stage) for stage in self.stages(position)]
        plan, endless = plans[0], plans[0].endless
        steps = [sum(own.batches_before(own.steps)[lane] for own in plans) for lane in lanes]
        rows = [0 if endless else sum(own.rows_of(lane) for own in plans) for lane in lanes]
        gathered = self.gather_batches * self.options.batch_size
        ranks = range(self.topology.num_ranks)
        return self._explained(
            epoch,
            strategy=self.items.strategy,
            splits=0,
            live_rows=self.items.live_rows,
            rows_per_rank=None
            if endless
            else [sum(replace(own, rank=rank).num_rows for own in plans) for rank in ranks],
            steps_per_rank=None if endless else [sum(each) for each in zip(*map(steps_of_ranks, plans), strict=True)],
            steps=None if endless else sum(own.steps for own in plans),
            loads=[(0, rows[lane], 0, 0 if endless else steps[lane]) for lane in lanes],
            rows_in_flight=self.items.copies * rows_in_flight(self.options, gathered, self.blocks),
            held_bytes=self.items.held_bytes,
            notes=[*self.items.notes(position), *self._notes_of_steps(plan)],
            packing=self.items.packing(position),
        )

    def _notes_of_steps(self, plan: GlobalBatches) -> list[str]:
        """Say what a step of the optimizer is, where it is not one batch."""
        micro = self.topology.micro_batches
        rows = micro * plan.global_batch_size
        return [f"a step of the optimizer is {micro} batches of each rank, {rows:,} rows"] if micro > 1 else []

    def close_clients(self) -> None:
        """Close this process's clients of the tables' stores, and of row stores."""
        self.items.close_clients()

    @property
    def _marks_padding(self) -> bool:
        return self.topology.even_ranks == "pad"

    def _batches(self, position: SamplePosition) -> GlobalBatches:
        stage = Stage(replace(position.stage.topology, lanes=self.topology.lanes), position.stage.steps)
        batches, until = replace(position, stage=stage).batches(self.rank), self._phase(position)[1]
        return batches if until is None else batches.up_to(until)
