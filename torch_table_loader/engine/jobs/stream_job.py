"""One rank's share of a table that is read as a stream of splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeAlias, cast

import numpy as np
from typing_extensions import override

from torch_table_loader.cached import cached_property
from torch_table_loader.engine.jobs.batching import Batching
from torch_table_loader.engine.jobs.bound import bound, refuse_unknown
from torch_table_loader.engine.jobs.by_step import ByStep
from torch_table_loader.engine.jobs.explained import KnownEpoch, explained
from torch_table_loader.engine.jobs.file_places import FilePlaces
from torch_table_loader.engine.jobs.job import Job
from torch_table_loader.engine.jobs.planner import PlannedStream
from torch_table_loader.engine.jobs.stream_memory import Reading, cost_of_fetching, fetched_at_once, lane_bytes
from torch_table_loader.engine.jobs.stream_notes import loads_of, notes_of_stream, steps_of_ranks
from torch_table_loader.engine.machine import threads_of_lanes
from torch_table_loader.engine.saved_state import Bound
from torch_table_loader.engine.sizing import LANE_COPIES, batches_of_sequences
from torch_table_loader.engine.table import Table
from torch_table_loader.engine.work.stream_work import StreamWork
from torch_table_loader.errors import ConfigError, ResumeError
from torch_table_loader.messages import warn_caller
from torch_table_loader.planning.epoch import uneven_steps
from torch_table_loader.planning.keys import stage_key
from torch_table_loader.planning.lanes import RankPlan
from torch_table_loader.planning.ranks import Mixing
from torch_table_loader.planning.rows_of import (
    LiveSpan,
    RowSpan,
    spans_of_batch,
    spans_of_ids,
)
from torch_table_loader.planning.runs import NO_RUNS
from torch_table_loader.planning.stages import StreamPosition
from torch_table_loader.ranges import FetchSettings
from torch_table_loader.schedules import Done

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.engine.explanation import Explanation
    from torch_table_loader.engine.jobs.planner import Planner
    from torch_table_loader.engine.jobs.resolve import Units
    from torch_table_loader.engine.saved_state import Kind, SavedState
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.keys import EpochKey
    from torch_table_loader.planning.ranks import Topology
    from torch_table_loader.planning.strategies import Strategy
    from torch_table_loader.read.row_stage import RowStage
    from torch_table_loader.read.tasks import TaskReader
    from torch_table_loader.samples import SampleCounts

    Ints: TypeAlias = NDArray[np.int64]


MIXED_ORDER = "mixed, version 2"
"""What states call the order of splits that are mixed, so that a later release can tell another order from it."""


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamJob(Job):
    """One rank's share of a table, read split by split.

    Args:
        read_rows: rows that a lane reads at a time.
        units: what batches count, where splits are mixed.
        stage: makes other rows from the live ones; None delivers them as they are.
    """

    kind: ClassVar[Kind] = "splits"
    table: Table
    reader: TaskReader
    strategy: Strategy
    planner: Planner
    read_rows: int
    units: Units
    splits_digest: str
    fetching: FetchSettings
    stage: RowStage | None = None

    @cached_property
    @override
    def bound(self) -> Bound:
        own = bound(self.table, self.reader.schema, self.options, self.strategy.name, self.splits_digest)
        options = dict(own.options)
        if self.stage is not None:
            options["stage"] = self.stage.key
        if self._orders_blocks:  # counts are cached under the key alone: the order inside a block does not change them
            options["stage"] += "-shuffled"
        if self.options.batch_by is not None:
            options["batch_by"] = self.options.batch_by
        if self.topology.mixing is not None:
            options["shuffle"] = MIXED_ORDER
        return Bound(own.table, options)

    @property
    @override
    def batching(self) -> Batching:
        unit_bytes, at_once = self.row_bytes, None
        if self.stage is not None and (made := self.stage.row_bytes) is not None:
            unit_bytes, at_once = made, batches_of_sequences(made, self.options.batch_rows)
        return Batching.of(self.options, self.topology, unit_bytes, at_once, max(1, self._readers))

    @property
    def _orders_blocks(self) -> bool:
        """Whether what comes out of a block comes in another order in each epoch."""
        return self.stage is not None and self.stage.orders_blocks and bool(self.options.shuffle)

    @property
    @override
    def counted(self) -> bool:
        return self.planner.counted

    @cached_property
    @override
    def by_step(self) -> ByStep:
        samples = self.options.samples
        return ByStep(self.schedules, self.topology, self.options, samples.rows_of(samples.width))

    @override
    def with_lanes(self, lanes: int) -> StreamJob:
        if lanes == self.topology.lanes:
            return self
        planner = self.planner.with_topology(replace(self.topology, lanes=lanes))
        return replace(self, planner=planner, topology=planner.topology)

    @property
    @override
    def tables(self) -> Mapping[str, Table]:
        return {"": self.table}

    @override
    def bounds_before_growth(self, saved: SavedState) -> Mapping[str, Bound]:
        splits = self.planner.grown_from(saved.files_of).digest(saved.grown)
        return {"": Bound(self.bound.table, {**self.bound.options, "splits": splits})}

    @override
    def resume(self, saved: SavedState) -> tuple[StreamJob, StreamPosition]:
        """Return this job, with the state's number of lanes if the caller named none, and where it continues."""
        position, job = cast("StreamPosition", saved.taken), self
        if saved.files_of:
            job = replace(self, planner=self.planner.grown_from(saved.files_of))
        if saved.grown is not None:
            position = position.before_growth(saved.grown)
        if self.options.num_workers is None:
            job = job.with_lanes(position.stage.topology.lanes)
        _StreamCheck(job.planner, job.options, job.rank).check(position)
        stage, then, now = position.stage, job._topology_of(position), job._topology_at(position)
        if then == now and stage.extent is None and (stage.topology == now or job.planner.is_over(position)):
            return job, position
        if self.strategy.coverage == "any" and not self.strategy.cuts and stage.steps:
            raise ResumeError(
                f"{self.strategy.name} declares coverage='any' and deals rows to ranks and workers, so only a job of "
                f"the same shape can continue the epoch: {stage.topology} was saved, and this is {job.topology}; use "
                "that shape, or start a new epoch"
            )
        return job, job.next_stage(position)

    @override
    def start(self, epoch: int) -> StreamPosition:
        """Return the start of an epoch; where rows are not counted, of this rank alone."""
        start = StreamPosition.at(epoch, self._shape_after(epoch, Done()))
        if self.planner.counted:
            return start
        return replace(start, rank=self.rank)

    @override
    def kept_shape(self, position: StreamPosition) -> bool:
        stages = position.stages
        begins = (
            replace(position, past=stages[:number], stage=replace(stage, steps=0))
            for number, stage in enumerate(stages)
        )
        return all(each.stage.topology == self._topology_at(each) for each in begins)

    @override
    def next_stage(self, position: StreamPosition) -> StreamPosition:
        return position.on(self._topology_at(position), anew=True)

    def _topology_at(self, position: StreamPosition) -> Topology:
        """Return the job's shape where a position is."""
        if self.schedules:
            return self._shape_after(position.epoch, self.done(position))
        return self.topology

    def _topology_of(self, position: StreamPosition) -> Topology:
        """Return the job's shape where a position's stage begins."""
        if self.schedules:
            return self._topology_at(position.after(0))
        return self.topology

    def _shape_after(self, epoch: int, done: Done) -> Topology:
        """Return the job's shape at a place of an epoch; its batches count the rows that samples are made of."""
        if not self.schedules:
            return self.topology
        topology = self.by_step.topology_of(epoch, done)
        if not self.options.samples.joins_rows:
            return topology
        samples = self.options.most_rows
        if "global_batch_size" in self.schedules:
            samples = topology.batch_size
        return replace(topology, batch_size=samples * self.by_step.length_at(epoch, done.steps))

    @override
    def done(self, position: StreamPosition) -> Done:
        """Return what the job has done, as if its ranks had taken full batches."""
        rows = sum(each.steps * self.by_step.step(each.topology).samples for each in position.stages)
        return self.by_step.did(position.steps_taken, rows)

    @override
    def planned(self, position: StreamPosition) -> PlannedStream:
        """Plan a stage of an epoch for this rank; of one that another topology has finished, nothing is left."""
        if position.stage.topology == self._topology_of(position):
            planned, until = self.planner.plan(position, self.rank), self.until(position)
            if until is None:
                return planned
            longest = planned.longest
            if longest is not None:
                longest = min(longest, until)
            return replace(planned, plan=planned.plan.up_to(until), longest=longest)
        whole = self.planner.plan(self.planner.start(position.epoch), self.rank)
        nothing = RankPlan((NO_RUNS,) * self.topology.lanes, NO_RUNS, self.topology.batch_size, 0)
        return replace(whole, plan=nothing, windows=(), longest=position.stage.steps)

    @override
    def work(self, position: StreamPosition) -> StreamWork:
        planned, reader = self.planned(position), self.reader
        if self.stage is not None:
            reader = reader.of_epoch(self.stage_key(position.epoch), shuffle=bool(self.options.shuffle))
        segments = planned.segments
        common = self._common_work(position, planned)
        reads = int(np.count_nonzero(segments.kept & (segments.live != 0)))
        if not self.options.processes and reads < self.topology.num_ranks * common["servers"]:
            reader = reader.sharing()  # else some threads would have nothing to decode
        return StreamWork(
            **common,
            segments=segments,
            reader=reader,
            windows=planned.windows,
            seed=self.options.shuffle_seed,
            fetching=self.fetching,
            readers=self._readers,
            read_rows=self.units.of_rows(self.read_rows),
        )

    @cached_property
    def _readers(self) -> int:
        """Threads that read splits side by side, where they are mixed; with no worker, the caller's thread does."""
        if self.topology.mixing is None or self.options.num_workers == 0:
            return 0
        return threads_of_lanes(self.options.lanes)

    @override
    def rows_of(self, position: StreamPosition, step: int, most: int | None = None) -> Sequence[RowSpan | LiveSpan]:
        planned = self.planned(position)
        key = (self.options.shuffle_seed, position.epoch)
        about = planned.plan, planned.segments, planned.windows, key
        if self.samples.are_rows:
            return spans_of_batch(*about, self.planner.live_before, step, most)
        ids: Ints = self.samples.parts.rows_of_step(self, position, step, self.width_of(position))
        return spans_of_ids(self.table.layout, ids)[:most]

    @property
    def block(self) -> int | None:
        """The live rows that a stage orders together, where no window does; None: as it asks for itself."""
        if self.topology.shuffle_buffer_size is not None:
            return None
        return self.options.window

    def stage_key(self, epoch: int) -> EpochKey:
        """Return what decides by chance how samples are made in an epoch."""
        return stage_key(self.options.shuffle_seed, epoch)

    @override
    def files(self, asked: str) -> FilePlaces:
        if self.options.batch_by != "file":
            raise ConfigError(f'{asked} needs batches that each come from one file; pass batch_by="file"')
        return FilePlaces(self, self.planner, self.topology)

    @override
    def check_alone(self) -> None:
        if not (changing := list(self.schedules)):
            return
        if self.topology.num_ranks > 1 and self.topology.even_ranks is None:
            raise ConfigError(
                f"{changing[0]} by step changes batches on all ranks, and ranks of a stream may end before it; "
                "leave even_ranks=False out"
            )
        if not self.planner.counted:
            raise ConfigError(f"{changing[0]} by step needs the number of rows or tokens; leave count_filtered=True")
        if "global_batch_size" in self.schedules and (self.options.batch_by is not None or not self.strategy.cuts):
            raise ConfigError(
                'global_batch_size by step needs batches that are filled across splits; leave batch_by="file" out, and '
                "pass a split_strategy that cuts"
            )

    @override
    def warn_of_uneven_steps(self) -> None:
        if self.topology.num_ranks == 1 or self.topology.even_ranks is not None or self.strategy.form == "generator":
            return
        if self.schedules:
            return  # `check_alone` refuses it
        remedy = "let the strategy even them"
        if self.strategy.cuts:
            given = "even_ranks=False"
            if not self.planner.counted:
                given = "count_filtered=False"
            remedy = f"leave {given} out, and ranks take equally many"
        steps = self.planner.steps_of_ranks(self.planner.start(0))
        if steps is None:
            warn_caller(
                f"under a row filter each of {self.topology.num_ranks} ranks counts its own rows, and steps may "
                f"differ; a job that synchronises each step (DDP) then hangs; {remedy}"
            )
        elif (shown := uneven_steps(steps)) is not None:
            warn_caller(
                f"ranks take different numbers of steps: {shown}; a job that synchronises each step (DDP) then hangs; "
                f"{remedy}"
            )

    @override
    def num_rows(self, epoch: int) -> int | None:
        segments = self.planner.plan(self.start(epoch), self.rank).segments
        live = segments.live_rows
        whole_table = self.strategy.cuts and self.planner.counted and bool((live >= 0).all())
        if not whole_table:
            return None
        if self.samples.are_batches and (made := self.planner.made_of(segments, epoch)) is not None:
            return made.rows_held
        return int(live.sum())

    @override
    def num_samples(self, epoch: int) -> int | None:
        if self.samples.are_rows or self.samples.are_batches:
            return self.num_rows(epoch)
        start = self.start(epoch)
        counts = self._counts_of(start, self.planner.plan(start, self.rank))
        if counts is None:
            return None
        return counts.samples

    @override
    def explain(self, epoch: int) -> Explanation:
        planner = self.planner
        start = self.start(epoch)
        planned = planner.plan(start, self.rank)
        codec = self.codec_at(start)
        reading = Reading(self.table, self.reader.reads, self.read_rows, self.stage, self._readers, codec, self.units)
        of_lane, opened = lane_bytes(self, reading, planned)
        fetched, held = None, 0
        if self.is_far:
            fetched = None if self.table.estimated else cost_of_fetching(self.work(start))
            waiting, ahead = self._readers or self.topology.lanes, self.fetching.ahead_bytes
            held = fetched_at_once(self.table.layout, ahead, waiting, fetched, keeps=self.table.brought_bytes > 0)
        known = KnownEpoch(
            epoch=epoch,
            strategy=self.strategy.name,
            splits=len(planned.segments.splits),
            live_rows=self.num_rows(epoch),
            rows_per_rank=planner.rows_of_ranks(start),
            steps_per_rank=steps_of_ranks(self, planner, start) if planner.counted else None,
            steps=sum(self.planned(stage).plan.steps for stage in self.walk.stages(start)) if planner.counted else None,
            loads=loads_of(planned),
            lane_bytes=of_lane,
            open_bytes=opened,
            copies=LANE_COPIES + (2 * planned.plan.most_of_window > planned.plan.own_rows),
            held_bytes=held,
            notes=notes_of_stream(self.table, planner, self.options, self.rank, self.stage),
            counts=self._counts_of(start, planned),
            fetched=fetched,
        )
        return explained(self, known)

    def _counts_of(self, start: StreamPosition, planned: PlannedStream) -> SampleCounts | None:
        """Return what becomes of the table's rows in an epoch; None where they are samples, or these change."""
        if self.samples.are_rows or self.by_step.changes_length:
            return None
        counts: SampleCounts = self.samples.parts.counts_of_stream(self, start, planned)
        return counts

    @property
    def is_far(self) -> bool:
        """Whether files are fetched ahead of decoding."""
        return self.fetching.applies_to(self.table.storage)


