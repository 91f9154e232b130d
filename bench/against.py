"""This checkout against another one, such as the commit before: epochs in pairs, each side in a process of its own.

    python -m bench.against /path/to/other/checkout

Both sides read the same tables and are timed in turn, so the ratios mean something on a shared machine. The other
checkout needs no environment of its own and no copy of this file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.tables import build

ROOT = Path(__file__).parents[1]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "A, batches of 8,192": ("A-zstd", {"batch_size": 8192}),
    "A, batches of 1,024": ("A-zstd", {"batch_size": 1024}),
    "A, splits shuffled": ("A-zstd", {"batch_size": 8192, "shuffle": True}),
    "A, worker processes": ("A-zstd", {"batch_size": 8192, "worker_type": "process"}),
    "B, batches of 8,192": ("B", {"batch_size": 8192}),
    "C, batches of 8,192": ("C", {"batch_size": 8192}),
    "D, batches of 256": ("D", {"batch_size": 256, "ragged": "offsets"}),
    "A, rows in memory": ("A-zstd", {"batch_size": 8192, "shuffle": "rows", "row_store_memory": "8GiB"}),
    "B, rows in memory": ("B", {"batch_size": 8192, "shuffle": "rows", "row_store_memory": "8GiB"}),
}
"""The table and the options of each case."""


class Side:
    """A checkout in a process of its own, which reads one epoch whenever it is told to."""

    def __init__(self, checkout: Path, case: str, data: Path) -> None:
        """Start the process.

        Args:
            checkout: whose `torch_table_loader` is measured.
            case: a key of `CASES`.
            data: the folder of all bench tables.
        """
        command = [sys.executable, "-m", "bench.against", "--serve", str(checkout), "--case", case, "--data", str(data)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def epoch(self) -> tuple[float, float]:
        """Read one epoch; return its seconds of wall time, and of CPU time."""
        assert self._process.stdin is not None  # noqa: S101 they were asked for
        assert self._process.stdout is not None  # noqa: S101
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"a side of the race ended with exit code {self._process.wait()}")
        wall, cpu = answer.split()
        return float(wall), float(cpu)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def race(other: Path, case: str, data: Path, rounds: int) -> list[tuple[float, float]]:
    """Time both checkouts in turn.

    Args:
        other: the other checkout.
        case: a key of `CASES`.
        data: the folder of all bench tables.
        rounds: pairs.

    Returns:
        Time of the other checkout over that of this one, pair by pair: wall, and CPU.
    """
    sides = Side(ROOT, case, data), Side(other, case, data)
    try:
        for side in sides:
            side.epoch()
        ratios = []
        for turn in range(rounds):
            order = sides if turn % 2 else sides[::-1]
            seconds = {side: side.epoch() for side in order}
            (own_wall, own_cpu), (wall, cpu) = seconds[sides[0]], seconds[sides[1]]
            ratios.append((wall / own_wall, cpu / own_cpu))
        return ratios
    finally:
        for side in sides:
            side.close()


def serve(checkout: Path, case: str, data: Path) -> None:
    """Be one side: import its package, open the table, and read an epoch for each line of standard input."""
    sys.path.insert(0, str(checkout))
    import torch_table_loader

    if not Path(torch_table_loader.__file__).is_relative_to(checkout.resolve()):
        raise RuntimeError(f"the package must come from {checkout}, got {torch_table_loader.__file__}")
    from bench.ours import rows_of
    from bench.pairing import measure

    name, options = CASES[case]
    table = build(name, data)
    warnings.simplefilter("ignore")
    loader, _ = torch_table_loader.StructuredDataset.create_dataloader(str(table.folder), num_workers=2, **options)
    run: Callable[[], int] = lambda: sum(map(rows_of, loader))  # noqa: E731
    for number, _ in enumerate(sys.stdin):
        loader.set_epoch(number)
        sample = measure(run)
        if sample.rows != table.num_rows:
            raise RuntimeError(f"an epoch must have {table.num_rows} rows, got {sample.rows}")
        print(sample.seconds, sample.cpu_seconds, flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the cases that were asked for, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("other", nargs="?", type=Path, help="the other checkout")
    parser.add_argument("--case", action="append", choices=list(CASES), help="a case; all of them by default")
    parser.add_argument("--rounds", type=int, default=21, help="pairs of a case")
    parser.add_argument("--data", type=Path, default=ROOT / "build/bench", help="the folder of all bench tables")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    if asked.serve is not None:
        serve(asked.serve, asked.case[0], asked.data)
        return
    if asked.other is None:
        parser.error("name the other checkout")
    for name in sorted({CASES[case][0] for case in asked.case or CASES}):
        build(name, asked.data)  # once, before two sides would
    print(f"speed of {ROOT} over {asked.other}: median of {asked.rounds} pairs (quartiles), {os.cpu_count()} cores")
    print(f"{'':24s} {'by wall time':24s} by CPU time, which other work on the machine changes less")
    for case in asked.case or CASES:
        ratios = race(asked.other.resolve(), case, asked.data.resolve(), asked.rounds)
        quartiles = [statistics.quantiles(one, n=4) for one in zip(*ratios, strict=True)]
        shown = [f"{middle:.3f} ({low:.3f} to {high:.3f})" for low, middle, high in quartiles]
        print(f"{case:24s} {shown[0]:24s} {shown[1]}", flush=True)


if __name__ == "__main__":
    main()
