"""The commands that write a table: ``convert`` its files, ``tokenize`` its text, ``sample`` one to try things with."""

from __future__ import annotations

import argparse
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_table_loader.cli.named_table import cluster_of, open_table
from torch_table_loader.cli.terminal import number_of, show, wants_bar
from torch_table_loader.contracts import installed_names, load_installed
from torch_table_loader.engine.machine import ranks_on_this_node, usable_cpus
from torch_table_loader.errors import ConfigError, StorageError, TableError, TableLoaderError
from torch_table_loader.format_contracts import FormatWriter
from torch_table_loader.local_files import new_file
from torch_table_loader.messages import did_you_mean, progress_bar
from torch_table_loader.planning.splits import whole_files
from torch_table_loader.text.token_table import chat_of, tokenize_table

if TYPE_CHECKING:
    from torch_table_loader.dataset import TableDataset
    from torch_table_loader.engine.table import Table


ENTRY_POINT_GROUP = "torch_table_loader.writers"

_ROWS_OF_A_BATCH = 1 << 14
_GROUP_BYTES = 64 << 20

DAYS = 7
ROWS = 1200
"""Rows of each day's file of the sample."""

GROUP_ROWS = 400


class ParquetWriter:
    """Writes Parquet: a `FormatWriter`."""

    name = "parquet"
    suffix = ".parquet"

    def check(self, schema: pa.Schema) -> None:
        """Accept any schema: pyarrow reports what Parquet cannot hold when it writes."""

    def write(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, file: BinaryIO) -> None:
        """Write row groups of about 64 MiB: see `FormatWriter.write`."""
        held: list[pa.RecordBatch] = []
        with pq.ParquetWriter(file, schema) as writer:
            for batch in batches:
                held.append(batch)
                if sum(each.nbytes for each in held) >= _GROUP_BYTES:
                    writer.write_table(_joined(held, schema))
                    held = []
            if held:
                writer.write_table(_joined(held, schema))


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(batches, schema).combine_chunks()


def convert(typed: argparse.Namespace) -> None:
    """Write the folder, and print a summary."""
    if typed.to is not None:
        _writer(typed.to)  # a wrong name is refused before the table is read
    dataset = open_table(typed, output_format="arrow", num_workers=0, count_filtered=False)
    is_parquet = all(file.format == "parquet" for file in dataset.table.files)
    writer = _writer(typed.to or ("tensorproto" if is_parquet else "parquet"))
    writer.check(dataset.schema)
    rows = files = 0
    with _new_folder(typed.out) as folder:
        interval = dataset.options.progress_interval
        bar = progress_bar("converting", show=wants_bar(typed), interval=interval, beside=lambda: f"{rows:,} rows")
        parts = _files(dataset, writer.suffix)
        for name, batches in bar(parts, len(dataset.table.files)):
            written = _write(
                folder / cast("str", name), writer, dataset.schema, cast("Iterator[pa.RecordBatch]", batches)
            )
            rows, files = rows + written, files + (written > 0)
    value = {"out": typed.out, "format": writer.name, "rows": rows, "files": files}
    show(
        typed,
        value,
        f"{typed.out} has {number_of(rows, 'row')} in {number_of(files, 'file')} of the format {writer.name!r}",
    )


def _writer(name: str) -> FormatWriter:
    names = [ParquetWriter.name, *installed_names(ENTRY_POINT_GROUP)]
    if name not in names:
        raise ConfigError(f"--to must be one of {', '.join(names)}, got {name!r}{did_you_mean(name, names)}")
    if name == ParquetWriter.name:
        return ParquetWriter()
    found: FormatWriter = load_installed(ENTRY_POINT_GROUP, name, "format writer")()
    return found


def _files(dataset: TableDataset, suffix: str) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
    """Yield the name of the copy and the rows of each file of a table."""
    table = dataset.table
    reader = table.reader(dataset.schema.names, max_rows=_ROWS_OF_A_BATCH)
    segments = whole_files(table.layout, filtered=table.filters is not None)
    for number, name in enumerate(_names(table, suffix)):
        yield name, reader.read(segments.task(number, 0, -1))


def _names(table: Table, suffix: str) -> list[str]:
    """Return names for the copies of files: the same names in one folder, with another suffix."""
    names = [str(Path(file.name).with_suffix("")).replace("/", "-") + suffix for file in table.files]
    if len(set(names)) < len(names):
        width = len(str(len(names) - 1))
        names = [f"{number:0{width}}-{name}" for number, name in enumerate(names)]
    return names


