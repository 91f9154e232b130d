"""Everything that is decided at construction: a table, how it is read, and who reads what."""

from __future__ import annotations

import difflib
import hashlib
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.engine.counting import LiveCounter
from torch_table_loader.engine.machine import ranks_on_this_node, servers_for, usable_cpus
from torch_table_loader.engine.planner import Planner
from torch_table_loader.engine.survey import Table, survey
from torch_table_loader.engine.work import PADDING_COLUMN, EpochWork
from torch_table_loader.errors import ConfigError
from torch_table_loader.planning.epoch import uneven_steps
from torch_table_loader.planning.ranks import Topology
from torch_table_loader.planning.strategies import Strategy, resolve_strategy
from torch_table_loader.read.tasks import TaskReader

if TYPE_CHECKING:
    from torch_table_loader.contracts import Source
    from torch_table_loader.engine.ranks import RankInfo
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.source.plan_cache import PlanCache

CHUNK_BYTES = 8 * 1024 * 1024
"""Decoded bytes that a lane aims at with each read."""

CHUNK_BATCHES = 4
"""Batches of a read where they are larger than that, so that few batches are joined over reads."""

_VARIABLE_BYTES = 64
"""What a value of variable width is taken to weigh where a read is sized."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One rank's share of a table, ready to be planned and read in any epoch. It pickles.

    Args:
        options: the caller's.
        table: surveyed.
        reader: reads its rows.
        strategy: splits it.
        planner: plans its epochs.
        rank: this rank.
        row_bytes: decoded bytes of a row, values of variable width taken at `_VARIABLE_BYTES`.
        read_rows: rows that a lane reads at a time.
    """

    options: LoaderOptions
    table: Table
    reader: TaskReader
    strategy: Strategy
    planner: Planner
    rank: int
    row_bytes: int
    read_rows: int

    @classmethod
    def open(cls, source: Source, options: LoaderOptions, ranks: RankInfo, cache: PlanCache | None) -> Job:
        """Survey the table, check the options against it, and cut it.

        Args:
            source: the table.
            options: the caller's.
            ranks: this rank, of how many.
            cache: footers and counts that are kept; or None.

        Raises:
            ConfigError: an option does not fit the table or another option.
            TableError: the table cannot be read as it was asked for.
        """
        table = survey(source, options.filters, options.schema, cache)
        columns = _columns(table, options)
        row_bytes = sum(width_of(table.schema.field(name).type) for name in columns) or 1
        read_rows = rows_of_a_read(row_bytes, options.batch_size)
        reader = TaskReader(
            table.storage,
            table.files,
            table.metas,
            table.schema,
            columns,
            filters=options.filters,
            row_id_bases=table.layout.file_starts[:-1] if options.row_id else None,
            max_rows=read_rows,
        )
        codec = make_codec(reader.schema, TypePolicy.of(options))
        if options.filters is None:
            table.refuse_nulls(codec.null_sensitive)
        strategy = _strategy(options, ranks)
        topology = Topology(
            ranks.num_ranks,
            options.lanes,
            options.batch_size,
            options.shuffle_buffer_size,
            options.even_ranks,
            options.drop_last,
        )
        planner = Planner(
            table.layout,
            strategy,
            topology,
            shuffle=bool(options.shuffle),
            seed=options.shuffle_seed,
            filtered=options.filters is not None,
            counter=_counter(table, options, cache),
        )
        if options.even_ranks is not None and not planner.counted:
            raise ConfigError(
                f"even_ranks={options.even_ranks!r} needs the number of rows that pass the filter; "
                "leave count_filtered=True, or even_ranks=None"
            )
        job = cls(options, table, reader, strategy, planner, ranks.rank, row_bytes, read_rows)
        job.planner.plan(0, ranks.rank)
        job.warn_of_uneven_steps()
        return job

    @property
    def topology(self) -> Topology:
        """The job's shape."""
        return self.planner.topology

    @property
    def fork_safe(self) -> bool:
        """Whether planning left no threads behind that a fork would break."""
        return bool(getattr(self.table.storage, "fork_safe", False))

    @property
    def servers(self) -> int:
        """Threads or processes that serve the lanes on this machine."""
        return servers_for(self.topology.lanes, usable_cpus(), ranks_on_this_node())

    def with_lanes(self, lanes: int) -> Job:
        """Give the same job with another number of lanes."""
        if lanes == self.topology.lanes:
            return self
        return replace(self, planner=self.planner.with_lanes(lanes))

    def schema(self, epoch: int) -> pa.Schema:
        """The Arrow schema of what comes out."""
        return _with_padding(self.reader.schema, marks=self.planner.plan(epoch, self.rank).marks_padding)

    def work(self, epoch: int) -> EpochWork:
        """Plan an epoch of this rank, as a value that threads and processes can work on.

        Args:
            epoch: from 0.
        """
        planned = self.planner.plan(epoch, self.rank)
        options = self.options
        return EpochWork(
            plan=planned.plan,
            segments=planned.segments,
            reader=self.reader,
            codec=make_codec(self.schema(epoch), TypePolicy.of(options)),
            rank=self.rank,
            seed=options.shuffle_seed,
            epoch=epoch,
            window=options.shuffle_buffer_size,
            marks_padding=planned.marks_padding,
            collate_fn=options.collate_fn,
            drop_last=options.drop_last,
        )

    def warn_of_uneven_steps(self) -> None:
        """Say once that ranks take unequally many steps, since that hangs a job that synchronises each step."""
        if self.topology.num_ranks == 1 or self.options.even_ranks is not None or self.strategy.form == "generator":
            return
        remedy = 'pass even_ranks="balance" (or "drop", "pad")' if self.strategy.cuts else "let the strategy even them"
        steps = self.planner.steps_of_ranks(0)
        if steps is None:
            warnings.warn(
                f"under a row filter each of {self.topology.num_ranks} ranks counts its own rows, and steps may "
                f"differ; a job that synchronises each step (DDP) then hangs; {remedy}",
                stacklevel=5,
            )
        elif (shown := uneven_steps(steps)) is not None:
            warnings.warn(
                f"ranks take unequally many steps: {shown}; a job that synchronises each step (DDP) then hangs; "
                f"{remedy}",
                stacklevel=5,
            )

    def identity(self) -> dict[str, Any]:
        """Name what decides the order, for the comparison between ranks. Plain data, no path, no secret."""
        options = self.options
        return {
            "files": self.table.fingerprint,
            "schema": self.reader.schema.to_string(),
            "filters": None if options.filters is None else filter_key(options.filters, self.table.schema),
            "shuffle": bool(options.shuffle),
            "shuffle_seed": options.shuffle_seed,
            "strategy": self.strategy.name,
            "split_bytes": options.target_split_bytes,
            "split_rows": options.split_rows,
            "num_ranks": self.topology.num_ranks,
            "num_workers": self.topology.lanes,
            "batch_size": options.batch_size,
            "shuffle_buffer_size": options.shuffle_buffer_size,
            "even_ranks": options.even_ranks,
            "drop_last": options.drop_last,
        }


