"""What one rank reads, epoch by epoch: the base of both kinds of job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.engine.jobs.resolve import codec_of, columns_of
from torch_table_loader.engine.machine import ranks_on_this_node, threads_for, usable_cpus
from torch_table_loader.engine.sizing import LANE_COPIES, blocks_of_a_process, collated_ahead
from torch_table_loader.engine.state import write_state
from torch_table_loader.engine.survey import described
from torch_table_loader.errors import ConfigError
from torch_table_loader.planning.ranks import Topology
from torch_table_loader.planning.steps import num_steps
from torch_table_loader.samples import LENGTH
from torch_table_loader.schedules import Done, Schedule

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_table_loader.batching.rows import RowsCodec
    from torch_table_loader.engine.explanation import Explanation
    from torch_table_loader.engine.jobs.planner import PlannedStage
    from torch_table_loader.engine.saved_state import Bound, Kind, SavedState
    from torch_table_loader.engine.state_records import Written
    from torch_table_loader.engine.table import Table
    from torch_table_loader.engine.work.lane_work import LaneWork
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.order_sample import OrderSample
    from torch_table_loader.planning.rows_of import LiveSpan, RowSpan, SourceRow
    from torch_table_loader.planning.stages import Position
    from torch_table_loader.samples import SampleCounts, Samples


_NO_FILES = (
    '{} needs batches that each come from one file, but shuffle="rows" and mixtures draw rows from all files; pass '
    'batch_by="file" and another shuffle='
)


@dataclass(slots=True)
class Asked:
    """What the caller asks of epochs that run; `Job.current` takes it up.

    Args:
        changes: how often something else was asked for.
    """

    changes: int = 0


_NOTHING = Asked()


@dataclass(frozen=True, eq=False, kw_only=True)
class Job(ABC):
    """One rank's share of a table or of several, ready to be planned and read in any epoch. It pickles.

    Args:
        schedules: what changes on all ranks at a step, by the option that says so; each change begins a stage.
        row_bytes: decoded bytes of a row, with estimates for values of variable width.
        columns: the schema of what comes out, without the column `padding`.
        fork_safe: whether planning left no threads behind that a fork would break.
    """

    options: LoaderOptions
    rank: int
    topology: Topology
    schedules: Mapping[str, Schedule]
    row_bytes: int
    columns: pa.Schema
    fork_safe: bool

    can_be_mixed: ClassVar[bool] = False
    """Whether the job may become a source of a mixture, which takes steps of its own."""

    @property
    @abstractmethod
    def tables(self) -> Mapping[str, Table]:
        """The tables, by name of their source; a table alone has the name ""."""

    kind: ClassVar[Kind]

    @property
    def asked(self) -> Asked:
        """What the caller asks of epochs that run."""
        return _NOTHING

    @property
    @abstractmethod
    def bound(self) -> Bound:
        """The table and options that a state of the job is bound to; of a mixture, the options alone."""

    @property
    def compared(self) -> Mapping[str, Any]:
        """All that decides the order, by name: what ranks compare."""
        own = self.bounds[""]
        return {**own.table, **own.options, **self._compared_options}

    @property
    def _compared_options(self) -> dict[str, Any]:
        """Options that no state is bound to, and ranks must have in common."""
        options = self.options
        named = {name: getattr(options, name) for name in ("on_growth", "epochs", "count_filtered")}
        return {**named, **self._compared_schedules}

    @property
    def _compared_schedules(self) -> dict[str, Any]:
        """What changes in an epoch, as plain data; the length of samples also where it does not change."""
        by_step = {f"{name} by step": each.as_list for name, each in self.schedules.items()}
        return {**self.samples.compared, **by_step}

    @property
    def samples(self) -> Samples:
        """What a batch counts."""
        return self.options.samples

    @property
    def changes_length(self) -> bool:
        """Whether samples have other lengths from some step on."""
        return LENGTH in self.schedules

    @property
    def counted(self) -> bool:
        """Whether live rows are known before reading."""
        return True

    @property
    def collated_at_once(self) -> int:
        """Batches of a lane with which the caller's functions are called side by side."""
        return 1

    @property
    def unit_bytes(self) -> int:
        """Bytes of what batches count."""
        return self.row_bytes

    @property
    def rows_of_a_batch(self) -> int:
        """The rows that a batch has, as a rule."""
        return self.topology.batch_size

    @property
    def batches_at_once(self) -> int | None:
        """The most batches that a thread finishes together; None: all that a read completes."""
        return None

    @property
    def num_threads(self) -> int:
        """Threads or processes that serve the lanes on this machine."""
        return threads_for(self.topology.lanes, usable_cpus(), ranks_on_this_node())

    @property
    def blocks(self) -> tuple[int, int]:
        """Batches that cross a process together, and how many such blocks of a lane wait there."""
        options = self.options
        asked = self.unit_bytes, options.batch_rows, options.prefetch_batches
        return blocks_of_a_process(*asked, collated=options.calls_functions, memory=options.memory)

    def with_lanes(self, lanes: int) -> Self:
        """Return the same job with another number of lanes."""
        return self if lanes == self.topology.lanes else replace(self, topology=replace(self.topology, lanes=lanes))

    @abstractmethod
    def start(self, epoch: int) -> Position:
        """Return the start of an epoch.

        Raises:
            ConfigError: the epoch has no row, since all are excluded or a source of a mixture is empty.
        """

    def begin(self, position: Any) -> None:  # noqa: B027 a stream has nothing to note
        """Note that an epoch begins to run."""

    def current(self, position: Any) -> Any:
        """Return a position with what the caller changed since; the position itself if nothing did."""
        return position

    def following(self, position: Any) -> Any:
        """Return where the job continues in the epoch when the newest stage has ended; None: with nothing.

        Sequences of another length or other weights make another stage, of which `planned` gives the steps until then.
        """
        until = self._until(position)
        if until is None or (self.planned(position).longest or 0) < until:
            return None
        after = self.next_stage(position.after(until))
        return after if after.steps_before > position.steps_before and self.planned(after).longest else None

    def stages(self, position: Any) -> Iterator[Any]:
        """Yield a position, and the begins of the stages of the epoch that follow its own."""
        while position is not None:
            yield position
            position = self.following(position)

    def steps_of_epoch(self, position: Any) -> int:
        """Count the steps of this rank in a position's epoch: those that were taken, and those to come.

        If some were taken under another topology, the epoch has the steps that it would have had without that:
        frameworks keep this number for the epochs that follow.

        Raises:
            TypeError: the number is not known, or has no end.
        """
        if self.kept_shape(position):
            return int(position.steps_before) + self._steps_from(position)
        return max(self._steps_from(self.start(position.epoch)), self.steps_left(position))

    def steps_left(self, position: Any) -> int:
        """Count the batches of this rank that come after a position in its epoch."""
        taken: int = position.stage.steps
        return max(0, self._steps_from(position) - taken)

    def _steps_from(self, position: Any) -> int:
        """Count the steps from the begin of a position's stage to the end of the epoch."""
        return sum(num_steps(self.planned(stage).plan) for stage in self.stages(position))

    @abstractmethod
    def kept_shape(self, position: Any) -> bool:
        """Return whether all steps of the epoch before a position were those of this topology."""

    def at(self, epoch: int, steps: int) -> Any:
        """Return the position so many steps into an epoch."""
        position = self.start(epoch)
        while (until := self._until(position)) is not None and steps >= until:
            if (after := self.following(position)) is None:
                break
            position, steps = after, steps - until
        return position.after(steps)

    def behind(self, position: Any, batches: int) -> tuple[Any, int]:
        """Return where the job is once it has taken more global batches of an epoch, and how many the epoch lacks."""
        while True:
            micro, planned = position.stage.topology.micro_batches, self.planned(position)
            until, steps = self._until(position), position.stage.steps + batches * micro
            if until is None or steps <= until or (after := self.following(position)) is None:
                break
            batches -= -(-(until - position.stage.steps) // micro)
            self.enter(position.after(until), after)
            position = after
        plan, longest = planned.plan, planned.longest
        if not plan.counted or plan.endless:
            return position.after(steps), 0
        taken = min(steps, plan.steps)
        missing = max(0, steps - (taken if longest is None else longest)) // micro
        return position.after(taken, ended=taken == plan.steps and longest != taken), missing

    def step_of_sample(self, epoch: int, sample: int) -> int:
        """Return the step of an epoch that takes a sample of all ranks."""
        for stage in self.stages(self.start(epoch)):
            size, until = self._step(stage.stage.topology).samples, self._until(stage)
            if until is None or sample < until * size:
                break
            sample -= until * size
        return int(stage.steps_before) + sample // size

    @abstractmethod
    def next_stage(self, position: Any) -> Any:
        """Return the position with a new stage for the steps that come."""

    def enter(self, before: Any, position: Any) -> None:  # noqa: B027 a stream finds any place at once
        """Note that the job comes from one stage of an epoch to the next."""

    def state(self, position: Any) -> dict[str, Any]:
        """Write where the job is, with what the caller changed since, as plain data that is equal on every rank."""
        position = self.current(position)
        return write_state(self.kind, self.bounds, position.epoch, position.history(), self.records(position))

    @property
    def own_records(self) -> tuple[str, ...]:
        """The keys of what a state of this job must say beside the core's part; see `StateRecord`."""
        return ()

    def records(self, position: Any) -> dict[str, Written]:  # noqa: ARG002 a stream needs none
        """Return what a state says beside the core's part, by key."""
        return {}

    @cached_property
    def bounds(self) -> Mapping[str, Bound]:
        """The tables and options that a state is bound to, by name of their source."""
        return {"": self.bound}

    def bounds_before_growth(self, saved: SavedState) -> Mapping[str, Bound]:  # noqa: ARG002 see `StreamJob`
        """Return what a state of before the table grew is bound to."""
        return self.bounds

    @abstractmethod
    def resume(self, saved: SavedState) -> tuple[Self, Position]:
        """Return the job that continues from a state, written on any rank of a job of any size, and its position.

        Args:
            saved: of the tables and options of this job; see `check_state`.

        Raises:
            ResumeError: no job over these tables has such a position.
        """

    def warn_of_undone(self, other: Self) -> None:  # noqa: B027 nothing of a stream can be undone
        """Warn of the caller's changes to this job that its replacement does not have."""

    def refuse_nulls(self) -> None:
        """Refuse columns in which statistics prove a null, and the output cannot hold one.

        Raises:
            TableError: names the column, a file, and the remedies.
        """
        for table in self.tables.values():
            codec_of(table, self.columns, columns_of(table, self.options), self.options)

    def check_alone(self) -> None:  # noqa: B027 most jobs may all that sources of a mixture may
        """Refuse what a source of a mixture may be, and a job that is read itself may not.

        Raises:
            ConfigError: names the option.
        """

    @abstractmethod
    def warn_of_uneven_steps(self) -> None:
        """Warn if ranks take different numbers of steps, which hangs a job that synchronises each step."""

    @abstractmethod
    def schema(self, position: Any) -> pa.Schema:
        """Return the Arrow schema of what comes out."""

    @abstractmethod
    def planned(self, position: Any) -> PlannedStage:
        """Plan a stage of an epoch for this rank, on the lanes of this job."""

    @abstractmethod
    def work(self, position: Any) -> LaneWork:
        """Return a value that threads and processes can work on."""

    @abstractmethod
    def rows_of(self, position: Any, step: int, most: int | None = None) -> Sequence[RowSpan | LiveSpan | SourceRow]:
        """Return which rows a batch delivers, or the first `most` of them; see `TableLoader.rows_of`."""

    def file_of(self, position: Any) -> str | None:  # noqa: ARG002 rows that are permuted are of any file
        """Return the name of the file that the newest batch is of; see `TableLoader.current_file`.

        Raises:
            ConfigError: batches have rows of several files.
        """
        raise ConfigError(_NO_FILES.format("current_file"))

    def step_of_file(self, epoch: int, file: str) -> int:  # noqa: ARG002 see `file_of`
        """Return the step in which the first rank comes to a file; see `TableLoader.seek`.

        Raises:
            ConfigError: batches have rows of several files, or the epoch has no row of this one.
        """
        raise ConfigError(_NO_FILES.format("seek(file=...)"))

    def at_file(self, epoch: int, number: int) -> Position:  # noqa: ARG002 see `file_of`
        """Return where each rank begins with its own file of a number; see `TableLoader.seek`.

        Raises:
            ConfigError: batches have rows of several files, or no rank has so many.
        """
        raise ConfigError(_NO_FILES.format("seek(file=...)"))

    @abstractmethod
    def num_rows(self, epoch: int) -> int | None:
        """Count the rows that remain after deletes and filters, over all ranks; None if this rank does not know."""

    @abstractmethod
    def num_samples(self, epoch: int) -> int | None:
        """Count the rows, or sequences, of an epoch, over all ranks, before `drop_last` and padding.

        None if they are not known, or have no end.
        """

    @abstractmethod
    def explain(self, epoch: int) -> Explanation:
        """Return the plan of an epoch and the reasons for it."""

    def _explained(
        self,
        epoch: int,
        *,
        strategy: str,
        splits: int,
        live_rows: int | None,
        rows_per_rank: Sequence[int] | None,
        steps_per_rank: Sequence[int] | None,
        steps: int | None,
        loads: Sequence[tuple[int, int, int, int]],
        lane_bytes: int,
        held_bytes: int,
        notes: Sequence[str],
        open_bytes: int = 0,
        built_bytes: int = 0,
        copies: int = LANE_COPIES,
        fetched: tuple[int, int, int] | None = None,
        counts: SampleCounts | None = None,
    ) -> Explanation:
        """Combine the sums over the tables with what this kind of job knows of an epoch.

        Args:
            loads: for each lane, its pieces, rows, decoded bytes and steps.
            lane_bytes: what a lane may hold of its rows, however many it has.
            open_bytes: what the files that a lane has open hold beside that.
            copies: times that a lane may hold its rows.
            built_bytes: what is held before the first batch, and not while batches are made.
            held_bytes: other bytes in memory, such as a row store.
            fetched: requests to the store, bytes that they fetch, and those of them that are decoded.
        """
        from torch_table_loader.engine.explanation import Explanation, FetchPlan, SizeCounts, WorkerLoad

        tables, endless = list(self.tables.values()), steps is None
        layouts = [table.layout for table in tables]
        live = np.concatenate([layout.group_live[layout.group_kept] for layout in layouts])
        return Explanation(
            files=sum(map(len, layouts)),
            row_groups=sum(len(layout.group_rows) for layout in layouts),
            pruned_files=sum(layout.pruned_files for layout in layouts),
            pruned_row_groups=sum(layout.pruned_groups for layout in layouts),
            rows=sum(layout.num_rows for layout in layouts),
            live_rows=live_rows,
            stored_bytes=sum(layout.num_bytes for layout in layouts),
            splits=splits,
            strategy=strategy,
            epoch=epoch,
            rank=self.rank,
            num_ranks=self.topology.num_ranks,
            batch_size=self.rows_of_a_batch,
            rows_per_rank=None if rows_per_rank is None else tuple(rows_per_rank),
            steps_per_rank=None if steps_per_rank is None else tuple(steps_per_rank),
            steps=steps,
            workers=tuple(WorkerLoad(lane, *load) for lane, load in enumerate(loads)),
            servers=self.num_threads,
            schema=tuple((field.name, str(field.type)) for field in self.schema(self.start(epoch))),
            memory_expected=self._in_lanes(loads, lane_bytes, 0, endless=endless)
            + (held_bytes if fetched is None else min(held_bytes, fetched[1])),
            memory_bound=held_bytes
            + max(built_bytes, self._in_lanes(loads, lane_bytes, open_bytes, copies=copies, endless=endless)),
            ranks_on_node=ranks_on_this_node(),
            collated_batches=collated_ahead(self.options, len(loads) * self.collated_at_once),
            footer_bytes=sum(table.footer_bytes for table in tables),
            notes=(*notes, *self._notes_of_all),
            kept_rows=sum(int(layout.group_rows[layout.group_kept].sum()) for layout in layouts),
            undeleted_rows=None if (live < 0).any() else int(live.sum()),
            file_sizes=SizeCounts.of(np.concatenate([layout.file_bytes for layout in layouts])),
            group_sizes=SizeCounts.of(np.concatenate([layout.group_bytes for layout in layouts])),
            order=self._order(epoch, steps),
            fetch=fetched and FetchPlan.of(*fetched, self.options.ahead_bytes),
            counts=counts,
        )

    @property
    def _notes_of_all(self) -> Iterator[str]:
        """What is remarked of any kind of job."""
        yield from self._notes_of_padding
        yield from (described(table.left_out) for table in self.tables.values() if table.left_out)
        yield from self._hints

    def _in_lanes(
        self,
        loads: Sequence[tuple[int, int, int, int]],
        lane_bytes: int,
        open_bytes: int,
        *,
        endless: bool,
        copies: int = 1,
    ) -> int:
        """Return the bytes that lanes come to: what they may hold, or all of theirs so many times if that is less.

        A lane that has nothing to read holds nothing.
        """
        own = [lane_bytes if endless and not rows else rows * self.unit_bytes * copies for _, rows, _, _ in loads]
        return sum(min(lane_bytes, each) + open_bytes for each in own if each)

    def _order(self, epoch: int, steps: int | None) -> OrderSample:
        """Sample the order of this rank's rows; nothing is read."""
        from torch_table_loader.planning.order_sample import OrderSample, sample_order

        if not self.samples.are_rows:
            return OrderSample.missing(f"batches are {self.samples.title}, not rows of the table")
        if steps is None:
            return OrderSample.missing("rows are not counted, or the epoch has no end")
        layouts = {name: table.layout for name, table in self.tables.items()}
        stages = list(self.stages(self.start(epoch)))

        def rows_of(step: int, most: int) -> Sequence[RowSpan | LiveSpan | SourceRow]:
            stage = stages[bisect_right(stages, step, key=lambda stage: stage.steps_before) - 1]
            return self.rows_of(stage, step - stage.steps_before, most)

        try:
            return sample_order(rows_of, steps, self.rows_of_a_batch, layouts)
        except ConfigError as error:  # of mixtures, deletes and filters may decide which row is which
            return OrderSample.missing(str(error))

    @abstractmethod
    def close_clients(self) -> None:
        """Close the stores' clients of this process, so that none crosses into another."""

    def _until(self, position: Any) -> int | None:
        """Return the steps that a stage may have before something changes; None: to the epoch's end."""
        if not self.schedules:
            return None
        done, step = self._done(position.after(0)), self._step(position.stage.topology)
        step = step._replace(tokens=step.samples * self._length_of(position))
        lefts = [each.steps_left(position.epoch, done, step) for each in self.schedules.values()]
        return min((left for left in lefts if left is not None), default=None)

    @cached_property
    def _width(self) -> int:
        """The width of the first samples."""
        return self.samples.width

    @abstractmethod
    def _done(self, position: Any) -> Done:
        """Return what the job has done of a position's epoch."""

    def _step(self, topology: Topology) -> Done:
        """Return what a step is of a job of some shape."""
        return self._did(1, topology.num_ranks * topology.batch_size)

    def _did(self, steps: int, samples: int) -> Done:
        return Done(steps, samples, samples * self._width)

    def _topology_of(self, epoch: int, done: Done) -> Topology:
        """Return the job's shape at a place of an epoch."""
        sizes = self.schedules.get("global_batch_size")
        return self.topology if sizes is None else self._sized(sizes.at(epoch, done))

    def _sized(self, rows: int) -> Topology:
        """Return the job's shape with a global batch size."""
        batch = min(self.options.most_rows, rows // self.topology.num_ranks)
        return replace(self.topology, batch_size=batch, micro_batches=rows // (self.topology.num_ranks * batch))

    def _length_at(self, epoch: int, step: int = 0) -> int:
        """Return the width of the samples of a step."""
        lengths = self.schedules.get(LENGTH)
        length: int = self._width if lengths is None else lengths.at(epoch, Done(step))
        return length

    def _length_of(self, position: Any) -> int:
        """Return the width of the samples of a stage."""
        return self._length_at(position.epoch, position.steps_before)

    def _options_at(self, position: Position) -> LoaderOptions:
        """Return the options with the width that the samples of a stage have."""
        return self.options.of_length(self._length_of(position))

    @property
    def _hints(self) -> list[str]:
        """What `explain()` says of a table that could be read with less."""
        alone = [table for name, table in self.tables.items() if not name]
        return [hint for table in alone for hint in table.hints(self.options.column_names)]

    @property
    def _notes_of_padding(self) -> list[str]:
        """What `explain()` says of ranks that are made to take equally many steps."""
        if not self.topology.marks_padding:
            return []
        return ["ranks take equally many steps, and what is repeated for it is marked as padding"]

    def _codec(self, schema: pa.Schema, options: LoaderOptions) -> RowsCodec[Any]:
        """Return the codec of a schema; it takes microseconds a column to make, and is kept for other epochs."""
        length = options.samples.width
        known, codec = self._codecs.get(length, (None, None))
        if codec is None or not schema.equals(known, check_metadata=True):
            codec = make_codec(schema, TypePolicy.of(options))
            self._codecs[length] = schema, codec
        return codec

    @cached_property
    def _codecs(self) -> dict[int, tuple[pa.Schema, RowsCodec[Any]]]:
        """The last codec and its schema, by the width of samples."""
        return {}

    def _common_work(self, position: Position) -> dict[str, Any]:
        """Return the fields that all work has in common."""
        options = self._options_at(position)
        block_batches, blocks_ahead = self.blocks
        return {
            "rank": self.rank,
            "lanes": self.topology.lanes,
            "epoch": position.epoch,
            "codec": self._codec(self.schema(position), options),
            "marks_padding": self.topology.marks_padding,
            "collate_fn": options.collate_fn,
            "drop_last": options.drop_last,
            "block_batches": block_batches,
            "blocks_ahead": blocks_ahead,
            "batches_at_once": self.batches_at_once,
        }
