"""Random tables and jobs for the laws, without files."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from torch_table_loader import RowBalancedStrategy, SizeBalancedStrategy, TargetSizeStrategy
from torch_table_loader.engine.jobs.planner import PlannedStream, Planner
from torch_table_loader.extend import SegmentTable, TableLayout, Topology, resolve_strategy
from torch_table_loader.planning.runs import Runs
from torch_table_loader.planning.stages import StreamPosition
from torch_table_loader.planning.windows import Stretch, stretches
from torch_table_loader.records import DataFile, FileVersion

SEED = 3


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
    num_ranks=st.one_of(st.integers(1, 4), st.integers(1, 64)),
    lanes=st.integers(1, 8),
    batch_size=st.integers(1, 40),
    shuffle_buffer_size=st.one_of(st.none(), st.integers(1, 50)),
    even_ranks=st.sampled_from([None, "balance", "drop", "pad"]),
    drop_last=st.booleans(),
)


def row_topologies(most_rows: int) -> st.SearchStrategy[Topology]:
    """Draw jobs of row mode, with batches of at most so many rows."""
    return st.builds(
        Topology,
        st.integers(1, 8),
        st.integers(1, 5),
        st.integers(1, most_rows),
        even_ranks=st.sampled_from([None, "pad"]),
        drop_last=st.booleans(),
        micro_batches=st.integers(1, 4),
    )


class World:
    """A table and how it is split, planned for any topology."""

    def __init__(self, layout: TableLayout, strategy: Any, *, shuffle: bool = True, by_file: bool = False) -> None:
        self.layout = layout
        self.planner = Planner(
            layout,
            resolve_strategy(strategy, {}),
            Topology(1, 1, 1),
            shuffle=shuffle,
            seed=SEED,
            filtered=False,
            counter=None,
            by_file=by_file,
        )

    def plan(self, cursor: StreamPosition, rank: int) -> PlannedStream:
        return self.planner.plan(cursor, rank)

    def play(self, cursor: StreamPosition, rank: int, steps: int | None = None) -> list[list[tuple[int, bool]]]:
        """Run a rank's stage from the cursor on, for so many steps (None: to the end)."""
        planned = self.plan(cursor, rank)
        return delivered(planned, cursor, steps)


def rows_of(segments: SegmentTable, runs: Runs) -> list[int]:
    """Return the physical row (counted over the table) of each row of some runs, through the read tasks."""
    result: list[int] = []
    starts = segments.splits.layout.file_starts
    for split, start, stop in runs:
        task = segments.task(split, start, stop)
        rows = [int(starts[task.file_index]) + row for s in task.segments for row in range(s.row_start, s.row_stop)]
        result += rows[task.skip :][: task.take]
    return result


def delivered(planned: PlannedStream, cursor: StreamPosition, steps: int | None = None) -> list[list[tuple[int, bool]]]:
    """Run a rank: batches of ``(row, is_padding)``, built lane by lane as lanes read them, taken as scheduled."""
    plan, first = planned.plan, cursor.stage.steps
    queues: list[list[list[tuple[int, bool]]]] = []
    for lane, begun in enumerate(plan.batches_before(first)):
        batches = []
        ends = iter(list(plan.piece_rows(lane, begun)))
        for section in plan.sections(lane, begun):
            rows: list[tuple[int, bool]] = []
            for stretch in stretches(section, planned.segments, cursor.stage.topology.shuffle_buffer_size):
                rows += _rows(planned, stretch, section.padded_from - stretch.at, cursor.epoch)
            while rows:
                length = next(ends) if plan.by_file else len(rows)
                own, rows = rows[:length], rows[length:]
                batches += [own[at : at + plan.batch_size] for at in range(0, len(own), plan.batch_size)]
        queues.append(batches)
    played = [queues[lane].pop(0) for lane in plan.schedule(first)]
    assert not any(queues), "a lane reads batches that nobody takes"
    return played[:steps]


def _rows(planned: PlannedStream, stretch: Stretch, padded_from: int, epoch: int) -> list[tuple[int, bool]]:
    if stretch.unit is not None:
        [(_, start, stop)] = stretch.runs
        window = planned.windows[stretch.unit]
        source = rows_of(window.segments, window.runs)
        places = window.order(SEED, epoch)[start:stop].tolist()
        return [(source[p], at >= padded_from) for at, p in enumerate(places)][stretch.start :]
    marked = [(row, at >= padded_from) for at, row in enumerate(rows_of(stretch.segments, stretch.runs))]
    if stretch.size is None:
        return marked[stretch.start :]
    result: list[tuple[int, bool]] = []
    for number in range(-(-len(marked) // stretch.size)):
        part = marked[number * stretch.size : (number + 1) * stretch.size]
        result += [part[place] for place in stretch.window(number).order(SEED, epoch).tolist()]
    return result[stretch.start :]


def as_counts(rows: list[int], total: int) -> list[int]:
    """Count how often each row came."""
    return np.bincount(np.array(rows, dtype=np.int64), minlength=total).tolist()  # type: ignore[no-any-return]