def filter_key(filters: Any, schema: pa.Schema) -> str:
    """Name a filter over a schema: 64 hexadecimal digits, in which no literal can be read."""
    return hashlib.sha256(f"{filters}\n{schema.to_string(show_schema_metadata=False)}".encode()).hexdigest()


def progress_bar(label: str, *, show: bool) -> Callable[[Iterable[Any], int | None], Iterable[Any]]:
    """Make a wrapper that draws a progress bar around an iterable, or leaves it as it is."""
    if not show:
        return lambda items, _total: items
    from tqdm.auto import tqdm

    return lambda items, total: tqdm(items, desc=label, total=total)


def rows_of_a_read(row_bytes: int, batch_size: int) -> int:
    """Size a read: a whole number of batches, near `CHUNK_BYTES`, or `CHUNK_BATCHES` of them where they are larger.

    Args:
        row_bytes: of a decoded row.
        batch_size: rows of a batch.

    >>> rows_of_a_read(64, 8192), rows_of_a_read(2000, 8192)
    (131072, 16384)
    """
    most = 8 * CHUNK_BYTES // row_bytes
    aimed = max(CHUNK_BYTES // row_bytes, min(CHUNK_BATCHES * batch_size, most), 1)
    return -(-aimed // batch_size) * batch_size


def width_of(kind: pa.DataType) -> int:
    """Estimate the decoded bytes of a value."""
    if pa.types.is_struct(kind):
        return sum(width_of(kind.field(at).type) for at in range(kind.num_fields)) or 1
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * width_of(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _VARIABLE_BYTES * width_of(kind.value_type)
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return _VARIABLE_BYTES


def _columns(table: Table, options: LoaderOptions) -> list[str]:
    names = table.schema.names
    columns = list(names if options.columns is None else options.columns)
    if unknown := [name for name in columns if name not in names]:
        near = difflib.get_close_matches(unknown[0], names) or names[:20]
        raise ConfigError(f"the table has no column {unknown[0]!r}; did you mean {', '.join(near)}?")
    if not columns and not options.row_id:
        raise ConfigError("columns is empty, so that batches would hold nothing; name at least one column")
    if PADDING_COLUMN in columns and options.even_ranks in ("pad", "balance"):
        raise ConfigError(
            f"even_ranks={options.even_ranks!r} adds a column {PADDING_COLUMN!r}, but the table has one of that name; "
            "leave it out of columns="
        )
    return columns


def _strategy(options: LoaderOptions, ranks: RankInfo) -> Strategy:
    arguments = {
        "shuffle": bool(options.shuffle),
        "seed": options.shuffle_seed,
        "target_bytes": options.target_split_bytes if options.split_bytes is not None else None,
        "target_rows": options.split_rows,
    }
    strategy = resolve_strategy(options.split_strategy, arguments)
    if strategy.cuts:
        return strategy
    if options.even_ranks is not None:
        raise ConfigError(
            f"even_ranks={options.even_ranks!r} needs a strategy that cuts; {strategy.name}.generate() owns the "
            "assignment, so leave even_ranks out"
        )
    if strategy.form == "generator" and ranks.num_ranks > 1:
        warnings.warn(
            f"{strategy.name}.generate(files, num_workers, epoch) does not take ranks, so each of {ranks.num_ranks} "
            "ranks reads the whole table; add num_ranks and rank to its parameters to split it",
            stacklevel=6,
        )
    if options.shuffle and not isinstance(options.split_strategy, str):
        warnings.warn(
            f"shuffle={options.shuffle!r} does nothing: {strategy.name}.generate() owns the order; shuffle there, by "
            "the epoch it is given",
            stacklevel=6,
        )
    return strategy


def _counter(table: Table, options: LoaderOptions, cache: PlanCache | None) -> LiveCounter | None:
    if options.filters is None or not options.count_filtered:
        return None
    counting = TaskReader(table.storage, table.files, table.metas, table.schema, (), filters=options.filters)
    return LiveCounter(
        table,
        counting,
        filter_key(options.filters, table.schema),
        cache,
        threads=usable_cpus(),
        progress=progress_bar("counting", show=options.show_progress),
    )


def _with_padding(schema: pa.Schema, *, marks: bool) -> pa.Schema:
    return schema.append(pa.field(PADDING_COLUMN, pa.bool_(), nullable=False)) if marks else schema


__all__ = ["Job", "filter_key", "progress_bar", "rows_of_a_read", "width_of"]
