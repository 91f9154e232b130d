"""Tables on an object store: this library side by side with others, against the line and the requests that are needed.

`bench.run distant` calls `measure`. Each run is a process of its own (`bench.far`), and the endpoint another
(`bench.endpoint`).
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
from tqdm import tqdm

from bench import bars, iceberg
from bench.endpoint import Endpoint, endpoint
from bench.far import BUCKET, SCANNER, SHUFFLED_ROWS, WINDOW_ROWS, Told, build_store
from bench.report import FAR_FIGURES
from bench.results import FarRow, Found, Outcome
from bench.tables import BenchTable, build

EACH, TOGETHER = 90.0, 125.0
"""MB/s of a connection, and of all: 1 Gbit/s."""

SIGMA = 0.99
"""Of latencies of which the 99th percentile is ten times the median."""

BUDGET_MIB = 128
"""What may be fetched ahead in a process, if its user sets nothing."""

EPOCHS_CACHED = 4
"""The first fills the cache; memory for what comes from it is new in the second."""
_FROM_CACHE = "from the disk cache over local files"

_GAP, _REQUEST = 256 << 10, 8 << 20
_MOST_SECONDS = 300
_NOT_RUN = "not run"
_FULL = 0.8


@dataclass(frozen=True, slots=True)
class Scene:
    """A table, and how far away it is.

    Args:
        title: for the report.
        table: a key of `bench.tables.TABLES`.
        latency: milliseconds.
        sigma: of latencies.
        columns: what is read; None for all.
        deletes: a kind of `bench.iceberg` if it is read as an Iceberg table.
    """

    title: str
    table: str
    latency: float
    sigma: float = 0.0
    columns: tuple[str, ...] | None = None
    deletes: str | None = None


LINEITEM = Scene("lineitem, 15 ms", "A-snappy", 15)
FAR = Scene("lineitem, 100 ms", "A-snappy", 100)
TAIL = Scene("lineitem, 15 ms, p99 = 150 ms", "A-snappy", 15, SIGMA)
NOISE = Scene("hardly compresses, 15 ms", "noise", 15)
COLUMNS = Scene("4 of 40 columns, row groups of 131,072, 40 ms", "noise", 40, columns=("f0", "f11", "f22", "f33"))
_FOUR, _FORTY = ("f0", "f11", "f22", "f33"), tuple(f"f{place}" for place in range(0, 500, 12))[:40]
SMALL_GROUPS, LARGE_GROUPS, WIDE, MANY_FILES = PROJECTIONS = (
    Scene("4 of 40 columns, row groups of 25,000, 40 ms", "6 files, row groups of 25,000", 40, columns=_FOUR),
    Scene("4 of 40 columns, row groups of 250,000, 40 ms", "6 files, row groups of 250,000", 40, columns=_FOUR),
    Scene("40 of 500 columns, row groups of 12,500, 40 ms", "C", 40, columns=_FORTY),
    Scene("4 of 40 columns, 400 files, 40 ms", "400 files of 40 columns", 40, columns=_FOUR),
)
"""Projections: what they cost is requests where chunks are small, and the line where they are large."""

SMALL_FILES = Scene("400 files of 190 kB, 40 ms", "400-files", 40)
PLAIN, POSITION, VECTOR = (
    Scene(f"lineitem in Iceberg, {kind}, 15 ms", "A-snappy", 15, deletes=kind)
    for kind in ("plain", "position", "vector")
)

ROWS, TEXTS = Scene("row store behind a URL, 40 ms", "records", 40), Scene("the same, with texts", "lines", 40)

OURS, BEFORE, CACHED, LOCAL, SHUFFLED = "ours", "ours:before", "ours:cached", "ours:local", "ours:rows"
POLARS, AS_IT_COMES, BEST = "polars:batches", "scanner:as it comes", "scanner:best"
OTHER_LOADER = "torch-dataloader-utils:num_workers=2"

RACES: tuple[tuple[tuple[Scene, str], ...], ...] = (
    (
        *((LINEITEM, who) for who in (OURS, BEFORE, POLARS, AS_IT_COMES, BEST, OTHER_LOADER)),
        *((scene, who) for scene in (FAR, TAIL) for who in (OURS, POLARS)),
    ),
    tuple((NOISE, who) for who in (OURS, POLARS, BEST)),
    tuple((COLUMNS, who) for who in (OURS, BEFORE, POLARS, BEST)),
    *(tuple((scene, who) for who in (OURS, POLARS)) for scene in PROJECTIONS),
    tuple((SMALL_FILES, who) for who in (OURS, POLARS, AS_IT_COMES, BEST)),
    tuple((scene, OURS) for scene in (PLAIN, POSITION, VECTOR)),
    ((LINEITEM, CACHED), (LINEITEM, LOCAL)),
    ((ROWS, SHUFFLED), (TEXTS, SHUFFLED)),
)
"""What is run in turn, since it is compared."""


@dataclass(frozen=True, slots=True)
class Needed:
    """What an epoch must fetch, by the footers.

    Args:
        num_bytes: of the column chunks.
        requests: of the merged ranges of each row group.
        of_files: of the merged ranges of each file, were row groups not decoded one by one.
        files: of the table.
    """

    num_bytes: int
    requests: int
    of_files: int
    files: int


def needed(table: BenchTable, columns: Sequence[str] | None) -> Needed:
    """Say what reading columns of a table in order needs, by its footers alone."""
    total = requests = of_files = 0
    for file in table.files:
        footer = pq.read_metadata(file)
        groups = [_chunks(footer.row_group(group), columns) for group in range(footer.num_row_groups)]
        total += sum(stop - start for group in groups for start, stop in group)
        requests += sum(map(_requests, groups))
        of_files += _requests([chunk for group in groups for chunk in group])
    return Needed(total, requests, of_files, len(table.files))


def _chunks(group: pq.RowGroupMetaData, columns: Sequence[str] | None) -> list[tuple[int, int]]:
    chunks = (group.column(place) for place in range(group.num_columns))
    starts = (
        (chunk.dictionary_page_offset or chunk.data_page_offset, chunk.total_compressed_size)
        for chunk in chunks
        if columns is None or chunk.path_in_schema in columns
    )
    return sorted((start, start + size) for start, size in starts)


def _requests(ranges: Sequence[tuple[int, int]]) -> int:
    """Count the requests of ascending ranges, merged over gaps."""
    ends = [place for place, (one, next_one) in enumerate(pairwise(ranges), 1) if next_one[0] - one[1] > _GAP]
    runs = pairwise([0, *ends, len(ranges)])
    return sum(-(-(ranges[stop - 1][1] - ranges[start][0]) // _REQUEST) for start, stop in runs)


class Races:
    """Runs readers in turn, each in a process of its own."""

    def __init__(self, root: Path, rounds: int, before: Path | None, only: str) -> None:
        """Remember what to run.

        Args:
            root: the folder of all bench tables.
            rounds: runs of each reader.
            before: another checkout of this library, which is the one of yesterday.
            only: races of which a title contains this.
        """
        self._root, self._rounds, self._before = root.resolve(), rounds, before
        self._races = [
            [entry for entry in race if entry[1] != BEFORE or before is not None]
            for race in RACES
            if any(only in scene.title for scene, _ in race)
        ]
        self.tables = {scene.table: build(scene.table, self._root) for race in self._races for scene, _ in race}
        self.found: dict[tuple[Scene, str], list[Told] | str] = {}
        self.best: dict[Scene, str] = {}

    def run(self) -> None:
        """Run all races."""
        for scene in (ROWS, TEXTS):
            if scene.table in self.tables:
                build_store(self.tables[scene.table].folder, self._root)
        with endpoint(self._root) as served, tqdm(unit="run", disable=None) as progress:
            for race in self._races:
                for scene, who in race:
                    if who == BEST:
                        self.best[scene] = self._sweep(served, scene)
                for turn in range(self._rounds):
                    for scene, who in race[:: -1 if turn % 2 else 1]:
                        progress.set_postfix_str(f"{scene.title} {who}")
                        self._add((scene, who), self._one(served, scene, who))
                        progress.update()

    def needed(self, scene: Scene) -> Needed:
        """Say what an epoch of a scene must fetch; of a scene that was not raced nothing is told."""
        table = self.tables.get(scene.table)
        return Needed(1, 1, 1, 1) if table is None else needed(table, scene.columns)

    def over(self, left: tuple[Scene, str], right: tuple[Scene, str], what: Callable[[Told], float]) -> float | str:
        """Give the median ratio of two readers that ran in turn, or why there is none."""
        mine, other = self.found.get(left, _NOT_RUN), self.found.get(right, _NOT_RUN)
        if isinstance(mine, str) or isinstance(other, str):
            return str(mine if isinstance(mine, str) else other)
        return statistics.median(what(a) / what(b) for a, b in zip(mine, other, strict=True))

    def median(self, entry: tuple[Scene, str], what: Callable[[Told], float], times: float = 1) -> float | str:
        """Give a reader's median times something, or why there is none."""
        found = self.found.get(entry, _NOT_RUN)
        return found if isinstance(found, str) else times * statistics.median(map(what, found))

    def _add(self, entry: tuple[Scene, str], told: Told | str) -> None:
        found = self.found.setdefault(entry, [])
        if isinstance(told, str) or isinstance(found, str):
            self.found[entry] = told if isinstance(told, str) else found
        else:
            found.append(told)

    def _sweep(self, served: Endpoint, scene: Scene) -> str:
        """Find the scanner's best setting for a scene: of two runs of each, in turn, the better counts."""
        best = {f"scanner:{setting}": math.inf for setting in SCANNER}
        for _ in range(min(2, self._rounds)):
            for setting, seconds in best.items():
                told = self._one(served, scene, setting)
                best[setting] = seconds if isinstance(told, str) else min(seconds, _epoch(told))
        return min(best, key=best.__getitem__)

    def _one(self, served: Endpoint, scene: Scene, who: str) -> Told | str:
        """Run a reader once; give what it measured, or its last line."""
        served.ask("conf", latency=scene.latency, sigma=scene.sigma, each=EACH, together=TOGETHER)
        table = self.tables[scene.table]
        path = table.folder.name
        if scene.deletes is not None:
            path = iceberg.location(table, scene.deletes, BUCKET).removeprefix(f"{BUCKET}/")
        name = self.best[scene] if who == BEST else OURS if who == BEFORE else who
        options = ["--who", name, "--path", path, "--endpoint", served.url, "--local", str(table.folder)]
        options += ["--checkout", str(self._before)] if who == BEFORE else []
        options += ["--epochs", str(EPOCHS_CACHED)] if who in {CACHED, LOCAL} else []
        options += ["--columns", *scene.columns] if scene.columns else []
        command = [sys.executable, "-m", "bench.far", *options]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_MOST_SECONDS, env=environment
            )
        except subprocess.TimeoutExpired:
            return f"took more than {_MOST_SECONDS} s"
        if done.returncode:
            return done.stderr.strip().splitlines()[-1][:160] if done.stderr.strip() else f"exit code {done.returncode}"
        told = Told(**json.loads(done.stdout.splitlines()[-1]))
        wanted = SHUFFLED_ROWS if who == SHUFFLED else table.num_rows
        if scene.deletes in {None, "plain"} and told.rows[0] != wanted:
            return f"delivered {told.rows[0]:,} of {wanted:,} rows"
        return told


