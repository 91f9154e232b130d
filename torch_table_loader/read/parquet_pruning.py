"""Which row groups of a Parquet file a filter rules out, by their statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.arrow.datatypes import is_string, whole_type
from torch_table_loader.predicates.facts import NULL, Facts, Path, UndecidedError, ordinal, predicate_of
from torch_table_loader.read.by_id import places_of
from torch_table_loader.read.parquet_footer import refuse_unsafe
from torch_table_loader.read.reader_base import known_values

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from torch_table_loader.records import DataFile, FileMeta

_ALIKE: Sequence[Callable[[pa.DataType], bool]] = (pt.is_integer, pt.is_floating, pt.is_date32, is_string)
"""Types whose bounds mean the same, however wide a file has them."""

_IF_EQUAL: Sequence[Callable[[pa.DataType], bool]] = (
    *(pt.is_timestamp, pt.is_time, pt.is_duration, pt.is_boolean, pt.is_decimal),
    *(pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary),
)


_SHIFTS_TIMES = "Parquet.Net"
"""A writer whose bounds of times are hours off, by its machine's time zone (https://github.com/duckdb/duckdb/issues/14430)."""


def kept_row_groups(
    file: DataFile, meta: FileMeta, parsed: pq.FileMetaData, filters: Any, schema: pa.Schema
) -> Sequence[bool]:
    """Return for each Parquet row group whether a filter can be true of a row of it; True if statistics cannot decide.

    Columns whose statistics cannot be compared in the table's type (nested, or of another type in this file) count as
    unknown.
    """
    predicate, values = predicate_of(filters, schema), known_values(file, schema)
    leaves, absent = _leaves(file, meta, parsed, predicate.columns, schema)
    values |= {name: pa.scalar(None, schema.field(name).type) for name in absent}
    if not predicate.can_pass({}, values):
        return [False] * len(meta.group_rows)
    if meta.footer is not None and leaves:
        refuse_unsafe(file.name, meta.footer, parsed, [leaf.place for leaf in leaves])
    known: dict[Path, Facts] = {
        (name,): Facts.of_value(value, schema.field(name).type) for name, value in values.items()
    }
    kept: list[bool] = []
    for number in range(parsed.num_row_groups):
        group = parsed.row_group(number)
        kept.append(predicate.can_pass({**known, **{(leaf.name,): _facts(leaf, group) for leaf in leaves}}))
    return kept


class _Leaf(NamedTuple):
    """A column of the table, its type there and in a file, and where the file has its statistics."""

    name: str
    kind: pa.DataType
    stored: pa.DataType
    place: int


def _leaves(
    file: DataFile, meta: FileMeta, parsed: pq.FileMetaData, used: AbstractSet[str], schema: pa.Schema
) -> tuple[list[_Leaf], set[str]]:
    """Return the flat columns of the filter in a file, and the names of those that are null in all its rows."""
    columns = map(parsed.schema.column, range(parsed.num_columns))
    shifts_times = str(parsed.created_by).startswith(_SHIFTS_TIMES)
    # The order of INT96 was never agreed on, so that its bounds say nothing.
    indices = {
        column.path: index
        for index, column in enumerate(columns)
        if column.name == column.path and column.physical_type != "INT96"
    }
    leaves: list[_Leaf] = []
    absent: set[str] = set()
    for name, place in _places(file, meta, used):
        if place is None:
            absent.add(name)
            continue
        stored, kind = meta.schema.field(place), schema.field(name).type
        if shifts_times and pt.is_timestamp(stored.type):
            continue
        if stored.name in indices and _comparable(stored.type, kind):
            leaves.append(_Leaf(name, kind, stored.type, indices[stored.name]))
    return leaves, absent


def _places(file: DataFile, meta: FileMeta, used: AbstractSet[str]) -> Iterator[tuple[str, int | None]]:
    """Yield columns of the filter, and where the file has them; None where they are null in all its rows."""
    if file.columns is None:
        in_partition = {name for name, _ in file.partition}
        places = {name: place for place, name in enumerate(meta.schema.names)}
        yield from ((name, places.get(name)) for name in used - in_partition)
        return
    found = places_of(meta.schema, file.columns, file.name)
    for column in file.columns.table.current:
        if column.name not in used or column.lineage is not None:
            continue
        place = found.get(column.field_id)
        if place is not None or (column.default is None and column.field_id not in file.columns.constants):
            yield column.name, place


def _comparable(stored: pa.DataType, kind: pa.DataType) -> bool:
    if any(test(stored) and test(kind) for test in _ALIKE):
        return True
    return bool(stored.equals(kind)) and any(test(kind) for test in _IF_EQUAL)


def _facts(leaf: _Leaf, group: pq.RowGroupMetaData) -> Facts:
    """Return what a row group's statistics state of a column."""
    chunk = group.column(leaf.place)
    statistics = chunk.statistics
    if statistics is None or not statistics.has_null_count:
        return Facts()
    if statistics.null_count == chunk.num_values and not statistics.has_min_max:
        return NULL
    nulls = statistics.null_count > 0
    if not statistics.has_min_max:
        return Facts(nulls=nulls)
    try:
        if pt.is_decimal(leaf.stored) or pt.is_unsigned_integer(leaf.stored):
            bounds = [pa.scalar(value, leaf.kind) for value in (statistics.min, statistics.max)]
        else:
            bounds = [_value(leaf, value) for value in (statistics.min_raw, statistics.max_raw)]
        low, high = (ordinal(value, leaf.kind) for value in bounds)
    except (UndecidedError, ValueError, TypeError, OverflowError, pa.ArrowException):
        return Facts(nulls=nulls)  # cut inside of a character, or of another type
    return Facts(low, high, nulls)


def _value(leaf: _Leaf, raw: Any) -> pa.Scalar:
    if is_string(leaf.stored):
        if isinstance(raw, bytes):
            raw = raw.decode("utf-8")
        return pa.scalar(raw, leaf.kind)
    if pt.is_temporal(leaf.stored):
        return pa.scalar(raw, whole_type(leaf.kind)).cast(leaf.kind)
    return pa.scalar(raw, leaf.kind)
