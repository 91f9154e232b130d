"""What an epoch will read, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.engine.salvage import told
from torch_table_loader.engine.sizing import collated_ahead
from torch_table_loader.errors import ConfigError
from torch_table_loader.explanation import Explanation, FetchPlan, WorkerLoad
from torch_table_loader.planning.order_sample import OrderSample, sample_order
from torch_table_loader.planning.size_counts import SizeCounts

if TYPE_CHECKING:
    from torch_table_loader.engine.jobs.job import FetchLoad, Job
    from torch_table_loader.planning.layout import TableLayout


def explain(job: Job, epoch: int) -> Explanation:
    """Return the plan of an epoch; tables of a mixture are summed up."""
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
        notes=(
            *outline.notes,
            *(told(table.left_out) for table in tables if table.left_out),
            *(hint for name, table in job.tables.items() if not name for hint in table.hints(job.options.columns)),
        ),
        kept_rows=sum(int(layout.group_rows[layout.group_kept].sum()) for layout in layouts),
        undeleted_rows=_undeleted(layouts),
        file_sizes=SizeCounts.of(np.concatenate([layout.file_bytes for layout in layouts])),
        group_sizes=SizeCounts.of(np.concatenate([layout.group_bytes for layout in layouts])),
        order=_order(job, epoch, outline.steps),
        fetch=None if outline.fetch is None else _fetch_plan(outline.fetch, job),
        packing=outline.packing,
    )


def _fetch_plan(load: FetchLoad, job: Job) -> FetchPlan:
    amplification = load.num_bytes / max(1, load.needed_bytes)
    return FetchPlan(load.requests, load.num_bytes, amplification, job.options.target_read_ahead_bytes)


def _undeleted(layouts: list[TableLayout]) -> int | None:
    """Count the rows that deletes leave of the row groups that are read; None where that takes reading."""
    live = np.concatenate([layout.group_live[layout.group_kept] for layout in layouts])
    return None if (live < 0).any() else int(live.sum())


def _order(job: Job, epoch: int, steps: int | None) -> OrderSample:
    """Sample the order of this rank's rows; nothing is read."""
    if job.options.pack is not None:
        return OrderSample.missing("batches are sequences of tokens, not rows of the table")
    if steps is None:
        return OrderSample.missing("rows are not counted, or the epoch has no end")
    start, layouts = job.start(epoch), {name: table.layout for name, table in job.tables.items()}
    try:
        return sample_order(lambda step, most: job.rows_of(start, step, most), steps, job.topology.batch_size, layouts)
    except ConfigError as error:  # of mixtures, deletes and filters may decide which row is which
        return OrderSample.missing(str(error))