def measure(root: Path, rounds: int, before: Path | None, only: str = "") -> Iterator[Found]:
    """Run all readers of distant tables; give what each did, then what has a bar.

    Args:
        root: the folder of all bench tables.
        rounds: runs of each reader.
        before: another checkout, which first batches and memory are compared with; None leaves that out.
        only: races of which a scene's title contains this; others are neither run nor told of.
    """
    races = Races(root, rounds, before, only)
    races.run()
    yield from _rows(races)
    yield from (replace(each, runs=rounds) for each in _outcomes(races) if each.note != _NOT_RUN)


def _rows(races: Races) -> Iterator[FarRow]:
    for (scene, who), found in races.found.items():
        shown = races.best[scene] if who == BEST else who
        if isinstance(found, str):
            yield FarRow(scene.title, shown, {"remark": found})
            continue
        one = found[0]
        seconds = [told.seconds[-1] for told in found]
        table = races.tables[scene.table]
        read = SHUFFLED_ROWS / table.num_rows if who == SHUFFLED else 1
        must = read * races.needed(scene).num_bytes
        spent = f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
        figures = (
            f"{statistics.median(told.construct for told in found):.2f}",
            f"{statistics.median(told.first[-1] for told in found):.2f}",
            spent,
            f"{must / TOGETHER / 1e6 / statistics.median(seconds):.0%}",
            _asked(one.constructing["requests"]),
            _asked(one.served[-1]["requests"]),
            f"{one.served[-1]['bytes'] / must:.2f}",
            f"{max(told.served[-1]['most_in_flight'] for told in found)}",
            f"{statistics.median(told.cpu[-1] for told in found):.2f}",
            f"{statistics.median(told.peak for told in found):.0f}",
        )
        name = f"{shown}, epoch {len(one.seconds)}" if len(one.seconds) > 1 else shown
        yield FarRow(scene.title, name, dict(zip(FAR_FIGURES, figures, strict=True)), runs=len(found))


