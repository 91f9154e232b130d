"""Random tables and jobs for the laws, without a file."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from torch_table_loader.planning.cutting import RowBalancedStrategy, SizeBalancedStrategy, TargetSizeStrategy
from torch_table_loader.planning.epoch import CutEpoch, epoch_order
from torch_table_loader.planning.lanes import RankPlan
from torch_table_loader.planning.layout import TableLayout
from torch_table_loader.planning.ranks import Topology
from torch_table_loader.planning.runs import Runs
from torch_table_loader.planning.splits import SegmentTable
from torch_table_loader.records import DataFile, FileVersion


def table(group_rows: list[list[int]], kept: list[list[bool]] | None = None) -> TableLayout:
    """Lay out a table of files with the given row groups; a row has 8 bytes."""
    files = [DataFile(f"/t/{i}", f"{i}.parquet", FileVersion(1), "parquet") for i in range(len(group_rows))]
    return TableLayout.of(files, group_rows, [[8 * rows for rows in groups] for groups in group_rows], kept)


tables = st.lists(st.lists(st.integers(0, 30), max_size=5), max_size=8).map(table)

cutters = st.one_of(
    st.builds(TargetSizeStrategy, target_bytes=st.integers(1, 600)),
    st.builds(TargetSizeStrategy, target_rows=st.integers(1, 60)),
    st.builds(SizeBalancedStrategy, target_bytes=st.integers(1, 600)),
    st.builds(RowBalancedStrategy, target_rows=st.integers(1, 60)),
)

topologies = st.builds(
    Topology,
    num_ranks=st.integers(1, 64),
    lanes=st.integers(1, 8),
    batch_size=st.integers(1, 40),
    shuffle_buffer_size=st.none(),
    even_ranks=st.sampled_from([None, "balance", "drop", "pad"]),
    drop_last=st.booleans(),
)


def epoch_of(
    layout: TableLayout, cutter: TargetSizeStrategy, topology: Topology, *, shuffle: bool, epoch: int
) -> CutEpoch:
    """Cut a table and order its splits."""
    segments = SegmentTable.of(cutter(layout), filtered=False)  # type: ignore[arg-type]
    return CutEpoch(segments, epoch_order(segments, shuffle=shuffle, seed=3, epoch=epoch), topology)


def rows_of(segments: SegmentTable, runs: Runs) -> list[int]:
    """Name the physical row (counted over the table) of each row of some runs, through the read tasks."""
    result: list[int] = []
    starts = segments.splits.layout.file_starts
    for split, start, stop in runs:
        task = segments.task(split, start, stop)
        rows = [int(starts[task.file_index]) + row for s in task.segments for row in range(s.row_start, s.row_stop)]
        result += rows[task.skip :][: task.take]
    return result


def delivered(segments: SegmentTable, plan: RankPlan) -> list[list[tuple[int, bool]]]:
    """Play an epoch of one rank: batches of ``(row, is_padding)``, read lane by lane, taken as scheduled."""
    queues: list[list[list[tuple[int, bool]]]] = []
    for lane in range(len(plan.lanes)):
        batches = []
        for section in plan.sections(lane):
            rows = rows_of(segments, section.runs)
            marked = [(row, at >= section.padded_from) for at, row in enumerate(rows)]
            batches += [marked[at : at + plan.batch_size] for at in range(0, len(marked), plan.batch_size)]
        queues.append(batches)
    played = [queues[lane].pop(0) for lane in plan.schedule()]
    assert not any(queues), "a lane reads batches that nobody takes"
    return played


def as_counts(rows: list[int], total: int) -> list[int]:
    """Count how often each row came."""
    return np.bincount(np.array(rows, dtype=np.int64), minlength=total).tolist()  # type: ignore[no-any-return]
