"""What was measured, and where it is kept: a JSON file for each machine, in which a new result replaces its old one."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import os
import platform
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bench.bars import Duel, MixBar
from bench.pairing import Pairs, Sample, cpu_micros

FOLDER = Path(__file__).parent / "results"

Entry = Mapping[str, Any]

_PACKAGES = (
    "torch-table-loader",
    "torch",
    "pyarrow",
    "pyiceberg",
    "obstore",
    "numpy",
    "torch-dataloader-utils",
    "datasets",
    "polars",
    "pylance",
    "duckdb",
    "tpchgen-cli",
)


@dataclass(frozen=True, slots=True)
class Row:
    """A duel that was fought.

    Args:
        table: the table's name.
        batch_size: rows of a batch.
        left: the contender.
        right: what it was measured against, with its setting.
        pairs: the samples; None where there are none.
        bar: the least median ratio, or None.
        remark: why there are no samples.
        asked: what was to be measured against: its best setting, where that had to be found; "" is the same as `right`.
        tried: rows per second of each setting among which the best was found, or why it does not work.
    """

    KIND: ClassVar = "duels"
    KEY: ClassVar = ("table", "batch", "left", "asked")

    table: str
    batch_size: int
    left: str
    right: str
    pairs: Pairs | None
    bar: float | None
    remark: str = ""
    asked: str = ""
    tried: Mapping[str, float | str] | None = None

    @property
    def met(self) -> bool | None:
        """Whether the median reached the bar; None where there is no bar."""
        return None if self.bar is None else self.pairs is not None and self.pairs.median >= self.bar

    def entry(self) -> dict[str, Any]:
        """Return what is kept; rates and CPU are medians, of the left and of the right."""
        found: dict[str, Any] = {"table": self.table, "batch": self.batch_size, "left": self.left, "right": self.right}
        found |= {"asked": self.asked or self.right, "bar": self.bar, "met": self.met}
        found |= {} if self.tried is None else {"tried": dict(self.tried)}
        if self.pairs is None:
            return found | {"remark": self.remark}
        ratios, sides = self.pairs.ratios, (self.pairs.left, self.pairs.right)
        return found | {
            "ratio": round(self.pairs.median, 4),
            "range": [round(min(ratios), 4), round(max(ratios), 4)],
            "pairs": len(ratios),
            "median_rows_per_second": [round(_median_rate(side)) for side in sides],
            "cpu_micros_per_row": [round(cpu_micros(side), 5) for side in sides],
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """A number that must stay on one side of a bar.

    Args:
        name: what was measured, with its unit; the same at every measuring, so without any figure that was measured.
        value: the median; None where there is none.
        bar: what it may be at most, or at least, or None.
        at_least: whether more is better.
        note: what else was measured, or why there is no value.
        runs: how many the median is of.
    """

    KIND: ClassVar = "numbers"
    KEY: ClassVar = ("name",)

    name: str
    value: float | None
    bar: float | None
    at_least: bool = False
    note: str = ""
    runs: int = 1

    @property
    def met(self) -> bool | None:
        """Whether it is on the right side; None where there is no bar."""
        if self.bar is None or self.value is None:
            return None if self.bar is None else False
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def entry(self) -> dict[str, Any]:
        """Return what is kept."""
        found = {"name": self.name, "value": self.value, "bar": self.bar, "met": self.met}
        return found | {"at_least": self.at_least, "note": self.note, "runs": self.runs}


@dataclass(frozen=True, slots=True)
class FarRow:
    """What a reader of a distant table did.

    Args:
        scene: the table, and how far away it is.
        who: the reader, with its setting.
        figures: by heading, medians over the runs; a remark alone if it could not read.
        runs: how many.
    """

    KIND: ClassVar = "readers"
    KEY: ClassVar = ("scene", "who")

    scene: str
    who: str
    figures: Mapping[str, str]
    runs: int = 1

    def entry(self) -> dict[str, Any]:
        """Return what is kept."""
        return {"scene": self.scene, "who": self.who, "figures": dict(self.figures), "runs": self.runs}


@dataclass(frozen=True, slots=True)
class MixRow:
    """How well an order mixes.

    Args:
        table: a key of `bench.mixing.BATCH_SIZES`.
        ranks: that take a step together.
        who: a key of `bench.mixing.READERS`.
        figures: as `bench.mixing.measured` gives them.
        bar: what they must reach, or None.
    """

    KIND: ClassVar = "orders"
    KEY: ClassVar = ("table", "ranks", "who")

    table: str
    ranks: int
    who: str
    figures: Mapping[str, Any]
    bar: MixBar | None

    def entry(self) -> dict[str, Any]:
        """Return what is kept."""
        found = {"table": self.table, "ranks": self.ranks, "who": self.who, "figures": dict(self.figures)}
        if self.bar is None:
            return found | {"bar": None, "met": None}
        figures, bar = self.figures, self.bar
        met = figures["spread"] >= bar.spread and figures["drift"] <= bar.drift and figures["near"] <= bar.near
        return found | {"bar": [bar.spread, bar.drift, bar.near], "met": met}


Found = Row | Outcome | FarRow | MixRow
KINDS = (Row, Outcome, FarRow, MixRow)


def duel_row(duel: Duel, right: str, pairs: Pairs, tried: Mapping[str, float | str] | None = None) -> Row:
    """Make the row of a duel, with the setting that the right side really had."""
    return Row(duel.table, duel.batch_size, duel.left, right, pairs, duel.bar, asked=duel.right, tried=tried)


def keep(part: str, found: Sequence[Found], folder: Path = FOLDER) -> Path:
    """Write results into this machine's file; those that were not measured now stay.

    Args:
        part: of the bench, which measured them: `python -m bench.run PART` measures them again.
        found: what was measured.
        folder: of the files.

    Returns:
        The file. ``machine`` says which machine it was; ``duels``, ``numbers`` and ``readers`` list what was measured,
        each with its part, its time, the load of the machine and the versions. A ratio is the speed of the left over
        that of the right.
    """
    path = folder / f"{slug(processor())}.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    measured = {"at": f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d %H:%M} UTC", "load": load(), "versions": versions()}
    content: dict[str, Any] = {"machine": machine()}
    for kind in KINDS:
        now = [{"part": part} | each.entry() | measured for each in found if isinstance(each, kind)]
        content[kind.KIND] = _merged(before.get(kind.KIND, []), now, kind.KEY)
    folder.mkdir(exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(content, indent=1) + "\n")
    unfinished.replace(path)
    return path


def machines(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Return what each machine measured, as `keep` writes it."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def newest_complete(measured: Sequence[Entry], needed: Collection[tuple[Any, ...]]) -> Entry:
    """Return the machine that fought all duels that are needed, and the last of them most recently.

    Args:
        measured: what machines measured.
        needed: duels, by the names in `Row.KEY`.
    """
    days = [(max(duel["at"] for duel in duels), place) for place, duels in _complete(measured, needed)]
    if not days:
        raise ValueError(f"no machine has all of these duels: {sorted(needed)}")
    return measured[max(days)[1]]


def _complete(measured: Sequence[Entry], needed: Collection[tuple[Any, ...]]) -> list[tuple[int, list[Entry]]]:
    fought = [(place, duels_of(machine)) for place, machine in enumerate(measured)]
    return [(place, [duels[key] for key in needed]) for place, duels in fought if set(needed) <= duels.keys()]


def duels_of(measured: Entry) -> dict[tuple[Any, ...], Entry]:
    """Return the duels of a machine that have a ratio, by the names in `Row.KEY`."""
    return {tuple(duel[name] for name in Row.KEY): duel for duel in measured["duels"] if "ratio" in duel}


def days_of(entries: Sequence[Entry]) -> str:
    """Return the first and the last day of results.

    >>> days_of([{"at": "2026-11-24 04:50 UTC"}, {"at": "2026-11-23 23:53 UTC"}])
    '2026-11-23 to 2026-11-24'
    """
    days = sorted({entry["at"].partition(" ")[0] for entry in entries})
    return " to ".join(dict.fromkeys((*days[:1], *days[-1:])))


def slug(text: str) -> str:
    """Return a text as part of a file's name.

    >>> slug("2 cores of Intel(R) Xeon(R) Processor")
    '2-cores-of-intel-r-xeon-r-processor'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _merged(before: Sequence[Entry], now: Sequence[Entry], key: Sequence[str]) -> list[Entry]:
    """Replace the entries that have the key of a new one, in their places; others come behind.

    Two parts may have a duel in common; it stays with the part that had it first.
    """
    found = {tuple(entry[name] for name in key): entry for entry in before}
    for entry in now:
        named = tuple(entry[name] for name in key)
        found[named] = {**entry, "part": found.get(named, entry)["part"]}
    return list(found.values())


