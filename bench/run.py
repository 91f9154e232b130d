"""Runs every comparison, each in a process of its own, and writes bench/RESULTS.md."""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench import bars, distant, tensors
from bench.bars import (
    BATCH_SIZE_DUELS,
    COLUMN_DUELS,
    DELTA_DUELS,
    DUELS,
    FILTER_DUELS,
    ICEBERG_DUELS,
    PACKED_DUELS,
    QUICK_DUELS,
    VALUE_DUELS,
    Duel,
)
from bench.pairing import ROUNDS, Pairs, Sample
from bench.report import TENSORS, FarRow, Outcome, Row, duel_row, write, write_distant, write_packing
from bench.results import FOLDER, keep
from bench.tables import build

_WHAT = (
    "duels",
    "values",
    "sharing",
    "checksums",
    "tensors",
    "planning",
    "packing",
    "first-batch",
    "resume",
    "memory",
    "iceberg",
    "delta",
    "filters",
    "rows",
    "distant",
    "batch-sizes",
    "columns",
)


_REPORT = Path("bench/RESULTS.md")


class Bench:
    """Starts one child at a time and reads what it printed."""

    def __init__(self, root: Path, rounds: int, results: Path = FOLDER) -> None:
        """Remember where the tables are, how many pairs to take, and where results are kept."""
        self._root, self._rounds, self._results = root, rounds, results
        self._sweeps: dict[tuple[str, str, int], dict[str, float | str]] = {}

    def duel(self, duel: Duel) -> Row:
        """Measure one duel; a rival's best setting is found first."""
        right = duel.right
        if right.endswith(":best"):
            rival = right.removesuffix(":best")
            rates = self.sweep(rival, duel.table, duel.batch_size)
            working = {setting: rate for setting, rate in rates.items() if isinstance(rate, float)}
            if not working:
                why = f"cannot read it: {rates}"
                return Row(duel.table, duel.batch_size, duel.left, right, None, None, why, asked=duel.right)
            right = f"{rival}:{max(working, key=lambda setting: working[setting])}"
        options = ("--left", duel.left, "--right", right, "--rounds", str(self._rounds))
        sides = self._child("bench.duel", *self._table(duel.table, duel.batch_size), *options)
        return duel_row(duel, right, _pairs(sides))

    def duels(self, kinds: Mapping[str, tuple[Sequence[Duel], list[Row]]], only: str | None) -> None:
        """Measure the duels of some kinds, and keep each result at once; each kind has a list for its rows."""
        duels = [(duel, found) for each, found in kinds.values() for duel in chosen(each, only)]
        for duel, found in (bar := tqdm(duels, unit="duel", disable=None if duels else True)):
            bar.set_postfix_str(f"{duel.table} {duel.batch_size} {duel.left} / {duel.right}")
            found.append(self.duel(duel))
            keep(found[-1:], (), self._results)
            tqdm.write(found[-1].line())

    def sweep(self, rival: str, table: str, batch_size: int) -> dict[str, float | str]:
        """Give a rival's rows per second by setting, measured once."""
        key = (rival, table, batch_size)
        if key not in self._sweeps:
            self._sweeps[key] = self._child("bench.duel", *self._table(table, batch_size), "--sweep", rival)
        return self._sweeps[key]

    @property
    def sweeps(self) -> dict[tuple[str, str, int], dict[str, float | str]]:
        """What was swept: by rival, table and batch size."""
        return dict(self._sweeps)

    def races(self, what: Sequence[str]) -> Iterator[Row]:
        """Race what no duel has, as far as it was asked for."""
        races_by_name = {"checksums": self.checksums, "tensors": self.tensors, "sharing": self.ranks}
        for name, races in races_by_name.items():
            if name in what:
                yield from races()

    def checksums(self) -> Iterator[Row]:
        """Race an epoch whose pages are compared with their checksums against one that leaves that out."""
        for codec in ("none", "zstd"):
            options = ("--root", str(self._root), "--rounds", str(self._rounds), "--codec", codec)
            pairs = _pairs(self._child("bench.checksums", *options))
            yield Row(f"B, one file, {codec}, with checksums", 8192, "verified", "not verified", pairs, None)

    def tensors(self) -> Iterator[Row]:
        """Race tensor shards against two bare threads that parse them with onnx."""
        for form in tensors.FORMS:
            options = ("--form", form, "--root", str(self._root), "--rounds", str(self._rounds))
            pairs = _pairs(self._child("bench.tensors", *options))
            yield Row(f"{TENSORS}, {form}", 1024, "ours:thread", "onnx, 2 threads", pairs, bars.TENSORS_OVER_ONNX)

    def ranks(self) -> Iterator[Row]:
        """Race two ranks on one machine against one that has it alone."""
        options = (*self._table("A-zstd", 8192)[:4], "--rounds", str(self._rounds))
        pairs = _pairs(self._child("bench.sharing", "ranks", *options))
        yield Row("A-zstd", 8192, "two ranks of one lane", "one rank of two lanes", pairs, bars.RANKS_OVER_ONE)

    def stall(self) -> list[Outcome]:
        """Time `next` beside a training loop that computes in Python."""
        found = self._child("bench.sharing", "stall", *self._table("A-zstd", 8192)[:4])
        what = "next() beside a step of 5 ms in Python"
        return [
            Outcome(f"{what}: the median, ms", found["median_ms"], None),
            Outcome(f"{what}: 99 of 100, ms", found["p99_ms"], bars.STALL_MS),
        ]

    def planning(self) -> list[Outcome]:
        """Plan a million row groups."""
        runs = [self._child("bench.planning") for _ in range(3)]
        first, following = (statistics.median(run[name] for run in runs) for name in ("first_seconds", "next_seconds"))
        return [
            Outcome("planning 1,000,000 row groups in 10,000 files, s", first, bars.PLANNING_SECONDS),
            Outcome("planning its next epoch, s", following, bars.NEXT_EPOCH_SECONDS),
            *self._planning_files(),
        ]

    def _planning_files(self) -> list[Outcome]:
        """Plan a million files of one row group."""
        runs = [self._child("bench.planning", "--files", "1000000", "--groups", "1") for _ in range(3)]
        seconds = statistics.median(run["first_seconds"] for run in runs)
        return [
            Outcome("planning 1,000,000 files for a rank of 1,024, s", seconds, bars.PLANNING_FILES_SECONDS),
            Outcome("their layout, bytes a file", runs[0]["bytes_a_file"], bars.PLANNING_FILE_BYTES),
        ]

    def packing(self) -> list[Outcome]:
        """Pack documents of tokens, and compare the peaks of epochs of packed sequences."""
        outcomes: list[Outcome] = []
        for block, (micros, fill) in self._child("bench.packing").items():
            what = f"best fit of blocks of {int(block):,} documents into 4,096 tokens"
            outcomes += [
                Outcome(f"{what}, CPU µs a document", micros, bars.PACKING_MICROS),
                Outcome(f"{what}, share of real tokens", fill, bars.PACKING_FILL[block], at_least=True),
            ]
        epochs = 30
        for setting in ("concat", "best fit"):
            options = ("--who", f"packed:{setting}", "--epochs", str(epochs))
            peaks = self._child("bench.memory", *self._table("D", 8), *options)["peaks"]
            growth = statistics.median(peaks[-5:]) / statistics.median(peaks[1:6])
            name = f"D, {setting}: peak of epochs {epochs - 4} to {epochs} over that of epochs 2 to 6"
            outcomes += [
                Outcome(name, growth, bars.MEMORY_GROWTH),
                Outcome(f"D, {setting}: peak, MiB", max(peaks), None),
            ]
        return outcomes

    def first_batch(self) -> list[Outcome]:
        """Time the first batch of fifty files."""
        build("fifty-files", self._root)
        seconds = [self._child("bench.first_batch", "--root", str(self._root)) for _ in range(5)]
        start = self._child("bench.process_start", "--root", str(self._root))
        allowed = bars.START_OVER_TORCH * start["import torch"] + bars.START_BESIDE_TORCH
        beside = f"`import torch`: {start['import torch']:.2f} s, allowed {allowed:.2f} s"
        return [
            Outcome("first batch of 50 local files, s", statistics.median(seconds), bars.FIRST_BATCH_SECONDS),
            Outcome(
                f"start of a process to the first batch of one file, CPU s ({beside})", start["first batch"], allowed
            ),
        ]

    def resume(self) -> list[Outcome]:
        """Go on in the middle of a million row groups, with a split a row group, and a split a file."""
        outcomes: list[Outcome] = []
        for split in ("row group", "file"):
            cost = self._child("bench.resume", "--split", split)
            where = f"1,000,000 row groups in {cost['num_splits']:,} splits"
            fresh = f"over a fresh start's ({cost['fresh_seconds']:.2f} s)"
            outcomes += [
                Outcome(f"{where}: state_dict(), µs", cost["state_micros"], bars.STATE_MICROS),
                *(
                    Outcome(f"{where}: first batch at {float(part):.0%} {fresh}", ratio, bars.RESUMED_OVER_FRESH)
                    for part, ratio in cost["ratios"].items()
                ),
                Outcome(f"{where}: first batch at 50% on 4 ranks instead of 1 {fresh}", cost["other_ranks"], None),
                Outcome(f"{where}: consumed files opened", cost["consumed_opened"], bars.CONSUMED_FILES_OPENED),
            ]
        return outcomes

    def memory(self) -> list[Outcome]:
        """Compare peaks over epochs, and with the floor's."""
        outcomes: list[Outcome] = []
        half = 30
        for table, workers in (("A-zstd", "thread"), ("B", "thread"), ("D", "thread")):
            ours, floor = (
                self._child("bench.memory", *self._table(table, 8192), "--who", who, "--epochs", str(2 * half))["peaks"]
                for who in (f"ours:{workers}", "floor")
            )
            first, last = statistics.median(ours[1:4]), statistics.median(ours[7:10])
            late = max(ours[half:]) / max(ours[:half])
            bar = bars.MEMORY_OVER_FLOOR if table == "A-zstd" else None
            outcomes += [
                Outcome(
                    f"{table}: peak of epochs 8 to 10 over that of epochs 2 to 4", last / first, bars.MEMORY_GROWTH
                ),
                Outcome(f"{table}: peak of {half} epochs over that of the {half} before", late, bars.MEMORY_GROWTH),
                Outcome(f"{table}: peak over the floor's", max(ours) / max(floor), bar),
                Outcome(f"{table}: peak, MiB (the floor's: {max(floor):.0f})", max(ours), None),
            ]
        return outcomes

    def iceberg(self) -> list[Outcome]:
        """Compare memory and planning with pyiceberg."""
        spent = {}
        for who in ("iceberg:plain", "pyiceberg:plain"):
            told = self._child("bench.memory", *self._table("E", 8192), "--who", who, "--epochs", "3")
            spent[who] = max(told["peaks"]) - told["start"]
        ours, theirs = spent.values()
        planned = self._child("bench.iceberg", "--root", str(self._root))
        return [
            Outcome(
                f"E: memory above the imports over pyiceberg's ({theirs:.0f} MiB)", ours / theirs, bars.ICEBERG_MEMORY
            ),
            Outcome(
                f"planning 10,000 files in 100 manifests over pyiceberg's plan_files() ({planned['theirs']:.2f} s)",
                planned["ratio"],
                bars.ICEBERG_PLANNING,
            ),
        ]

    def delta(self) -> list[Outcome]:
        """Compare planning with deltalake."""
        told = self._child("bench.delta", "--root", str(self._root))
        theirs = f"10,000 Delta Lake files over DeltaTable(...).file_uris() ({told['theirs']:.3f} s)"
        return [
            Outcome(f"planning {theirs}", told["planned over theirs"], bars.DELTA_PLANNING),
            Outcome(f'making a loader of {theirs}, footers="lazy"', told["made over theirs"], bars.DELTA_PLANNING),
        ]

    def rows(self) -> tuple[list[Row], list[Outcome]]:
        """Race a shuffled epoch of single rows, build its store, resume, and read it cold."""
        found = self._rows("permutation")
        rows = [
            Row(
                "10^8 indices",
                65_536,
                "permutation",
                "numpy's Generator.permutation",
                _pairs(found["pairs"]),
                bars.PERMUTATION_OVER_NUMPY,
            )
        ]
        tqdm.write(rows[-1].line())
        outcomes = [Outcome("starting an epoch of 10^12 rows, ms", found["start_ms"], bars.EPOCH_START_MS)]
        for duel in bars.ROWS:
            sides = self._rows("warm", "--table", duel.table, "--place", duel.place, "--against", duel.against)
            rows.append(Row(duel.table, 8192, f"rows:{duel.place}", duel.against, _pairs(sides), duel.bar))
            tqdm.write(rows[-1].line())
        sides, bar = self._rows("first", "--table", "A-zstd"), bars.FIRST_EPOCH_OVER_DUCKDB
        rows.append(
            Row("A-zstd", 8192, "rows:first epoch, build included", "DuckDB ORDER BY random()", _pairs(sides), bar)
        )
        tqdm.write(rows[-1].line())
        for table in ("A-zstd", "B"):
            for place in ("memory", "files"):
                cost = self._rows("build", "--table", table, "--place", place, "--rounds", str(self._rounds))
                name = (
                    f"{table}: build into {place} ({cost['build']:.2f} s), less writing ({cost['write']:.2f} s), over "
                    f"decoding ({cost['decode']:.2f} s)"
                )
                outcomes.append(Outcome(name, cost["ratio"], bars.BUILD_OVER_DECODING))
        for part, ratio in self._rows("resume", "--table", "A-zstd").items():
            name = f"A-zstd: first batch resumed at {float(part):.0%} over a fresh start's"
            outcomes.append(Outcome(name, ratio, bars.ROWS_RESUMED_OVER_FRESH))
        cold = self._rows("cold", "--table", "A-zstd")
        reads, pairs = "fio: pages at random, 2 jobs of depth 64", _pairs(cold["pairs"])
        rows.append(Row("16 GiB of 64-byte rows", 8192, "rows:cold files", reads, pairs, bars.COLD_OVER_FIO))
        tqdm.write(rows[-1].line())
        outcomes.append(Outcome("cold files: bytes from the disk a row", cold["disk_bytes_per_row"], None))
        return rows, outcomes

    def distant(self, before: Path | None) -> tuple[list[FarRow], list[Outcome]]:
        """Read tables on an object store side by side with others; a third of the rounds, for each has two runs."""
        return distant.measure(self._root, max(1, self._rounds // 3), before)

    def _rows(self, what: str, *arguments: str) -> Any:
        rounds = str(max(3, self._rounds // 2))
        return self._child("bench.rows", what, "--root", str(self._root), "--rounds", rounds, *arguments)

    def _table(self, table: str, batch_size: int) -> tuple[str, ...]:
        build(table, self._root)
        return ("--table", table, "--root", str(self._root), "--batch-size", str(batch_size))

    @staticmethod
    def _child(module: str, *arguments: str) -> Any:
        command = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])


def _pairs(sides: dict[str, Any]) -> Pairs:
    left, right = (tuple(Sample(**sample) for sample in sides[side]) for side in ("left", "right"))
    return Pairs(left, right)


def chosen(duels: Sequence[Duel], only: str | None) -> list[Duel]:
    """Keep the duels whose description holds a text."""
    return [duel for duel in duels if only is None or only in f"{duel.table} {duel.batch_size} {duel.right}"]


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "what", nargs="*", choices=[*_WHAT, "quick", []], help="all, if none is named; quick is in no other"
    )
    parser.add_argument("--only", help="only duels of which 'TABLE BATCH_SIZE RIGHT' holds this text")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="pairs of a duel; of distant a third")
    parser.add_argument("--root", type=Path, default=Path("build/bench"), help="folder of the tables")
    parser.add_argument("--out", type=Path, help="the report; a part of all is only printed if this is left out")
    parser.add_argument("--results", type=Path, default=FOLDER, help="folder of the results as JSON, a file a machine")
    parser.add_argument("--against", type=Path, help="another checkout, which distant measures too")
    options = parser.parse_args()
    if "rows" in (options.what or _WHAT) and shutil.which("fio") is None:
        parser.error("rows compares a cold store with fio, which is not there; install the package fio")
    return options


