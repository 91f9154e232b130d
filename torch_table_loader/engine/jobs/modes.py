"""The orders that `shuffle=` can name, and the job of each: the only place that knows names, and tells jobs apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import pyarrow.types as kinds

from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.engine.jobs.resolve import (
    Units,
    columns_of,
    delivered,
    may_mix,
    planner_of,
    strategy_of,
    surveyed,
    with_mixing,
    with_windows,
)
from torch_table_loader.engine.jobs.stream_job import StreamJob
from torch_table_loader.engine.jobs.stream_memory import refuse_beyond_memory
from torch_table_loader.engine.sizing import rows_of_a_read, rows_of_an_open_read
from torch_table_loader.ranges import FetchSettings
from torch_table_loader.records import ROW_ID

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from torch_table_loader.contracts import Source
    from torch_table_loader.engine.counting import Parts
    from torch_table_loader.engine.jobs.items_job import ItemsJob
    from torch_table_loader.engine.jobs.job import Job
    from torch_table_loader.engine.jobs.planner import Planner
    from torch_table_loader.engine.rank_info import RankInfo
    from torch_table_loader.engine.table import Table
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.read.row_stage import RowStage
    from torch_table_loader.read.tasks import TaskReader
    from torch_table_loader.source.plan_cache import Plans


def open_job(
    source: Source,
    options: LoaderOptions,
    ranks: RankInfo,
    cache: Plans | None,
    *,
    split_deletes: bool = False,
    lazy: bool = False,
    parts: Parts | None = None,
) -> Job:
    """Open this rank's share of a table, in the order that the caller asked for; see `open_stream`.

    Items are gathered one by one, so `split_deletes` and `lazy` mean nothing to them.
    """
    if options.shuffle == "rows":
        if options.budget is not None:
            from torch_table_loader.engine.jobs.budget_rows import open_budgets

            return open_budgets(source, options, ranks, cache, parts)
        if options.samples.are_rows:
            from torch_table_loader.engine.jobs.table_rows import open_rows

            return open_rows(source, options, ranks, cache, parts)
        items: Job = options.samples.parts.items_of(source, options, ranks, cache, parts)
        return items
    return open_stream(source, options, ranks, cache, split_deletes=split_deletes, lazy=lazy, parts=parts)


def stream_job(job: Job) -> StreamJob | None:
    """Return a job that reads the splits of one table; None if it is another."""
    if isinstance(job, StreamJob):
        return job
    return None


def items_job(job: Job) -> ItemsJob | None:
    """Return a job whose items are gathered by index; None if it is another."""
    if job.kind != "items":
        return None
    return cast("ItemsJob", job)


def open_stream(
    source: Source,
    options: LoaderOptions,
    ranks: RankInfo,
    cache: Plans | None,
    *,
    split_deletes: bool = False,
    lazy: bool = False,
    stage: RowStage | None = None,
    parts: Parts | None = None,
) -> StreamJob:
    """Survey the table, check the options against it, and cut it.

    Args:
        split_deletes: whether files that have deletes may be cut.
        lazy: plan by the table's metadata, and read footers when their files are read.
        stage: makes other rows from the live ones; None delivers them as they are.
        parts: those of which the options' filter is one, if datasets of the others count with this one.

    Raises:
        ConfigError: an option does not fit the table or another option.
        TableError: the table cannot be read as it was asked for.
    """
    kept = options.bytes_to_keep(ranks.num_ranks)
    table, options = surveyed(source, options, cache, split_deletes=split_deletes, lazy=lazy, brought_bytes=kept)
    columns = columns_of(table, options)
    stage = stage or _stage_of(options, table.schema)
    read = _Read.of(table, options, columns, stage)
    strategy, fetching = strategy_of(options, ranks), FetchSettings.of(options)
    planner = planner_of(table, options, strategy, ranks.num_ranks, cache, fetching, stage, parts)
    stage = _sized(stage, planner, options, read.row_bytes)
    ordered = _ordered(planner, options, table, read, stage)
    reader = _reader_of(table, options, read, ordered)
    columns_out = delivered(table, reader.schema, options)
    job = StreamJob(
        options=options,
        rank=ranks.rank,
        topology=ordered.planner.topology,
        schedules=options.schedules,
        row_bytes=read.row_bytes,
        table=table,
        reader=reader,
        columns=columns_out,
        strategy=strategy,
        **ordered._asdict(),
        splits_digest=ordered.planner.digest(),
        fetching=fetching,
        fork_safe=all(getattr(store, "fork_safe", False) for store in (table.storage, cache) if store is not None),
    )
    job.codec_of(options.samples.width)  # what cannot be delivered or planned is refused here, not in the first epoch
    ordered.planner.plan(ordered.planner.start(0), ranks.rank)
    refuse_beyond_memory(job)
    return job


class _Read(NamedTuple):
    """What is read of a table.

    Args:
        encoded: columns of which each distinct string is looked up once, where a file has them in a dictionary.
        row_bytes: decoded bytes of a row, about.
        largest: rows of the largest row group.
    """

    columns: Sequence[str]
    encoded: Sequence[str]
    row_bytes: int
    largest: int

    @classmethod
    def of(cls, table: Table, options: LoaderOptions, columns: Sequence[str], stage: RowStage | None) -> _Read:
        """Return what is read of some columns; a stage reads none encoded."""
        encoded: list[str] = []
        if stage is None:
            encoded = _encodable(table.schema, columns, options)
        largest = int(table.layout.group_rows.max(initial=0))
        return cls(columns, encoded, table.row_bytes(columns, encoded), largest)


class _Ordered(NamedTuple):
    """How a table is read: the fields of a `StreamJob` that depend on each other."""

    planner: Planner
    stage: RowStage | None
    units: Units
    read_rows: int


def _stage_of(options: LoaderOptions, schema: pa.Schema) -> RowStage | None:
    """Return what makes samples of a table's rows; None where they are rows."""
    if options.samples.are_rows:
        return None
    asked = tuple(options.column_names or ())
    if options.row_id:
        asked += (ROW_ID,)
    found: RowStage = options.samples.parts.stage_of(options.samples, schema, asked)
    return found


