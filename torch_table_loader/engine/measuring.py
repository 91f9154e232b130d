"""Passes over some columns of a table before training: statistics of numbers, and the values of strings.

Every rank that asks reads the whole column and gets the same result; ranks that share a plan cache read it once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.types as kinds

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.arrays import plain
from torch_table_loader.arrow.datatypes import ElementType, is_text, plain_type, whole_type
from torch_table_loader.cancellation import Threads
from torch_table_loader.engine.machine import usable_cpus
from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.messages import progress_bar
from torch_table_loader.option_values import ColumnStatistics
from torch_table_loader.planning.value_sums import ValueSums
from torch_table_loader.ranges import FetchSettings, TasksAhead
from torch_table_loader.records import ReadTask
from torch_table_loader.sizes import sizes
from torch_table_loader.units import integer

if TYPE_CHECKING:
    from torch_table_loader.engine.table import Table
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.source.plan_cache import Plans

T = TypeVar("T")

DEFAULT_SHARES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
"""Quantiles that `statistics` gives where the caller names none."""

_COUNTS = pa.schema([("value", pa.large_binary()), ("count", pa.int64())])


def measured_statistics(
    table: Table,
    options: LoaderOptions,
    cache: Plans | None,
    columns: Sequence[str],
    quantiles: Sequence[float] | None,
    *,
    bounds_only: bool,
) -> dict[str, ColumnStatistics]:
    """Return statistics of columns by name; see `TableDataset.statistics`."""
    if bounds_only and quantiles is not None:
        raise ConfigError(
            "bounds_only=True leaves quantiles out, which take a pass over the values; pass one of the two"
        )
    if quantiles is None:
        quantiles = DEFAULT_SHARES
    if isinstance(columns, str) or not columns or not all(isinstance(name, str) for name in columns):
        raise ConfigTypeError(f"columns must be a list of names, at least one, got {columns!r}")
    for share in quantiles:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise ConfigError(f"quantiles must be numbers from 0 to 1, got {share!r}; the median is 0.5")
    with _closing(cache):
        shares = None if bounds_only else [float(share) for share in quantiles]
        return _Measuring(table, options, cache).statistics(list(dict.fromkeys(columns)), shares)


def measured_vocabulary(
    table: Table, options: LoaderOptions, cache: Plans | None, column: str, max_size: int | None, min_count: int
) -> list[Any]:
    """Return the values of a column of strings; see `TableDataset.fit_vocabulary`."""
    if max_size is not None:
        max_size = integer("max_size", max_size, 1)
    least = integer("min_count", min_count, 1)
    with _closing(cache):
        return _Measuring(table, options, cache).vocabulary(column, max_size, least)


@contextmanager
def _closing(cache: Plans | None) -> Iterator[None]:
    """Close the cache's client at the end, so that it does not cross into another process."""
    try:
        yield
    finally:
        if cache is not None:
            cache.close()


