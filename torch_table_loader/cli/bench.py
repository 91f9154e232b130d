"""``torch-table-loader bench``: the loader on this table and machine, compared with pyarrow that only decodes."""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from torch_table_loader.cli.arguments import add_arguments, comma_separated, examples, open_loader
from torch_table_loader.cli.bench_page import Result, bench_page
from torch_table_loader.cli.decoding import decode_row_groups, scan
from torch_table_loader.cli.printing import Table, show, wants_bar, write_page
from torch_table_loader.engine.jobs.stream_job import StreamJob
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.messages import progress_bar
from torch_table_loader.scrubbing import shown_url

if TYPE_CHECKING:
    from torch_table_loader.dataset import TableDataset
    from torch_table_loader.loader import TableLoader

_HEADER = {
    "batch_size": "batch",
    "loader_rows_per_second": "loader rows/s",
    "loader_best": "best",
    "bare_rows_per_second": "pyarrow rows/s",
    "bare_best": "best",
    "ratio": "ratio",
    "ratio_best": "best",
    "share_waiting": "waits",
}
"""The median of each figure, or the best if the key says so."""

KEYWORDS = frozenset(
    {
        "path",
        "format",
        "columns",
        "partitioning",
        "storage_options",
        "retry_seconds",
        "plan_cache",
        "raw_files",
        "worker_type",
        "shuffle",
        "shuffle_seed",
        "split_bytes",
        "split_rows",
        "output_format",
        "nulls",
        "ragged",
        "strings",
        "decimals",
        "unsupported",
    }
)