def _asked(requests: dict[str, int]) -> str:
    return " + ".join(str(requests[kind]) for kind in ("GET", "HEAD", "LIST"))


def _outcome(name: str, value: float | str, bar: float | None, *, at_least: bool = False, note: str = "") -> Outcome:
    if isinstance(value, str):
        return Outcome(name, None, bar, at_least, value)
    return Outcome(name, value, bar, at_least, note)


def _outcomes(races: Races) -> Iterator[Outcome]:
    for scene, least in (
        *((each, bars.SHARE_OF_LINE) for each in (LINEITEM, LARGE_GROUPS)),
        (NOISE, bars.SHARE_OF_LINE_NOISE),
    ):
        at_best = races.needed(scene).num_bytes / TOGETHER / 1e6
        share = races.median((scene, OURS), lambda told: 1 / _epoch(told), times=at_best)
        note = f"{at_best:.2f} s at best"
        yield _outcome(f"{scene.title}: share of the line", share, least, at_least=True, note=note)
    for scene in (ROWS, TEXTS):
        share = races.median((scene, SHUFFLED), lambda told: told.served[0]["bytes"] / _epoch(told), 1e-6 / TOGETHER)
        name = f"{scene.title}: share of the line, by bytes asked for in windows of {WINDOW_ROWS:,} rows"
        yield _outcome(name, share, bars.SHARE_OF_LINE_ROWS, at_least=True)
    for scene, who, bar in (
        (LINEITEM, POLARS, bars.LINEITEM_OVER_POLARS),
        (NOISE, POLARS, None),
        (FAR, POLARS, None),
        *((scene, POLARS, bars.LARGE_GROUPS_OVER_POLARS) for scene in (COLUMNS, LARGE_GROUPS)),
        *((scene, POLARS, bars.COLUMNS_OVER_POLARS) for scene in (SMALL_GROUPS, WIDE, MANY_FILES)),
        (SMALL_FILES, BEST, bars.SMALL_FILES_OVER_SCANNER),
        (SMALL_FILES, AS_IT_COMES, None),
    ):
        told_of = "polars'" if who == POLARS else "the scanner's at its best" if who == BEST else "the scanner's"
        ratio = races.over((scene, OURS), (scene, who), _epoch)
        yield _outcome(f"{scene.title}: epoch over {told_of}", ratio, bar)
        ratio = races.over((scene, OURS), (scene, who), lambda told: told.construct + told.seconds[0])
        yield _outcome(f"{scene.title}: constructing and epoch over {told_of}", ratio, bar if who == BEST else None)
    ratio = races.over((FAR, OURS), (LINEITEM, OURS), _epoch)
    yield _outcome("lineitem: epoch at 100 ms over 15 ms", ratio, bars.FAR_OVER_NEAR)
    ratio = races.over((TAIL, OURS), (LINEITEM, OURS), _epoch)
    yield _outcome("lineitem: epoch with a tail of latencies over none", ratio, bars.TAIL_OVER_NONE)
    for scene in (POSITION, VECTOR):
        ratio = races.over((scene, OURS), (PLAIN, OURS), _epoch)
        yield _outcome(f"Iceberg: epoch with 5 % deletes ({scene.deletes}) over plain", ratio, bars.DELETES_OVER_PLAIN)
    yield from _requests_asked(races)
    yield from _against_before(races)
    yield from _cache(races)
    yield from _cost_of_endpoint(races)