@dataclass(frozen=True, slots=True, eq=False)
class _Measuring:
    """A table whose columns are measured."""

    table: Table
    options: LoaderOptions
    cache: Plans | None

    def statistics(self, columns: Sequence[str], shares: list[float] | None) -> dict[str, ColumnStatistics]:
        """Return statistics of one or more columns of numbers; without shares only bounds, which footers may know.

        Raises:
            ConfigError: a column is not there, or holds no numbers.
        """
        for name in columns:
            self._refuse(name, _is_number, "numbers", "dataset.fit_vocabulary is for strings")
        found = {name: self._known("statistics", name, shares) for name in columns}
        if missing := [name for name, data in found.items() if data is None]:
            known = {}
            if shares is None:
                known = self._known_bounds(missing)
            parts = [*known.values(), *self._over_files(missing, partial(_sums_of, missing), known)]
            for name in missing:
                record = ColumnStatistics.of(ValueSums.merged([part[name] for part in parts]), shares)
                found[name] = data = _written(record)
                self._keep(data, "statistics", name, shares)
        return {name: _read(data) for name, data in found.items() if data is not None}

    def vocabulary(self, column: str, max_size: int | None, min_count: int) -> list[Any]:
        """Return the values of a column of strings or bytes, or lists of them: the most frequent first, then by bytes.

        Raises:
            ConfigError: the column is not there, or holds no strings.
        """
        kind = self._refuse(column, is_text, "strings", "dataset.statistics is for numbers")
        asked = (column, max_size, min_count)
        if (data := self._known("vocabulary", *asked)) is None:
            counts = _joined(list(self._over_files([column], _counts_of)))
            counts = counts.filter(pc.field("count") >= min_count)
            order = pc.sort_indices(counts, [("count", "descending"), ("value", "ascending")])
            values = counts.column("value").take(order.slice(0, max_size)).combine_chunks()
            data = _as_ipc(values)
            self._keep(data, "vocabulary", *asked)
        found: list[Any] = _from_ipc(data).cast(_wide(kind)).to_pylist()
        return found

    def _refuse(self, name: str, fits: Callable[[pa.DataType], bool], what: str, otherwise: str) -> pa.DataType:
        """Refuse a column that does not hold what is measured; return the type of what it holds."""
        if name not in self.table.schema.names:
            raise self.table.no_column(name)
        kind = _inner(self.table.schema.field(name).type)
        if not fits(kind):
            held = self.table.schema.field(name).type
            raise ConfigError(f"column {name!r} must hold {what}, or lists of them, got {held}; {otherwise}")
        return kind

    def _known_bounds(self, columns: Sequence[str]) -> dict[int, dict[str, ValueSums]]:
        """Return what footers prove of columns, by file; a file of which one is unknown is left out."""
        table = self.table
        integers = all(kinds.is_integer(plain_type(table.schema.field(name).type)) for name in columns)
        if table.filters is not None or not integers:
            return {}
        found = {}
        for file, rows in enumerate(table.layout.file_rows.tolist()):
            bounds = {name: table.bounds(file, name) for name in columns}
            sums = {
                name: ValueSums(count=rows - each[0], nulls=each[0], low=each[1], high=each[2])
                for name, each in bounds.items()
                if each is not None
            }
            if len(sums) == len(columns):
                found[file] = sums
        return found

    def _over_files(
        self,
        columns: Sequence[str],
        measure: Callable[[Iterable[pa.RecordBatch]], T],
        but: Collection[int] = (),
    ) -> Iterator[T]:
        """Yield what is measured of each file's live rows, in the table's order, several files at a time.

        The files numbered in `but` are left out.
        """
        table = self.table
        reader = table.reader(columns)
        parts = [(file, table.layout.kept_segments(file)) for file in range(len(table.layout))]
        tasks = [ReadTask(file, segments) for file, segments in parts if segments and file not in but]

        def of_task(place: int) -> T:
            with ahead.storage_of(place) as storage, closing(reader.read(tasks[place], storage)) as rows:  # type: ignore[type-var]
                return measure(rows)

        ahead = TasksAhead(
            reader.storage, (partial(reader.needs, task) for task in tasks), FetchSettings.of(self.options)
        )
        shown = progress_bar("measuring", show=self.options.show_progress, interval=self.options.progress_interval)
        with Threads(usable_cpus(), "table-loader-measure", joined=True) as pool, closing(ahead):
            yield from shown(pool.map(of_task, range(len(tasks))), len(tasks))

    def _known(self, *asked: Any) -> bytes | None:
        key = self._key(asked)
        if self.cache is None or key is None:
            return None
        return self.cache.get_note(key)

    def _keep(self, data: bytes, *asked: Any) -> None:
        key = self._key(asked)
        if self.cache is not None and key is not None:
            self.cache.put_note(key, data)

    def _key(self, asked: Sequence[Any]) -> str | None:
        """Say in full what a result depends on; None where files cannot be told from others."""
        table = self.table
        if self.cache is None or table.left_out or (versions := self.cache.versions(table.files)) is None:
            return None
        schema = hashlib.sha256(table.schema.serialize().to_pybytes()).hexdigest()
        return json.dumps([*asked, table.filter_key, table.fingerprint, versions, schema])


