"""What sharing a machine costs, in processes of its own; prints JSON.

"ranks": two ranks of one lane each, both at work at once, against one rank of two lanes; "stall": how long a training
loop waits for its next batch that computes in Python between batches, and so holds the interpreter.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from bench.pairing import ROUNDS, Pairs, Sample
from bench.tables import BenchTable, build

_BATCH_SIZE = 8192
_STEP_SECONDS = 0.005
"""How long a step computes."""


class _Rank:
    """A process that reads its part of the table each time it is told to."""

    def __init__(self, table: BenchTable, rank: int, num_ranks: int, stack: ExitStack) -> None:
        options = ("--part", f"{rank},{num_ranks}", "--root", str(table.folder.parent), "--table", table.name)
        command = [sys.executable, "-m", "bench.sharing", "rank", *options]
        self._process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(_pipe(self._process.stdin).close)
        self.answer()

    def begin(self) -> None:
        stdin = _pipe(self._process.stdin)
        stdin.write("\n")
        stdin.flush()

    def answer(self) -> list[float]:
        """Return rows and CPU seconds of the epoch."""
        return [float(each) for each in _pipe(self._process.stdout).readline().split()]


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None  # noqa: S101 it was asked for
    return pipe


def ranks(table: BenchTable, rounds: int) -> Pairs:
    """Race two ranks of one lane against one rank of two lanes."""
    with ExitStack() as stack:
        two = [_Rank(table, rank, 2, stack) for rank in range(2)]
        one = [_Rank(table, 0, 1, stack)]
        taken: dict[str, list[Sample]] = {"two": [], "one": []}
        for turn in range(rounds + 1):
            sides = [("two", two), ("one", one)]
            for name, side in reversed(sides) if turn % 2 else sides:
                sample = _together(side)
                if turn:  # the first round opens files
                    taken[name].append(sample)
    return Pairs(tuple(taken["two"]), tuple(taken["one"]))


def _together(side: list[_Rank]) -> Sample:
    began = time.perf_counter()
    for rank in side:
        rank.begin()
    answers = [rank.answer() for rank in side]
    seconds = time.perf_counter() - began
    return Sample(seconds, sum(cpu for _, cpu in answers), int(sum(rows for rows, _ in answers)))


def serve(table: BenchTable, rank: int, num_ranks: int) -> None:
    """Read an epoch for each line of the standard input, and print its rows and CPU seconds."""
    loader = _loader(table, rank=rank, num_ranks=num_ranks, num_workers=2 // num_ranks)
    sys.stdout.write("\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        began = time.process_time()
        rows = sum(len(batch["l_tax"]) for batch in loader)
        sys.stdout.write(f"{rows} {time.process_time() - began}\n")
        sys.stdout.flush()


def stall(table: BenchTable) -> dict[str, float]:
    """Return how long `next` took, in ms: the median and the 99th percentile of an epoch behind its first batches."""
    waits = []
    for _ in range(3):
        batches = iter(_loader(table, num_workers=2))
        while True:
            began = time.perf_counter()
            if next(batches, None) is None:
                break
            waits.append(time.perf_counter() - began)
            until = time.perf_counter() + _STEP_SECONDS
            while time.perf_counter() < until:
                sum(range(100))
    later = np.array(waits[20:]) * 1e3
    return {"median_ms": float(np.median(later)), "p99_ms": float(np.percentile(later, 99))}


def _loader(table: BenchTable, **options: Any) -> Any:
    from torch_table_loader import StructuredDataset

    return StructuredDataset.create_dataloader(
        str(table.folder), "parquet", batch_size=_BATCH_SIZE, check_plan=False, even_ranks="balance", **options
    )[0]


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["ranks", "stall", "rank"])
    parser.add_argument("--table", default="A-zstd")
    parser.add_argument("--root", type=Path, default=Path("build/bench"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--part", default="0,1", help="of a rank: which, of how many")
    options = parser.parse_args()
    table = build(options.table, options.root)
    if options.what == "rank":
        rank, num_ranks = map(int, options.part.split(","))
        serve(table, rank, num_ranks)
        return
    found: Any = stall(table) if options.what == "stall" else dataclasses.asdict(ranks(table, options.rounds))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
