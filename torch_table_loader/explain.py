"""What an epoch will read, and why, as a value that prints as tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_table_loader.engine.salvage import told
from torch_table_loader.engine.sizes import collated_ahead

if TYPE_CHECKING:
    from torch_table_loader.engine.jobs.job import FetchLoad, Job
    from torch_table_loader.planning.pack_counts import PackCounts


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
class FetchPlan:
    """What this rank fetches from an object store in the epoch.

    Args:
        requests: that it sends where none fails.
        num_bytes: compressed bytes that those ask for.
        amplification: those over the bytes that are decoded.
        ahead_bytes: compressed bytes that each process fetches ahead of decoding at most.
    """

    requests: int
    num_bytes: int
    amplification: float
    ahead_bytes: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """The plan of an epoch.

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
        epoch: which.
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
        fetch: what is fetched from an object store; None where the files are on this machine, or where footers are
            read with them.
        packing: what packing makes of the epoch's documents, over all ranks and before `drop_last` and padding of
            ranks; None where rows are not packed.
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
    fetch: FetchPlan | None = None
    packing: PackCounts | None = None

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
            *self._fetch_lines(),
            *([] if self.packing is None else [f"packing    {self.packing}"]),
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

    def _fetch_lines(self) -> list[str]:
        fetch = self.fetch
        if fetch is None:
            return []
        asked = f"{fetch.num_bytes:,} bytes in {fetch.requests:,} requests, {fetch.amplification:.2f} x what is decoded"
        return [f"fetches    {asked}; up to {fetch.ahead_bytes:,} bytes ahead"]


def explain(job: Job, epoch: int) -> Explanation:
    """Return the plan of an epoch; tables of a mixture are summed up.

    Args:
        job: the rank's share.
        epoch: from 0.
    """
    outline, tables = job.outline(epoch), list(job.tables.values())
    lanes, layouts = len(outline.lanes), [table.layout for table in tables]
    rows, steps = outline.rows_per_rank, outline.steps_per_rank
    return Explanation(
        files=sum(map(len, layouts)),
        row_groups=sum(len(layout.group_rows) for layout in layouts),
        pruned_files=sum(layout.pruned_files for layout in layouts),
        pruned_row_groups=sum(layout.pruned_groups for layout in layouts),
        rows=sum(layout.num_rows for layout in layouts),
        live_rows=outline.live_rows,
        stored_bytes=sum(layout.num_bytes for layout in layouts),
        splits=outline.splits,
        strategy=outline.strategy,
        epoch=epoch,
        rank=job.rank,
        num_ranks=job.topology.num_ranks,
        batch_size=job.topology.batch_size,
        rows_per_rank=None if rows is None else tuple(rows),
        steps_per_rank=None if steps is None else tuple(steps),
        steps=outline.steps,
        workers=tuple(WorkerLoad(lane, *load) for lane, load in enumerate(outline.lanes)),
        servers=job.num_threads,
        schema=tuple((field.name, str(field.type)) for field in job.schema(job.start(epoch))),
        memory_bound=lanes * outline.rows_in_flight * job.row_bytes + outline.held_bytes,
        collated_batches=collated_ahead(job.options, lanes),
        footer_bytes=sum(table.footer_bytes for table in tables),
        notes=(*outline.notes, *(told(table.left_out) for table in tables if table.left_out)),
        fetch=None if outline.fetch is None else _fetch_plan(outline.fetch, job),
        packing=outline.packing,
    )


def _fetch_plan(load: FetchLoad, job: Job) -> FetchPlan:
    amplification = load.num_bytes / max(1, load.needed_bytes)
    return FetchPlan(load.requests, load.num_bytes, amplification, job.options.target_read_ahead_bytes)
