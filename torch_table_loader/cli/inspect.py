"""``torch-table-loader inspect``: what a table contains and which rank would read what, as tables."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from torch_table_loader.batching.codec import TensorCodec
from torch_table_loader.batching.kinds import DenseKind, ListsKind
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.cli.arguments import TABLE, add_arguments, examples, loader_keywords, open_loader
from torch_table_loader.cli.printing import Table as Printed
from torch_table_loader.cli.printing import show, wants_bar, write_page
from torch_table_loader.engine.jobs.resolve import codec_of, columns_of
from torch_table_loader.engine.jobs.stream_job import StreamJob
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.explain import explain
from torch_table_loader.options import LoaderOptions, defaults
from torch_table_loader.planning.epoch import uneven_steps
from torch_table_loader.ragged import Pad
from torch_table_loader.report.markup import size_text
from torch_table_loader.scrubbing import shown_url

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.batching.decoders import Shape
    from torch_table_loader.engine.table import Table
    from torch_table_loader.explanation import Explanation
    from torch_table_loader.planning.splits import SegmentTable

NOT_TAKEN = frozenset({"worker_type"})
"""Keywords that change neither the plan nor the form of columns."""

FORM = ("output_format", "nulls", "ragged", "strings", "decimals", "unsupported")
"""Keywords that decide the form of columns: the table is opened without them, to show columns that they refuse."""

REFUSED = "refused"
"""The beginning of the verdict on a column that the loader refuses."""

UNLESS_NULL = "an error where a null comes"
"""The end of the verdict on a column whose statistics do not say whether it has nulls."""

_LISTS = {"nested": "jagged", "pad": "padded", "offsets": "values and offsets,"}

Row = Sequence[object]


def add_parser(commands: Any) -> list[argparse.ArgumentParser]:
    """Add this command to the main parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "inspect",
        help="print a table's schema and files, and what each rank reads",
        description="Prints a table's schema, files, row groups and splits, and what each rank and worker would read.",
        epilog=examples(
            "torch-table-loader inspect clicks --columns label --ranks 8",
            "torch-table-loader inspect --catalog prod --table db.clicks --as-of 2026-01-31T00:00:00+00:00",
            "torch-table-loader inspect lake/orders --format delta --snapshot-id 3",
            "torch-table-loader inspect clicks --ranks 8 --shuffle --html clicks.html",
        ),
    )
    add_arguments(parser, {argument.keyword for argument in TABLE} - NOT_TAKEN)
    parser.add_argument("--epoch", type=int, default=0, metavar="N", help="epoch to plan (default: 0)")
    parser.add_argument(
        "--lines",
        type=int,
        default=20,
        metavar="N",
        help="the most files, workers and ranks that are listed; 0 for all (default: 20)",
    )
    parser.add_argument("--html", metavar="FILE", help="also write rank 0's plan as a page that any browser shows")
    parser.set_defaults(run=run)
    return [parser]


def run(typed: argparse.Namespace) -> None:
    """Plan, and print the result."""
    draw = wants_bar(typed)
    ranks = getattr(typed, "num_ranks", 1)
    own = {"rank": 0} if ranks > 1 else {}
    with warnings.catch_warnings():
        # These concern what rank 0 knows about the others' steps; here all ranks are planned and shown.
        warnings.filterwarnings("ignore", "under a row filter each of|ranks take different numbers of steps")
        plain = {name: defaults()[name] for name in FORM} | {"output_format": "arrow"}
        _, dataset = open_loader(typed, show_progress=draw, **plain, **own)
    dataset.set_epoch(typed.epoch)
    most = typed.lines or sys.maxsize
    job = dataset.job
    assert isinstance(job, StreamJob)  # noqa: S101 the command does not shuffle rows
    keywords = loader_keywords(typed)
    asked = replace(job.options, **{name: keywords.get(name, defaults()[name]) for name in FORM})
    load = Load(job, typed.epoch)
    told = explain(job, typed.epoch)
    value, parts = tell(job, asked, load, told, most)
    if typed.html is not None:
        title = dataset.table.description or " ".join(map(shown_url, typed.path))
        write_page(typed.html, page_of(told, load, title))
        value["page"] = typed.html
        parts.append(f"page: {typed.html}")
    show(typed, value, *parts)


def page_of(told: Explanation, load: Load, title: str) -> str:
    """Return the plan of rank 0 as HTML, with the load of all ranks if rows are counted."""
    if load.counted:
        steps = tuple(each for each in load.steps if each is not None)
        rows = tuple(load.rows_of(rank) for rank in range(len(steps)))
        told = replace(told, rows_per_rank=rows, steps_per_rank=steps)
    return told.to_html(title)


