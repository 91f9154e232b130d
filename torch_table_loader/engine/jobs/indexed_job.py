"""One rank's share of items that have a place in one order, most of which are gathered by index."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from typing_extensions import override

from torch_table_loader.arrow.datatypes import is_variable
from torch_table_loader.engine.items import ItemStream
from torch_table_loader.engine.jobs.explained import KnownEpoch, explained
from torch_table_loader.engine.jobs.job import Job
from torch_table_loader.engine.jobs.planner import PlannedStage
from torch_table_loader.engine.jobs.resolve import warn_of_uneven_batches
from torch_table_loader.engine.sizing import batches_of_a_gather, rows_in_flight
from torch_table_loader.engine.work.indexed_work import IndexedWork
from torch_table_loader.planning.global_batches import ENDLESS, GlobalBatches, steps_of_ranks
from torch_table_loader.planning.stages import SamplePosition, Stage
from torch_table_loader.schedules import Done

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from torch_table_loader.engine.explanation import Explanation
    from torch_table_loader.engine.saved_state import Kind
    from torch_table_loader.planning.rows_of import RowSpan, SourceRow
    from torch_table_loader.planning.stages import Position
    from torch_table_loader.samples import SampleCounts

    Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class PlacedJob(Job):
    """One rank's share of items that have a place in one order each, of which a step of all ranks takes the next."""

    @override
    def done(self, position: Any) -> Done:
        return self.by_step.did(position.steps_taken, position.consumed)

    @override
    def planned(self, position: Any) -> PlannedStage:
        plan = self._batches(position)
        return PlannedStage(plan, plan.longest)

    @override
    def warn_of_uneven_steps(self) -> None:
        *_, last = self.walk.stages(self.start(0))
        warn_of_uneven_batches(last.batches(self.rank))

    def _batches(self, position: Any) -> GlobalBatches:
        stage = replace(position.stage, topology=replace(position.stage.topology, lanes=self.topology.lanes))
        batches: GlobalBatches = replace(position, stage=stage).batches(self.rank)
        until = self.until(position)
        if until is None:
            return batches
        return batches.up_to(until)

    def _explained_by_places(
        self,
        position: Position,
        *,
        strategy: str,
        live_rows: int,
        lane_bytes: int,
        held_bytes: int,
        notes: Sequence[str],
        open_bytes: int = 0,
        built_bytes: int = 0,
        splits: int = 0,
        counts: SampleCounts | None = None,
    ) -> Explanation:
        """Explain an epoch from its start; see `KnownEpoch`."""
        lanes, ranks = range(self.topology.lanes), range(self.topology.num_ranks)
        plans = [self._batches(stage) for stage in self.walk.stages(position)]
        endless = any(own.endless for own in plans)
        steps = [sum(own.batches_before(own.steps)[lane] for own in plans) for lane in lanes]
        rows = [0 if endless else sum(own.rows_of(lane) for own in plans) for lane in lanes]
        known = KnownEpoch(
            epoch=position.epoch,
            strategy=strategy,
            splits=splits,
            live_rows=live_rows,
            rows_per_rank=None
            if endless
            else [sum(replace(own, rank=rank).num_rows for own in plans) for rank in ranks],
            steps_per_rank=None if endless else [sum(each) for each in zip(*map(steps_of_ranks, plans), strict=True)],
            steps=None if endless else sum(own.steps for own in plans),
            loads=[(0, rows[lane], 0, 0 if endless else steps[lane]) for lane in lanes],
            lane_bytes=lane_bytes,
            open_bytes=open_bytes,
            built_bytes=built_bytes,
            held_bytes=held_bytes,
            notes=[*notes, *self._notes_of_steps(plans[0])],
            counts=counts,
        )
        return explained(self, known)

    def _notes_of_steps(self, plan: GlobalBatches) -> list[str]:
        """Say what a step of the optimizer is, where it is not one batch."""
        micro = self.topology.micro_batches
        rows = micro * plan.global_batch_size
        if micro > 1:
            return [f"a step of the optimizer is {micro} batches of each rank, {rows:,} rows"]
        return []


