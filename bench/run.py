"""Runs every comparison, each in a process of its own, keeps the results, and writes bench/RESULTS.md from them."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench import bars, distant, mixing, report, resident, tensors
from bench.bars import Duel
from bench.pairing import ROUNDS, Pairs, Sample, cpu_micros
from bench.results import FOLDER, Found, MixRow, Outcome, Row, duel_row, keep
from bench.tables import build

DUELS: Mapping[str, Sequence[Duel]] = {
    "quick": bars.QUICK_DUELS,
    "duels": bars.DUELS,
    "batch-sizes": bars.BATCH_SIZE_DUELS,
    "columns": bars.COLUMN_DUELS,
    "values": bars.VALUE_DUELS,
    "filters": bars.FILTER_DUELS,
    "packing": bars.PACKED_DUELS,
    "iceberg": bars.ICEBERG_DUELS,
    "delta": bars.DELTA_DUELS,
}
"""The duels of a part of the bench; a part may measure more."""


_ONLY_HELD = {"MIMALLOC_PURGE_DELAY": "0"}
"""Arrow's mimalloc keeps freed pages for a second, longer than an epoch takes: what is resident would be chance."""


class Bench:
    """Starts one child at a time and reads what it printed."""

    def __init__(
        self, root: Path, rounds: int, before: Path | None = None, mixed: Sequence[str] = tuple(mixing.BATCH_SIZES)
    ) -> None:
        """Remember where the tables are, how many pairs to take, another checkout, and the tables of mixing."""
        self._root, self._rounds, self._before, self._mixed = root, rounds, before, mixed
        self._sweeps: dict[tuple[str, str, int], dict[str, float | str]] = {}

    def part(self, name: str, only: str | None) -> Iterator[Found]:
        """Measure a part of the bench; give each result as soon as it is there."""
        duels = chosen(DUELS.get(name, ()), only)
        for duel in (bar := tqdm(duels, unit="duel", disable=None if duels else True)):
            bar.set_postfix_str(f"{duel.table} {duel.batch_size} {duel.left} / {duel.right}")
            yield self.duel(duel)
        others: Mapping[str, Callable[[], Iterator[Found]]] = {
            "checksums": self.checksums,
            "tensors": self.tensors,
            "sharing": self.sharing,
            "lock": self.lock,
            "windows": self.windows,
            "mixing": lambda: self.mixing(only or ""),
            "planning": self.planning,
            "packing": self.packing,
            "first-batch": self.first_batch,
            "resume": self.resume,
            "memory": self.memory,
            "bounds": self.bounds,
            "iceberg": self.iceberg,
            "delta": self.delta,
            "rows": self.rows,
            "distant": lambda: distant.measure(self._root, max(1, self._rounds // 3), self._before, only or ""),
        }
        if name in others and (only is None or name in {"distant", "mixing"}):
            yield from others[name]()

    def duel(self, duel: Duel) -> Row:
        """Measure one duel; a rival's best setting is found first."""
        right, tried = duel.right, None
        if right.endswith(":best"):
            rival = right.removesuffix(":best")
            tried = self.sweep(rival, duel.table, duel.batch_size)
            working = {setting: rate for setting, rate in tried.items() if isinstance(rate, float)}
            if not working:
                why = f"cannot read it: {tried}"
                return Row(duel.table, duel.batch_size, duel.left, right, None, None, why, asked=duel.right)
            right = f"{rival}:{max(working, key=lambda setting: working[setting])}"
        options = ("--left", duel.left, "--right", right, "--rounds", str(self._rounds))
        sides = self._child("bench.duel", *self._table(duel.table, duel.batch_size), *options)
        return duel_row(duel, right, _pairs(sides), tried)

    def sweep(self, rival: str, table: str, batch_size: int) -> dict[str, float | str]:
        """Give a rival's rows per second by setting, measured once."""
        key = (rival, table, batch_size)
        if key not in self._sweeps:
            self._sweeps[key] = self._child("bench.duel", *self._table(table, batch_size), "--sweep", rival)
        return self._sweeps[key]

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
            yield Row(f"Tensor shards, {form}", 1024, "ours:thread", "onnx, 2 threads", pairs, bars.TENSORS_OVER_ONNX)

    def sharing(self) -> Iterator[Found]:
        """Race two ranks on one machine against one that has it alone; time `next` beside a loop that computes."""
        options = (*self._table("A-zstd", 8192)[:4], "--rounds", str(self._rounds))
        pairs = _pairs(self._child("bench.sharing", "ranks", *options))
        yield Row("A-zstd", 8192, "two ranks of one lane", "one rank of two lanes", pairs, bars.RANKS_OVER_ONE)
        found = self._child("bench.sharing", "stall", *self._table("A-zstd", 8192)[:4])
        what = "next() beside a step of 5 ms in Python"
        yield Outcome(f"{what}: the median, ms", found["median_ms"], None)
        yield Outcome(f"{what}: 99 of 100, ms", found["p99_ms"], bars.STALL_MS)

    def lock(self) -> Iterator[Outcome]:
        """Find at how many cores Python's lock keeps more threads from helping."""
        for (table, batch_size), bar in bars.SATURATION.items():
            told = self._child("bench.lock", *self._table(table, batch_size), "--rounds", str(self._rounds))
            name = f"{table}, batches of {batch_size:,}: all CPU seconds over those that hold Python's lock"
            note = "{held:.4f} of {cpu:.3f} CPU s a million rows, on {busy:.1f} busy cores".format_map(told)
            yield Outcome(name, told["saturation"], bar, at_least=True, note=note, runs=self._rounds)

    def windows(self) -> Iterator[Outcome]:
        """Compare mixed splits with the plain stream."""
        for table, window in itertools.product(("A-zstd", "B"), bars.MIXED_OVER_PLAIN):
            options, how = list(self._table(table, 8192)), "by default"
            if window is not None:
                options += ["--window", str(window)]
                how = f"in windows of {window:,} rows"
            pairs = _pairs(self._child("bench.windows", *options, "--rounds", str(self._rounds)))
            name = f"{table}, batches of 8,192: speed by CPU of mixed splits {how}, of the plain stream's"
            note = f"{cpu_micros(pairs.left) * 1e3:.0f} and {cpu_micros(pairs.right) * 1e3:.0f} ns a row"
            bar = bars.MIXED_OVER_PLAIN[window]
            yield Outcome(name, pairs.median_by_cpu, bar, at_least=True, note=note, runs=len(pairs.left))

    def mixing(self, only: str) -> Iterator[Found]:
        """Measure how well orders mix tables that lie sorted, and what a network learns from them."""
        for table, who, ranks in itertools.product(self._mixed, mixing.READERS, mixing.RANKS):
            if only in who:
                options = (*self._table(table, mixing.BATCH_SIZES[table])[:4], "--who", who, "--ranks", str(ranks))
                bar = None
                if who in {mixing.DEFAULT, mixing.WINDOW}:
                    bar = bars.mix_bar(table, windows=who == mixing.WINDOW)
                yield MixRow(table, ranks, who, self._child("bench.mixing", *options), bar)
        for who, (ratio, note) in self._child("bench.loss", "--root", str(self._root)).items():
            if only in who:
                most = bars.LOSS_OVER_ROWS if who == mixing.DEFAULT else None
                yield Outcome(f"loss, {who}, over that by rows", ratio, most, note=note, runs=3)

    def planning(self) -> Iterator[Outcome]:
        """Plan a million row groups, and a million files of one row group."""
        runs = [self._child("bench.planning") for _ in range(3)]
        first, following = (statistics.median(run[name] for run in runs) for name in ("first_seconds", "next_seconds"))
        what = "planning 1,000,000 row groups in 10,000 files, s"
        yield Outcome(what, first, bars.PLANNING_SECONDS, runs=3)
        yield Outcome("planning its next epoch, s", following, bars.NEXT_EPOCH_SECONDS, runs=3)
        runs = [self._child("bench.planning", "--files", "1000000", "--groups", "1") for _ in range(3)]
        seconds = statistics.median(run["first_seconds"] for run in runs)
        what = "planning 1,000,000 files for a rank of 1,024, s"
        yield Outcome(what, seconds, bars.PLANNING_FILES_SECONDS, runs=3)
        yield Outcome("their layout, bytes a file", runs[0]["bytes_a_file"], bars.PLANNING_FILE_BYTES)

    def packing(self) -> Iterator[Outcome]:
        """Pack documents of tokens, and compare the peaks of epochs of packed sequences."""
        for block, (micros, fill) in self._child("bench.packing").items():
            what = f"best fit of blocks of {int(block):,} documents into 4,096 tokens"
            yield Outcome(f"{what}, CPU µs a document", micros, bars.PACKING_MICROS)
            yield Outcome(f"{what}, share of real tokens", fill, bars.PACKING_FILL[block], at_least=True)
        epochs = 30
        for setting in ("concat", "best fit"):
            options = ("--who", f"packed:{setting}", "--epochs", str(epochs))
            peaks = self._child("bench.memory", *self._table("D", 8), *options)["peaks"]
            growth = statistics.median(peaks[-5:]) / statistics.median(peaks[1:6])
            name = f"D, {setting}: peak of epochs {epochs - 4} to {epochs} over that of epochs 2 to 6"
            yield Outcome(name, growth, bars.MEMORY_GROWTH)
            yield Outcome(f"D, {setting}: peak, MiB", max(peaks), None)

    def first_batch(self) -> Iterator[Outcome]:
        """Time the first batch of fifty files."""
        build("fifty-files", self._root)
        seconds = [self._child("bench.first_batch", "--root", str(self._root)) for _ in range(5)]
        what = "first batch of 50 local files, s"
        yield Outcome(what, statistics.median(seconds), bars.FIRST_BATCH_SECONDS, runs=5)
        start = self._child("bench.process_start", "--root", str(self._root))
        allowed = bars.START_OVER_TORCH * start["import torch"] + bars.START_BESIDE_TORCH
        what = "start of a process to the first batch of one file, CPU s"
        yield Outcome(what, start["first batch"], allowed, note=f"`import torch`: {start['import torch']:.2f} s")

    def resume(self) -> Iterator[Outcome]:
        """Go on in the middle of a million row groups, with a split a row group, and a split a file."""
        for split in ("row group", "file"):
            cost = self._child("bench.resume", "--split", split)
            where = f"1,000,000 row groups in {cost['num_splits']:,} splits"
            fresh, note = "over a fresh start's", f"a fresh start: {cost['fresh_seconds']:.2f} s"
            yield Outcome(f"{where}: state_dict(), µs", cost["state_micros"], bars.STATE_MICROS)
            for part, ratio in cost["ratios"].items():
                name = f"{where}: first batch at {float(part):.0%} {fresh}"
                yield Outcome(name, ratio, bars.RESUMED_OVER_FRESH, note=note)
            name = f"{where}: first batch at 50% on 4 ranks instead of 1 {fresh}"
            yield Outcome(name, cost["other_ranks"], bars.RESCALED_OVER_FRESH, note=note)
            name = f"{where}: consumed files opened"
            yield Outcome(name, cost["consumed_opened"], bars.CONSUMED_FILES_OPENED)

    def memory(self) -> Iterator[Outcome]:
        """Compare peaks over epochs, and with the floor's."""
        half = 30
        for table, workers in (("A-zstd", "thread"), ("B", "thread"), ("D", "thread")):
            asked = (*self._table(table, 8192), "--epochs", str(2 * half), "--who")
            ours, floor = (
                self._child("bench.memory", *asked, who, environment=_ONLY_HELD)["peaks"]
                for who in (f"ours:{workers}", "floor")
            )
            first, last = statistics.median(ours[1:4]), statistics.median(ours[7:10])
            late = max(ours[half:]) / max(ours[:half])
            bar = bars.MEMORY_OVER_FLOOR if table in {"A-zstd", "D"} else None
            yield Outcome(
                f"{table}: peak of epochs 8 to 10 over that of epochs 2 to 4", last / first, bars.MEMORY_GROWTH
            )
            yield Outcome(f"{table}: peak of {half} epochs over that of the {half} before", late, bars.MEMORY_GROWTH)
            yield Outcome(f"{table}: peak over the floor's", max(ours) / max(floor), bar)
            yield Outcome(f"{table}: peak, MiB", max(ours), None, note=f"the floor's: {max(floor):.0f}")

    def bounds(self) -> Iterator[Outcome]:
        """Hold what jobs of many shapes keep in memory against the bound that they state."""
        found = self._child("bench.shapes")
        within, idle = (sum(each[name] for each in found) for name in ("holds", "idle"))
        yield Outcome(f"shapes of {len(found)} within their bound", within, len(found), at_least=True)
        yield Outcome("shapes whose bound is 3 times what they use, and 64 MiB more", idle, bars.IDLE_BOUNDS)
        median = statistics.median(each["bound"] / each["used"] for each in found)
        yield Outcome("bound over what is used, median", median, bars.BOUND_OVER_USED)
        for allocator in resident.ALLOCATORS:
            found = self._child("bench.resident", "--allocator", allocator)
            within = sum(each["holds"] for each in found)
            what = f"shapes of {len(found)} whose resident memory grows by at most {resident.TIMES} times their bound"
            yield Outcome(f"{what}, {allocator}", within, len(found), at_least=True)

    def iceberg(self) -> Iterator[Outcome]:
        """Compare memory and planning with pyiceberg."""
        spent = {}
        for who in ("iceberg:plain", "pyiceberg:plain"):
            told = self._child("bench.memory", *self._table("E", 8192), "--who", who, "--epochs", "3")
            spent[who] = max(told["peaks"]) - told["start"]
        ours, theirs = spent.values()
        what, note = "E: memory above the imports over pyiceberg's", f"pyiceberg's: {theirs:.0f} MiB"
        yield Outcome(what, ours / theirs, bars.ICEBERG_MEMORY, note=note)
        planned = self._child("bench.iceberg", "--root", str(self._root))
        what, note = (
            "planning 10,000 files in 100 manifests over pyiceberg's plan_files()",
            f"{planned['theirs']:.2f} s",
        )
        yield Outcome(what, planned["ratio"], bars.ICEBERG_PLANNING, note=f"pyiceberg's: {note}")

    def delta(self) -> Iterator[Outcome]:
        """Compare planning with deltalake."""
        told = self._child("bench.delta", "--root", str(self._root))
        theirs, note = (
            "10,000 Delta Lake files over DeltaTable(...).file_uris()",
            f"deltalake's: {told['theirs']:.3f} s",
        )
        yield Outcome(f"planning {theirs}", told["planned over theirs"], bars.DELTA_PLANNING, note=note)
        what = f'making a loader of {theirs}, footers="lazy"'
        yield Outcome(what, told["made over theirs"], bars.DELTA_PLANNING, note=note)

    def rows(self) -> Iterator[Found]:
        """Race a shuffled epoch of single rows, build its store, resume, and read it cold."""
        found = self._rows("permutation")
        theirs, bar = "numpy's Generator.permutation", bars.PERMUTATION_OVER_NUMPY
        yield Row("10^8 indices", 65_536, "permutation", theirs, _pairs(found["pairs"]), bar)
        yield Outcome("starting an epoch of 10^12 rows, ms", found["start_ms"], bars.EPOCH_START_MS)
        for duel in bars.ROWS:
            sides = self._rows("warm", "--table", duel.table, "--place", duel.place, "--against", duel.against)
            yield Row(duel.table, 8192, f"rows:{duel.place}", duel.against, _pairs(sides), duel.bar)
        pairs, bar = _pairs(self._rows("first", "--table", "A-zstd")), bars.FIRST_EPOCH_OVER_DUCKDB
        yield Row("A-zstd", 8192, "rows:first epoch, build included", "DuckDB ORDER BY random()", pairs, bar)
        for table in ("A-zstd", "B"):
            for place in ("memory", "files"):
                cost = self._rows("build", "--table", table, "--place", place, "--rounds", str(self._rounds))
                yield Outcome(
                    f"{table}: build into {place}, less writing, over decoding",
                    cost["ratio"],
                    bars.BUILD_OVER_DECODING,
                    note="build {build:.2f} s, writing {write:.2f} s, decoding {decode:.2f} s".format_map(cost),
                    runs=self._rounds,
                )
        for part, ratio in self._rows("resume", "--table", "A-zstd").items():
            name = f"A-zstd: first batch resumed at {float(part):.0%} over a fresh start's"
            yield Outcome(name, ratio, bars.ROWS_RESUMED_OVER_FRESH)
        cold = self._rows("cold", "--table", "A-zstd")
        reads, pairs = "fio: pages at random, 2 jobs of depth 64", _pairs(cold["pairs"])
        yield Row("16 GiB of 64-byte rows", 8192, "rows:cold files", reads, pairs, bars.COLD_OVER_FIO)
        yield Outcome("cold files: bytes from the disk a row", cold["disk_bytes_per_row"], None)

    def _rows(self, what: str, *arguments: str) -> Any:
        rounds = str(max(3, self._rounds // 2))
        return self._child("bench.rows", what, "--root", str(self._root), "--rounds", rounds, *arguments)

    def _table(self, table: str, batch_size: int) -> tuple[str, ...]:
        build(table, self._root)
        return ("--table", table, "--root", str(self._root), "--batch-size", str(batch_size))

    @staticmethod
    def _child(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Any:
        command = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})}
        )
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
    parts = [part for part in report.PARTS if part != "quick"]
    parser.add_argument("what", nargs="*", choices=[*parts, "quick", []], help="all but quick, if none is named")
    parser.add_argument(
        "--only",
        help="only duels of which 'TABLE BATCH_SIZE RIGHT', races of distant of which the title, "
        "or orders of mixing of which the name holds this text",
    )
    parser.add_argument(
        "--tables", default=",".join(mixing.BATCH_SIZES), help="those of mixing, by commas; all if left out"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="pairs of a duel; of distant a third")
    parser.add_argument("--root", type=Path, default=Path("build/bench"), help="folder of the tables")
    parser.add_argument("--results", type=Path, default=FOLDER, help="folder of the results as JSON, a file a machine")
    parser.add_argument("--against", type=Path, help="another checkout, which distant measures too")
    options = parser.parse_args()
    options.what = options.what or parts
    options.tables = options.tables.split(",")
    if unknown := set(options.tables) - set(mixing.BATCH_SIZES):
        parser.error(f"--tables must name some of {', '.join(mixing.BATCH_SIZES)}, not {', '.join(sorted(unknown))}")
    if "rows" in options.what and shutil.which("fio") is None:
        parser.error("rows compares a cold store with fio, which is not there; install the package fio")
    return options


def main() -> None:
    """Read the command line, measure, keep what was measured, write the report; exit with 1 where a bar was missed."""
    options = _asked()
    bench = Bench(options.root, options.rounds, options.against, options.tables)
    missed = False
    for part in options.what:
        for found in bench.part(part, options.only):
            tqdm.write(report.line(found))
            keep(part, [found], options.results)
            missed |= found.entry().get("met") is False
    if options.results == FOLDER:
        report.write()
    sys.exit(missed)


if __name__ == "__main__":
    main()