def tell(
    job: StreamJob, asked: LoaderOptions, load: Load, told: Explanation, most: int
) -> tuple[dict[str, Any], list[str | Printed]]:
    """Return what is known about a table for programs, and the same for people.

    Args:
        job: rank 0's job, of Arrow batches; it is planned for every rank.
        asked: the options with the requested form of columns.
        most: the most files, workers and ranks that are listed for people.
    """
    schema = pa.schema([job.table.schema.field(name) for name in columns_of(job.table, job.options)])
    verdicts = [verdict(job.table, field, asked) for field in schema]
    names = zip(schema.names, map(str, schema.types), verdicts, strict=True)
    header = {"name": "column", "type": "Arrow type", "form": f'with output_format="{asked.output_format}"'}
    tables = {
        "schema": Printed("schema", header, list(names)),
        "data_files": files_table(job, most),
        "sizes": sizes_table(job, load),
        "workers": workers_table(job, load, most),
        "ranks": ranks_table(job, load, most),
    }
    notes = [*told.notes, *_together(job.table, schema, asked, verdicts)]
    known = [steps for steps in load.steps if steps is not None]
    if uneven_steps(known) is not None:
        notes.append(
            f"ranks take {min(known):,} to {max(known):,} steps, and a job that synchronises each step (DDP) hangs if "
            "they differ; pass --even-ranks to make them equal"
        )
    numbers = ("files", "row_groups", "rows", "stored_bytes", "memory_bound", "footer_bytes")
    value = {name: getattr(told, name) for name in numbers} | {"counted": load.counted, "notes": notes, "page": None}
    value |= {name: table.records() for name, table in tables.items()}
    first = f"{told.files:,} files, {told.row_groups:,} row groups, {told.rows:,} rows, "
    first += f"{size_text(told.stored_bytes)} stored"
    memory = f"{size_text(told.memory_bound)} of rows in flight on a rank at most, "
    memory += f"{size_text(told.footer_bytes)} of footers"
    last = "\n".join([f"memory: {memory}", *(f"note: {note}" for note in notes)])
    return value, [first, *tables.values(), last]


def verdict(table: Table, field: pa.Field, asked: LoaderOptions) -> str:
    """Return what the loader makes of a column: its form, or why it is refused.

    Raises:
        ConfigError: the options do not fit each other, whatever the column.
    """
    layout = TypePolicy.of(asked).layout_of(field.name)
    own = _for_columns(asked, {field.name})
    try:
        codec = codec_of(table, pa.schema([field]), [field.name], own)
    except ConfigError as error:
        return f"{REFUSED}: {str(error).partition('; ')[2] or error}"
    except TableError as error:
        return f"{REFUSED} for its nulls: {str(error).partition('; ')[2] or error}"
    if not isinstance(codec, TensorCodec):
        return "as it is"
    form = _form(codec.shapes[0], "pad" if isinstance(layout, Pad) else layout)
    decided = not codec.refusing_nulls or not field.nullable or field.name in table.null_free([field.name])
    return form if decided else f"{form}, {UNLESS_NULL}"


def _for_columns(asked: LoaderOptions, names: Collection[str]) -> LoaderOptions:
    """Leave out fills for other columns."""
    if not isinstance(asked.nulls, Mapping):
        return asked
    return replace(asked, nulls={path: fill for path, fill in asked.nulls.items() if path.split(".")[0] in names})


def _together(table: Table, schema: pa.Schema, asked: LoaderOptions, verdicts: Sequence[str]) -> list[str]:
    """Return errors about columns that are fine one by one: two under one name, a fill without a column."""
    taken = [field for field, told in zip(schema, verdicts, strict=True) if not told.startswith(REFUSED)]
    left = set(schema.names) - {field.name for field in taken}
    fills = asked.nulls if isinstance(asked.nulls, Mapping) else {}
    named = {path.split(".")[0] for path in fills} - left
    try:
        codec_of(table, pa.schema(taken), [field.name for field in taken], _for_columns(asked, named))
    except (ConfigError, TableError) as error:
        return [f"the loader refuses this: {error}"]
    return []


def _form(shape: Shape, ragged: str) -> str:
    kind = getattr(shape, "kind", None)
    if kind is None:
        return "dict"
    if isinstance(kind, ListsKind):
        return f"{_LISTS[ragged]} {_dense(kind.item)}"
    return _dense(kind) if isinstance(kind, DenseKind) else "list"


def _dense(kind: DenseKind) -> str:
    return f"{kind.dtype}{list(kind.inner) or ''}"


def files_table(job: StreamJob, most: int) -> Printed:
    """List the first files, and the total of all in one line."""
    layout = job.table.layout
    columns = (
        [file.name for file in layout.files],
        layout.file_rows.tolist(),
        [file.version.num_bytes for file in layout.files],
        np.diff(layout.group_offsets).tolist(),
        layout.kept_groups.tolist(),
    )
    rows: list[Row] = list(zip(*columns, strict=True))
    header = {"file": "file", "rows": "rows", "stored_bytes": "stored", "row_groups": "row groups"}
    header["row_groups_read"] = "of them read"
    total = ("all", *(sum(column) for column in columns[1:]))
    return Printed("files", header, rows, [total], ("stored_bytes",), most)


