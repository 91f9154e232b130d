"""What the caller's options mean for a table: columns, split strategy, what is counted, and how it is planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.types as kinds

from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.engine.counting import Counts, LiveCounter
from torch_table_loader.engine.jobs.planner import Planner
from torch_table_loader.engine.machine import usable_cpus
from torch_table_loader.engine.sizing import MIXED_SPLITS, mixing_of, window_of_a_lane
from torch_table_loader.engine.survey import survey
from torch_table_loader.errors import ConfigError
from torch_table_loader.messages import progress_bar, warn_caller
from torch_table_loader.option_checks import batch_sizes
from torch_table_loader.planning.cutting import WholeFileStrategy
from torch_table_loader.planning.epoch import uneven_steps
from torch_table_loader.planning.global_batches import GlobalBatches, rank_batch_size, steps_of_ranks
from torch_table_loader.planning.ranks import Topology
from torch_table_loader.planning.strategies import Strategy, resolve_strategy
from torch_table_loader.schedules import as_schedule
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from torch_table_loader.batching.rows import RowsCodec
    from torch_table_loader.contracts import Source
    from torch_table_loader.engine.counting import Parts
    from torch_table_loader.engine.rank_info import RankInfo
    from torch_table_loader.engine.table import Table
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.ranges import FetchSettings
    from torch_table_loader.read.row_stage import RowStage
    from torch_table_loader.samples import SampleCounts, Samples
    from torch_table_loader.source.plan_cache import Plans


_ROW_KEPT = 40
"""Bytes that are kept of a row of which a stage makes others: where they are, in five numbers."""


def surveyed(
    source: Source,
    options: LoaderOptions,
    cache: Plans | None,
    *,
    split_deletes: bool = False,
    lazy: bool = False,
    brought_bytes: int = 0,
) -> tuple[Table, LoaderOptions]:
    """Survey a table, and return it with the options as they are for it; see `survey`."""
    table = survey(
        source,
        options.filters,
        options.schema,
        cache,
        split_deletes=split_deletes,
        lazy=lazy,
        verify_checksums=bool(options.remote.verify_checksums),
        skip=options.on_error == "skip",
        brought_bytes=brought_bytes,
    )
    return table, options.of_columns(table.schema.names)


def columns_of(table: Table, options: LoaderOptions) -> list[str]:
    """Return the columns to deliver, in order.

    Raises:
        ConfigError: the table has no such column (the nearest are named), or a column of ours would hide one.
    """
    names = table.schema.names
    asked = options.reads
    if asked is None:
        asked = names
    columns, known = list(asked), frozenset(names)
    if unknown := [name for name in columns if name not in known]:
        raise table.no_column(unknown[0])
    if len(columns) > sizes().columns:
        raise ConfigError(
            f"a batch must have at most {sizes().columns} columns, got {len(columns)}; name those that are needed in "
            "columns=, or write columns that belong together as one list"
        )
    if not columns and not options.row_id:
        raise ConfigError("columns is empty, so batches would hold nothing; name at least one column")
    return columns


def codec_of(table: Table, schema: pa.Schema, columns: Sequence[str], options: LoaderOptions) -> RowsCodec[Any]:
    """Choose how columns come out, and refuse those that cannot; `columns` are the table's own columns of the schema.

    Raises:
        ConfigError: a column that the output cannot hold.
        TableError: one in which a null is an error, and statistics prove one.
    """
    codec = make_codec(schema, TypePolicy.of(options))
    table.refuse_nulls(codec.null_sensitive & frozenset(columns))
    return codec


def delivered(table: Table, schema: pa.Schema, options: LoaderOptions) -> pa.Schema:
    """Return the schema of columns as they come out: under `nulls="mask"`, statistics may prove some free of nulls."""
    if options.nulls != "mask" or not options.samples.are_rows:
        return schema
    asked = [field.name for field in schema if field.nullable and not kinds.is_nested(field.type)]
    free = table.null_free([name for name in asked if table.schema.get_field_index(name) >= 0])
    return pa.schema([field.with_nullable(field.nullable and field.name not in free) for field in schema])


def strategy_of(options: LoaderOptions, ranks: RankInfo) -> Strategy:
    """Return the split strategy, and warn of what it cannot do.

    Raises:
        ConfigError: it cannot do what another option asks.
    """
    least_splits = None
    if options.may_mix and options.split_size is None:
        least_splits = MIXED_SPLITS
    arguments = {
        "shuffle": bool(options.shuffle),
        "seed": options.shuffle_seed,
        "target_bytes": options.split_bytes,
        "target_rows": options.split_rows,
        "least_splits": least_splits,
    }
    chosen = options.split_strategy
    if options.batch_by == "file" and chosen is None:
        chosen = WholeFileStrategy()
    strategy = resolve_strategy(chosen, arguments)
    if strategy.coverage == "any":
        _refuse_beside_any_coverage(strategy, options)
    if strategy.cuts:
        return strategy
    if options.even_ranks:
        raise ConfigError(
            f"even_ranks={options.even_ranks!r} needs a strategy that cuts; {strategy.name}.generate() owns the "
            "assignment, so leave even_ranks out"
        )
    if strategy.form == "generator" and ranks.num_ranks > 1:
        warn_caller(
            f"{strategy.name}.generate(files, num_workers, epoch) does not take ranks, so each of {ranks.num_ranks} "
            "ranks reads the whole table; add num_ranks and rank to its parameters to split it"
        )
    if options.shuffle and "shuffle" not in strategy.took:
        warn_caller(
            f"shuffle={options.shuffle!r} does nothing: {strategy.name}.generate() owns the order; shuffle there, "
            "with the epoch that it receives"
        )
    return strategy


def _refuse_beside_any_coverage(strategy: Strategy, options: LoaderOptions) -> None:
    """Refuse what cannot be with splits that may leave rows out, or hold them several times."""
    for name in options.needing_rows_once:
        raise ConfigError(
            f"{name} needs splits that hold each row once, and {strategy.name} declares coverage='any'; leave "
            f"{name} out, or use another split_strategy"
        )


def counter_of(
    table: Table,
    options: LoaderOptions,
    cache: Plans | None,
    fetching: FetchSettings,
    stage: RowStage | None = None,
    parts: Parts | None = None,
) -> LiveCounter | None:
    """Make the counting pass, where a row filter, deletes or a stage need one and the caller did not give it up.

    Args:
        stage: makes other rows from the live ones; or None.
        parts: those of which the options' filter is one, if datasets of the others count with this one.
    """
    layout, reads = table.layout, table.filters is not None or table.layout.must_count or stage is not None
    if (reads and not options.count_filtered) or not (reads or layout.has_deletes):
        return None
    from torch_table_loader.predicates.filter_form import filter_key

    depends, by_epoch = "", False
    columns: Sequence[str] = ()
    nothing: SampleCounts | None = None
    if layout.has_deletes:
        depends += f"-{table.fingerprint}"
    if stage is not None:
        depends += f"-{stage.key}"
        columns, nothing, by_epoch = stage.reads, stage.nothing, stage.counts_by_epoch
    key = filter_key(table.filters, table.schema) + depends
    counting, counts = table, {key: Counts(layout)}
    if parts is not None:
        of_parts = {filter_key(parts.joined(each), table.schema) + depends: each for each in parts.filters}
        if key in of_parts:  # not so where the table's own format joined the filters in another way
            counting, of_parts = replace(table, filters=parts.base), {key: of_parts[key], **of_parts}
            counts = {name: parts.counts_of(name, each, layout) for name, each in of_parts.items()}
    if table.estimated or table.left_out or by_epoch:
        # What is counted of estimated row groups, or of a file of which parts are left out, or of one epoch, fits no
        # entry.
        cache = None
    return LiveCounter(
        table,
        counting.reader(columns, row_ids=by_epoch, stage=stage),
        counts,
        cache,
        threads=usable_cpus(),
        progress=progress_bar("counting", show=options.show_progress, interval=options.progress_interval),
        fetching=fetching,
        nothing=nothing,
    )


def topology_of(options: LoaderOptions, num_ranks: int) -> Topology:
    """Return the shape of a job, of which the rows are counted."""
    even_ranks = options.even_ranks or None
    if options.even_ranks is None and num_ranks > 1:
        even_ranks = "balance"
    return Topology(
        num_ranks,
        options.lanes,
        options.batch_rows,
        options.row_window,
        even_ranks,
        options.drop_last,
        _micro_batches(options, num_ranks),
    )


def planner_of(
    table: Table,
    options: LoaderOptions,
    strategy: Strategy,
    num_ranks: int,
    cache: Plans | None,
    fetching: FetchSettings,
    stage: RowStage | None,
    parts: Parts | None = None,
) -> Planner:
    """Make what plans the epochs of a job; for stage and parts see `counter_of`.

    Raises:
        ConfigError: ranks are to be even, and the caller gave up the count that this needs.
    """
    planner = Planner(
        table.layout,
        strategy,
        topology_of(options, num_ranks),
        shuffle=bool(options.shuffle),
        seed=options.shuffle_seed,
        filtered=table.filters is not None or stage is not None,
        counter=counter_of(table, options, cache, fetching, stage, parts),
        by_file=options.batch_by == "file",
    )
    if planner.counted and strategy.cuts:
        return planner
    if options.even_ranks:
        raise ConfigError(
            f"even_ranks={options.even_ranks!r} needs the number of rows that pass the filter; "
            "leave count_filtered=True, or even_ranks out"
        )
    return planner.with_topology(replace(planner.topology, even_ranks=None))


def why_not_mixed(options: LoaderOptions, planner: Planner) -> str | None:
    """Return what keeps splits from being mixed, with the remedy; None if nothing does."""
    if options.batch_by is not None:
        return 'batches end with files (batch_by="file"): leave batch_by out'
    if not planner.counted:
        return "rows that pass the filter are not counted: leave count_filtered out"
    if not planner.strategy.cuts:
        return f"{planner.strategy.name} deals splits itself: leave split_strategy out"
    return None


class Units(NamedTuple):
    """What batches count of a table: its rows, or what a stage makes of these.

    Args:
        total: how many there are.
        num_bytes: of one, with its share of what else is held of its row, before batches are made of it.
        rows: of the table.
    """

    total: int
    num_bytes: int
    rows: int

    @classmethod
    def of(cls, planner: Planner, row_bytes: int, stage: RowStage | None) -> Units:
        """Return those of a table whose rows have so many bytes; what a stage makes is counted, of all ranks."""
        rows = planner.layout.num_rows
        if stage is None:
            return cls(rows, row_bytes, rows)
        total = int(planner.whole().live_rows.sum())
        return cls(total, max(stage.held_bytes, (row_bytes + _ROW_KEPT) * rows // max(1, total)), rows)

    def in_rows(self, units: int) -> int:
        """Return about how many rows of the table so many are made of, at least one."""
        return max(1, units * self.rows // max(1, self.total))

    def of_rows(self, rows: int) -> int:
        """Return about how many are made of so many rows of the table, at least one."""
        return max(1, rows * self.total // max(1, self.rows))


def may_mix(options: LoaderOptions, planner: Planner) -> bool:
    """Return whether splits are mixed.

    Raises:
        ConfigError: the caller asked for it by name, and another option keeps splits from being mixed.
    """
    reason = why_not_mixed(options, planner)
    if options.shuffle == "mixed" and reason is not None:
        raise ConfigError(f'shuffle="mixed" mixes rows of several splits, but {reason}, or pass shuffle="splits"')
    return options.may_mix and reason is None


def with_mixing(planner: Planner, options: LoaderOptions, units: Units, held: int) -> Planner:
    """Let a planner mix splits.

    Args:
        held: bytes that an open split holds.
    """
    topology, window = planner.topology, options.window
    if window is not None and options.samples.joins_rows:
        window = units.of_rows(window)
    own = units.total // topology.num_ranks
    mixing = mixing_of(units.num_bytes, own, topology.batch_size, window, held, options.memory)
    return planner.with_topology(replace(topology, lanes=1, shuffle_buffer_size=mixing))


def with_windows(planner: Planner, options: LoaderOptions, row_bytes: int, stage: RowStage | None) -> Planner:
    """Let a planner shuffle in windows that are sized by a rank's memory, if nothing is mixed.

    Args:
        row_bytes: decoded bytes of a row, about.
    """
    topology = planner.topology
    if not (options.limits_memory and options.shuffle) or topology.mixing is not None:
        return planner
    if stage is not None:
        row_bytes = stage.row_bytes or row_bytes
    window = window_of_a_lane(row_bytes, topology.lanes, options.memory)
    return planner.with_topology(replace(topology, shuffle_buffer_size=window))


def warn_of_uneven_batches(plan: GlobalBatches) -> None:
    """Warn if ranks take different numbers of steps, which hangs a job that synchronises each step."""
    if not plan.endless and (shown := uneven_steps(steps_of_ranks(plan))) is not None:
        warn_caller(
            f"ranks take different numbers of steps: {shown}; a job that synchronises each step (DDP) then hangs; "
            "leave even_ranks=False out, or pass drop_last=True"
        )


def with_batch_size(
    options: LoaderOptions, num_ranks: int, *, given: bool, samples: Samples | None = None
) -> LoaderOptions:
    """Divide `global_batch_size`, if given, over the ranks, and over their batches if the caller gave `batch_size` too.

    Where it has several values, `batch_size` becomes the largest.

    Args:
        samples: those of the sources of a mixture.

    Raises:
        ConfigError: it is no multiple of these, or a step of a schedule is none of the batches.
    """
    if options.global_batch_size is None:
        return options
    samples, schedule = samples or options.samples, as_schedule(options.global_batch_size)
    own: int | None = None
    if given:
        own = options.most_rows
    batch = max(rank_batch_size(own, size, num_ranks) for size in schedule.values.values())
    micro = max(schedule.values.values()) // (num_ranks * batch)
    if micro > 1 and options.shuffle != "rows":
        raise ConfigError(
            "a stream takes one batch of each rank in a step, got a batch_size= that is a part of global_batch_size=; "
            'leave batch_size out, or pass shuffle="rows"'
        )
    samples.check_unit(schedule)
    changes: list[int] = []
    if samples.lengths is not None:
        changes = list(samples.lengths.values)
    if len(changes) > 1 and (schedule.unit != "steps" or (micro > 1 and len(schedule.values) > 1)):
        raise ConfigError(
            "Pack: with seq_len by step, global_batch_size= changes by steps of one batch of each rank; pass a dict of "
            "sizes by step, and no batch_size"
        )
    _refuse_parts_of_steps("Pack: steps of seq_len", changes, [micro] * len(changes), options)
    if schedule.unit == "steps":
        places, ks = list(schedule.values), [max(1, size // (num_ranks * batch)) for size in schedule.values.values()]
        _refuse_parts_of_steps("steps of global_batch_size", [b - a for a, b in pairwise(places)], ks, options)
    step = 0
    if micro > 1:
        step = num_ranks * batch
    schedule = schedule.in_samples(samples.width).in_whole_batches(step)
    return options.with_checked(batch_size=batch, global_batch_size=batch_sizes("global_batch_size", schedule))


def _refuse_parts_of_steps(name: str, steps: Sequence[int], micro: Sequence[int], options: LoaderOptions) -> None:
    """Refuse a change in the middle of a step of the optimizer."""
    if uneven := [(step, k) for step, k in zip(steps, micro, strict=False) if step % k]:
        raise ConfigError(
            f"{name} must be multiples of the {uneven[0][1]} batches that each rank takes for "
            f"global_batch_size={options.global_batch_size}, got {uneven[0][0]}"
        )


def _micro_batches(options: LoaderOptions, num_ranks: int) -> int:
    """Count the batches that each rank takes in one step of the optimizer."""
    if options.global_batch_size is None:
        return 1
    return max(1, int(as_schedule(options.global_batch_size).last) // (num_ranks * options.most_rows))