def _write(path: Path, writer: FormatWriter, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
    """Write a file atomically, or no file if there is no row; return the number of rows."""
    rows = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in batches:
            rows += batch.num_rows
            yield batch

    first = next(batches, None)
    if first is None:
        return 0
    batches = chain([first], batches)
    with new_file(path) as (unfinished, file):
        try:
            writer.write(counted(), schema, file)
        except TableError as error:
            raise TableError(f"{path.name}: {error}") from error
        file.close()
        unfinished.replace(path)
    return rows


@contextmanager
def _new_folder(out: str) -> Iterator[Path]:
    """Create a folder that gets its name when it is complete, and that is removed if something fails."""
    if "://" in out:
        raise ConfigError("OUT must be a local folder, got a URL; write to a local folder, and copy it to the URL")
    path = Path(out).expanduser().absolute()
    if path.exists():
        raise ConfigError(f"{out!r} already exists; name a folder that does not")
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}.unfinished")
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        unfinished.rename(path)
    except OSError as error:
        if isinstance(error, TableLoaderError):
            raise
        raise StorageError(f"{out!r} cannot be written: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def tokenize(typed: argparse.Namespace) -> None:
    """Write this rank's part, and print a summary."""
    began = time.perf_counter()
    for flag, value in (("--num-workers", typed.processes), ("--num-ranks", typed.num_ranks)):
        if typed.engine is not None and value is not None:
            raise ConfigError(f"--engine ray takes all CPUs of the cluster for one job; leave {flag} out")
    tokenizer = _tokenizer(typed)
    with cluster_of(typed) as cluster:
        share = tokenize_table(
            _open_text(typed),
            typed.out,
            tokenizer,
            column=_column(typed),
            ids=typed.ids,
            lengths=typed.lengths,
            dtype=typed.dtype,
            nulls=typed.text_nulls,
            special_tokens=typed.special_tokens,
            num_workers=_workers(typed),
            cluster=cluster,
        )
    text = f"{share.written:,} of {number_of(share.num_parts, 'file')} written: {number_of(share.documents, 'row')}"
    text += f", {number_of(share.tokens, 'token')}"
    if share.dropped:
        text += f", {number_of(share.dropped, 'row')} without text left out"
    seconds = time.perf_counter() - began
    end = "will appear when the other ranks are done"
    if share.finished:
        end = "is whole"
    value = {**asdict(share), "seconds": seconds}
    show(typed, value, f"{text}, {seconds:.1f} s\n{typed.out} {end}")


def _tokenizer(typed: argparse.Namespace) -> Any:
    """Return what tokenizes."""
    if typed.chat:
        return chat_of(typed.tokenizer, typed.template, typed.tools)
    for flag, value in (("--template", typed.template), ("--tools", typed.tools)):
        if value is not None:
            raise ConfigError(f"{flag} is about conversations; pass --chat too, or leave {flag} out")
    return typed.tokenizer


def _column(typed: argparse.Namespace) -> str:
    """Return the column that is tokenized."""
    usual = {True: "messages", False: "text"}[typed.chat]
    return typed.column or usual


def _workers(typed: argparse.Namespace) -> int:
    if typed.engine is not None:
        return 1
    if typed.processes is None:
        return max(1, usable_cpus() // ranks_on_this_node())
    return int(typed.processes)


def _open_text(typed: argparse.Namespace) -> TableDataset:
    if (typed.rank is None) != (typed.num_ranks is None):
        raise ConfigError("pass --rank and --num-ranks together, or neither of them")
    # Every row comes once, in any number of steps: nothing is counted, and no rank is warned of unequal steps.
    own: dict[str, Any] = {"drop_last": True, "count_filtered": False, "output_format": "arrow"}
    own["show_progress"] = wants_bar(typed)
    own["columns"] = list(dict.fromkeys(filter(None, [_column(typed), *typed.keep, typed.tools])))
    own["num_ranks"] = "auto"
    if typed.rank is not None:
        own |= {"num_ranks": typed.num_ranks, "rank": typed.rank}
    elif typed.engine:
        own["num_ranks"] = 1
    return open_table(typed, **own)


def write_sample(root: Path) -> int:
    """Write a log of clicks: one Parquet file per day with three row groups, in ``day=2026-01-01`` and so on.

    Columns are `label` (int32, 0 or 1), `price` (float) and `ad` (int32). Dear ads and later days have more clicks, so
    that there is something to learn, and days differ. The values are the same every time.

    Returns:
        The number of rows written.

    Raises:
        ConfigError: `root` is not empty.
    """
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(f"OUT must be a new or empty folder, but {str(root)!r} holds something; name another")
    random = np.random.default_rng(1)
    for day in range(1, DAYS + 1):
        folder = root / f"day=2026-01-0{day}"
        folder.mkdir(parents=True)
        price = random.random(ROWS, dtype=np.float32)
        clicked = random.random(ROWS, dtype=np.float32) < 0.1 + 0.5 * price + 0.05 * day
        columns = {
            "label": clicked.astype(np.int32),
            "price": price,
            "ad": np.arange(ROWS, dtype=np.int32),
        }
        pq.write_table(pa.table(columns), folder / "part-0.parquet", row_group_size=GROUP_ROWS)
    return DAYS * ROWS


def sample(typed: argparse.Namespace) -> None:
    """Write the table of the documentation, and print a summary."""
    rows = write_sample(Path(typed.out))
    value = {"out": typed.out, "rows": rows, "files": DAYS}
    show(typed, value, f"wrote {rows:,} rows in {DAYS} files to {typed.out}")