def main() -> None:
    """Read the command line, measure, write the report; exit with 1 where a bar was missed."""
    options = _asked()
    what = options.what or _WHAT
    bench = Bench(options.root, options.rounds, options.results)
    rows: list[Row] = []
    outcomes: list[Outcome] = []
    packed: tuple[list[Row], list[Outcome]] = ([], [])
    charts: list[Row] = []
    kinds = {
        "quick": (QUICK_DUELS, rows),
        "duels": (DUELS, rows),
        "values": (VALUE_DUELS, rows),
        "iceberg": (ICEBERG_DUELS, rows),
        "delta": (DELTA_DUELS, rows),
        "filters": (FILTER_DUELS, rows),
        "packing": (PACKED_DUELS, packed[0]),
        "batch-sizes": (BATCH_SIZE_DUELS, charts),
        "columns": (COLUMN_DUELS, charts),
    }
    bench.duels({kind: each for kind, each in kinds.items() if kind in what}, options.only)
    for row in bench.races(what):
        rows.append(row)
        tqdm.write(row.line())
    for name, measure in (
        ("planning", bench.planning),
        ("first-batch", bench.first_batch),
        ("resume", bench.resume),
        ("memory", bench.memory),
        ("iceberg", bench.iceberg),
        ("delta", bench.delta),
        ("sharing", bench.stall),
    ):
        if name in what:
            outcomes += measure()
    packed[1].extend(bench.packing() if "packing" in what else ())
    row_mode: tuple[list[Row], list[Outcome]] = bench.rows() if "rows" in what else ([], [])
    far: tuple[list[FarRow], list[Outcome]] = bench.distant(options.against) if "distant" in what else ([], [])
    outcomes_of_all = (*outcomes, *packed[1], *row_mode[1], *far[1])
    for reader in far[0]:
        print(reader.line())
    for outcome in outcomes_of_all:
        print(outcome.line())
    keep((*rows, *charts, *packed[0], *row_mode[0]), outcomes_of_all, options.results)
    out = options.out or _REPORT
    if set(what) == {"distant"}:
        write_distant(out, *far)
    elif set(what) == {"packing"}:
        write_packing(out, *packed)
    elif options.out or not options.what:
        write(out, rows, outcomes, bench.sweeps, options.rounds, packed, row_mode, far)
    if False in {*(row.met for row in (*rows, *packed[0], *row_mode[0])), *(entry.met for entry in outcomes_of_all)}:
        sys.exit(1)


if __name__ == "__main__":
    main()
