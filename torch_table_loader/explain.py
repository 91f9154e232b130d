"""What an epoch will read, and why, as a value that prints as tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.engine.crossing import SPARE_SLOTS
from torch_table_loader.engine.sizes import BLOCKS_AHEAD
from torch_table_loader.planning.distinct import distinct

if TYPE_CHECKING:
    from torch_table_loader.engine.job import Job
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.lanes import RankPlan


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What one worker of this rank reads in the epoch.

    Args:
        worker: its number.
        splits: pieces of splits.
        rows: live rows.
        num_bytes: their share of the splits' bytes, before compression.
        steps: batches that it makes.
    """

    worker: int
    splits: int
    rows: int
    num_bytes: int
    steps: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """A plan, told.

    Args:
        files: data files of the table.
        row_groups: of all files.
        pruned_files: of which no row group is read.
        pruned_row_groups: that statistics or partition values rule out.
        rows: physical rows of the table.
        live_rows: rows that deletes and filters leave, over all ranks; None where this rank does not know.
        stored_bytes: bytes of the files, compressed.
        splits: of the table.
        strategy: what cut them.
        epoch: of which this speaks.
        rank: this rank.
        num_ranks: of how many.
        batch_size: rows of a batch.
        rows_per_rank: None where a rank knows its own rows alone.
        steps_per_rank: None likewise.
        steps: of this rank; None where rows are not counted.
        workers: this rank's.
        servers: threads or processes that serve them here.
        schema: what comes out, column by column.
        memory_bound: bytes of decoded rows in flight at most, where values have the widths that were assumed.
        collated_batches: results of `collate_fn` that wait at most, beside those rows; 0 without one. How large one is
            nobody knows before.
        footer_bytes: bytes of footers that are held.
        notes: what was pruned and why, and what was not.
    """

    files: int
    row_groups: int
    pruned_files: int
    pruned_row_groups: int
    rows: int
    live_rows: int | None
    stored_bytes: int
    splits: int
    strategy: str
    epoch: int
    rank: int
    num_ranks: int
    batch_size: int
    rows_per_rank: tuple[int, ...] | None
    steps_per_rank: tuple[int, ...] | None
    steps: int | None
    workers: tuple[WorkerLoad, ...]
    servers: int
    schema: tuple[tuple[str, str], ...]
    memory_bound: int
    collated_batches: int
    footer_bytes: int
    notes: tuple[str, ...]

    def __str__(self) -> str:
        """Lay the plan out for reading."""
        live = "unknown" if self.live_rows is None else f"{self.live_rows:,}"
        steps = "unknown" if self.steps is None else f"{self.steps:,}"
        footers = f"{self.footer_bytes:,}"
        collated = f", plus up to {self.collated_batches:,} collated batches" if self.collated_batches else ""
        lines = [
            (
                f"table      {self.files:,} files, {self.row_groups:,} row groups, {self.rows:,} rows ({live} live), "
                f"{self.stored_bytes:,} bytes stored"
            ),
            f"pruned     {self.pruned_files:,} files, {self.pruned_row_groups:,} row groups",
            f"splits     {self.splits:,} by {self.strategy}",
            f"epoch {self.epoch}    rank {self.rank} of {self.num_ranks}: {steps} steps of {self.batch_size:,} rows",
            f"memory     {self.memory_bound:,} bytes of rows in flight at most{collated}; {footers} of footers",
            f"workers    {len(self.workers)}, served by {self.servers} threads or processes",
        ]
        lines += [
            f"  worker {w.worker}: {w.splits:,} pieces, {w.rows:,} rows, {w.num_bytes:,} bytes, {w.steps:,} steps"
            for w in self.workers
        ]
        if self.steps_per_rank is not None and self.rows_per_rank is not None:
            lines += [
                f"  rank {rank}: {rows:,} rows, {count:,} steps"
                for rank, (rows, count) in enumerate(zip(self.rows_per_rank, self.steps_per_rank, strict=True))
            ]
        lines += [f"  {name}: {kind}" for name, kind in self.schema]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def explain(job: Job, epoch: int) -> Explanation:
    """Tell the plan of an epoch.

    Args:
        job: the rank's share of a table.
        epoch: from 0.
    """
    layout, planner = job.table.layout, job.planner
    start = planner.start(epoch)
    planned = planner.plan(start, job.rank)
    rows_per_rank = planner.rows_of_ranks(start)
    steps = planner.steps_of_ranks(start) if planner.counted else None
    live = planned.segments.live_rows()
    whole_table = job.strategy.cuts and planner.counted and bool((live >= 0).all())
    return Explanation(
        files=len(layout),
        row_groups=len(layout.group_rows),
        pruned_files=layout.pruned_files,
        pruned_row_groups=layout.pruned_groups,
        rows=layout.num_rows,
        live_rows=int(live.sum()) if whole_table else None,
        stored_bytes=layout.num_bytes,
        splits=len(planned.segments.splits),
        strategy=job.strategy.name,
        epoch=epoch,
        rank=job.rank,
        num_ranks=job.topology.num_ranks,
        batch_size=job.topology.batch_size,
        rows_per_rank=None if rows_per_rank is None else tuple(rows_per_rank),
        steps_per_rank=None if steps is None else tuple(steps),
        steps=planned.plan.steps if planner.counted else None,
        workers=tuple(_load(job, planned.plan, epoch, lane) for lane in range(job.topology.lanes)),
        servers=job.servers,
        schema=tuple((field.name, str(field.type)) for field in job.schema(start)),
        memory_bound=_memory_bound(job),
        collated_batches=collated_ahead(job.options, job.topology.lanes),
        footer_bytes=job.table.footer_bytes,
        notes=tuple(_notes(job)),
    )


