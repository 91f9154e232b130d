"""What a table contains, as text and tables.

``torch-table-loader inspect`` shows which rank would read what, ``head`` the first rows, ``schema`` the columns, and
``plan`` what an epoch reads.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow.python_values import python_values
from torch_table_loader.arrow.sound import check_times
from torch_table_loader.batching.codec import TensorCodec
from torch_table_loader.batching.outputs import DenseKind, ListsKind
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.cli.arguments import GROUPS, loader_keywords
from torch_table_loader.cli.named_table import open_table
from torch_table_loader.cli.terminal import in_shell_words, note, number_of, show, wants_bar
from torch_table_loader.engine.explanation import SizeCounts
from torch_table_loader.engine.jobs.modes import stream_job
from torch_table_loader.engine.jobs.resolve import codec_of, columns_of
from torch_table_loader.engine.jobs.stream_notes import decoded_bytes, loads_of
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.fact_tables import Table as Printed
from torch_table_loader.option_values import Pad
from torch_table_loader.options import LoaderOptions, defaults
from torch_table_loader.planning.epoch import uneven_steps
from torch_table_loader.scrubbing import shown_url
from torch_table_loader.units import Size, integer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.batching.decoders import Shape
    from torch_table_loader.engine.explanation import Explanation
    from torch_table_loader.engine.jobs.stream_job import StreamJob
    from torch_table_loader.engine.table import Table

FORM = tuple(GROUPS["form of columns"])
"""Keywords that decide the form of columns: the table is opened without them, to show columns that they refuse."""

REFUSED = "refused"
"""The beginning of the verdict on a column that the loader refuses."""

UNLESS_NULL = "an error where a null comes"
"""The end of the verdict on a column whose statistics do not say whether it has nulls."""

_LISTS = {"nested": "jagged", "pad": "padded", "offsets": "values and offsets,"}

_WIDEST = 40
"""Characters of a value that are printed; with ``--json`` all are."""

_LOOKING: dict[str, Any] = {"output_format": "arrow", "num_workers": 0, "count_filtered": False}
"""Options that open any table, whatever its columns, without reading rows."""


def run(typed: argparse.Namespace) -> None:
    """Plan, and print the result."""
    own = {}
    if getattr(typed, "num_ranks", 1) > 1:
        own["rank"] = 0
    with warnings.catch_warnings():
        # These concern what rank 0 knows about the others' steps; here all ranks are planned and shown.
        warnings.filterwarnings("ignore", "under a row filter each of|ranks take different numbers of steps")
        plain = {name: defaults()[name] for name in FORM} | {"output_format": "arrow"}
        dataset = open_table(typed, show_progress=wants_bar(typed), **plain, **own)
    dataset.set_epoch(typed.epoch)
    job = stream_job(dataset.job)
    if job is None:
        raise ConfigError("inspect shows splits, which are not read with --shuffle rows; run plan instead")
    keywords = loader_keywords(typed)
    asked = replace(job.options, **{name: keywords.get(name, defaults()[name]) for name in FORM})
    loads, plan = Loads(job, typed.epoch), dataset.explain()
    value, parts = tell(job, asked, loads, plan, typed.lines or sys.maxsize)
    if typed.html is not None:
        title = dataset.table.description or " ".join(map(shown_url, typed.path))
        _write_page(typed.html, page_of(plan, loads, title))
        value["page"] = typed.html
        parts.append(f"page: {typed.html}")
    show(typed, value, *parts)


def page_of(plan: Explanation, loads: Loads, title: str) -> str:
    """Return the plan of rank 0 as HTML, with the load of all ranks if rows are counted."""
    if loads.counted:
        _, _, rows, _, steps = zip(*loads.ranks, strict=True)
        plan = replace(plan, rows_per_rank=rows, steps_per_rank=steps)
    return plan.to_html(title)


def _write_page(path: str, page: str) -> None:
    """Write an HTML file, replacing an existing one."""
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html must name a file that can be written, got {path!r}: {error.strerror}") from error


def tell(
    job: StreamJob, asked: LoaderOptions, loads: Loads, plan: Explanation, most: int
) -> tuple[dict[str, Any], list[str | Printed]]:
    """Return what is known about a table for programs, and the same for people, for whom lists end at `most` lines.

    The job is rank 0's, of Arrow batches; the options are those with the requested form of columns.
    """
    schema = pa.schema([job.table.schema.field(name) for name in columns_of(job.table, job.options)])
    verdicts = [verdict(job.table, field, asked) for field in schema]
    names = zip(schema.names, map(str, schema.types), map(in_shell_words, verdicts), strict=True)
    header = {"name": "column", "type": "Arrow type", "form": f"with --output-format {asked.output_format}"}
    tables = {
        "schema": Printed("schema", header, list(names)),
        "data_files": files_table(job, most),
        "sizes": sizes_table(job, loads),
        "workers": workers_table(job, loads, most),
        "ranks": ranks_table(loads, most),
    }
    notes = [*plan.notes, *_together(job.table, schema, asked, verdicts)]
    steps = [load[-1] for load in loads.ranks]
    if loads.counted and uneven_steps(steps) is not None:
        notes.append(
            f"ranks take {min(steps):,} to {max(steps):,} steps, and a job that synchronises each step (DDP) hangs if "
            "they differ; leave --even-ranks no out, or choose a strategy that makes them equal"
        )
    numbers = ("files", "row_groups", "rows", "stored_bytes", "memory_expected", "memory_bound", "footer_bytes")
    value = {name: getattr(plan, name) for name in numbers} | {"counted": loads.counted, "notes": notes, "page": None}
    value |= {name: table.records() for name, table in tables.items()}
    counts = (number_of(plan.files, "file"), number_of(plan.row_groups, "row group"), number_of(plan.rows, "row"))
    first = f"{', '.join(counts)}, {Size(plan.stored_bytes)} stored"
    memory = (
        f"memory: {Size(plan.memory_expected)} of rows in flight on a rank, {Size(plan.memory_bound)} at most; "
        f"{Size(plan.footer_bytes)} of footers"
    )
    return value, [first, *tables.values(), "\n".join([memory, *map(note, notes)])]


def verdict(table: Table, field: pa.Field, asked: LoaderOptions) -> str:
    """Return what the loader makes of a column: its form, or why it is refused."""
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
    if decided:
        return form
    return f"{form}, {UNLESS_NULL}"


def _for_columns(asked: LoaderOptions, names: Collection[str]) -> LoaderOptions:
    """Leave out fills for other columns."""
    if not isinstance(asked.nulls, Mapping):
        return asked
    return replace(asked, nulls={path: fill for path, fill in asked.nulls.items() if path.split(".")[0] in names})


def _together(table: Table, schema: pa.Schema, asked: LoaderOptions, verdicts: Sequence[str]) -> list[str]:
    """Return errors about columns that are fine one by one: two under one name, a fill without a column."""
    taken = [field for field, form in zip(schema, verdicts, strict=True) if not form.startswith(REFUSED)]
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
    if isinstance(kind, DenseKind):
        return _dense(kind)
    return "list"


def _dense(kind: DenseKind) -> str:
    return f"{kind.dtype}{list(kind.inner) or ''}"


def files_table(job: StreamJob, most: int) -> Printed:
    """List the first files, and the total of all in one line."""
    layout = job.table.layout
    columns = (
        layout.file_rows.tolist(),
        [Size(file.version.num_bytes) for file in layout.files],
        np.diff(layout.group_offsets).tolist(),
        layout.kept_groups.tolist(),
    )
    rows = list(zip([file.name for file in layout.files], *columns, strict=True))
    header = {"file": "file", "rows": "rows", "stored_bytes": "stored", "row_groups": "row groups"}
    total = ("all", layout.num_rows, Size(sum(columns[1])), sum(columns[2]), sum(columns[3]))
    return Printed("files", header | {"row_groups_read": "of them read"}, rows, [total], most)


class Loads:
    """What each rank and worker reads in an epoch, as rows of tables."""

    def __init__(self, job: StreamJob, epoch: int) -> None:
        planner = job.planner
        self.counted = planner.counted
        self.split_rows: list[NDArray[np.int64]] = []
        self.split_bytes: list[NDArray[np.int64]] = []
        self.workers: list[tuple[Any, ...]] = []
        self.ranks: list[tuple[Any, ...]] = []
        for rank in range(job.topology.num_ranks):
            planned = planner.plan(planner.start(epoch), rank)
            if rank == 0 or job.strategy.form == "generator_with_ranks":
                self.split_rows.append(planned.segments.splits.num_rows)
                self.split_bytes.append(decoded_bytes(planned.segments))
            pieces, rows, num_bytes = 0, 0, 0
            for lane, load in enumerate(loads_of(planned)):
                self.workers.append((rank, lane, *load[:2], Size(load[2]), load[3] if self.counted else None))
                pieces, rows, num_bytes = pieces + load[0], rows + load[1], num_bytes + load[2]
            steps = planned.plan.steps if self.counted else None
            self.ranks.append((rank, pieces, rows, Size(num_bytes), steps))


def sizes_table(job: StreamJob, loads: Loads) -> Printed:
    """Show the distribution of the sizes of files, row groups and splits."""
    layout = job.table.layout
    measured = {
        "files": (layout.file_rows, layout.file_bytes),
        "row groups": (layout.group_rows, layout.group_bytes),
        "splits": (np.concatenate(loads.split_rows), np.concatenate(loads.split_bytes)),
    }
    rows = []
    for name, arrays in measured.items():
        counts, num_bytes = map(SizeCounts.of, arrays)
        sizes = map(Size, (num_bytes.least, num_bytes.median, num_bytes.most))
        rows.append((name, len(arrays[0]), counts.least, counts.median, counts.most, *sizes))
    header = {"of": "", "number": "number", "least_rows": "rows: min", "median_rows": "median", "most_rows": "max"}
    header |= {"least_bytes": "size: min", "median_bytes": "median", "most_bytes": "max"}
    return Printed(f"sizes (files as stored; row groups and splits by {job.strategy.name} decoded)", header, rows)


def workers_table(job: StreamJob, loads: Loads, most: int) -> Printed:
    """Show the load of workers."""
    shape = job.topology
    ranks, lanes = number_of(shape.num_ranks, "rank"), number_of(shape.lanes, "worker")
    title = f"load of {ranks} × {lanes}, {number_of(shape.batch_size, 'row')} a batch"
    if not loads.counted:
        title += "; rows are not counted, so these are upper bounds"
    header = {"rank": "rank", "worker": "worker", "pieces": "pieces", "rows": "rows", "decoded_bytes": "to decode"}
    return Printed(title, header | {"batches": "batches"}, loads.workers, (), most)


def ranks_table(loads: Loads, most: int) -> Printed:
    """Show the load of ranks."""
    header = {"rank": "rank", "pieces": "pieces", "rows": "rows", "decoded_bytes": "to decode", "steps": "steps"}
    columns = list(zip(*loads.ranks, strict=True))[1:]
    totals = [
        (name, *(None if None in column else fold(column) for column in columns))
        for name, fold in (("least", min), ("most", max))
    ]
    return Printed("steps", header, loads.ranks, totals if len(loads.ranks) > 1 else (), most)


def head(typed: argparse.Namespace) -> None:
    """Print the first rows after deletes and filters."""
    dataset = open_table(typed, **_LOOKING)
    rows, notes = dataset.head(integer("--rows", typed.rows, 0)), dataset.table.hints(dataset.options.column_names)
    columns = []
    for name, column in zip(rows.schema.names, rows.combine_chunks().columns, strict=True):
        values = column.combine_chunks()
        check_times(name, values)
        columns.append(map(plain, python_values(values)))
    found = [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]
    shown = [[_short(value) for value in row.values()] for row in found]
    title = {0: "no rows", 1: "the first row"}.get(len(found), f"the first {len(found):,} rows")
    table = Printed(title, {name: name for name in rows.schema.names}, shown)
    show(typed, {"rows": found, "notes": notes}, table, *map(note, notes))


def schema(typed: argparse.Namespace) -> None:
    """Print the columns with their Arrow types."""
    dataset = open_table(typed, **_LOOKING)
    table = dataset.table
    fields = [table.schema.field(name) for name in columns_of(table, dataset.options)]
    columns = [{"name": each.name, "type": str(each.type), "nullable": each.nullable} for each in fields]
    rows = [(each["name"], each["type"], "yes" if each["nullable"] else "no") for each in columns]
    header = {"name": "column", "type": "Arrow type", "nullable": "nulls allowed"}
    notes = table.hints(dataset.options.column_names)
    value = {"table": table.description or None, "snapshot_id": table.snapshot_id, "columns": columns, "notes": notes}
    show(typed, value, Printed(table.description or "schema", header, rows), *map(note, notes))


def plan(typed: argparse.Namespace) -> None:
    """Print what a rank reads in an epoch, and why."""
    own = {}
    if getattr(typed, "num_ranks", 1) > 1 or typed.rank:
        own["rank"] = typed.rank
    dataset = open_table(typed, **own)
    dataset.set_epoch(typed.epoch)
    found = dataset.explain()
    value = {name: value for name, value in asdict(found).items() if name != "order"}
    value["packing"] = value.pop("counts")
    parts = [in_shell_words(part) if isinstance(part, str) else part for part in found.parts()]
    if dataset.table.description:
        parts.insert(0, dataset.table.description)
    show(typed, value, *parts)


def plain(value: Any) -> Any:
    """Return a value that JSON can hold: bytes in base64; times, decimals and non-finite numbers as text.

    >>> plain({"a": [b"ab", float("nan"), 1]})
    {'a': ['YWI=', 'nan', 1]}
    """
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def _short(value: Any) -> str | int:
    if value is None:
        return "null"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, int):
            return value
        return repr(value)
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False)
    text = " ".join(value.split())
    if len(text) <= _WIDEST:
        return text
    return text[: _WIDEST - 1] + "…"
