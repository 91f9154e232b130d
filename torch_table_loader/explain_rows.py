"""What an epoch in row mode will deliver, and from where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_table_loader.engine.row_share import blocks_of
from torch_table_loader.explain import Explanation, WorkerLoad, collated_ahead, rows_in_flight
from torch_table_loader.planning.global_batches import steps_of_ranks

if TYPE_CHECKING:
    from torch_table_loader.engine.row_job import RowJob


def explain_rows(job: RowJob, epoch: int) -> Explanation:
    """Tell the plan of an epoch in row mode.

    Args:
        job: the rank's share of a table.
        epoch: from 0.
    """
    layout, cursor = job.table.layout, job.start(epoch)
    plan, ranks = job.planned(cursor).plan, range(job.topology.num_ranks)
    steps, lanes = plan.batches_before(plan.steps), job.topology.lanes
    rows = [cursor.batches(rank).num_rows for rank in ranks]
    store = job.keeper
    where = "the memory of this rank" if store.place is None else f"files, as {store.place.name}"
    where = where if store.url is None else f"{store.url.shown}, or this machine's copy of it"
    gathered = job.gather_batches * job.options.batch_size
    in_flight = rows_in_flight(job.options, gathered, blocks_of(job)) * job.row_bytes
    held = store.memory_bytes
    return Explanation(
        files=len(layout),
        row_groups=len(layout.group_rows),
        pruned_files=layout.pruned_files,
        pruned_row_groups=layout.pruned_groups,
        rows=layout.num_rows,
        live_rows=job.live_rows,
        stored_bytes=layout.num_bytes,
        splits=0,
        strategy="rows",
        epoch=epoch,
        rank=job.rank,
        num_ranks=job.topology.num_ranks,
        batch_size=job.topology.batch_size,
        rows_per_rank=tuple(rows),
        steps_per_rank=tuple(steps_of_ranks(plan)),
        steps=plan.steps,
        workers=tuple(WorkerLoad(lane, 0, plan.rows_of(lane), 0, steps[lane]) for lane in range(lanes)),
        servers=job.servers,
        schema=tuple((field.name, str(field.type)) for field in job.schema(cursor)),
        memory_bound=lanes * in_flight + held,
        collated_batches=collated_ahead(job.options, lanes),
        footer_bytes=job.table.footer_bytes,
        notes=(
            f"rows are shuffled one by one, from a row store of about {store.spec.num_bytes:,} bytes in {where}",
            f"{cursor.total:,} of {job.live_rows:,} live rows are in the epoch; the others are excluded",
            *([store.note] if store.note else []),
        ),
    )
