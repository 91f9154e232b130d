"""One rank's share of items that are gathered by index: rows of a store, or samples that are made of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from typing_extensions import override

from torch_table_loader.cached import cached_property
from torch_table_loader.engine.jobs.explained import explained_by_places
from torch_table_loader.engine.jobs.job import Codecs, Job
from torch_table_loader.engine.jobs.placed import batches_at
from torch_table_loader.engine.sizing import LANE_COPIES
from torch_table_loader.engine.work.indexed_work import IndexedWork, work_of
from torch_table_loader.planning.global_batches import ENDLESS
from torch_table_loader.planning.stages import SamplePosition

if TYPE_CHECKING:
    from torch_table_loader.engine.explanation import Explanation
    from torch_table_loader.engine.items import Items
    from torch_table_loader.engine.jobs.asked import Asked
    from torch_table_loader.engine.jobs.batching import Batching
    from torch_table_loader.engine.jobs.gathering import Gathering
    from torch_table_loader.engine.jobs.live_rows import LiveRows
    from torch_table_loader.engine.saved_state import Bound, Kind, SavedState
    from torch_table_loader.engine.state_records import Written
    from torch_table_loader.engine.table import Table
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.ranks import Topology
    from torch_table_loader.planning.rows_of import RowSpan, SourceRow
    from torch_table_loader.schedules import Done


@dataclass(frozen=True, eq=False, kw_only=True)
class ItemsJob(Job):
    """One rank's share of items that are gathered by index.

    Every item has a place in an order that neither ranks nor lanes nor batch size decide; a step takes the next ones.
    What there is, and in which order, the items say; this job knows the steps.
    """

    items: Items
    kind: ClassVar[Kind] = "items"

    @classmethod
    def of(
        cls,
        items: Items,
        options: LoaderOptions,
        rank: int,
        topology: Topology,
        *,
        fork_safe: bool,
        codecs: Codecs | None = None,
    ) -> Self:
        """Return the share of a rank of some items; `codecs` may be made already."""
        return cls(
            options=options,
            rank=rank,
            topology=topology,
            schedules=options.schedules,
            row_bytes=items.row_bytes,
            columns=items.columns,
            fork_safe=fork_safe,
            codecs=codecs or Codecs(),
            items=items,
        )

    def having(self, items: Items) -> Self:
        """Return the same share of other items."""
        return replace(self, items=items, columns=items.columns)

    @property
    @override
    def tables(self) -> Mapping[str, Table]:
        return {name: rows.table for name, rows in self.live_rows.items()}

    @property
    @override
    def live_rows(self) -> Mapping[str, LiveRows]:
        return {name: own.rows for name, own in self.items.sources.items()}

    @property
    @override
    def asked(self) -> Asked:
        return self.items.asked

    @property
    @override
    def bound(self) -> Bound:
        return self.items.bound

    @property
    @override
    def bounds(self) -> Mapping[str, Bound]:
        return self.items.bounds

    @property
    @override
    def compared(self) -> Mapping[str, Any]:
        return {**self.items.compared, **self.by_step.compared}

    @property
    @override
    def own_records(self) -> tuple[str, ...]:
        return self.items.own_records

    @override
    def records(self, position: SamplePosition) -> dict[str, Written]:
        return self.items.records(position)

    @override
    def start(self, epoch: int) -> SamplePosition:
        return self.items.start(epoch, self.by_step)

    @override
    def next_stage(self, position: SamplePosition) -> SamplePosition:
        return cast("SamplePosition", self.items.next_stage(position, self.by_step))

    @override
    def enter(self, before: SamplePosition, position: SamplePosition) -> None:
        self.items.enter(before, position)

    @override
    def resume(self, saved: SavedState) -> tuple[Self, SamplePosition]:
        """Return the job with what a state says of its items, and where it continues."""
        items, position = self.items.resume(saved, self.by_step)
        return self.having(items), position

    @override
    def done(self, position: SamplePosition) -> Done:
        return position.done(self.by_step.width)

    @override
    def width_of(self, position: SamplePosition) -> int:
        return position.width

    @override
    def kept_shape(self, position: SamplePosition) -> bool:
        """Return whether as many steps of this topology take the samples that were taken before a position's stage."""
        steps = position.steps_before
        if self.by_step.changes_length:
            if not steps:
                return True
            there = self.next_stage(self.walk.at(position.epoch, steps))
            return (there.consumed, there.cut_at) == (position.start, position.cut_at)
        if position.samples_before != position.start:
            return False  # other lengths came before, and places are counted from there
        if "global_batch_size" in self.schedules:
            return bool(position.start == self.walk.at(position.epoch, steps).consumed)
        return position.start == position.whole(self.topology, self.rank).consumed(steps)

    @override
    def refuse_nulls(self) -> None:
        for own in self.items.sources.values():
            own.refuse_nulls()

    @override
    def close_clients(self) -> None:
        for rows in self.live_rows.values():
            rows.close_clients()

    @cached_property
    def gathering(self) -> Gathering:
        """How a lane gathers batches."""
        return self.items.gathering(self.topology)

    @property
    @override
    def batching(self) -> Batching:
        return self.gathering.batching

    @override
    def work(self, position: SamplePosition) -> IndexedWork:
        """Return a value that threads and processes can work on; stores are built and opened if they are not."""
        items = self.items.stream(position)
        for store in items.stores:
            store.open()
        common = self._common_work(position, self.planned(position))
        return work_of(**common, items=items, gather_batches=self.gathering.batches)

    @override
    def rows_of(self, position: SamplePosition, step: int, most: int | None = None) -> Sequence[RowSpan | SourceRow]:
        position = self.current(position)
        places, padding = batches_at(self, position).places_of([step])
        return self.items.locate(position, places[~padding][:most])

    @override
    def num_rows(self, epoch: int) -> int:
        return sum(rows.count for rows in self.live_rows.values())

    @override
    def num_samples(self, epoch: int) -> int | None:
        *_, last = self.walk.stages(self.start(epoch))
        if last.total == ENDLESS or self.by_step.changes_length:
            return None
        return int(last.total)

    @override
    def explain(self, epoch: int) -> Explanation:
        stages = list(self.walk.stages(self.start(epoch)))
        plans = [batches_at(self, stage) for stage in stages]
        facts = self.items.facts(stages, plans[-1].total, self.by_step)
        return explained_by_places(
            self,
            epoch,
            plans,
            strategy=facts.strategy,
            live_rows=self.num_rows(epoch),
            lane_bytes=self.gathering.lane_bytes,
            built_bytes=facts.built_bytes,
            copies=LANE_COPIES + (len(self.items.sources) > 1),  # what several gather is joined
            held_bytes=facts.held_bytes,
            notes=facts.notes,
            counts=facts.counts,
        )
