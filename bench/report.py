"""Writes `bench/RESULTS.md`, wholly from what all machines measured: `python -m bench.report`."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from bench.results import Entry, FarRow, Found, MixRow, Outcome, Row, days_of, machines

PAGE = Path(__file__).parent / "RESULTS.md"
MARKDOWN_WIDTH = 100  # as everywhere in the repository

_HEAD = """
Made by `python -m bench.report` from what each machine measured (`bench/results/`): no figure here is written by hand.
A result stays until its machine measures it again, so each line has its date.

A ratio is the speed of the left over the speed of the right, in one process, the two in turn; it is the median of so
many pairs, with the least and the most. Rates and CPU are medians of the left and of the right. Load is the machine's
load average of five minutes: above the number of its cores, others took part of the time. "–" is where an older bench
kept nothing.

The floor is two threads that decode each row group with pyarrow and drop it. Tables: A is TPC-H lineitem SF1 (8 numeric
columns × 6,001,215 rows), B 40 columns (1 + 13 float32 + 26 int32) × 4,000,000, C 500 float32 × 200,000, D 20,000
documents of about 800 tokens and two strings. B, C and D are snappy, pyarrow's default. Ours always has
`num_workers=2`.
"""

PARTS: Mapping[str, tuple[str, str]] = {
    "quick": ("A look at a change", ""),
    "duels": ("Streams, and other readers", ""),
    "batch-sizes": ("By the size of a batch", ""),
    "columns": ("By the number of columns", "Each table has 40,000,000 values of float32."),
    "values": ("Other values than plain numbers", ""),
    "filters": (
        "Filters that keep one row in a hundred",
        "Rates are rows that pass. polars decodes single values of a page, pyarrow whole row groups.",
    ),
    "packing": (
        "Sequences of tokens",
        """The documents of D become batches of 8 sequences of 4,096 tokens; rates are tokens a second. `tokens` is the
        floor: two threads decode the column of lists and drop it. A token is 4 bytes there. All tensors have 28 a token
        (ids, labels and positions of int64, document ids of int32), ids and labels 16, ids 8; windows come from a warm
        row store in memory. Packed by hand is a packer over the rows of torch-dataloader-utils, written in Python as
        its user would, which makes the same tensors.""",
    ),
    "tensors": (
        "Tensor shards",
        """Four files of 10,000 samples of int64: tokens, a mask of as many, and a label. Fixed: 128 tokens; ragged: 1
        to 128; typed: 128, in `int64_data` in place of `raw_data`. The right walks over lengths in two threads, parses
        with onnx, and makes a numpy array of each tensor; it cuts no batch.""",
    ),
    "iceberg": (
        "Iceberg",
        """The files of A, B and E (two files of 1 GB: 8 float64 columns, row groups of 61 MiB) as Iceberg tables:
        plain, with 5 % of rows deleted by position or by deletion vector, with 5 % of an int column's values deleted,
        or with 5 % of rows deleted by keys of two columns, one key a row (300,000). Rows per second count live rows,
        and the files hold all: 0.95 is what decoding alone leaves. Bare is the floor that also copies the live rows,
        knowing which they are: what pyarrow itself leaves.""",
    ),
    "delta": (
        "Delta Lake",
        """The files of A and B as Delta Lake tables, plain and with 5 % of rows deleted by deletion vectors; rows per
        second count live rows, and the files hold all: 0.95 is what decoding alone leaves.""",
    ),
    "rows": (
        'shuffle="rows"',
        """A uniformly shuffled epoch from a warm store against decoding in order, and against other ways to shuffle.
        DuckDB sorts the table by random numbers. `randperm` selects from tensors that are in memory already. "Lance
        random access" is `take` of single rows at random from Lance's own format, and "Hugging Face map style" a
        shuffled dataset in torch's format that is asked for slices: both read row by row, which is not how either is
        fast, and both would take minutes, so some batches of an epoch are taken. A build is less the time of writing
        as many bytes to the same place. A cold store stands for one that is larger than memory: before each round its
        pages were taken out of the process and of the system's cache, so that all came from the disk. fio reads whole
        pages of the same file past the cache; each of its reads counts as a row.""",
    ),
    "sharing": ("Ranks and training loops that share a machine", ""),
    "windows": (
        "Shuffle windows",
        """Two lanes, `shuffle=True` and `"splits"`, in turn, after an epoch of each; CPU seconds of all threads.""",
    ),
    "mixing": (
        "How well an order mixes",
        """Tables that lie sorted by time: sorted (64 files of 4 row groups of 5,000 rows), large (16 files of one row
        group of 1,000,000), days (60 folders of 1 to 1,000,000 rows), wide (41 columns). Measured over the batches that
        a step trains on, of all ranks together: 256, 1,024, 512 and 256 rows. Spread of the time inside a batch:
        uniform 1, consecutive rows 0. Drift of the means of batches: uniform 1, consecutive rows √batch. Near: the
        share of a batch's rows that stood at most 100 rows from its next one. CPU is that of all threads and of all
        ranks, which share a process; a row store is built in its epoch. What a rank holds is of ours all rows in flight
        (`explain()`), with a row store in memory, and of others the rows of the buffer alone. The loss is that of a
        small network after one epoch of a table whose signal turns with time, on other rows of the same kind: the
        mean of three seeds.""",
    ),
    "lock": (
        "More than two cores",
        """While a thread holds Python's lock, no other one runs Python: all CPU seconds of an epoch over those that
        hold it are the cores at which more threads stop to help. A timer of its CPU time interrupts each thread and
        asks whether it holds the lock. Other processes change how long an epoch takes, and these shares little.""",
    ),
    "checksums": ("Checksums of pages", ""),
    "planning": ("Planning", ""),
    "first-batch": ("The first batch", ""),
    "resume": ("Resuming", ""),
    "memory": ("Memory", ""),
    "bounds": (
        "Bounds of memory",
        """Forty jobs drawn at random (`bench/shapes.py`): Arrow's pool, tensors and fetched bytes of an epoch against
        the bound that `explain()` states.""",
    ),
    "distant": (
        "Distant tables",
        """Tables on an endpoint of S3 (`bench/endpoint.py`) on the same machine: a latency before each answer, 90 MB/s
        a connection, 125 MB/s in all. Each run is a process of its own that reads its first epoch; ratios are medians
        of neighbours, of times: below 1, ours is faster. Ours makes tensors of 8,192 rows, with what a user gets who
        sets nothing but `num_workers=2`. polars hands out frames (`collect_batches`), pyarrow's scanner record batches,
        as it comes or at its best of that and of 64 threads for I/O, fragment_readahead 16 or 64, and ranges as they
        come or fetched at once in 8 MiB; nothing is made of what these two hand out. An epoch of polars has listing
        and footers in it, of the scanner footers, of ours neither: constructing has them. A share of the line is the
        needed bytes over what 125 MB/s carry in the time. Needed are the column chunks that are read. Merged ranges
        are those of a row group, over gaps of 256 KiB at most, in requests of 8 MiB at most.""",
    ),
}
"""The parts of the bench: what each is called, and what one must know to read its figures."""

FAR_FIGURES = (
    *("constructing, s", "first batch, s", "epoch, s", "share of the line", "GET + HEAD + LIST, constructing"),
    *("of the epoch", "bytes / needed", "most in flight", "CPU s", "peak, MiB"),
)
"""The figures of a reader of a distant table."""

_WHEN = ("load", "date")
_HEADINGS: Mapping[type[Found], Sequence[str]] = {
    Row: (
        *("table", "batch", "left", "right", "on", "ratio", "range", "M rows/s", "CPU µs/row", "pairs", *_WHEN),
        *("bar", "met"),
    ),
    Outcome: ("measured", "on", "value", "beside it", "runs", *_WHEN, "bar", "met"),
    FarRow: ("table", "reader", "on", *FAR_FIGURES, "runs", *_WHEN),
    MixRow: (
        *("table", "ranks", "order", "on", "spread", "drift", "near", "CPU ns/row", "MiB held", "rows", *_WHEN),
        *("bar", "met"),
    ),
}


def page(measured: Sequence[Entry]) -> str:
    """Return the report.

    Args:
        measured: what machines measured, as `bench.results.machines` gives it.
    """
    blocks = ["# What was measured", *(_folded(each) for each in _HEAD.strip().split("\n\n")), _legend(measured)]
    for part in PARTS:
        blocks += _part(part, measured)
    return "\n\n".join(blocks) + "\n"


def line(found: Found) -> str:
    """Say in one line of a Markdown table what was measured just now."""
    kind = type(found)
    cells = _CELLS[kind](found.entry(), "here")
    return _line(cell for heading, cell in zip(_HEADINGS[kind], cells, strict=True) if heading not in {"on", *_WHEN})


def _legend(measured: Sequence[Entry]) -> str:
    rows = []
    for number, machine in enumerate(measured, 1):
        entries = [entry for kind in _HEADINGS for entry in machine.get(kind.KIND, [])]
        verdicts = [entry["met"] for entry in entries if entry.get("met") is not None]
        told: dict[str, set[str]] = {}
        for entry in entries:
            for name, version in entry["versions"].items():
                told.setdefault(name, set()).add(version)
        versions = ", ".join(f"{name} {' or '.join(sorted(each))}" for name, each in told.items())
        reached = f"{sum(verdicts)} of {len(verdicts)}"
        rows.append((str(number), machine["machine"], days_of(entries), reached, versions))
    return _table(("on", "machine", "days", "bars that were met", "versions"), rows)


def _part(part: str, measured: Sequence[Entry]) -> Iterator[str]:
    title, about = PARTS[part]
    tables = []
    for kind, cells in _CELLS.items():
        entries = {
            (tuple(map(str, (entry[name] for name in kind.KEY))), number): entry
            for number, machine in enumerate(measured, 1)
            for entry in machine.get(kind.KIND, [])
            if entry["part"] == part
        }
        order = list(dict.fromkeys(key for key, _ in entries))
        rows = [
            cells(entries[key], str(key[1])) for key in sorted(entries, key=lambda key: (order.index(key[0]), key[1]))
        ]
        tables += [_table(_HEADINGS[kind], rows)] if rows else []
    if tables:
        yield f"## {title}"
        yield _folded(f"`python -m bench.run {part}` measures this. {about}")
        yield from tables


def _duel(entry: Entry, machine: str) -> list[str]:
    named = [entry["table"], f"{entry['batch']:,}", entry["left"], _right(entry), machine]
    if "ratio" not in entry:
        return [*named, entry["remark"], "", "", "", "", *_when(entry), *_verdict(entry, at_least=True)]
    least, most = entry["range"]
    return [
        *named,
        f"**{entry['ratio']:.2f}**",
        f"{least:.2f} to {most:.2f}",
        _both([rate / 1e6 for rate in entry.get("median_rows_per_second", ())]),
        _both(entry["cpu_micros_per_row"]),
        str(entry.get("pairs", "–")),
        *_when(entry),
        *_verdict(entry, at_least=True),
    ]


def _right(entry: Entry) -> str:
    """Name what was raced; where its best setting was found, with what the others reached."""
    others = {setting: rate for setting, rate in entry.get("tried", {}).items() if not entry["right"].endswith(setting)}
    shown = (f"{setting}: {rate if isinstance(rate, str) else f'{rate / 1e6:.3g}'}" for setting, rate in others.items())
    return f"{entry['right']} (M rows/s of {'; '.join(shown)})" if others else entry["right"]


def _number(entry: Entry, machine: str) -> list[str]:
    value = "" if entry["value"] is None else f"**{entry['value']:.3g}**"
    told = [value, entry.get("note", ""), str(entry.get("runs", "–"))]
    return [entry["name"], machine, *told, *_when(entry), *_verdict(entry, at_least=entry.get("at_least", False))]


def _reader(entry: Entry, machine: str) -> list[str]:
    figures = entry["figures"]
    told = (
        [figures.get("remark", ""), *[""] * (len(FAR_FIGURES) - 1)]
        if "remark" in figures
        else [figures[each] for each in FAR_FIGURES]
    )
    return [entry["scene"], entry["who"], machine, *told, str(entry["runs"]), *_when(entry)]


def _order(entry: Entry, machine: str) -> list[str]:
    named, figures = [entry["table"], str(entry["ranks"]), entry["who"], machine], entry["figures"]
    if "remark" in figures:
        return [*named, figures["remark"], "", "", "", "", "", *_when(entry), "", ""]
    told = [f"**{figures[name]:.2f}**" for name in ("spread", "drift", "near")]
    told += [f"{figures['nanos']:,.0f}", f"{figures['held'] / 2**20:,.2f}", f"{figures['rows']:,}"]
    if entry["bar"] is None:
        return [*named, *told, *_when(entry), "", ""]
    bar = "≥ {:g}, ≤ {:g}, ≤ {:g}".format(*entry["bar"])
    return [*named, *told, *_when(entry), bar, "yes" if entry["met"] else "**no**"]


_CELLS: Mapping[type[Found], Callable[[Entry, str], list[str]]] = {
    Row: _duel,
    Outcome: _number,
    FarRow: _reader,
    MixRow: _order,
}


def _when(entry: Entry) -> list[str]:
    return [str(entry.get("load", "–")), entry.get("at", "").partition(" ")[0]]


def _verdict(entry: Entry, *, at_least: bool) -> list[str]:
    if entry["bar"] is None:
        return ["", ""]
    return [f"{'≥' if at_least else '≤'} {entry['bar']:g}", "yes" if entry["met"] else "**no**"]


def _both(sides: Sequence[float]) -> str:
    return " / ".join(f"{side:.3g}" for side in sides) or "–"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(map(_line, (headings, ["---"] * len(headings), *rows)))


def _line(cells: Sequence[str] | Iterator[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _folded(text: str) -> str:
    words = " ".join(text.split())
    return textwrap.fill(words, MARKDOWN_WIDTH, break_long_words=False, break_on_hyphens=False)


def write(path: Path = PAGE) -> None:
    """Write the report of all machines."""
    path.write_text(page(machines()))


if __name__ == "__main__":
    write()


__all__ = ["FAR_FIGURES", "PARTS", "line", "page", "write"]
