"""What each rank would deliver of a table without files, by the plans alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tests.strategies import SEED
from torch_table_loader.engine.jobs.planner import PlannedStream, Planner
from torch_table_loader.extend import SegmentTable, TableLayout, Topology, resolve_strategy
from torch_table_loader.planning.runs import Runs
from torch_table_loader.planning.stages import StreamPosition
from torch_table_loader.planning.windows import Stretch, stretches


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
            for stretch in stretches(section, planned.segments):
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
    if stretch.sizes is None:
        return marked[stretch.start :]
    result: list[tuple[int, bool]] = []
    for number, (begin, end) in enumerate(pairwise(stretch.sizes.ends(len(marked)).tolist())):
        part = marked[begin:end]
        result += [part[place] for place in stretch.window(number).order(SEED, epoch).tolist()]
    return result[stretch.start : stretch.stop]
