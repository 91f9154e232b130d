"""The datasets: a table, for our loader or for the caller's own DataLoader."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import asdict, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

import pyarrow as pa

from torch_table_loader.contracts import SnapshotSource
from torch_table_loader.engine.calls import making
from torch_table_loader.engine.counting import Parts
from torch_table_loader.engine.jobs.resolve import with_batch_size
from torch_table_loader.engine.plan_check import PlanCheck, refuse_call
from torch_table_loader.engine.rank_info import resolve_ranks
from torch_table_loader.errors import ConfigError
from torch_table_loader.installed import load
from torch_table_loader.keywords import LoaderKeywords, called, make_options, with_example
from torch_table_loader.opening import (
    Opening,
    TimeTravel,
    agreed_source,
    arrow_source,
    check_source,
    check_storage,
    list_files,
    open_plain,
    open_plan_cache,
)
from torch_table_loader.options import ABOUT
from torch_table_loader.planning.row_parts import KIND, HashedRows, RangedRows, RowPart, encoded, named_shares
from torch_table_loader.predicates.filter_text import filter_of
from torch_table_loader.predicates.hash_parts import hashes_of, part_of
from torch_table_loader.rank_dataset import RankDataset
from torch_table_loader.read.formats import reader_for
from torch_table_loader.records import DeleteFile
from torch_table_loader.source.listing import write_files
from torch_table_loader.units import integer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from torch_table_loader.contracts import Source, Storage
    from torch_table_loader.engine.calls import Call
    from torch_table_loader.engine.jobs.items_job import ItemsJob
    from torch_table_loader.engine.jobs.live_rows import LiveRows
    from torch_table_loader.engine.table import Table
    from torch_table_loader.format_contracts import FormatReader
    from torch_table_loader.map_view import MapView
    from torch_table_loader.option_values import ColumnStatistics
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.read.text_options import Csv, Json
    from torch_table_loader.records import DataFile, LeftOut
    from torch_table_loader.source.listing import PathSource
    from torch_table_loader.source.plan_cache import Plans

_OF_THE_TABLE = ("files", "schema", "storage_options", "plan_cache")
"""Options that say what is opened."""


class TableDataset(RankDataset):
    """The base of the datasets of one table; use `StructuredDataset`."""

    def _plan(self, options: LoaderOptions, find: Callable[[LoaderOptions, PlanCheck], Any], opening: Opening) -> None:
        """Find the table, plan the first epoch, and compare it with the plans of other ranks.

        Args:
            find: returns the source, after ranks have agreed on what it is.
            opening: how it is opened.
        """
        ranks = resolve_ranks(options)
        options = with_batch_size(options, ranks.num_ranks, given="batch_size" in opening.keywords)
        plan_check = PlanCheck(ranks.rank, ranks.num_ranks, check=options.check_plan, pinned=opening.pinned)
        open_at = partial(opening.open_source, options, ranks, plans=opening.plans, parts=opening.parts)
        with plan_check:
            source = find(options, plan_check)
            job = open_at(source)
            if plan_check.compares:
                plan_check.check({**job.compared, **asdict(job.topology)})
        self._opening: Opening | None = opening
        self._travel = TimeTravel(source, open_at)
        super().__init__(job, plan_check, self._travel)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what opens tables."""
        return {**vars(self), "_opening": None, "_travel": None}

    def with_options(self, **options: Unpack[LoaderKeywords]) -> Self:
        """Return another dataset of the same table, which is neither listed nor are its footers read again.

        It has this dataset's options except for those that are given; a given `filters` replaces this dataset's own.
        Files, snapshot and known counts are shared; epoch and state are its own. An Iceberg table whose files a filter
        has left out is planned again at its snapshot where `filters` changes.

        Args:
            options: the fields of `LoaderOptions`, without those that say which table it is: `files`, `schema`,
                `storage_options` and `plan_cache`.

        Raises:
            ConfigError: an option is wrong or says which table it is, or the dataset came from another process.
        """
        with self._heard_by_all(options):
            return self._derived(options)

    @with_example('dataset.split({"train": 0.8, "val": 0.2}, by="user_id")')
    def split(
        self,
        parts: Mapping[Any, float] | Sequence[float] | str,
        *,
        by: str | Sequence[str] | None = None,
        seed: int = 0,
        ranges: bool = False,
    ) -> dict[Any, Self]:
        """Return a dataset for each part of this dataset's rows; each row is in exactly one.

        The parts are those of `part_of`, within the dataset's own `filters`: a hash of the columns decides, so that
        they are the same in every epoch, process and order, and rows with equal values stay together. What is read to
        count the rows of one part counts those of all.

        Without `by`, the places of rows decide, and nothing is read: a hash of the file's own name and the row's number
        in it, or runs of each file's rows. Files that are added later change the part of no row.

        Args:
            parts: the share of each part, by name, such as ``{"train": 0.8, "val": 0.2}``; they sum to 1. Or weights in
                any unit, as Megatron's ``--split`` takes them: ``"969,30,1"`` or ``[969, 30, 1]`` has the parts
                ``train``, ``valid`` and ``test``.
            by: a column, or several, such as a user's id; None for rows, such as documents, by their places.
            seed: another seed divides the values, or rows, differently.
            ranges: cut each file's rows into runs, in the order of `parts`, as Megatron's ``--split`` does: a run ends
                at its share of the file's rows, rounded, half to even.

        Raises:
            ConfigError: there are no parts, their shares do not sum to 1, a column does not exist, or the table is one
                of Iceberg or Delta Lake, whose rows have no lasting places, and `by` is missing.
        """
        with self._heard_by_all({}):
            return self._split(parts, by, seed, ranges=ranges)

    def _split(self, given: object, by: str | Sequence[str] | None, seed: int, *, ranges: bool) -> dict[Any, Self]:
        parts = named_shares(given)
        hashes = {part: hashes_of(parts, part) for part in parts}
        if not math.isclose(total := math.fsum(parts.values()), 1, abs_tol=1e-9):
            raise ConfigError(f"the shares of split must sum to 1, got {dict(parts)!r}, which sum to {total:g}")
        if by is None or ranges:
            return self._split_places(parts, by, hashes, seed, ranges=ranges)
        filters = {part: part_of(by, parts, part, seed=seed) for part in parts}
        columns = by
        if isinstance(by, str):
            columns = [by]
        for name in columns:
            if name not in self.table.schema.names:
                raise self.table.no_column(name)
        shared = Parts(self.table.filters, tuple(filters.values()))
        return {part: self._derived({}, chosen, shared) for part, chosen in filters.items()}

    def _split_places(
        self, parts: Mapping[Any, float], by: Any, hashes: Mapping[Any, tuple[int, int]], seed: int, *, ranges: bool
    ) -> dict[Any, Self]:
        """Return the parts by the places of rows."""
        if by is not None or (ranges and seed):
            raise ConfigError(
                f"ranges=True cuts each file by the places of its rows, got {f'by={by!r}' if by else f'seed={seed}'} "
                "with it; leave one of them out"
            )
        if self._opening is None or isinstance(self._travel.source, SnapshotSource) or self.table.left_out:
            raise ConfigError(
                "split without by= divides rows by their places in whole files, and those of Iceberg and Delta Lake, "
                'or of which damaged parts are left out, have no lasting ones; pass by=, such as by="id"'
            )
        seed = integer("seed", seed)
        edges = [0.0, *accumulate(map(float, parts.values()))]
        chosen: dict[Any, RowPart] = dict(zip(parts, map(RangedRows, edges, [*edges[1:-1], 1.0]), strict=True))
        if not ranges:
            chosen = {part: HashedRows(*found, seed) for part, found in hashes.items()}
        return {part: self._derived({}, rows=rows) for part, rows in chosen.items()}

    def _heard_by_all(self, changes: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Make other datasets of the same table, and let all ranks hear if that is refused."""
        asked = dict(changes)
        if self._opening is not None:
            asked = {**self._opening.keywords, **changes}

        def refused(call: Call, error: BaseException) -> None:
            refuse_call(call, error, compared=self._is_compared((), asked))

        return making(object(), refused)

    def _derived(
        self, changes: LoaderKeywords, part: Any = None, parts: Parts | None = None, rows: RowPart | None = None
    ) -> Self:
        """Return a dataset of the same table with other options.

        Args:
            part: joins the filter; one of `parts`.
            rows: of each file's rows, which are read.
        """
        from torch_table_loader.source.snapshot_files import SnapshotFiles

        if self._opening is None:
            raise ConfigError(
                "the dataset came from another process, which alone can make others of its table: call with_options "
                "and split before it is handed over"
            )
        for name in changes:
            if name in _OF_THE_TABLE or (name not in ABOUT and name in inspect.signature(type(self)).parameters):
                raise ConfigError(
                    f"with_options cannot change {name}=, which says what is opened, and how; open another dataset"
                )
        keywords: LoaderKeywords = {**self._opening.keywords, **changes}
        if part is not None:
            own = keywords.get("filters")
            keywords["filters"] = part
            if own is not None:
                keywords["filters"] = filter_of(own) & part
        with called(type(self), "with_options"):
            asked = make_options(keywords, type(self))
        table, source = self.table, self._travel.source
        if isinstance(table.metas, tuple) and not table.left_out:
            self._opening.plans.know(table.files, table.metas)
        if isinstance(source, SnapshotFiles):
            source = replace(source.asked_anew(asked.column_names, asked.filters, part), deletes=table.deletes)
        if rows is not None:
            source = replace(cast("PathSource", source), files=tuple(self._cut(rows)))
        made = copy(self)
        opening = replace(
            self._opening,
            keywords=keywords,
            pinned=self._opening.pinned or self.job.topology.num_ranks > 1,
            parts=self._opening.parts if parts is None and "filters" not in changes else parts,
        )
        made._plan(asked, lambda _, plan_check: agreed_source(source, plan_check), opening)
        return made

    def _cut(self, rows: RowPart) -> Iterator[DataFile]:
        """Yield the table's files without the rows of other parts."""
        for file, count in zip(self.table.files, self.table.layout.file_rows.tolist(), strict=True):
            part = DeleteFile(replace(file, deletes=()), KIND, count, inline=encoded(rows))
            yield replace(file, deletes=(*file.deletes, part))

    @property
    def table(self) -> Table:
        """The table, surveyed."""
        return self.job.tables[""]

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that is read; None for a table without snapshots."""
        return self.table.snapshot_id

    def head(self, count: int = 5) -> pa.Table:
        """Return the first rows that remain after deletes and filters, in the order of the files, as Arrow.

        They are rows of the whole table, whatever the rank, the order and `pack`; nothing beyond them is read.

        Args:
            count: how many at most.
        """
        columns = self.options.column_names
        if columns is None:
            columns = self.table.schema.names
        return self.table.first_rows(list(columns), integer("count", count, 0))

    def statistics(
        self, columns: Sequence[str], *, quantiles: Sequence[float] | None = None, bounds_only: bool = False
    ) -> dict[str, ColumnStatistics]:
        """Measure numeric columns, with filters and deletes applied; see `ColumnStatistics`.

        The result is the same on every rank, in any order: nothing is rounded before the end. Every rank that calls
        this reads the columns of the whole table; with `plan_cache`, the first reads for all. With more than 65,536
        distinct values, a quantile has a relative error of at most 1/4096.

        Args:
            columns: names of columns of ints, floats, bools, decimals, points in time, or lists of them.
            quantiles: shares of the values, each from 0 to 1; None for seven default shares.
            bounds_only: leave out mean, deviation and quantiles. For integers in Parquet files, without filter and
                deletes, the footers then suffice, and no value is read.

        Raises:
            ConfigError: a column does not exist or holds no numbers, or a share is invalid.
        """
        measure, asked = load("statistics").measured_statistics, (self.table, self.options, self._plan_cache())
        return cast("dict[str, ColumnStatistics]", measure(*asked, columns, quantiles, bounds_only=bounds_only))

    def fit_vocabulary(self, column: str, *, max_size: int | None = None, min_count: int = 1) -> list[Any]:
        """Return the values of a string column, for ``strings={column: Vocabulary(...)}``, after filters and deletes.

        The most frequent values come first, and equally frequent ones in the order of their bytes, so the result is the
        same on every rank. Every distinct value is in memory once. `statistics` describes what is read.

        Args:
            column: name of a column of strings or bytes, or of lists of them.
            max_size: maximum number of values; None for all.
            min_count: minimum number of times that a value comes.

        Raises:
            ConfigError: the column does not exist or holds no strings, or a number is out of range.
        """
        measure, asked = load("statistics").measured_vocabulary, (self.table, self.options, self._plan_cache())
        return cast("list[Any]", measure(*asked, column, max_size, min_count))

    def _plan_cache(self) -> Plans | None:
        cache = open_plan_cache(self.options, self.table.storage)
        if cache is None and self._opening is not None:
            return self._opening.plans
        return cache

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The damaged parts that ``on_error="skip"`` leaves out, in the table's order."""
        return self.table.left_out

    def save_files(self, path: str) -> None:
        """Save the list of the table's files, so that ``files=path`` pins it.

        Args:
            path: destination on any fsspec file system; `storage_options` are used if it is that of the table.
        """
        write_files(path, self.table.files, self.options.storage_options)

    @property
    def excluded(self) -> NDArray[np.int64]:
        """The row ids excluded from the next epoch: int64[n], sorted; a copy.

        Raises:
            ConfigError: the dataset has no ``shuffle="rows"``.
        """
        return live_rows(self, "excluded").exclusions.newest.ids.copy()

    def exclude(self, row_ids: Any, *, gather: bool = False) -> None:
        """Take rows out of all later epochs; the running epoch keeps its order.

        Call it on every rank, in the same epoch, with the same ids, or with `gather`. A state that is loaded later
        replaces these exclusions by its own; a warning says so.

        Args:
            row_ids: integers as in the column ``row_id``, or a mask with one bool for each physical row of the table:
                an array, a tensor or a list.
            gather: exclude the rows that any rank of the process group names; every rank must make the call.

        Raises:
            ConfigError: an id belongs to no row, here or on another rank; the mask has another length; or the dataset
                has no ``shuffle="rows"``.
            StorageTimeoutError: with `gather`, a rank did not make the call within the timeout of the process group.
        """
        rows = live_rows(self, "exclude")
        rows.exclusions.change(rows.exclude(self._asked(rows, row_ids, gather=gather)))

    def include(self, row_ids: Any, *, gather: bool = False) -> None:
        """Put excluded rows back; see `exclude`."""
        rows = live_rows(self, "include")
        rows.exclusions.change(rows.include(self._asked(rows, row_ids, gather=gather)))

    def _asked(self, rows: LiveRows, row_ids: Any, *, gather: bool) -> NDArray[np.int64]:
        if not gather:
            return rows.ids_of(row_ids)
        return self._position.of_all_ranks(lambda: {"": rows.ids_of(row_ids)})[""]

    def as_map(self) -> MapView:
        """Return the table's live rows as a map-style dataset; see `MapView`."""
        from torch_table_loader.map_view import MapView

        live_rows(self, "as_map")  # refuses what has none
        items = cast("ItemsJob", self.job).items.sources[""]
        items.refuse_nulls()
        return MapView(items)


def live_rows(dataset: TableDataset, what: str) -> LiveRows:
    """Return the rows of a dataset with ``shuffle="rows"``.

    Args:
        what: the caller wants to do with single rows, for the message.

    Raises:
        ConfigError: the dataset reads splits.
    """
    if not (rows := dataset.job.live_rows):
        raise ConfigError(f'{what} works on single rows; pass shuffle="rows"')
    return rows[""]


class StructuredDataset(TableDataset):
    """A table that is a set of files: a directory, a glob, a file, or a list of them.

    Put it into a ``DataLoader(dataset, batch_size=None)``. Or call `create_dataloader`, whose loader also knows its
    length, reads with threads, and can be resumed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        format: str | Csv | Json | FormatReader | None = None,  # noqa: A002 the name that callers write
        *,
        source: Source | Any = None,
        storage: Storage | None = None,
        **options: Unpack[LoaderKeywords],
    ) -> None:
        """List the files, read their footers, and plan the first epoch.

        Args:
            path: a directory (recursive), a glob, one file, or a list of them; any fsspec URL.
            format: "parquet", "orc", "csv", "json" ("jsonl"), "arrow" ("ipc", "feather") or "avro"; for token files
                "megatron", "datatrove" ("nanotron") or "fms-fsdp"; "tensorproto"; the name of an installed format
                reader; a format reader; or `Csv(...)`, `Json(...)` or `FlatTokens(...)`, which say how files are
                written. By default the file extensions decide, which must belong to one format; files without a known
                one are read as Parquet.
            source: a table that lists its own files, instead of `path`; see `contracts.Source`. Or rows in memory; see
                `from_arrow`.
            storage: opens `path`, instead of the store in its URL; `path` then names files, or their folder if you pass
                `files`; see `contracts.Storage`.
            options: the fields of `LoaderOptions`.

        Raises:
            ConfigError: an option is wrong, or `path` does not exist.
            TableError: a file is missing, torn, or does not fit the others.
            StorageError: the store refused.
        """
        asked = make_options(options, type(self))
        if source is not None:
            from torch_table_loader.source.arrow_source import is_arrow

            if is_arrow(source):
                source = arrow_source(source)
            check_source(source, path, format, storage, asked)
        elif storage is not None:
            check_storage(storage, asked)
        reader: FormatReader | None = None
        if format is not None:
            reader = reader_for(format, path)
        pinned = asked.files is not None or getattr(source, "pinned", False)

        def find(asked: LoaderOptions, plan_check: PlanCheck) -> Source:
            if source is not None:
                return agreed_source(source, plan_check)
            by_name = format is None or isinstance(format, str)
            return agreed_source(list_files(path, reader, storage, asked, by_name=by_name), plan_check)

        self._plan(asked, find, Opening(options, open_plain, pinned))

    @classmethod
    def from_source(cls, source: Source, **options: Unpack[LoaderKeywords]) -> Self:
        """Open a table that lists its own files.

        ``create_dataloader(source=source, ...)`` does so, and makes the loader too.

        Args:
            source: the table; see `contracts.Source`.
            options: the fields of `LoaderOptions`.
        """
        return cls(source=source, **options)

    @classmethod
    def from_arrow(cls, data: Any, **options: Unpack[LoaderKeywords]) -> Self:
        """Open rows in memory, without files.

        ``create_dataloader(source=data, ...)`` does so, and makes the loader too.

        Args:
            data: a pyarrow Table, RecordBatch, RecordBatchReader or Dataset; a polars or pandas DataFrame, whose named
                index becomes columns; a ``datasets.Dataset``, also selected or shuffled; a DuckDB relation; or anything
                else with ``__arrow_c_stream__``. Data that yield their rows only once are read at once.
            options: the fields of `LoaderOptions`.

        Raises:
            ConfigTypeError: it is none of these.
            ConfigError: Arrow cannot hold a column, or an option is wrong.
        """
        return cls(source=arrow_source(data), **options)