@dataclass(frozen=True, eq=False, kw_only=True)
class IndexedJob(PlacedJob):
    """One rank's share of items that are gathered by index.

    Every item has a place in an order that neither ranks nor lanes nor batch size decide; a step takes the next ones.
    """

    live_rows: int
    kind: ClassVar[Kind] = "items"
    copies: ClassVar[int] = 1
    """How often an item that is gathered lies in memory."""

    @property
    def gather_batches(self) -> int:
        """Batches that a lane gathers together."""
        return batches_of_a_gather(self.row_bytes, self.options.most_rows)

    @abstractmethod
    @override
    def start(self, epoch: int) -> SamplePosition: ...

    @property
    def length(self) -> int:
        """Items of the first epoch, where nothing is excluded; `ENDLESS` where it has no end."""
        return self.start(0).total

    @override
    def warn_of_uneven_steps(self) -> None:
        if self.schedules:
            super().warn_of_uneven_steps()
        else:
            warn_of_uneven_batches(GlobalBatches(self.length, 0, self.topology, self.rank))

    @override
    def kept_shape(self, position: SamplePosition) -> bool:
        """Return whether as many steps of this topology take the samples that were taken before a position's stage."""
        steps = position.steps_before
        if self.by_step.changes_length:
            return not steps or self.next_stage(self.walk.at(position.epoch, steps)).origin == position.origin
        if position.origin:
            return False  # other lengths came before, and places are counted from there
        return self._kept_batches(position)

    def _kept_batches(self, position: SamplePosition) -> bool:
        """Return the same, where the places of the epoch are counted from its start."""
        steps = position.steps_before
        if "global_batch_size" in self.schedules:
            return bool(position.start == self.walk.at(position.epoch, steps).consumed)
        return position.start == GlobalBatches(position.total, 0, self.topology, self.rank).consumed(steps)

    @override
    def next_stage(self, position: SamplePosition) -> SamplePosition:
        stage = self._stage(position.epoch, position)
        return replace(position.on(stage.topology), stage=stage)

    def _stage(self, epoch: int, position: SamplePosition | None = None) -> Stage:
        """Return a stage that begins at a position; None: at the start of an epoch."""
        if (sizes := self.schedules.get("global_batch_size")) is None:
            return Stage(self.topology)
        done = Done() if position is None else self.done(position)
        aligned = 0 if sizes.unit == "steps" or epoch else sizes.begin(done)
        return Stage(self.by_step.topology_of(epoch, done), aligned=aligned)

    @override
    def done(self, position: SamplePosition) -> Done:
        return Done(position.steps_taken, position.consumed, position.tokens)

    @override
    def width_of(self, position: SamplePosition) -> int:
        return position.width

    @abstractmethod
    def open(self, position: SamplePosition) -> None:
        """Build and open the stores that an epoch needs, if they are not open."""

    @abstractmethod
    def stream(self, position: SamplePosition) -> ItemStream:
        """Return the items of an epoch by their place in its order."""

    @override
    def work(self, position: SamplePosition) -> IndexedWork:
        """Return a value that threads and processes can work on; stores are built and opened if they are not."""
        self.open(position)
        return IndexedWork(
            **self._common_work(position, self.planned(position)),
            items=self.stream(position),
            gather_batches=self.gather_batches,
        )

    @abstractmethod
    def locate(self, position: SamplePosition, places: Ints) -> Sequence[RowSpan | SourceRow]:
        """Return where the items at some places of the epoch's order come from."""

    @override
    def rows_of(self, position: SamplePosition, step: int, most: int | None = None) -> Sequence[RowSpan | SourceRow]:
        position = self.current(position)
        places, padding = self._batches(position).places_of([step])
        return self.locate(position, places[~padding][:most])

    @property
    @abstractmethod
    def strategy(self) -> str:
        """What decides the order, for `explain()`."""

    @property
    def lane_bytes(self) -> int:
        """What a lane may hold of its items."""
        gathered = self.gather_batches * self.options.most_rows
        # Values of variable width are taken chunk by chunk, then joined.
        copied = gathered if any(map(is_variable, self.columns.types)) else 0
        return (self.copies * rows_in_flight(self.options, gathered, self.batching.blocks) + copied) * self.row_bytes

    @property
    @abstractmethod
    def built_bytes(self) -> int:
        """What building stores takes beside them, before the first batch."""

    @property
    @abstractmethod
    def held_bytes(self) -> int:
        """Bytes of stores that are held in memory."""

    @abstractmethod
    def notes(self, position: SamplePosition) -> list[str]:
        """What `explain()` says of the stores and the order, at the start of an epoch."""

    def counts_of(self, position: SamplePosition) -> SampleCounts | None:  # noqa: ARG002 rows are counted alone
        """Return what becomes of the table's rows in an epoch; None where they are samples, or nobody knows."""
        return None

    @override
    def num_rows(self, epoch: int) -> int:
        return self.live_rows

    @override
    def num_samples(self, epoch: int) -> int | None:
        *_, last = self.walk.stages(self.start(epoch))
        if last.total == ENDLESS or self.by_step.changes_length:
            return None
        return int(last.total)

    @override
    def explain(self, epoch: int) -> Explanation:
        position = self.start(epoch)
        return self._explained_by_places(
            position,
            strategy=self.strategy,
            live_rows=self.live_rows,
            lane_bytes=self.lane_bytes,
            built_bytes=self.built_bytes,
            held_bytes=self.held_bytes,
            notes=self.notes(position),
            counts=self.counts_of(position),
        )