def add_parser(commands: Any) -> list[argparse.ArgumentParser]:
    """Add this command to the main parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="measure how fast a table is read, beside bare pyarrow",
        description="Reads a table with the loader and with bare pyarrow in turn, and prints rows per second and "
        "ratios. Every run reads a whole epoch; of a large table, name only a few files.",
        epilog=examples(
            "torch-table-loader bench clicks/day=2026-01-01 --batch-size 1024,8192",
            "torch-table-loader bench --catalog prod --table db.clicks --columns label,price",
            "torch-table-loader bench clicks --html bench.html",
        ),
    )
    add_arguments(parser, KEYWORDS)
    parser.add_argument(
        "--batch-size",
        type=batch_sizes,
        default=[1024, 8192],
        metavar="N,N",
        help="one or several batch sizes (default: 1024,8192)",
    )
    workers = "the loader's workers, and pyarrow's threads (default: 2)"
    parser.add_argument("--workers", type=int, default=2, metavar="N", help=workers)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="pairs of runs (default: 5)")
    parser.add_argument("--quiet", action="store_true", help="draw no progress bar on a terminal (with tqdm)")
    parser.add_argument("--html", metavar="FILE", help="also write the figures as a page that any browser shows")
    parser.set_defaults(run=run)
    return [parser]


def batch_sizes(text: str) -> list[int]:
    """Parse batch sizes.

    >>> batch_sizes("1024,8192")
    [1024, 8192]
    """
    sizes = comma_separated(text)
    if not sizes or not all(size.isdecimal() and int(size) for size in sizes):
        raise argparse.ArgumentTypeError(f"must be ints of at least 1, such as 1024,8192, got {text!r}")
    return [int(size) for size in sizes]


@dataclass(frozen=True, slots=True)
class Duel:
    """The measurements of several rounds.

    Args:
        loader: rows per second of the loader, for each round.
        bare: rows per second of pyarrow, for each round.
        waiting: the share of the loader's time that its caller waited for batches, for each round.
    """

    loader: tuple[float, ...]
    bare: tuple[float, ...]
    waiting: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """The loader's speed divided by pyarrow's, for each round."""
        return [ours / theirs for ours, theirs in zip(self.loader, self.bare, strict=True)]


def run(typed: argparse.Namespace) -> None:
    """Measure, and print the results.

    Raises:
        ConfigError: a number is out of range, or the table has no rows.
        TableError: both sides delivered different numbers of rows.
    """
    sizes = typed.batch_size
    if typed.rounds < 1 or typed.workers < 1:
        raise ConfigError("bench needs --rounds and --workers of at least 1")
    runs = 2 * (typed.rounds + 1) * len(sizes)
    bar = iter(progress_bar("measuring", show=wants_bar(typed))(range(runs), runs))
    results, value = [], dict[str, Any]()
    for size in sizes:
        loader, dataset = open_loader(typed, batch_size=size, num_workers=typed.workers)
        if not dataset.table.layout.num_rows:
            raise ConfigError("bench needs a table with rows, and this one has none")
        duel = measure(loader, _bare(dataset, typed.workers), typed.rounds, lambda: next(bar, None))
        results.append(_result(size, duel))
        value = _what(dataset, typed)
    next(bar, None)
    _tell(typed, value, results)


def _tell(typed: argparse.Namespace, value: dict[str, Any], results: list[Result]) -> None:
    told = (
        "{rows:,} rows, {columns:,} columns, {files:,} files, {row_groups:,} row groups\n"
        "{workers} workers ({worker_type}) against {against}, {rounds} rounds (pyarrow {pyarrow})"
    ).format(**value)
    table = Table(told, _HEADER, list(map(astuple, results)))
    value |= {"results": table.records(), "page": typed.html}
    parts: list[str | Table] = [table]
    if typed.html is not None:
        title = getattr(typed, "table", None) or " ".join(map(shown_url, typed.path))
        write_page(typed.html, bench_page(title, told, results))
        parts.append(f"page: {typed.html}")
    show(typed, value, *parts)


def measure(loader: TableLoader, bare: Callable[[], int], rounds: int, tick: Callable[[], object]) -> Duel:
    """Run both in turn, alternating which goes first, after one run of each that does not count.

    Args:
        bare: decodes the same columns, and returns the number of rows.

    Raises:
        TableError: they delivered different numbers of rows.
    """
    waiting: list[float] = []

    def ours() -> int:
        for _ in loader:
            pass
        done = loader.metrics()
        waiting.append(done.share_waiting)
        return done.rows

    expected, found = ours(), bare()
    tick()
    tick()
    if expected != found:
        raise TableError(
            f"the loader delivered {expected:,} rows and pyarrow {found:,}; the table changed while it was measured: "
            "run bench again, or name files that do not change"
        )
    rates: dict[Callable[[], int], list[float]] = {ours: [], bare: []}
    waiting.clear()
    for number in range(rounds):
        for contender in (ours, bare) if number % 2 == 0 else (bare, ours):
            gc.collect()
            began = time.perf_counter()
            contender()
            rates[contender].append(expected / (time.perf_counter() - began))
            tick()
    return Duel(tuple(rates[ours]), tuple(rates[bare]), tuple(waiting))


def _bare(dataset: TableDataset, threads: int) -> Callable[[], int]:
    job = dataset.job
    assert isinstance(job, StreamJob)  # noqa: S101 the command does not shuffle rows
    apart = {name for file in job.table.files[:1] for name, _ in file.partition}
    columns = [name for name in job.reader.schema.names if name not in apart]
    if not columns:
        raise ConfigError(
            "bench has nothing to decode, since all its columns come from paths; name others with --columns"
        )
    if job.table.files[0].format == "parquet":
        told = dataset.explain()
        deleted = 0 if told.live_rows is None else told.rows - told.live_rows  # bare decoding does not leave these out
        return lambda: decode_row_groups(job.table, columns, threads) - deleted
    return lambda: scan(job.table, columns)


def _result(batch_size: int, duel: Duel) -> Result:
    rates = (int(f(side)) for side in (duel.loader, duel.bare) for f in (statistics.median, max))
    loader, loader_best, bare, bare_best = rates
    ratio, waiting = statistics.median(duel.ratios), statistics.median(duel.waiting)
    return Result(batch_size, loader, loader_best, bare, bare_best, ratio, max(duel.ratios), waiting)


def _what(dataset: TableDataset, typed: argparse.Namespace) -> dict[str, Any]:
    layout = dataset.table.layout
    return {
        "rows": layout.num_rows,
        "columns": len(dataset.schema),
        "files": len(layout),
        "row_groups": len(layout.group_rows),
        "workers": typed.workers,
        "worker_type": dataset.options.worker_type,
        "against": "read_row_group" if layout.files[0].format == "parquet" else "a pyarrow.dataset scan",
        "rounds": typed.rounds,
        "pyarrow": pa.__version__,
    }
