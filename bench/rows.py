"""Row mode against the decode floor: a shuffled epoch of a warm store, the build, and resuming.

Run: ``python -m bench.rows FOLDER [TABLE …] [--rounds N]``. FOLDER keeps the bench tables.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.floor import decode
from bench.ours import rows_of
from bench.pairing import interleave
from bench.tables import BenchTable, build
from torch_table_loader import StructuredDataset
from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.permutation import Permutation

BATCH = 8192
DEFAULT_TABLES = ("A-zstd", "B")


def loader_of(table: BenchTable, **options: Any) -> Any:
    """Make a loader in row mode, with two lanes on two threads."""
    defaults: dict[str, Any] = {"batch_size": BATCH, "num_workers": 2, "row_store_memory": "8GiB"}
    return StructuredDataset.create_dataloader(str(table.folder), shuffle="rows", **(defaults | options))[0]


def epochs(loader: Any) -> Callable[[], int]:
    """Give a function that delivers the next epoch and counts its rows."""
    epoch = iter(range(10**6))

    def run() -> int:
        loader.set_epoch(next(epoch))
        return sum(map(rows_of, loader))

    return run


def seconds(call: Callable[[], Any]) -> float:
    """Time a call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def report(table: BenchTable, rounds: int) -> None:
    """Measure one table and print ratios of one run."""
    floor = lambda: decode(table.files)  # noqa: E731 the reference of every pair
    decode(table.files)
    for place in ("memory", "files"):
        folder = tempfile.mkdtemp(dir=table.folder.parent)
        try:
            loader = loader_of(table, row_store="memory" if place == "memory" else folder)
            building = seconds(loader._source.job.keeper.rows)
            ratio = building / statistics.median(seconds(floor) for _ in range(3))
            print(f"{table.name}: build into {place}: {building:.2f} s, {ratio:.2f} of the floor's time (goal 1.5)")
            pairs = interleave(epochs(loader), floor, rounds)
            speed = statistics.median(sample.rows / sample.seconds for sample in pairs.left) / 1e6
            bare = statistics.median(sample.rows / sample.seconds for sample in pairs.right) / 1e6
            print(
                f"{table.name}: shuffled epoch from {place}: {pairs.median:.2f} × the floor "
                f"({speed:.1f} against {bare:.1f} million rows/s)"
            )
        finally:
            shutil.rmtree(folder)
    resume(table, rounds)


def resume(table: BenchTable, rounds: int) -> None:
    """Compare the first batch after resuming in the middle with the first batch of an epoch."""
    loader = loader_of(table, row_store="memory")
    batches = iter(loader)
    for _ in range(len(loader) // 2):
        next(batches)
    state = loader.state_dict()
    fresh, resumed = [], []
    for epoch in range(1, 4 * rounds):
        loader.set_epoch(epoch)
        fresh.append(seconds(lambda: next(iter(loader))))
        loader.load_state_dict(state)
        resumed.append(seconds(lambda: next(iter(loader))))
    ratio = statistics.median(resumed) / statistics.median(fresh)
    print(f"{table.name}: first batch resumed: {ratio:.2f} of a fresh start's time (goal 1.05)")


def permutation() -> None:
    """Compare the permutation with numpy's, which keeps all of it in memory."""
    size = 1 << 24
    order = Permutation(10**8, derive_key(0, 0, "rows"))
    rng = np.random.default_rng(0)
    ours = seconds(lambda: [order.slice(start, start + 65_536) for start in range(0, size, 65_536)]) / size
    numpys = seconds(lambda: rng.permutation(10**8)) / 10**8
    keys = [derive_key(0, epoch, "rows") for epoch in range(9)]
    start = statistics.median(seconds(partial(Permutation, 10**12, key)) for key in keys)
    print(f"permutation: {ours * 1e9:.1f} ns an index, {numpys / ours:.1f} × numpy's (bar 3.5, goal 6)")
    print(f"permutation: {start * 1e3:.3f} ms to start an epoch of 10^12 rows (bar 1)")


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description="Row mode against the decode floor.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("tables", nargs="*", default=DEFAULT_TABLES)
    parser.add_argument("--rounds", type=int, default=5)
    typed = parser.parse_args()
    permutation()
    for name in typed.tables:
        report(build(name, typed.folder), typed.rounds)


if __name__ == "__main__":
    main()