def _median_rate(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.rows / sample.seconds for sample in samples)


def load() -> float:
    """Return the machine's load average of the last five minutes."""
    return round(os.getloadavg()[1], 2)


def versions() -> dict[str, str]:
    """Return the versions of what is measured, and of Python."""
    return {name: version(name) for name in _PACKAGES} | {"Python": platform.python_version()}


def version(package: str) -> str:
    """Return the version of a package, or that there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def processor() -> str:
    """Return the name of this machine's processor, and how many of its cores are ours."""
    return f"{len(os.sched_getaffinity(0))} cores of {model_of(Path('/proc/cpuinfo').read_text())}"


def model_of(cpuinfo: str) -> str:
    r"""Return a processor's name, family and model; the name alone may stand for several models.

    Args:
        cpuinfo: what `/proc/cpuinfo` says.

    >>> model_of("cpu family : 25\nmodel : 1\nmodel name : AMD EPYC\n")
    'AMD EPYC family 25 model 1'
    """
    first_core = cpuinfo.partition("\n\n")[0]
    found = {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first_core.splitlines())
    }
    numbers = [
        f"{word} {found[field]}" for word, field in (("family", "cpu family"), ("model", "model")) if field in found
    ]
    return " ".join([found.get("model name", platform.machine()), *numbers])


def machine() -> str:
    """Describe this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{processor()}, {memory:.0f} GiB, {platform.system()} {platform.release()}"


__all__ = [
    "FOLDER",
    "KINDS",
    "Entry",
    "FarRow",
    "Found",
    "Outcome",
    "Row",
    "days_of",
    "duel_row",
    "duels_of",
    "keep",
    "load",
    "machine",
    "machines",
    "model_of",
    "newest_complete",
    "processor",
    "slug",
    "version",
    "versions",
]
