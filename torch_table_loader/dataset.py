"""The datasets: a table that a loader of ours, or the caller's own DataLoader, iterates."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

import pyarrow as pa

from torch_table_loader.engine.jobs.modes import open_job
from torch_table_loader.engine.jobs.resolve import with_batch_size
from torch_table_loader.engine.plan_check import PlanCheck
from torch_table_loader.engine.rank_info import resolve_ranks
from torch_table_loader.errors import ConfigError
from torch_table_loader.keywords import LoaderKeywords, make_options
from torch_table_loader.opening import (
    agreed_source,
    arrow_source,
    check_source,
    check_storage,
    list_files,
    open_plan_cache,
    time_travel,
)
from torch_table_loader.rank_dataset import RankDataset
from torch_table_loader.read.formats import reader_for
from torch_table_loader.source.arrow_source import is_arrow
from torch_table_loader.source.file_list import write_files
from torch_table_loader.units import integer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from torch_table_loader.contracts import Source, Storage
    from torch_table_loader.engine.jobs.table_rows import TableItems
    from torch_table_loader.engine.table import Table
    from torch_table_loader.format_contracts import FormatReader
    from torch_table_loader.map_view import MapView
    from torch_table_loader.planning.column_statistics import ColumnStatistics
    from torch_table_loader.records import LeftOut
    from torch_table_loader.source.plan_cache import PlanCache


class TableDataset(RankDataset):
    """What the datasets of one table share; make a `StructuredDataset`."""

    @property
    def table(self) -> Table:
        """The table, surveyed."""
        return self.job.tables[""]

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that is read; None of a table without one."""
        return self.table.snapshot_id

    def head(self, count: int = 5) -> pa.Table:
        """Return the first rows that deletes and filters leave, in the order of the files, as Arrow.

        They are the whole table's, whatever the rank, the order and `pack`; no more is read than what holds them.

        Args:
            count: how many at most.
        """
        options, table = self.options, self.table
        columns = list(table.schema.names if options.columns is None else options.columns)
        return table.first_rows(columns, options.filters, integer("count", count, 0))

    def statistics(
        self, columns: Sequence[str], *, quantiles: Sequence[float] | None = None, bounds_only: bool = False
    ) -> dict[str, ColumnStatistics]:
        """Measure columns of numbers, filters and deletes applied; see `ColumnStatistics`.

        The result is the same on every rank, whatever the order: nothing is rounded before the end. Every rank that
        calls it reads these columns of the whole table; with `plan_cache`, once for all. Of more than 65,536 distinct
        values, a quantile is within 1/4096 of the value, relative to it.

        Args:
            columns: names; of ints, floats, bools, decimals, points in time, or lists of them.
            quantiles: shares of the values, each from 0 to 1; None for seven of them.
            bounds_only: leave mean, deviation and quantiles out. Of integers in Parquet files, without filter and
                deletes, the footers then say all, and no value is read.

        Raises:
            ConfigError: a column is not there or holds no numbers, or a share is none.
        """
        from torch_table_loader.engine.measuring import measured_statistics as found

        return found(self.table, self.options, self._plan_cache(), columns, quantiles, bounds_only=bounds_only)

    def fit_vocabulary(self, column: str, *, max_size: int | None = None, min_count: int = 1) -> list[Any]:
        """Return the values of a column of strings, for ``vocabulary={column: ...}``, filters and deletes applied.

        The most frequent come first, and of those that are equally frequent the first by their bytes, so that the
        result is the same on every rank. Every distinct value is in memory once. See `statistics` for what is read.

        Args:
            column: of strings or bytes, or of lists of them.
            max_size: how many at most; None for all.
            min_count: how often a value comes at least.

        Raises:
            ConfigError: the column is not there or holds no strings, or a number is out of range.
        """
        from torch_table_loader.engine.measuring import measured_vocabulary

        return measured_vocabulary(self.table, self.options, self._plan_cache(), column, max_size, min_count)

    def _plan_cache(self) -> PlanCache | None:
        return open_plan_cache(self.options, self.table.storage)

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The damaged parts that ``on_error="skip"`` leaves out, in the table's order."""
        return self.table.left_out

    def save_files(self, path: str) -> None:
        """Keep the list of the table's files, so that ``files=path`` pins it.

        Args:
            path: where, on any fsspec file system; `storage_options` are used if it is the table's.
        """
        write_files(path, self.table.files, self.options.storage_options, self.options.retry_seconds)

    @property
    def excluded(self) -> NDArray[np.int64]:
        """The row ids that are excluded from the next epoch to begin: int64[n], sorted; a copy.

        Raises:
            ConfigError: no ``shuffle="rows"``.
        """
        return table_rows(self, "excluded").exclusions.newest.ids.copy()

    def exclude(self, row_ids: Any, *, gather: bool = False) -> None:
        """Take rows out of every epoch that begins from now on; the epoch that runs keeps its order.

        Call it on every rank, in the same epoch, with the same ids, or with `gather`. A state that is loaded later
        brings its own exclusions, in place of these; a warning says so.

        Args:
            row_ids: integers as the column ``row_id`` gives them, or a mask with a bool for each of the table's
                physical rows: an array, a tensor or a list.
            gather: take the rows that any rank of the process group names; every rank must call it.

        Raises:
            ConfigError: an id that no row has, here or on another rank; a mask of other rows; or no
                ``shuffle="rows"``.
            StorageTimeoutError: with `gather`, a rank did not call it within five minutes.
        """
        rows = table_rows(self, "exclude")
        rows.exclusions.change(rows.exclude(self._asked(rows, row_ids, gather=gather)))

    def include(self, row_ids: Any, *, gather: bool = False) -> None:
        """Take rows in again that were excluded; see `exclude`."""
        rows = table_rows(self, "include")
        rows.exclusions.change(rows.include(self._asked(rows, row_ids, gather=gather)))

    def _asked(self, rows: TableItems, row_ids: Any, *, gather: bool) -> NDArray[np.int64]:
        if not gather:
            return rows.ids_of(row_ids)
        return self._position.of_all_ranks(lambda: {"": rows.ids_of(row_ids)})[""]

    def as_map(self) -> MapView:
        """Return the table's live rows as a map-style dataset; see `MapView`."""
        from torch_table_loader.map_view import MapView

        return MapView(table_rows(self, "as_map"))


