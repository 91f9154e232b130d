"""Everything that is decided at construction: a table, how it is read, and who reads what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from torch_table_loader.arrow.datatypes import is_variable, width_of
from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.calling import warn_caller
from torch_table_loader.engine.fitting import codec_of, columns_of, planner_of, strategy_of, with_padding
from torch_table_loader.engine.machine import ranks_on_this_node, servers_for, usable_cpus
from torch_table_loader.engine.sizes import blocks_of_a_process, rows_of_a_read
from torch_table_loader.engine.state import identity, read_state, write_state
from torch_table_loader.engine.survey import Table, survey
from torch_table_loader.engine.work import EpochWork
from torch_table_loader.errors import ResumeError
from torch_table_loader.planning.epoch import uneven_steps
from torch_table_loader.planning.lanes import RankPlan
from torch_table_loader.planning.rows_of import LiveSpan, RowSpan, spans_of_batch
from torch_table_loader.planning.runs import Runs

if TYPE_CHECKING:
    from torch_table_loader.contracts import Source
    from torch_table_loader.engine.planner import PlannedEpoch, Planner
    from torch_table_loader.engine.ranks import RankInfo
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.cursor import Cursor
    from torch_table_loader.planning.ranks import Topology
    from torch_table_loader.planning.strategies import Strategy
    from torch_table_loader.read.tasks import TaskReader
    from torch_table_loader.source.plan_cache import PlanCache


@dataclass(frozen=True, eq=False)
class Job:
    """One rank's share of a table, ready to be planned and read in any epoch. It pickles.

    Args:
        options: the caller's.
        table: surveyed.
        reader: reads its rows.
        strategy: splits it.
        planner: plans its epochs.
        rank: this rank.
        row_bytes: decoded bytes of a row, values of variable width taken at `_VARIABLE_BYTES`.
        read_rows: rows that a lane reads at a time.
        identity: of which table and options this is; see `engine.state`.
        fork_safe: whether planning left no threads behind that a fork would break.
    """

    options: LoaderOptions
    table: Table
    reader: TaskReader
    strategy: Strategy
    planner: Planner
    rank: int
    row_bytes: int
    read_rows: int
    identity: Mapping[str, Any]
    fork_safe: bool

    @classmethod
    def open(
        cls,
        source: Source,
        options: LoaderOptions,
        ranks: RankInfo,
        cache: PlanCache | None,
        *,
        split_deletes: bool = False,
        lazy: bool = False,
    ) -> Job:
        """Survey the table, check the options against it, and cut it.

        Args:
            source: the table.
            options: the caller's.
            ranks: this rank, of how many.
            cache: footers and counts that are kept; or None.
            split_deletes: whether files that have deletes may be cut.
            lazy: plan by the table's metadata, and read footers with the files.

        Raises:
            ConfigError: an option does not fit the table or another option.
            TableError: the table cannot be read as it was asked for.
        """
        table = survey(
            source,
            options.filters,
            options.schema,
            cache,
            split_deletes=split_deletes,
            lazy=lazy,
            verify_checksums=options.verify_checksums,
        )
        columns = columns_of(table, options)
        row_bytes = sum(width_of(table.schema.field(name).type) for name in columns) or 1
        largest = int(table.layout.group_rows.max(initial=0))
        read_rows = rows_of_a_read(row_bytes, options.batch_size, largest)
        reader = table.reader(columns, options.filters, row_ids=options.row_id, max_rows=read_rows)
        codec_of(table, reader.schema, columns, options)
        strategy = strategy_of(options, ranks)
        planner = planner_of(table, options, strategy, ranks.num_ranks, cache)
        said = identity(table, reader.schema, options, strategy.name, planner.digest())
        stores = [table.storage, *([] if cache is None else [cache.storage])]
        fork_safe = all(getattr(store, "fork_safe", False) for store in stores)
        job = cls(options, table, reader, strategy, planner, ranks.rank, row_bytes, read_rows, said, fork_safe)
        job.planner.plan(planner.start(0), ranks.rank)
        job.warn_of_uneven_steps()
        return job

    @property
    def topology(self) -> Topology:
        """The job's shape."""
        return self.planner.topology

    @property
    def counted(self) -> bool:
        """Whether live rows are known before reading."""
        return self.planner.counted

    @property
    def servers(self) -> int:
        """Threads or processes that serve the lanes on this machine."""
        return servers_for(self.topology.lanes, usable_cpus(), ranks_on_this_node())

    @property
    def blocks(self) -> tuple[int, int]:
        """Batches that cross a process together, and how many such blocks of a lane wait there."""
        options, layout = self.options, self.table.layout
        stored = int(layout.group_bytes.sum()) // max(1, layout.num_rows)
        guessed = any(map(is_variable, self.reader.schema.types))
        row_bytes = max(self.row_bytes, stored) if guessed else self.row_bytes
        return blocks_of_a_process(
            row_bytes, options.batch_size, options.prefetch_batches, collated=options.collate_fn is not None
        )

    def with_lanes(self, lanes: int) -> Job:
        """Return the same job with another number of lanes."""
        if lanes == self.topology.lanes:
            return self
        return replace(self, planner=self.planner.with_lanes(lanes))

    def close_clients(self) -> None:
        """Close this process's client of the table's store."""
        self.table.storage.close()

    def state(self, cursor: Cursor) -> dict[str, Any]:
        """Write where the job stands."""
        return write_state(self.identity, cursor)

    def begin(self, cursor: Cursor) -> None:
        """Take note that an epoch begins: nothing to do."""

    def resume(self, state: Mapping[str, Any]) -> tuple[Job, Cursor]:
        """Find where a state says to go on.

        Args:
            state: what `write_state` wrote, on any rank of a job of any size.

        Returns:
            This job, with the state's number of lanes where the caller named none, and where it goes on.

        Raises:
            ResumeError: the state does not fit; names what differs.
        """
        cursor = read_state(self.identity, self.table, state)
        job = self if self.options.num_workers is not None else self.with_lanes(cursor.stage.topology.lanes)
        job._check(cursor)
        return job, cursor if job._stays(cursor) else cursor.on(job.topology)

    def _check(self, cursor: Cursor) -> None:
        if cursor.rank is not None and (cursor.rank, cursor.stage.topology) != (self.rank, self.topology):
            raise ResumeError(
                "the state was saved with count_filtered=False, so that only rank "
                f"{cursor.rank} of the same job can go on from it; count_filtered=True makes states that any rank loads"
            )
        if cursor.rank is None and not self.planner.counted:
            raise ResumeError(
                "the state counts rows that pass the filter, and count_filtered=False gave that up; leave it True"
            )
        if cursor.ended:
            longest = max(self.planner.steps_of_ranks(cursor, count=True) or [0])
            if longest > cursor.stage.steps:
                raise ResumeError(
                    f"the state was taken on a rank that had ended after {cursor.stage.steps} steps, while others take "
                    f"up to {longest}; load the state of a rank that was still running, or the start of the next epoch"
                )

    def _stays(self, cursor: Cursor) -> bool:
        """Whether the cursor's stage goes on here, or no rank has a step left in it."""
        if cursor.stage.topology == self.topology:
            return True
        steps = self.planner.steps_of_ranks(cursor, count=True) if self.planner.counted else None
        return steps is not None and 0 < cursor.stage.steps >= max(steps)

    def start(self, epoch: int) -> Cursor:
        """Stand at the start of an epoch; where rows are not counted, for this rank alone."""
        start = self.planner.start(epoch)
        return start if self.planner.counted else replace(start, rank=self.rank)

    def schema(self, cursor: Cursor) -> pa.Schema:
        """The Arrow schema of what comes out."""
        return with_padding(self.reader.schema, marks=self.planned(cursor).marks_padding)

    def planned(self, cursor: Cursor) -> PlannedEpoch:
        """Plan a stage of an epoch for this rank; of one that another topology has finished, nothing is left."""
        if cursor.stage.topology == self.topology:
            return self.planner.plan(cursor, self.rank)
        whole = self.planner.plan(self.planner.start(cursor.epoch), self.rank)
        empty = tuple(Runs.of([]) for _ in range(self.topology.lanes))
        nothing = RankPlan(empty, Runs.of([]), self.topology.batch_size, 0)
        return replace(whole, plan=nothing, windows=(), longest=cursor.stage.steps)

    def work(self, cursor: Cursor) -> EpochWork:
        """Make a value that threads and processes can work on.

        Args:
            cursor: the epoch and its past stages.
        """
        planned = self.planned(cursor)
        options = self.options
        block_batches, blocks_ahead = self.blocks
        return EpochWork(
            plan=planned.plan,
            rank=self.rank,
            segments=planned.segments,
            reader=self.reader,
            codec=make_codec(self.schema(cursor), TypePolicy.of(options)),
            windows=planned.windows,
            seed=options.shuffle_seed,
            epoch=cursor.epoch,
            window=options.shuffle_buffer_size,
            marks_padding=planned.marks_padding,
            collate_fn=options.collate_fn,
            drop_last=options.drop_last,
            block_batches=block_batches,
            blocks_ahead=blocks_ahead,
        )

    def rows_of(self, cursor: Cursor, step: int) -> list[RowSpan | LiveSpan]:
        """Return which rows a batch delivers; see `TableLoader.rows_of`."""
        planned = self.planned(cursor)
        key = (self.topology.shuffle_buffer_size, self.options.shuffle_seed, cursor.epoch)
        live_before = self.planner.live_before
        return spans_of_batch(planned.plan, planned.segments, planned.windows, key, live_before, step)

    def warn_of_uneven_steps(self) -> None:
        """Say once that ranks take unequally many steps, since that hangs a job that synchronises each step."""
        if self.topology.num_ranks == 1 or self.options.even_ranks is not None or self.strategy.form == "generator":
            return
        remedy = 'pass even_ranks="balance" (or "drop", "pad")' if self.strategy.cuts else "let the strategy even them"
        steps = self.planner.steps_of_ranks(self.planner.start(0))
        if steps is None:
            warn_caller(
                f"under a row filter each of {self.topology.num_ranks} ranks counts its own rows, and steps may "
                f"differ; a job that synchronises each step (DDP) then hangs; {remedy}"
            )
        elif (shown := uneven_steps(steps)) is not None:
            warn_caller(
                f"ranks take unequally many steps: {shown}; a job that synchronises each step (DDP) then hangs; "
                f"{remedy}"
            )