@dataclass(frozen=True, slots=True)
class _StreamCheck:
    """The check of positions against the plan of a job, for one rank of it."""

    planner: Planner
    options: LoaderOptions
    rank: int

    def check(self, position: StreamPosition) -> None:
        """Refuse a position that no job over the table can have had, or that this rank cannot continue from."""
        planner, topology = self.planner, self.planner.topology
        if position.rank is None and not planner.counted:
            raise ResumeError(
                "the state counts rows that pass the filter, but count_filtered=False does not; leave it True"
            )
        if extents := position.extents:
            refuse_unknown(extents, planner.files_of)
        for number, stage in enumerate(stages := position.stages):
            if stage.topology != topology:
                _refuse_shape(stage.topology, self.options, planner)
            if stage.steps and planner.counted:
                self._refuse_steps_beyond(number, replace(position, stage=stage, past=stages[:number]))
        if position.rank is not None:
            self._refuse_own_rows(position)
        if position.ended and (longest := planner.longest(position)) > position.stage.steps:
            raise ResumeError(
                f"the state was taken on a rank that had ended after {position.stage.steps} steps, while others "
                f"take up to {longest}; load the state of a rank that was still running, or the start of the next "
                "epoch"
            )

    def _refuse_steps_beyond(self, number: int, position: StreamPosition) -> None:
        """Refuse more steps of a stage than any rank has.

        Of a job of this shape, other ranks are not counted if this one has as many; any other is subtracted as a whole.
        """
        planner, topology, taken = self.planner, position.stage.topology, position.stage.steps
        if topology == planner.topology and taken <= planner.plan(position, self.rank).plan.steps:
            return
        if taken > (longest := planner.longest(position)):
            raise ResumeError(
                f"the state has taken {taken} steps in stage {number} of its epoch, which has {longest} under "
                f"{topology}; pass the value of state_dict() unchanged"
            )

    def _refuse_own_rows(self, position: StreamPosition) -> None:
        """Refuse a position of a rank that counted its own rows alone, if the table grew or the job is another."""
        if position.extents:
            raise ResumeError(
                "the state was saved with count_filtered=False, so it is unknown which rows were taken before the "
                "table grew; leave on_growth out, or count_filtered=True"
            )
        if (position.rank, position.stage.topology) != (self.rank, self.planner.topology):
            raise ResumeError(
                "the state was saved with count_filtered=False, so that only rank "
                f"{position.rank} of the same job can continue from it; pass count_filtered=True for states that any "
                "rank can load"
            )


def _refuse_shape(topology: Topology, options: LoaderOptions, planner: Planner) -> None:
    """Refuse the shape of a job, from a state, that could not be made with a job's options.

    Raises:
        ConfigError: names the option.
        ResumeError: rows that nobody counts, or that a strategy deals, cannot be even.
    """
    even, window, drop = topology.even_ranks, topology.shuffle_buffer_size, topology.drop_last
    if (even, window, drop) == (options.even_ranks, options.row_window, options.drop_last):
        return
    if isinstance(window, Mixing):
        window = window.rows
    replace(options, shuffle_buffer_size=window, even_ranks=even, drop_last=drop)
    if even is not None and not (planner.strategy.cuts and planner.counted):
        raise ResumeError(
            f"the state is of a job with even_ranks={even!r}, which {planner.strategy.name} and count_filtered="
            f"{options.count_filtered} do not allow; pass the value of state_dict() unchanged"
        )
