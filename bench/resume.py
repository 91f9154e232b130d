"""Taking the state, and going on in the middle of a simulated table of a million row groups; prints JSON."""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.simulated import SimulatedTable
from torch_table_loader.engine.jobs.stream_job import StreamJob
from torch_table_loader.engine.state import left_out, read_state
from torch_table_loader.loader import TableLoader

PARTS = (0.5, 0.99)
SPLITS: dict[str, dict[str, Any]] = {"row group": {"split_size": 1}, "file": {}}
"""What a split is, and the options that make it so."""


@dataclass(frozen=True, slots=True)
class ResumeCost:
    """What was measured, of splits of one kind.

    Args:
        num_splits: of the table.
        state_micros: of one `state_dict()`.
        fresh_seconds: from no loader to the first batch, at the start of an epoch.
        ratios: the same where a state was loaded, over `fresh_seconds` of the same round, by part of the epoch done.
        other_ranks: the same on one of four ranks, where the state was taken by one.
        consumed_opened: files opened on the way of which every row had been delivered.
    """

    num_splits: int
    state_micros: float
    fresh_seconds: float
    ratios: dict[float, float]
    other_ranks: float
    consumed_opened: int


def measure(table: SimulatedTable, rounds: int, **options: Any) -> ResumeCost:
    """Take the rounds, each of one fresh start and one of every other kind.

    Args:
        table: the table.
        rounds: how many.
        options: how it is split.
    """
    fresh, job = table.open(**options)
    states = {part: _state_at(fresh, part) for part in PARTS}
    left = {part: files_left(job, state) for part, state in states.items()}
    seconds: dict[Any, list[float]] = {kind: [] for kind in (None, *PARTS, "ranks")}
    consumed_opened = 0
    for _ in range(rounds):
        seconds[None].append(_first_batch(table, None, **options))
        for part, state in states.items():
            table.storage.opened.clear()
            seconds[part].append(_first_batch(table, state, **options))
            consumed_opened += len(set(table.storage.opened) - left[part])
        four = {"num_ranks": 4, "rank": 1, "even_ranks": "balance", "check_plan": False}
        table.storage.opened.clear()
        seconds["ranks"].append(_first_batch(table, states[PARTS[0]], **four, **options))
        consumed_opened += len(set(table.storage.opened) - left[PARTS[0]])
    over = {kind: _median_ratio(values, seconds[None]) for kind, values in seconds.items()}
    return ResumeCost(
        num_splits=len(job.planned(job.start(0)).segments.splits),
        state_micros=_state_micros(fresh),
        fresh_seconds=statistics.median(seconds[None]),
        ratios={part: over[part] for part in PARTS},
        other_ranks=over["ranks"],
        consumed_opened=consumed_opened,
    )


def _state_at(loader: TableLoader, part: float) -> dict[str, Any]:
    """Give the state of a job that has done a part of its epoch."""
    return left_out(loader.state_dict(), int(len(loader) * part))


def files_left(job: StreamJob, state: dict[str, Any]) -> set[str]:
    """Name the files of which rows are still to come; the state must stand before the tails of the lanes."""
    planned = job.planned(job.start(0))
    plan, splits = planned.plan, planned.segments.splits
    taken = plan.batches_before(read_state(state).taken.stage.steps)
    left = [lane.slice(steps * plan.batch_size, lane.num_rows) for lane, steps in zip(plan.lanes, taken, strict=True)]
    files = {int(file) for runs in left for file in splits.file[runs.split]}
    return {job.table.files[file].name for file in files}


def _first_batch(table: SimulatedTable, state: dict[str, Any] | None, **options: Any) -> float:
    gc.collect()
    begin = time.perf_counter()
    loader, _ = table.open(**options)
    if state is not None:
        loader.load_state_dict(state)
    batches = iter(loader)
    next(batches)
    seconds = time.perf_counter() - begin
    batches.close()
    return seconds


def _state_micros(loader: TableLoader) -> float:
    batches = iter(loader)
    next(batches)
    times = []
    for _ in range(1000):
        begin = time.perf_counter()
        loader.state_dict()
        times.append(time.perf_counter() - begin)
    batches.close()
    return statistics.median(times) * 1e6


def _median_ratio(values: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(value / other for value, other in zip(values, others, strict=True))


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000, help="of a hundred row groups each")
    parser.add_argument("--split", choices=list(SPLITS), default="row group", help="what a split is")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = SimulatedTable.write(Path(folder), options.files)
        cost = measure(table, options.rounds, **SPLITS[options.split])
    sys.stdout.write(json.dumps(asdict(cost)) + "\n")


if __name__ == "__main__":
    main()