def _sized(stage: RowStage | None, planner: Planner, options: LoaderOptions, row_bytes: int) -> RowStage | None:
    """Return a stage that knows what its rows take where they are batches, and warn of what these hold."""
    if stage is None or not options.samples.are_batches:
        return stage
    segments = planner.plan(planner.start(0), 0).segments
    options.samples.warn_of(planner.made_of(segments, 0))
    return stage.of_size(row_bytes * -(-planner.layout.num_rows // max(1, int(segments.live_rows.sum()))))


def _ordered(planner: Planner, options: LoaderOptions, table: Table, read: _Read, stage: RowStage | None) -> _Ordered:
    """Return a planner that mixes splits, or shuffles in windows, and what is read and mixed with it."""
    columns, row_bytes = read.columns, read.row_bytes
    read_rows = rows_of_a_read(table.read_bytes(columns, row_bytes), options.most_rows, read.largest, options.memory)
    if may_mix(options, planner):
        units = Units.of(planner, row_bytes, stage)
        held = table.open_bytes(columns, min(read_rows, read.largest), row_bytes, decides_order=True)
        planner = with_mixing(planner, options, units, held)
        if (mixing := planner.topology.mixing) is not None:
            piece = units.in_rows(mixing.rows // mixing.splits)
            read_rows = rows_of_an_open_read(row_bytes, read_rows, piece, read.largest, mixing.splits, options.memory)
        return _Ordered(planner, stage, units, read_rows)
    planner = with_windows(planner, options, row_bytes, stage)
    if stage is not None:
        stage = stage.in_blocks(options.window)
    return _Ordered(planner, stage, Units(0, row_bytes, 0), read_rows)


def _reader_of(table: Table, options: LoaderOptions, read: _Read, ordered: _Ordered) -> TaskReader:
    """Return what reads the table's live rows, as many at a time as the order takes."""
    stage = ordered.stage
    return table.reader(
        read.columns,
        row_ids=options.row_id or (stage is not None and stage.takes_ids),
        max_rows=ordered.read_rows,
        stage=stage,
        encoded=read.encoded,
        max_bytes=options.memory,
    )


def _encodable(schema: pa.Schema, columns: Sequence[str], options: LoaderOptions) -> list[str]:
    """Return the columns of which each distinct string is looked up once, where a file has them in a dictionary."""
    strings = [name for name in columns if kinds.is_string(schema.field(name).type)]
    if not strings:
        return []
    return list(filter(TypePolicy.of(options).codes, strings))