def _inner(kind: pa.DataType) -> pa.DataType:
    """Return what a column holds; of lists, what is in them."""
    kind = _opened(kind)
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return _opened(kind.value_type)
    return kind


def _opened(kind: pa.DataType) -> pa.DataType:
    """Return the plain type; of numbers that Arrow does not have their own, whose storage is bits."""
    if isinstance(kind, ElementType):
        return kind
    return plain_type(kind)


def _is_number(kind: pa.DataType) -> bool:
    temporal = kinds.is_temporal(kind) and not kinds.is_interval(kind)
    numbers = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind) or kinds.is_boolean(kind)
    return bool(numbers or temporal)


def _values_of(array: pa.Array) -> tuple[pa.Array, int]:
    """Return the values of a column in their plain type, nulls left out, and how many nulls there are."""
    array, nulls = plain(array), array.null_count
    if kinds.is_nested(array.type):
        array = plain(array.flatten())
        nulls += array.null_count
    return array.drop_null(), nulls


def _numbers(array: pa.Array) -> Any:
    """Return numbers as tensors have them: points in time in the column's unit, decimals as doubles."""
    kind = array.type
    if kinds.is_boolean(kind):
        array = array.cast(pa.uint8())
    elif kinds.is_decimal(kind):
        array = array.cast(pa.float64())
    elif kinds.is_temporal(kind):
        array = array.cast(whole_type(kind))
    return array.to_numpy(zero_copy_only=False)


def _sums_of(columns: Sequence[str], rows: Iterable[pa.RecordBatch]) -> dict[str, ValueSums]:
    found = {name: ValueSums() for name in columns}
    for batch in rows:
        for name in columns:
            values, nulls = _values_of(batch.column(name))
            found[name] = ValueSums.merged([found[name], ValueSums.of(_numbers(values), nulls)])
    return found


def _counts_of(rows: Iterable[pa.RecordBatch]) -> pa.Table:
    """Count the distinct values of one column."""
    joined, waiting, num_waiting = _COUNTS.empty_table(), [], 0
    least = sizes().joined_values
    for batch in rows:
        values, _ = _values_of(batch.column(0))
        counted = values.cast(_wide(values.type)).value_counts()
        arrays = [counted.field("values").cast(pa.large_binary()), counted.field("counts")]
        waiting.append(pa.Table.from_arrays(arrays, schema=_COUNTS))
        num_waiting += len(counted)
        if num_waiting > max(least, joined.num_rows):
            joined, waiting, num_waiting = _joined([joined, *waiting]), [], 0
    return _joined([joined, *waiting])


def _joined(parts: Sequence[pa.Table]) -> pa.Table:
    """Add counts up by value."""
    whole = pa.concat_tables([_COUNTS.empty_table(), *parts])
    return whole.group_by("value").aggregate([("count", "sum")]).rename_columns({"count_sum": "count"})


def _wide(kind: pa.DataType) -> pa.DataType:
    text = kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)
    if text:
        return pa.large_string()
    return pa.large_binary()


def _as_ipc(values: pa.Array) -> bytes:
    batch = pa.record_batch([values], names=["value"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _from_ipc(data: bytes) -> pa.Array:
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_next_batch().column(0)


def _written(record: ColumnStatistics) -> bytes:
    fields = [record.count, record.nulls, record.nans, record.mean, record.std, record.min, record.max]
    return json.dumps([*fields, list(record.quantiles.items())]).encode()


def _read(data: bytes) -> ColumnStatistics:
    count, nulls, nans, mean, std, least, most, quantiles = json.loads(data)
    return ColumnStatistics(count, nulls, nans, mean, std, least, most, dict(quantiles))