def _load(job: Job, plan: RankPlan, epoch: int, lane: int) -> WorkerLoad:
    segments = job.planner.plan(job.planner.start(epoch), job.rank).segments
    layout = job.table.layout
    runs = plan.lanes[lane]
    density = layout.group_bytes.sum() / max(1, layout.num_rows)
    rows = segments.metadata_rows()[runs.split]
    live = np.maximum(segments.live_rows()[runs.split], 1)
    share = np.minimum(1.0, (runs.stop - runs.start) / live)
    steps = plan.batches_before(plan.steps)[lane]
    return WorkerLoad(lane, len(runs), runs.num_rows, int((rows * share * density).sum()), steps)


def _memory_bound(job: Job) -> int:
    """Rows in flight of every lane, and a shuffle window twice as it turns."""
    window = 2 * (job.options.shuffle_buffer_size or 0)
    return job.topology.lanes * (rows_in_flight(job.options, job.read_rows, job.blocks) + window) * job.row_bytes


def rows_in_flight(options: LoaderOptions, read_rows: int, blocks: tuple[int, int]) -> int:
    """Bound the rows that a lane holds, windows left out.

    In threads: one read that is being made or cut, one that is being taken, and those that the batches which wait are
    views of. From processes: one read, the block that it fills, the slots that blocks cross in (with a quarter to
    spare), and two that were copied out: one being taken, one that came early.

    Args:
        options: the caller's.
        read_rows: rows of a read.
        blocks: batches of a block that crosses a process, and how many of a lane wait.
    """
    size = options.batch_size
    if options.worker_type == "process" and options.num_workers != 0:
        block_batches, blocks_ahead = blocks
        slots = (blocks_ahead + SPARE_SLOTS) * 5 // 4
        return read_rows + (3 + slots) * block_batches * size
    given = options.prefetch_batches
    waiting = BLOCKS_AHEAD if given is None else -(-given * size // read_rows)
    return (2 + waiting) * read_rows


def collated_ahead(options: LoaderOptions, lanes: int) -> int:
    """Bound the results of `collate_fn` that wait to be taken, over all lanes."""
    if options.collate_fn is None or options.num_workers == 0:
        return 0
    return lanes * (options.prefetch_batches or BLOCKS_AHEAD)


def _notes(job: Job) -> list[str]:
    layout, options = job.table.layout, job.options
    notes = [job.table.description] if job.table.description else []
    notes += job.table.notes
    if layout.has_deletes:
        fewer = np.flatnonzero(layout.group_live != layout.group_rows)
        deleting = len(distinct(np.searchsorted(layout.group_offsets, fewer, side="right")))
        notes.append(f"{deleting:,} of {len(layout):,} data files have deletes")
    if options.filters is not None:
        pruned, groups = layout.pruned_groups, len(layout.group_rows)
        notes.append(
            f"the filter {options.filters} rules {pruned:,} of {groups:,} row groups out by partition values and "
            "statistics; the others are read and filtered row by row"
        )
        if not options.count_filtered:
            notes.append("rows that pass the filter are not counted (count_filtered=False): no length, no equal steps")
    if job.strategy.form == "generator" and job.topology.num_ranks > 1:
        notes.append(f"{job.strategy.name} does not take ranks: every rank reads the whole table")
    return notes
