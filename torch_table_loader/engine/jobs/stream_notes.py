"""What `explain()` says of a stream: what each lane reads, how its rows are mixed, and what is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.engine.jobs.resolve import why_not_mixed
from torch_table_loader.engine.sizing import OPEN_SPLITS
from torch_table_loader.planning.distinct import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.engine.jobs.planner import PlannedStream, Planner
    from torch_table_loader.engine.jobs.walk import Walked
    from torch_table_loader.engine.table import Table
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.splits import SegmentTable
    from torch_table_loader.planning.stages import StreamPosition
    from torch_table_loader.read.row_stage import RowStage


def loads_of(planned: PlannedStream) -> list[tuple[int, int, int, int]]:
    """Return of each lane of a plan how many pieces, rows, decoded bytes and steps it has."""
    plan, segments = planned.plan, planned.segments
    live = segments.live_rows
    row_bytes = decoded_bytes(segments) / np.maximum(np.where(live < 0, segments.metadata_rows, live), 1)
    loads = []
    for runs, steps in zip(plan.lanes, plan.batches_before(plan.steps), strict=True):
        num_bytes = ((runs.stop - runs.start) * row_bytes[runs.split]).sum()
        loads.append((len(runs), runs.num_rows, int(num_bytes), steps))
    return loads


def steps_of_ranks(job: Walked, planner: Planner, start: StreamPosition) -> list[int] | None:
    """Add up the steps of every rank over the stages of an epoch; None where a rank knows its own rows alone."""
    found = [0] * planner.topology.num_ranks
    for stage in job.walk.stages(start):
        if (steps := planner.steps_of_ranks(stage)) is None:
            return None
        if (until := job.until(stage)) is not None:
            steps = [min(own, until) for own in steps]
        found = [before + own for before, own in zip(found, steps, strict=True)]
    return found


def notes_of_mixing(planner: Planner, options: LoaderOptions, rank: int, stage: RowStage | None) -> list[str]:
    """Say on what a batch draws where splits are shuffled."""
    if not options.shuffle:
        return []
    plan = planner.plan(planner.start(0), rank).plan
    window = plan.most_of_window
    if (mixing := planner.topology.mixing) is None:
        of_splits = plan.own_rows // max(1, sum(map(len, plan.lanes)))
        drawn = "a batch has rows of few of them"
        if max(plan.batch_size, window) <= of_splits:
            drawn = "most batches have rows of one file alone"
        reason = why_not_mixed(options, planner)
        return [
            f"splits are permuted, and {drawn}"
            + ("; shuffle=True mixes their rows" if reason is None else f", since {reason}")
        ]
    side_by_side = f"up to {mixing.splits} splits that are read side by side"
    makes = "rows" if stage is None else stage.makes
    drawn = f"each batch draws on {side_by_side}, in windows of {window:,} {makes}"
    if mixing.splits < OPEN_SPLITS:
        drawn += '; row groups are too large to read more at once: smaller ones, or shuffle="rows", mix better'
    if options.processes and options.lanes > 1:
        drawn += f'; one process mixes them: pass shuffle="splits" to use num_workers={options.lanes}'
    return [drawn]


def notes_of_stream(
    table: Table, planner: Planner, options: LoaderOptions, rank: int, stage: RowStage | None
) -> list[str]:
    """Return what is remarked of a stream of a table."""
    layout, strategy, topology = table.layout, planner.strategy, planner.topology
    notes = [note for note in (table.description, *table.notes, *options.samples.notes) if note]
    notes += notes_of_mixing(planner, options, rank, stage)
    if layout.has_deletes:
        fewer = np.flatnonzero(layout.group_live != layout.group_rows)
        deleting = len(distinct(np.searchsorted(layout.group_offsets, fewer, side="right")))
        notes.append(f"deletes, or other parts, leave rows of {deleting:,} of {len(layout):,} data files out")
    if table.filters is not None:
        pruned, groups = layout.pruned_groups, len(layout.group_rows)
        notes.append(
            f"the filter {table.filters} prunes {pruned:,} of {groups:,} row groups by partition values and "
            "statistics; the others are read and filtered row by row"
        )
        if not options.count_filtered:
            notes.append("rows that pass the filter are not counted (count_filtered=False): no length, no equal steps")
    if strategy.coverage == "any":
        notes.append(strategy.told_coverage(table.layout))
    if strategy.form == "generator" and topology.num_ranks > 1:
        notes.append(f"{strategy.name} does not take ranks: every rank reads the whole table")
    return notes


def decoded_bytes(segments: SegmentTable) -> NDArray[np.int64]:
    """Return the bytes of each split's row groups before compression, without pruned ones: int64[S]."""
    layout = segments.splits.layout
    rows = np.maximum(layout.group_rows[segments.group], 1)
    part = layout.group_bytes[segments.group] * (segments.row_stop - segments.row_start) // rows
    ends = np.concatenate(([0], np.cumsum(np.where(segments.kept, part, 0))))
    return np.diff(ends[segments.offsets])