def table_rows(dataset: TableDataset, what: str) -> TableItems:
    """Return the items of a dataset with ``shuffle="rows"``.

    Args:
        dataset: of one table.
        what: the caller wants to do with single rows, for the message.

    Raises:
        ConfigError: the dataset reads splits.
    """
    from torch_table_loader.engine.jobs.table_rows import TableItems

    items = getattr(dataset.job, "items", None)
    if not isinstance(items, TableItems):
        raise ConfigError(f'{what} speaks of single rows; pass shuffle="rows"')
    return items


class StructuredDataset(TableDataset):
    """A table that is a set of files: a directory, a glob, a file, or a list of them.

    Put it into a ``DataLoader(dataset, batch_size=None)``, or let `create_dataloader` make a loader that also
    knows its length, takes batches from threads, and can be resumed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        format: str | FormatReader | None = None,  # noqa: A002 the name that callers write
        *,
        source: Source | Any = None,
        storage: Storage | None = None,
        **options: Unpack[LoaderKeywords],
    ) -> None:
        """List the files, read their footers, and plan the first epoch.

        Args:
            path: a directory (recursive), a glob, one file, or a list of them; any fsspec URL.
            format: "parquet", "orc", "csv", "json" ("jsonl"), "arrow" ("ipc", "feather") or "avro"; of token files
                "megatron", "datatrove" ("nanotron") or "fms-fsdp"; "tensorproto"; the name of an installed format
                reader; or a format reader. Left out, the files' names say it, which must end as those of one format
                do; names that say nothing mean Parquet.
            source: a table that lists its files in a way of its own, instead of `path`; see `contracts.Source`. Or
                rows in memory; see `from_arrow`.
            storage: where `path` is, instead of what its URL says; `path` then names files, or their folder beside
                `files`; see `contracts.Storage`.
            options: the fields of `LoaderOptions`.

        Raises:
            ConfigError: an option is wrong, or nothing is at `path`.
            TableError: a file is missing, torn, or does not fit the others.
            StorageError: the store refused.
        """
        asked = make_options(options, type(self))
        if source is not None:
            source = arrow_source(source) if is_arrow(source) else source
            check_source(source, path, format, storage, asked)
        elif storage is not None:
            check_storage(storage, asked)
        reader = None if format is None else reader_for(format, path)
        ranks = resolve_ranks(asked)
        asked = with_batch_size(asked, ranks.num_ranks, given="batch_size" in options)
        pinned = asked.files is not None or getattr(source, "pinned", False)
        plan_check = PlanCheck(ranks.rank, ranks.num_ranks, check=asked.check_plan, pinned=pinned)
        with plan_check:
            if source is None:
                source = list_files(path, reader, storage, asked, by_name=format is None or isinstance(format, str))
            source = agreed_source(source, plan_check)
            cache = open_plan_cache(asked, source.storage)
            open_at = partial(open_job, options=asked, ranks=ranks, cache=cache)
            job = open_at(source)
            plan_check.check({**job.compared, **asdict(job.topology)})
        source.storage.close()
        if cache is not None:
            cache.storage.close()
        super().__init__(job, plan_check, time_travel(source, open_at))

    @classmethod
    def from_source(cls, source: Source, **options: Unpack[LoaderKeywords]) -> Self:
        """Open a table that lists its files in a way of its own.

        ``create_dataloader(source=source, ...)`` does so, and makes the loader too.

        Args:
            source: the table; see `contracts.Source`.
            options: the fields of `LoaderOptions`.
        """
        return cls(source=source, **options)

    @classmethod
    def from_arrow(cls, data: Any, **options: Unpack[LoaderKeywords]) -> Self:
        """Open rows that are in memory, without files.

        ``create_dataloader(source=data, ...)`` does so, and makes the loader too.

        Args:
            data: a pyarrow Table, RecordBatch, RecordBatchReader or Dataset; a polars or pandas DataFrame, of which a
                named index becomes columns; a ``datasets.Dataset``, as it was loaded, selected or shuffled; a DuckDB
                relation; or anything else with ``__arrow_c_stream__``. What gives its rows once is read at once.
            options: the fields of `LoaderOptions`.

        Raises:
            ConfigTypeError: it is none of these.
            ConfigError: Arrow cannot hold a column, or an option is wrong.
        """
        return cls(source=arrow_source(data), **options)