def _epoch(told: Told) -> float:
    return told.seconds[0]


def _cost_of_endpoint(races: Races) -> Iterator[Outcome]:
    runs = [told for found in races.found.values() if not isinstance(found, str) for told in found]
    epochs = [served for told in runs for served in told.served]
    full = [served for served in epochs if served["bytes"] >= _FULL * TOGETHER * 1e6 * served["seconds"]]
    for name, some, bar in (
        (f"the endpoint's share of a core, where more than {_FULL:.0%} of the line was used", full, bars.ENDPOINT_CPU),
        ("the endpoint's share of a core, at most", epochs, None),
    ):
        if some:
            yield Outcome(name, max(served["cpu_seconds"] / served["seconds"] for served in some), bar)


def _requests_asked(races: Races) -> Iterator[Outcome]:
    for scene in (LINEITEM, NOISE, COLUMNS, SMALL_GROUPS, LARGE_GROUPS, WIDE, SMALL_FILES):
        must, ours = races.needed(scene), (scene, OURS)
        note = f"{must.requests} merged ranges; of whole files {must.of_files}"
        gets = races.median(ours, lambda told: told.served[0]["requests"]["GET"], times=1 / must.requests)
        name = f"{scene.title}: GETs of an epoch over merged ranges"
        yield _outcome(name, gets, bars.REQUESTS_OVER_MERGED, note=note)
        heads = races.median(ours, lambda told: told.served[0]["requests"]["HEAD"])
        yield _outcome(f"{scene.title}: HEADs of an epoch", heads, bars.HEADS)
        sent = races.median(ours, lambda told: told.served[0]["bytes"], times=1 / must.num_bytes)
        yield _outcome(f"{scene.title}: bytes over needed", sent, bars.BYTES_OVER_NEEDED)
    small, num_files = (SMALL_FILES, OURS), races.needed(SMALL_FILES).files
    asked = races.median(small, lambda told: sum(told.constructing["requests"].values()), times=1 / num_files)
    yield _outcome(f"{SMALL_FILES.title}: constructing, requests a file", asked, bars.REQUESTS_A_FILE)
    seconds = races.median(small, lambda told: told.construct - told.constructing["bytes"] / TOGETHER / 1e6)
    yield _outcome(f"{SMALL_FILES.title}: constructing, s beyond the line's", seconds, bars.CONSTRUCTING_SECONDS)


