"""The report: what was measured against what bar, on which machine, when, with which versions."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.bars import Duel
from bench.pairing import Pairs, best_rate, cpu_micros

MARKDOWN_WIDTH = 100  # as everywhere in the repository

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
    """

    table: str
    batch_size: int
    left: str
    right: str
    pairs: Pairs | None
    bar: float | None
    remark: str = ""
    asked: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the median reached the bar; None where there is no bar."""
        return None if self.bar is None else self.pairs is not None and self.pairs.median >= self.bar

    def line(self) -> str:
        """Say it in one line of a Markdown table."""
        cells = [self.table, f"{self.batch_size:,}", self.left, self.right]
        if self.pairs is None:
            return _line([*cells, self.remark, "", "", "", _bar(self.bar, "≥"), _verdict(self.met)])
        ratios = self.pairs.ratios
        sides = (self.pairs.left, self.pairs.right)
        return _line(
            [
                *cells,
                f"**{self.pairs.median:.2f}**",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
                " / ".join(f"{best_rate(side) / 1e6:.3g}" for side in sides),
                " / ".join(f"{cpu_micros(side):.3g}" for side in sides),
                _bar(self.bar, "≥"),
                _verdict(self.met),
            ]
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """A number that must stay on one side of a bar.

    Args:
        name: what was measured, with its unit.
        value: the median; None where there is none.
        bar: what it may be at most, or at least, or None.
        at_least: whether more is better.
        remark: why there is no value.
    """

    name: str
    value: float | None
    bar: float | None
    at_least: bool = False
    remark: str = ""

    @property
    def met(self) -> bool | None:
        """Whether it is on the right side; None where there is no bar."""
        if self.bar is None or self.value is None:
            return None if self.bar is None else False
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def line(self) -> str:
        """Say it in one line of a Markdown table."""
        shown = self.remark if self.value is None else f"**{self.value:.3g}**"
        return _line([self.name, shown, _bar(self.bar, "≥" if self.at_least else "≤"), _verdict(self.met)])


@dataclass(frozen=True, slots=True)
class FarRow:
    """What a reader of a distant table did.

    Args:
        scene: the table, and how far away it is.
        who: the reader, with its setting.
        figures: the cells between these and the end, or a remark alone.
    """

    scene: str
    who: str
    figures: tuple[str, ...]

    def line(self) -> str:
        """Say it in one line of a Markdown table."""
        return _line([self.scene, self.who, *self.figures, *([""] * (len(_FAR) - 2 - len(self.figures)))])


def duel_row(duel: Duel, right: str, pairs: Pairs) -> Row:
    """Make the row of a duel, with the setting that the right side really had."""
    return Row(duel.table, duel.batch_size, duel.left, right, pairs, duel.bar, asked=duel.right)


def write(
    path: Path,
    rows: Sequence[Row],
    outcomes: Sequence[Outcome],
    sweeps: Mapping[tuple[str, str, int], Mapping[str, float | str]],
    rounds: int,
    packed: tuple[Sequence[Row], Sequence[Outcome]] = ((), ()),
    row_mode: tuple[Sequence[Row], Sequence[Outcome]] = ((), ()),
    distant: tuple[Sequence[FarRow], Sequence[Outcome]] = ((), ()),
) -> None:
    """Write the report, whole.

    Args:
        path: a Markdown file.
        rows: the duels.
        outcomes: the other numbers.
        sweeps: rows per second of each rival's settings.
        rounds: pairs behind each median.
        packed: duels and other numbers of documents that become sequences.
        row_mode: duels and other numbers of ``shuffle="rows"``.
        distant: readers and other numbers of tables on an object store.
    """
    lines = [
        *_head(rounds),
        *_duels([row for row in rows if not _is_iceberg(row) and not _is_tensors(row)]),
        *_tensors([row for row in rows if _is_tensors(row)]),
        *_iceberg([row for row in rows if _is_iceberg(row)]),
        *_numbers(outcomes),
        *_packing(*packed),
        *_row_mode(*row_mode),
        *_distant(*distant),
        *_settings(sweeps),
    ]
    _put(path, "\n".join(lines))


def write_distant(path: Path, rows: Sequence[FarRow], outcomes: Sequence[Outcome]) -> None:
    """Write the section of distant tables into a report, and leave its other sections as they are.

    Args:
        path: a Markdown file, or where one is to be.
        rows: of `write`.
        outcomes: of `write`.
    """
    _put_section(path, _DISTANT, _distant(rows, outcomes))


def write_packing(path: Path, rows: Sequence[Row], outcomes: Sequence[Outcome]) -> None:
    """Write the section of sequences of tokens into a report, and leave its other sections as they are.

    Args:
        path: a Markdown file, or where one is to be.
        rows: of `write`.
        outcomes: of `write`.
    """
    _put_section(path, _PACKING, _packing(rows, outcomes))


def _put_section(path: Path, title: str, lines: Sequence[str]) -> None:
    head, *sections = path.read_text().split("\n## ") if path.exists() else ("# What was measured\n",)
    section = "\n".join(lines).removeprefix("## ")
    others = [each for each in sections if not each.startswith(title)]
    at = next((place for place, each in enumerate(others) if each.startswith(_SETTINGS)), len(others))
    _put(path, "\n## ".join((head, *others[:at], section, *others[at:])))


def _put(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text("\n".join(map(_folded, text.split("\n"))))
    unfinished.replace(path)


def _folded(line: str) -> str:
    """Break a line of prose that is too long; leave tables and headings."""
    whole = len(line) <= MARKDOWN_WIDTH or line.startswith(("|", "#"))
    return line if whole else textwrap.fill(line, MARKDOWN_WIDTH, break_long_words=False, break_on_hyphens=False)


def _head(rounds: int) -> list[str]:
    now = dt.datetime.now(tz=dt.UTC)
    return [
        "# What was measured",
        "",
        f"{now:%Y-%m-%d %H:%M} UTC, by `{_command()}`. {_machine()}",
        "",
        ", ".join(f"{name} {_version(name)}" for name in _PACKAGES) + f", Python {platform.python_version()}.",
        "",
        "A ratio is the speed of the left over the speed of the right, in one process, the two in turn;",
        f"the median of at least {rounds} such pairs (of short runs up to 60) decides. The floor is two threads that",
        "decode each row group with pyarrow and drop it. Tables: A is TPC-H lineitem SF1 (8 numeric columns ×",
        "6,001,215 rows), B 40 columns (1 + 13 float32 + 26 int32) × 4,000,000, C 500 float32 × 200,000, D 20,000",
        "documents of about 800 tokens and two strings. B, C and D are snappy, pyarrow's default. Ours",
        "always has `num_workers=2`.",
        "",
    ]


def _is_tensors(row: Row) -> bool:
    return row.table.startswith(TENSORS)


def _tensors(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    return [
        f"## {TENSORS}",
        "",
        "Four files of 10,000 samples of int64: tokens, a mask of as many, and a label. Fixed: 128 tokens; ragged: 1",
        "to 128; typed: 128, in `int64_data` in place of `raw_data`. The right walks over lengths in two threads,",
        "parses with onnx, and makes a numpy array of each tensor; it cuts no batch.",
        "",
        *_duels(rows),
    ]


def _is_iceberg(row: Row) -> bool:
    return row.left.startswith(("iceberg:", "bare:"))


def _iceberg(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    times = [
        f"{row.table} {row.left.partition(':')[2]} {row.pairs.median_of_times:.2f}"
        for row in rows
        if row.pairs is not None and row.right == "iceberg:plain"
    ]
    return [
        "## Iceberg",
        "",
        "The files of A, B and E (two files of 1 GB: 8 float64 columns, row groups of 61 MiB) as Iceberg tables:",
        "plain, with 5 % of rows deleted by position or by deletion vector, with 5 % of an int column's values",
        "deleted, or with 5 % of rows deleted by keys of two columns, one key a row (300,000). Rows per second count",
        "live rows, and the files hold all: 0.95 is what decoding alone leaves. Bare is the floor that also copies the",
        "live rows, knowing which they are: what pyarrow itself leaves.",
        "",
        *_duels(rows),
        *(
            ["By time, an epoch of the plain table over one with deletes: " + ", ".join(times) + ".", ""]
            if times
            else []
        ),
    ]


def _packing(rows: Sequence[Row], outcomes: Sequence[Outcome]) -> list[str]:
    if not (rows or outcomes):
        return []
    now = dt.datetime.now(tz=dt.UTC)
    packages = ("torch", "pyarrow", "numpy", "torch-dataloader-utils")
    return [
        f"## {_PACKING}",
        "",
        f"{now:%Y-%m-%d %H:%M} UTC, by `{_command()}`. {_machine()}",
        f"{_load()} {', '.join(f'{name} {_version(name)}' for name in packages)}.",
        "",
        "The documents of D become batches of 8 sequences of 4,096 tokens; rates are tokens a second. `tokens` is the",
        "floor: two threads decode the column of lists and drop it. A token is 4 bytes there. All tensors have 28 a",
        "token (ids, labels and positions of int64, document ids of int32), ids and labels 16, ids 8; windows come",
        "from a warm row store in memory. Packed by hand is a packer over the rows of torch-dataloader-utils, written",
        "in Python as its user would, which makes the same tensors.",
        "",
        *_duels(rows),
        *_numbers(outcomes),
    ]


def _row_mode(rows: Sequence[Row], outcomes: Sequence[Outcome]) -> list[str]:
    if not (rows or outcomes):
        return []
    return [
        '## shuffle="rows"',
        "",
        "A uniformly shuffled epoch from a warm store against decoding in order, and against other ways to",
        "shuffle; of those that take minutes, some batches. A build is less the time of writing as many bytes to",
        "the same place. A cold store stands for one that is larger than memory: no limit was set, but before each",
        "round its pages were taken out of the process and of the system's cache, so that all came from the disk.",
        "fio reads whole pages of the same file past the cache; each of its reads counts as a row.",
        "Of permutations and other ways to shuffle, which are long, fewer pairs are taken: half of those above.",
        "",
        *_duels(rows),
        *_numbers(outcomes),
    ]


TENSORS = "Tensor shards"
_DISTANT, _SETTINGS = "Distant tables", "Settings of the others that were tried"
_PACKING = "Sequences of tokens"
_FAR = (
    *("table", "reader", "constructing, s", "first batch, s", "epoch, s", "share of the line"),
    *("GET + HEAD + LIST, constructing", "of the epoch", "bytes / needed", "most in flight", "CPU s", "peak, MiB"),
)


def _distant(rows: Sequence[FarRow], outcomes: Sequence[Outcome]) -> list[str]:
    if not (rows or outcomes):
        return []
    now = dt.datetime.now(tz=dt.UTC)
    packages = ", ".join(f"{name} {_version(name)}" for name in ("polars", "pyarrow", "torch-dataloader-utils"))
    return [
        f"## {_DISTANT}",
        "",
        f"{now:%Y-%m-%d %H:%M} UTC, by `{_command()}`. {_machine()}",
        f"Ours is {_version('torch-table-loader')}; {packages}.",
        "",
        "Tables on an endpoint of S3 (`bench/endpoint.py`) on this machine: a latency before each answer, 90 MB/s a",
        "connection, 125 MB/s in all. Each run is a process of its own that reads its first epoch; medians of runs in",
        "turn, and ratios are medians of neighbours. Ours makes tensors of 8,192 rows, with what a user gets who sets",
        "nothing but `num_workers=2`. polars hands out frames (`collect_batches`), pyarrow's scanner record batches,",
        "as it comes or at its best of that and of 64 threads for I/O, fragment_readahead 16 or 64, and ranges as they",
        "come or fetched at once in 8 MiB; nothing is made of what these two hand out. An epoch of polars has listing",
        "and footers in it, of the scanner footers, of ours neither: constructing has them. A share of the line is the",
        "needed bytes over what 125 MB/s carry in the time. Needed are the column chunks that are read. Merged ranges",
        "are those of a row group, over gaps of 256 KiB at most, in requests of 8 MiB at most.",
        "",
        _line(_FAR),
        _line(["---"] * len(_FAR)),
        *(row.line() for row in rows),
        "",
        *_numbers(outcomes),
    ]


def _settings(sweeps: Mapping[tuple[str, str, int], Mapping[str, float | str]]) -> list[str]:
    if not sweeps:
        return []
    names = ["package", "table", "batch", "setting", "M rows/s"]
    lines = [f"## {_SETTINGS}", "", _line(names), _line(["---"] * len(names))]
    for (rival, table, batch_size), rates in sweeps.items():
        for setting, rate in rates.items():
            shown = f"{rate / 1e6:.3g}" if isinstance(rate, float) else rate
            lines.append(_line([rival, table, f"{batch_size:,}", f"`{setting}`", shown]))
    return [*lines, ""]


def _duels(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    names = ["table", "batch", "left", "right", "median", "range", "best, M rows/s", "CPU µs/row", "bar", "met"]
    return [_line(names), _line(["---"] * len(names)), *(row.line() for row in rows), ""]


def _numbers(outcomes: Sequence[Outcome]) -> list[str]:
    if not outcomes:
        return []
    names = ["measured", "value", "bar", "met"]
    return [_line(names), _line(["---"] * len(names)), *(entry.line() for entry in outcomes), ""]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _bar(bar: float | None, sign: str) -> str:
    return "" if bar is None else f"{sign} {bar:g}"


def _verdict(met: bool | None) -> str:
    return "" if met is None else "yes" if met else "**no**"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _load() -> str:
    """Say how many processes wanted a core: others may work on the machine."""
    return "Load averages {:.1f}, {:.1f} and {:.1f}.".format(*os.getloadavg())


def load() -> float:
    """Return the machine's load average of the last five minutes."""
    return round(os.getloadavg()[1], 2)


def versions() -> dict[str, str]:
    """Return the versions of what is measured, and of Python."""
    return {name: _version(name) for name in _PACKAGES} | {"Python": platform.python_version()}


def _command() -> str:
    """Return the command line as anyone may type it: of another checkout, the folder's name alone."""
    typed = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    return shlex.join(["python", "-m", "bench.run", *typed])


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


def _machine() -> str:
    return f"{machine()}; load average of the last 15 minutes: {os.getloadavg()[2]:.1f}."


__all__ = [
    "FarRow",
    "Outcome",
    "Row",
    "duel_row",
    "load",
    "machine",
    "model_of",
    "processor",
    "versions",
    "write",
    "write_distant",
    "write_packing",
]
