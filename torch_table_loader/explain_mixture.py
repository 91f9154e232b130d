"""What an epoch of a mixture will deliver, and from where."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch_table_loader.engine.exclusion_book import ExclusionBook
from torch_table_loader.engine.row_share import blocks_of
from torch_table_loader.explain import Explanation, WorkerLoad, collated_ahead, rows_in_flight
from torch_table_loader.explain_rows import explain_rows
from torch_table_loader.planning.global_batches import ENDLESS, steps_of_ranks

if TYPE_CHECKING:
    from torch_table_loader.engine.mixed_job import MixedJob


def explain_mixture(job: MixedJob, epoch: int) -> Explanation:
    """Tell the plan of an epoch of a mixture: tables are summed up, and each source has a note of its own.

    Args:
        job: the rank's share of the sources.
        epoch: from 0.
    """
    tables = {name: replace(source, book=ExclusionBook()) for name, source in job.sources.items()}
    told = {name: explain_rows(table, epoch) for name, table in tables.items()}
    cursor = job.start(epoch)
    plan, ranks = job.planned(cursor).plan, range(job.topology.num_ranks)
    endless, lanes = plan.endless, job.topology.lanes
    steps = plan.batches_before(plan.steps)
    first = next(iter(told.values()))
    rows = rows_in_flight(job.options, job.gather_batches * job.options.batch_size, blocks_of(job))
    # Rows of several stores are gathered apart and then joined, so that they lie in memory twice.
    in_flight = 2 * lanes * rows * job.row_bytes
    stores = sum(source.keeper.spec.num_bytes for source in job.sources.values() if source.keeper.place is None)
    return replace(
        first,
        files=sum(entry.files for entry in told.values()),
        row_groups=sum(entry.row_groups for entry in told.values()),
        pruned_files=sum(entry.pruned_files for entry in told.values()),
        pruned_row_groups=sum(entry.pruned_row_groups for entry in told.values()),
        rows=sum(entry.rows for entry in told.values()),
        live_rows=sum(entry.live_rows or 0 for entry in told.values()),
        stored_bytes=sum(entry.stored_bytes for entry in told.values()),
        strategy="a mixture of rows",
        rank=job.rank,
        num_ranks=job.topology.num_ranks,
        batch_size=job.topology.batch_size,
        rows_per_rank=None if endless else tuple(cursor.batches(rank).num_rows for rank in ranks),
        steps_per_rank=None if endless else tuple(steps_of_ranks(plan)),
        steps=None if endless else plan.steps,
        workers=tuple(
            WorkerLoad(lane, 0, 0 if endless else plan.rows_of(lane), 0, 0 if endless else steps[lane])
            for lane in range(lanes)
        ),
        servers=job.servers,
        schema=tuple((field.name, str(field.type)) for field in job.schema(cursor)),
        memory_bound=in_flight + stores,
        collated_batches=collated_ahead(job.options, lanes),
        footer_bytes=sum(entry.footer_bytes for entry in told.values()),
        notes=tuple(_notes(job, epoch)),
    )


def _notes(job: MixedJob, epoch: int) -> list[str]:
    cursor = job.start(epoch)
    mixture, total = cursor.mixture, sum(cursor.mixture.shares.weights)
    length = None if cursor.total == ENDLESS else cursor.total
    taken = (0,) * len(mixture.names) if length is None else mixture.rows_before(length)
    rows = dict(zip(mixture.names, zip(cursor.rows, taken, strict=True), strict=True))
    notes = []
    for number, name in enumerate(job.sources):
        left, delivered = rows[name]
        said = f"source {number} is {name!r}: {left:,} rows, a share of {mixture.weights[name] / total:.4g}"
        if length is not None and left:
            said += f", so that the epoch delivers {delivered:,}, which is {delivered / left:.3g} times all of them"
        notes.append(said)
    ends = {
        "first_exhausted": "before any source repeats a row",
        "all_exhausted": "when each source has delivered all its rows",
        "forever": "never",
    }
    stores = [f"source {name!r}: {source.keeper.note}" for name, source in job.sources.items() if source.keeper.note]
    return [
        *notes,
        *stores,
        f"in every run of {mixture.block_rows:,} rows each source has its share; the epoch ends {ends[job.stop]}",
    ]