class Load:
    """What each rank and worker reads in an epoch."""

    def __init__(self, job: StreamJob, epoch: int) -> None:
        planner = job.planner
        self.counted = planner.counted
        self.split_rows: list[NDArray[np.int64]] = []
        self.split_bytes: list[NDArray[np.int64]] = []
        self.workers: list[tuple[int, int, int, int, int, int | None]] = []
        self.steps: list[int | None] = []
        for rank in range(job.topology.num_ranks):
            planned = planner.plan(planner.start(epoch), rank)
            plan, segments = planned.plan, planned.segments
            num_bytes = bytes_of(segments)
            if rank == 0 or job.strategy.form == "generator_with_ranks":
                self.split_rows.append(segments.splits.num_rows)
                self.split_bytes.append(num_bytes)
            self.steps.append(plan.steps if self.counted else None)
            made = plan.batches_before(plan.steps)
            whole = np.maximum(np.where(segments.live_rows() < 0, segments.metadata_rows(), segments.live_rows()), 1)
            for lane, runs in enumerate(plan.lanes):
                share = (runs.stop - runs.start) / whole[runs.split]
                size = int((num_bytes[runs.split] * share).sum())
                batches = made[lane] if self.counted else None
                self.workers.append((rank, lane, len(runs), runs.num_rows, size, batches))

    def rows_of(self, rank: int) -> int:
        """Add up the rows of a rank's workers."""
        return sum(worker[3] for worker in self.workers if worker[0] == rank)


def bytes_of(segments: SegmentTable) -> NDArray[np.int64]:
    """Return the decoded bytes of each split's row groups, without pruned ones: int64[S]."""
    layout = segments.splits.layout
    rows = np.maximum(layout.group_rows[segments.group], 1)
    part = layout.group_bytes[segments.group] * (segments.row_stop - segments.row_start) // rows
    ends = np.concatenate(([0], np.cumsum(np.where(segments.kept, part, 0))))
    return np.diff(ends[segments.offsets])


def sizes_table(job: StreamJob, load: Load) -> Printed:
    """Show the distribution of the sizes of files, row groups and splits."""
    layout = job.table.layout
    stored = np.array([file.version.num_bytes for file in layout.files], dtype=np.int64)
    split_rows, split_bytes = np.concatenate(load.split_rows), np.concatenate(load.split_bytes)
    rows = [
        ("files", len(layout), *_spread(layout.file_rows), *_spread(stored)),
        ("row groups", len(layout.group_rows), *_spread(layout.group_rows), *_spread(layout.group_bytes)),
        ("splits", len(split_rows), *_spread(split_rows), *_spread(split_bytes)),
    ]
    header = {"of": "", "number": "number", "least_rows": "rows: min", "median_rows": "median", "most_rows": "max"}
    header |= {"least_bytes": "size: min", "median_bytes": "median", "most_bytes": "max"}
    title = f"sizes (files as stored; row groups and splits by {job.strategy.name} decoded)"
    return Printed(title, header, rows, sizes=("least_bytes", "median_bytes", "most_bytes"))


def _spread(values: NDArray[np.int64]) -> tuple[int, int, int]:
    if not len(values):
        return 0, 0, 0
    return int(values.min()), int(np.median(values)), int(values.max())


def workers_table(job: StreamJob, load: Load, most: int) -> Printed:
    """Show the load of workers."""
    shape = job.topology
    ranks, lanes = ("" if number == 1 else "s" for number in (shape.num_ranks, shape.lanes))
    title = (
        f"load of {shape.num_ranks:,} rank{ranks} × {shape.lanes:,} worker{lanes}, {shape.batch_size:,} rows a batch"
    )
    if not load.counted:
        title += "; rows are not counted, so these are upper bounds"
    header = {"rank": "rank", "worker": "worker", "pieces": "pieces", "rows": "rows", "decoded_bytes": "to decode"}
    return Printed(title, header | {"batches": "batches"}, load.workers, (), ("decoded_bytes",), most)


def ranks_table(job: StreamJob, load: Load, most: int) -> Printed:
    """Show the load of ranks."""
    ranks = [(rank, *_sums(load, rank, job.topology.lanes), load.steps[rank]) for rank in range(len(load.steps))]
    header = {"rank": "rank", "pieces": "pieces", "rows": "rows", "decoded_bytes": "to decode", "steps": "steps"}
    least, total = ("least", *_fold(min, ranks)), ("most", *_fold(max, ranks))
    totals = (least, total) if len(ranks) > 1 else ()
    return Printed("steps", header, ranks, totals, ("decoded_bytes",), most)


def _sums(load: Load, rank: int, lanes: int) -> tuple[int, int, int]:
    part = load.workers[rank * lanes : (rank + 1) * lanes]
    return sum(row[2] for row in part), sum(row[3] for row in part), sum(row[4] for row in part)


def _fold(which: Any, ranks: Sequence[Any]) -> list[int | None]:
    return [None if column[0] is None else which(column) for column in list(zip(*ranks, strict=True))[1:]]
