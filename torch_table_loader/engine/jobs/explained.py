"""What `explain()` says of an epoch of any kind of job, of what that kind knows of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_table_loader.engine.machine import ranks_on_this_node, threads_of_lanes
from torch_table_loader.engine.sizing import LANE_COPIES, collated_ahead
from torch_table_loader.engine.survey import described
from torch_table_loader.errors import ConfigError
from torch_table_loader.planning.global_batches import steps_of_ranks

if TYPE_CHECKING:
    from torch_table_loader.engine.explanation import Explanation
    from torch_table_loader.engine.jobs.job import Job
    from torch_table_loader.engine.table import Table
    from torch_table_loader.planning.global_batches import GlobalBatches
    from torch_table_loader.planning.order_sample import OrderSample
    from torch_table_loader.planning.rows_of import LiveSpan, RowSpan, SourceRow
    from torch_table_loader.samples import SampleCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownEpoch:
    """What a kind of job knows of an epoch.

    Args:
        loads: for each lane, its pieces, rows, decoded bytes and steps.
        lane_bytes: what a lane may hold of its rows, however many it has.
        open_bytes: what the files that a lane has open hold beside that.
        copies: times that a lane may hold its rows.
        built_bytes: what is held before the first batch, and not while batches are made.
        held_bytes: other bytes in memory, such as a row store.
        fetched: requests to the store, bytes that they fetch, and those of them that are decoded.
    """

    epoch: int
    strategy: str
    splits: int
    live_rows: int | None
    rows_per_rank: Sequence[int] | None
    steps_per_rank: Sequence[int] | None
    steps: int | None
    loads: Sequence[tuple[int, int, int, int]]
    lane_bytes: int
    held_bytes: int
    notes: Sequence[str]
    open_bytes: int = 0
    built_bytes: int = 0
    copies: int = LANE_COPIES
    fetched: tuple[int, int, int] | None = None
    counts: SampleCounts | None = None


def explained(job: Job, known: KnownEpoch) -> Explanation:
    """Combine the sums over the tables of a job with what it knows of an epoch."""
    from torch_table_loader.engine.explanation import Explanation, FetchPlan, WorkerLoad

    return Explanation(
        **_sums_of(job.tables.values()),
        **_memory_of(job, known),
        live_rows=known.live_rows,
        splits=known.splits,
        strategy=known.strategy,
        epoch=known.epoch,
        rank=job.rank,
        num_ranks=job.topology.num_ranks,
        batch_size=job.batching.rows,
        rows_per_rank=_frozen(known.rows_per_rank),
        steps_per_rank=_frozen(known.steps_per_rank),
        steps=known.steps,
        workers=tuple(WorkerLoad(lane, *load) for lane, load in enumerate(known.loads)),
        servers=threads_of_lanes(job.topology.lanes),
        schema=tuple((field.name, str(field.type)) for field in job.schema),
        ranks_on_node=ranks_on_this_node(),
        collated_batches=collated_ahead(job.options, len(known.loads) * job.batching.collated),
        notes=(*known.notes, *_notes_of(job)),
        order=_order_of(job, known.epoch, known.steps),
        fetch=known.fetched and FetchPlan.of(*known.fetched, job.options.ahead_bytes),
        counts=known.counts,
    )


def _frozen(numbers: Sequence[int] | None) -> tuple[int, ...] | None:
    if numbers is None:
        return None
    return tuple(numbers)


def _sums_of(tables: Collection[Table]) -> dict[str, Any]:
    """Add up what is known of tables, whoever reads them."""
    from torch_table_loader.engine.explanation import SizeCounts

    layouts = [table.layout for table in tables]
    live = np.concatenate([layout.group_live[layout.group_kept] for layout in layouts])
    return {
        "files": sum(map(len, layouts)),
        "row_groups": sum(len(layout.group_rows) for layout in layouts),
        "pruned_files": sum(layout.pruned_files for layout in layouts),
        "pruned_row_groups": sum(layout.pruned_groups for layout in layouts),
        "rows": sum(layout.num_rows for layout in layouts),
        "stored_bytes": sum(layout.num_bytes for layout in layouts),
        "footer_bytes": sum(table.footer_bytes for table in tables),
        "kept_rows": sum(int(layout.group_rows[layout.group_kept].sum()) for layout in layouts),
        "undeleted_rows": None if (live < 0).any() else int(live.sum()),
        "file_sizes": SizeCounts.of(np.concatenate([layout.file_bytes for layout in layouts])),
        "group_sizes": SizeCounts.of(np.concatenate([layout.group_bytes for layout in layouts])),
    }


def explained_by_places(
    job: Job,
    epoch: int,
    plans: Sequence[GlobalBatches],
    *,
    strategy: str,
    live_rows: int,
    lane_bytes: int,
    held_bytes: int,
    notes: Sequence[str],
    open_bytes: int = 0,
    built_bytes: int = 0,
    copies: int = LANE_COPIES,
    splits: int = 0,
    counts: SampleCounts | None = None,
) -> Explanation:
    """Explain an epoch from its start; see `KnownEpoch`.

    Args:
        plans: the batches of each stage.
    """
    lanes, ranks = range(job.topology.lanes), range(job.topology.num_ranks)
    endless = any(own.endless for own in plans)
    steps = [sum(own.batches_before(own.steps)[lane] for own in plans) for lane in lanes]
    rows = [0 if endless else sum(own.rows_of(lane) for own in plans) for lane in lanes]
    known = KnownEpoch(
        epoch=epoch,
        strategy=strategy,
        splits=splits,
        live_rows=live_rows,
        rows_per_rank=None if endless else [sum(replace(own, rank=rank).num_rows for own in plans) for rank in ranks],
        steps_per_rank=None if endless else [sum(each) for each in zip(*map(steps_of_ranks, plans), strict=True)],
        steps=None if endless else sum(own.steps for own in plans),
        loads=[(0, rows[lane], 0, 0 if endless else steps[lane]) for lane in lanes],
        lane_bytes=lane_bytes,
        open_bytes=open_bytes,
        built_bytes=built_bytes,
        copies=copies,
        held_bytes=held_bytes,
        notes=[*notes, *_notes_of_steps(job, plans[0])],
        counts=counts,
    )
    return explained(job, known)


def _notes_of_steps(job: Job, plan: GlobalBatches) -> list[str]:
    """Say what a step of the optimizer is, where it is not one batch."""
    micro = job.topology.micro_batches
    rows = micro * plan.global_batch_size
    if micro > 1:
        return [f"a step of the optimizer is {micro} batches of each rank, {rows:,} rows"]
    return []


def _memory_of(job: Job, known: KnownEpoch) -> dict[str, Any]:
    """Return the bytes that a rank is expected to hold, and the most that it may hold."""
    held = known.held_bytes
    kept = held if known.fetched is None else min(held, known.fetched[1])
    most = max(known.built_bytes, _in_lanes(job, known, known.open_bytes, known.copies))
    return {"memory_expected": _in_lanes(job, known, 0, 1) + kept, "memory_bound": held + most}


def _in_lanes(job: Job, known: KnownEpoch, open_bytes: int, copies: int) -> int:
    """Return the bytes that lanes come to: what they may hold, or all of theirs so many times if that is less.

    A lane that has nothing to read holds nothing.
    """
    endless, of_lane, unit_bytes = known.steps is None, known.lane_bytes, job.batching.unit_bytes
    own = [of_lane if endless and not rows else rows * unit_bytes * copies for _, rows, _, _ in known.loads]
    return sum(min(of_lane, each) + open_bytes for each in own if each)


def _notes_of(job: Job) -> Iterator[str]:
    """Yield what is remarked of any kind of job."""
    if job.topology.marks_padding:
        yield "ranks take equally many steps, and what is repeated for it is marked as padding"
    yield from (described(table.left_out) for table in job.tables.values() if table.left_out)
    if "" in job.tables:
        yield from job.tables[""].hints(job.options.column_names)


def _order_of(job: Job, epoch: int, steps: int | None) -> OrderSample:
    """Sample the order of this rank's rows; nothing is read."""
    from torch_table_loader.planning.order_sample import OrderSample, sample_order

    if not job.samples.are_rows:
        return OrderSample.missing(f"batches are {job.samples.title}, not rows of the table")
    if steps is None:
        return OrderSample.missing("rows are not counted, or the epoch has no end")
    layouts = {name: table.layout for name, table in job.tables.items()}
    stages = list(job.walk.stages(job.start(epoch)))

    def rows_of(step: int, most: int) -> Sequence[RowSpan | LiveSpan | SourceRow]:
        stage = stages[bisect_right(stages, step, key=lambda stage: stage.steps_before) - 1]
        return job.rows_of(stage, step - stage.steps_before, most)

    try:
        return sample_order(rows_of, steps, job.batching.rows, layouts)
    except ConfigError as error:  # of mixtures, deletes and filters may decide which row is which
        return OrderSample.missing(str(error))
