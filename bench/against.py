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
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.endpoint import endpoint
from bench.tables import build

ROOT = Path(__file__).parents[1]

_ALL = {"output": ["input_ids", "labels", "position_ids", "doc_ids", "cu_seqlens", "max_seqlen"]}
_SPLITS = {"shuffle": "splits"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "A, batches of 8,192": ("A-zstd", {"batch_size": 8192, **_SPLITS}),
    "A, batches of 1,024": ("A-zstd", {"batch_size": 1024, **_SPLITS}),
    "A, the default order": ("A-zstd", {"batch_size": 8192}),
    "A, worker processes": ("A-zstd", {"batch_size": 8192, "worker_type": "process", **_SPLITS}),
    "B, batches of 8,192": ("B", {"batch_size": 8192, **_SPLITS}),
    "C, batches of 8,192": ("C", {"batch_size": 8192, **_SPLITS}),
    "D, batches of 256": ("D", {"batch_size": 256, "ragged": "offsets", **_SPLITS}),
    "A, rows in memory": ("A-zstd", {"batch_size": 8192, "shuffle": "rows", "row_store": "memory"}),
    "B, rows in memory": ("B", {"batch_size": 8192, "shuffle": "rows", "row_store": "memory"}),
    "D, packed, concat": ("D", {"batch_size": 8, "pack": {"seq_len": 4096, "tokens": "tokens", **_ALL}, **_SPLITS}),
    "D, packed, windows": (
        "D",
        {
            "batch_size": 8,
            "pack": {"seq_len": 4096, "tokens": "tokens", "strategy": "windows", **_ALL},
            "shuffle": "rows",
            "row_store": "memory",
        },
    ),
    "far away, 4 of 40": ("noise", {"batch_size": 8192, "columns": ["f0", "f11", "f22", "f33"], **_SPLITS}),
    "far away, all": ("A-snappy", {"batch_size": 8192, **_SPLITS}),
}
"""The table and the options of each case; those of a `Pack` by name. They name the order: a default can change."""

_FAR = "far away"
_LINE = {"latency": 15.0, "each": 90.0, "together": 125.0}
"""Of tables that are far away: milliseconds to the first byte, and MB/s of a connection and of all."""


class Side:
    """A checkout in a process of its own, which reads one epoch whenever it is told to."""

    def __init__(self, checkout: Path, case: str, data: Path, store: str | None = None) -> None:
        """Start the process.

        Args:
            checkout: whose `torch_table_loader` is measured.
            case: a key of `CASES`.
            data: the folder of all bench tables.
            store: the URL of the endpoint that serves them; None reads the files themselves.
        """
        command = [sys.executable, "-m", "bench.against", "--serve", str(checkout), "--case", case, "--data", str(data)]
        command += [] if store is None else ["--store", store]
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
    with ExitStack() as stack:
        store = None
        if case.startswith(_FAR):
            server = stack.enter_context(endpoint(data))
            server.ask("conf", **_LINE)
            store = server.url
        sides = Side(ROOT, case, data, store), Side(other, case, data, store)
        for side in sides:
            stack.callback(side.close)
            side.epoch()
        ratios = []
        for turn in range(rounds):
            order = sides if turn % 2 else sides[::-1]
            seconds = {side: side.epoch() for side in order}
            (own_wall, own_cpu), (wall, cpu) = seconds[sides[0]], seconds[sides[1]]
            ratios.append((wall / own_wall, cpu / own_cpu))
        return ratios


def serve(checkout: Path, case: str, data: Path, store: str | None) -> None:
    """Be one side: import its package, open the table, and read an epoch for each line of standard input."""
    sys.path.insert(0, str(checkout))
    import torch_table_loader

    if not Path(torch_table_loader.__file__).is_relative_to(checkout.resolve()):
        raise RuntimeError(f"the package must come from {checkout}, got {torch_table_loader.__file__}")
    from bench.far import BUCKET
    from bench.ours import rows_of
    from bench.pairing import measure

    name, options = CASES[case]
    table = build(name, data)
    warnings.simplefilter("ignore")
    path, pack = str(table.folder), options.get("pack")
    options = options if pack is None else options | {"pack": torch_table_loader.Pack(**pack)}
    if store is not None:
        path = f"{BUCKET}/{table.folder.name}"
        keys = {"endpoint_url": store, "key": "k", "secret": "s", "region": "us-east-1"}
        options = options | {"storage_options": keys}
    loader, _ = torch_table_loader.StructuredDataset.create_dataloader(path, num_workers=2, **options)
    run: Callable[[], int] = lambda: sum(map(len if pack else rows_of, loader))  # noqa: E731
    wanted = table.num_rows if pack is None else None
    for number, _ in enumerate(sys.stdin):
        loader.set_epoch(number)
        sample = measure(run)
        wanted = wanted or sample.rows
        if sample.rows != wanted:
            raise RuntimeError(f"an epoch must have {wanted} rows, got {sample.rows}")
        print(sample.seconds, sample.cpu_seconds, flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the cases that were asked for, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("other", nargs="?", type=Path, help="the other checkout")
    parser.add_argument("--case", action="append", choices=list(CASES), help="a case; all of them by default")
    parser.add_argument("--rounds", type=int, default=21, help="pairs of a case")
    parser.add_argument("--data", type=Path, default=ROOT / "build/bench", help="the folder of all bench tables")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    if asked.serve is not None:
        serve(asked.serve, asked.case[0], asked.data, asked.store)
        return
    if asked.other is None:
        parser.error("name the other checkout")
    if asked.rounds < 2:
        parser.error("--rounds must be at least 2: one pair has no quartiles")
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
