"""One duel in a process of its own: two contenders on one table, interleaved; prints JSON.

A contender is "floor", "ours:thread", "ours:process", "package:setting" of a rival, or, of the same files as an Iceberg
table, "iceberg:deletes" and "pyiceberg:deletes", where deletes are a kind of `bench.iceberg`, and "bare:position": the
floor, which also leaves out rows that it knows; as a Delta Lake table "delta:deletes", with a kind of `bench.delta`.
"one tensor:columns" is ours, with all columns in one tensor.
Of rows that pass a filter of `bench.filtered` there are "filtered:order" and "polars filtered:order".
Of documents there are "tokens", the floor of the list column `tokens` alone, "widened tokens", which also copies these
as int64 twice, as ids and labels are, and "packed:setting" of `bench.ours.PACKED`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from bench import delta, filtered, floor, iceberg, ours
from bench.pairing import ROUNDS, Sample, best_rate, interleave, measure
from bench.rivals import RIVALS
from bench.tables import BenchTable, build

_SLOW_SECONDS = 4.0
"""An epoch that takes longer is swept once: its start-up weighs nothing."""


def contender(name: str, table: BenchTable, batch_size: int) -> Callable[[], int]:
    """Find a contender by its name.

    Args:
        name: see above.
        table: what it reads.
        batch_size: rows of a batch.
    """
    kind, _, setting = name.partition(":")
    own: dict[str, Callable[[], Callable[[], int]]] = {
        "bare": lambda: iceberg.bare(table),
        "floor": lambda: lambda: floor.decode(table.files),
        "tokens": lambda: _floor_of_tokens(table),
        "widened tokens": lambda: _floor_of_tokens(table, widened=2),
        "packed": lambda: ours.packed(table, batch_size, setting),
        "ours": lambda: ours.epochs(table, batch_size, "process" if setting == "process" else "thread"),
        "one tensor": lambda: ours.one_tensor(table, batch_size),
        "filtered": lambda: filtered.ours(table, batch_size, setting),
        "polars filtered": lambda: filtered.polars(table, batch_size, setting),
        "iceberg": lambda: iceberg.ours(table, batch_size, setting),
        "delta": lambda: delta.ours(table, batch_size, setting),
        "pyiceberg": lambda: iceberg.theirs(table, setting),
    }
    return own[kind]() if kind in own else RIVALS[kind](table, batch_size)[setting]


def _floor_of_tokens(table: BenchTable, widened: int = 0) -> Callable[[], int]:
    tokens = ours.tokens_of(table)
    return lambda: tokens if floor.decode(table.files, ["tokens"], widened=widened) else 0


def sweep(rival: str, table: BenchTable, batch_size: int) -> dict[str, float | str]:
    """Give a rival's rows per second by setting, or why a setting does not work.

    Of two epochs the better counts; a slow one is not repeated.
    """
    rates: dict[str, float | str] = {}
    for setting, run in RIVALS[rival](table, batch_size).items():
        try:
            samples: tuple[Sample, ...] = (measure(run),)
            if samples[0].seconds < _SLOW_SECONDS:
                samples += (measure(run),)
        except (ValueError, TypeError, RuntimeError, NotImplementedError, OSError) as error:
            rates[setting] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
        else:
            rates[setting] = best_rate(samples)
    return rates


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", required=True)
    parser.add_argument("--root", type=Path, default=Path("build/bench"))
    parser.add_argument("--batch-size", type=int, default=8192)
    parser.add_argument("--left", default="ours:thread")
    parser.add_argument("--right", default="floor")
    parser.add_argument("--sweep", help="a rival: rows per second by setting, instead of a duel")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    table = build(options.table, options.root)
    result: object
    if options.sweep:
        result = sweep(options.sweep, table, options.batch_size)
    else:
        left, right = (contender(name, table, options.batch_size) for name in (options.left, options.right))
        deletes = {name.partition(":")[2] for name in (options.left, options.right)} & set(iceberg.KINDS[1:])
        pairs = interleave(left, right, options.rounds, same_rows=not deletes)
        result = {side: [_plain(sample) for sample in getattr(pairs, side)] for side in ("left", "right")}
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a rival's threads may abort a process that ends; what was measured is out


def _plain(sample: Sample) -> dict[str, float]:
    return dataclasses.asdict(sample)


if __name__ == "__main__":
    main()