def _against_before(races: Races) -> Iterator[Outcome]:
    ours, before = (LINEITEM, OURS), (LINEITEM, BEFORE)
    first = races.median(ours, lambda told: told.first[0])
    yield _outcome(f"{LINEITEM.title}: first batch, s", first, None)
    ratio = races.over(ours, before, lambda told: told.first[0])
    yield _outcome(f"{LINEITEM.title}: first batch over the other checkout's", ratio, bars.FIRST_BATCH_OVER_TODAY)
    for scene in (LINEITEM, COLUMNS):
        ratio = races.over((scene, OURS), (scene, BEFORE), _epoch)
        yield _outcome(f"{scene.title}: epoch over the other checkout's", ratio, None)
    mine, theirs = (races.median(entry, lambda told: told.peak) for entry in (ours, before))
    name = f"{LINEITEM.title}: peak less the other checkout's, over the budget of {BUDGET_MIB} MiB"
    if isinstance(mine, str) or isinstance(theirs, str):
        yield _outcome(name, str(mine if isinstance(mine, str) else theirs), bars.MEMORY_OVER_BUDGET)
    else:
        note = f"{mine:.0f} and {theirs:.0f} MiB"
        yield _outcome(name, (mine - theirs) / BUDGET_MIB, bars.MEMORY_OVER_BUDGET, note=note)


def _cache(races: Races) -> Iterator[Outcome]:
    cached, local = (LINEITEM, CACHED), (LINEITEM, LOCAL)
    second, later = f"lineitem: second epoch {_FROM_CACHE}", f"lineitem: epochs 3 to {EPOCHS_CACHED} {_FROM_CACHE}"
    ratio = races.over(cached, local, lambda told: told.seconds[1])
    yield _outcome(second, ratio, bars.CACHED_OVER_LOCAL)
    yield _outcome(f"{second}, CPU", races.over(cached, local, lambda told: told.cpu[1]), None)
    yield _outcome(later, races.over(cached, local, lambda told: statistics.median(told.seconds[2:])), None)
    ratio = races.over(cached, local, lambda told: statistics.median(told.cpu[2:]))
    yield _outcome(f"{later}, CPU", ratio, None)
    sent = races.median(cached, lambda told: told.served[1]["bytes"])
    yield _outcome("lineitem: bytes from the store in the second epoch", sent, bars.BYTES_WHEN_CACHED)


__all__ = ["measure"]
