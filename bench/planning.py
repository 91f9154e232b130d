"""Planning alone, for one rank of 1,024: a simulated table of a million row groups, in ten thousand files or more."""

from __future__ import annotations

import argparse
import json
import sys
import time
import tracemalloc
from dataclasses import dataclass

import numpy as np

from torch_table_loader.planning.cutting import TargetSizeStrategy
from torch_table_loader.planning.epoch import CutEpoch, epoch_order
from torch_table_loader.planning.lanes import RankPlan
from torch_table_loader.planning.layout import TableLayout
from torch_table_loader.planning.listed_files import packed
from torch_table_loader.planning.ranks import Topology
from torch_table_loader.planning.splits import SegmentTable, SplitTable
from torch_table_loader.records import DataFile, FileVersion

_WEIGHED = 100_000
"""Files that are weighed at most, since that takes long."""


@dataclass(frozen=True, slots=True)
class PlanningTimes:
    """What planning took.

    Args:
        first_seconds: cut, shuffle, slice and assign.
        next_seconds: another epoch: shuffle, slice and assign.
        num_splits: splits of the whole table.
        rank_rows: rows of the rank that was planned.
        bytes_a_file: Python's memory for the table's layout, the names of its files included.
    """

    first_seconds: float
    next_seconds: float
    num_splits: int
    rank_rows: int
    bytes_a_file: float


def simulate(num_files: int = 10_000, groups_per_file: int = 100) -> TableLayout:
    """Lay out a table that exists nowhere, with row groups of unequal size."""
    rng = np.random.default_rng(1)
    count = num_files * groups_per_file
    files = [
        DataFile(f"/table/{place:05d}.parquet", f"{place:05d}.parquet", FileVersion(2**30), "parquet")
        for place in range(num_files)
    ]
    rows = rng.integers(50_000, 150_000, size=count)
    offsets = np.arange(0, count + 1, groups_per_file, dtype=np.int64)
    kept, whole = np.ones(count, dtype=np.bool_), np.zeros(num_files, dtype=np.bool_)
    return TableLayout(packed(files), offsets, rows, rows * 400, kept, rows, whole)


def time_planning(layout: TableLayout, ranks: int = 1024, rank: int = 517) -> PlanningTimes:
    """Plan two epochs of one rank, each row group a split of its own.

    Args:
        layout: the table.
        ranks: of the job.
        rank: which is planned.
    """
    topology = Topology(ranks, lanes=4, batch_size=8192, even_ranks="balance")

    def plan(segments: SegmentTable, epoch: int) -> RankPlan:
        order = epoch_order(segments, shuffle=True, seed=42, epoch=epoch)
        return CutEpoch(segments, order, topology).plan(rank)

    begin = time.perf_counter()
    splits = SplitTable.of(layout, TargetSizeStrategy(target_rows=1)(layout), "target size")
    segments = SegmentTable.of(splits, filtered=False)
    rows = sum(lane.num_rows for lane in plan(segments, 0).lanes)
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    plan(segments, 1)
    return PlanningTimes(first, time.perf_counter() - begin, len(splits), rows, bytes_a_file(len(layout), layout))


def bytes_a_file(num_files: int, like: TableLayout) -> float:
    """Lay out so many files of as many row groups as those of another table have, and weigh them."""
    groups = int(like.group_offsets[-1]) // num_files
    num_files = min(num_files, _WEIGHED)
    tracemalloc.start()
    layout = simulate(num_files, groups)
    weight = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return weight / len(layout)


def main() -> None:
    """Read the command line, print the times as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=100, help="of a file")
    options = parser.parse_args()
    times = time_planning(simulate(options.files, options.groups))
    sys.stdout.write(json.dumps({name: getattr(times, name) for name in PlanningTimes.__slots__}) + "\n")


if __name__ == "__main__":
    main()
