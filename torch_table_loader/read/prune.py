"""What a filter rules out before anything is read: by partition values, and by Parquet statistics."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.reserved import LAST_UPDATED_FIELD, ROW_ID_FIELD
from torch_table_loader.predicates.expressions import expression_columns
from torch_table_loader.predicates.facts import between, can_pass, equals, nan_can_pass
from torch_table_loader.predicates.hash_parts import make_known
from torch_table_loader.read.field_ids import found_by_name, places_of
from torch_table_loader.read.parquet_statistics import refuse_unsafe

if TYPE_CHECKING:
    from torch_table_loader.records import Column, DataFile, FileMeta

_MOST_FLOATS = 4
"""Each float column of a filter doubles the work: every subset of them may be NaN."""


def partition_can_pass(file: DataFile, filters: Any, schema: pa.Schema) -> bool:
    """Return whether a file's partition values leave any of its rows a chance to pass.

    Args:
        schema: the table's unified schema, partition columns included.
    """
    return can_pass(_known_values(file, (), schema), filters, schema)


def kept_row_groups(
    file: DataFile, meta: FileMeta, parsed: pq.FileMetaData, filters: Any, schema: pa.Schema
) -> Sequence[bool]:
    """Return for each Parquet row group whether its statistics leave any row a chance to pass.

    Parquet statistics leave NaN out of minimum and maximum, and pyarrow trusts them: it drops a row group of
    ``[0, 1, NaN]`` under ``~(x < 3)``, which NaN passes. So the filter is asked again with each set of its
    float columns taken to be NaN, and a row group goes only where all answers agree. They write 0 as −0 too,
    which ``isin`` tells from 0: a row group of zeros stays. Columns whose statistics cannot be compared in the
    table's type (nested, or of another type in this file) count as unknown.

    Args:
        schema: the table's unified schema, partition columns included.

    Returns:
        One bool a row group; True where statistics cannot decide.
    """
    count = len(meta.group_rows)
    used = expression_columns(filters, schema)
    if file.columns is not None and not (
        found_by_name(meta.schema, file.columns, used) and _all_compare(meta.schema, schema, used)
    ):
        known = _known_values(file, (), schema)
        return _groups_by_bounds(file, meta, parsed, used, known, filters, schema)
    partition = {name for name, _ in file.partition}
    physical = set(meta.schema.names) - partition
    absent = used - physical - partition
    floats = sorted(name for name in used & physical if pa.types.is_floating(meta.schema.field(name).type))
    known = _known_values(file, absent, schema)
    if not can_pass(known, filters, schema):
        return [False] * count
    if not _all_compare(meta.schema, schema, used & physical) or len(floats) > _MOST_FLOATS:
        return [True] * count
    leaves = [place for place in range(parsed.num_columns) if parsed.schema.column(place).path in used & physical]
    if meta.footer is not None and leaves:
        refuse_unsafe(file.name, meta.footer, parsed, leaves)
    kept = _groups_of_zeros(parsed, floats)
    for size in range(len(floats) + 1):
        for chosen in itertools.combinations(floats, size):
            nans = [equals(name, pa.scalar(math.nan, schema.field(name).type)) for name in chosen]
            facts = [*known, *nans]
            if nans and not can_pass(facts, filters, schema):
                continue  # NaN passes nowhere: the common case, decided without the footer
            passing = _passing_row_groups(meta.footer, facts, filters, schema)
            if passing is None:
                return [True] * count
            kept |= passing
    return [group in kept for group in range(count)]


def _passing_row_groups(footer: bytes | None, known: Sequence[Any], filters: Any, schema: pa.Schema) -> set[int] | None:
    import pyarrow.dataset as ds  # about 40 MB of libraries, for those who filter

    make_known()
    try:
        fragment = ds.ParquetFileFormat().make_fragment(
            pa.BufferReader(footer), partition_expression=reduce(and_, known) if known else None
        )
        return {group.id for group in fragment.subset(filters, schema=schema).row_groups}
    except pa.ArrowException:
        return None  # pyarrow cannot decide: keep all


def _groups_of_zeros(parsed: pq.FileMetaData, floats: Sequence[str]) -> set[int]:
    if not floats:
        return set()
    leaves = [index for index in range(parsed.num_columns) if parsed.schema.column(index).path in floats]
    return {
        group
        for group in range(parsed.num_row_groups)
        for leaf in leaves
        if (statistics := parsed.row_group(group).column(leaf).statistics) is not None
        and statistics.has_min_max
        and statistics.min == 0 == statistics.max
    }


def _known_values(file: DataFile, absent: Iterable[str], schema: pa.Schema) -> list[Any]:
    values = [
        (name, _as_type(value, schema.field(name).type)) for name, value in file.partition if name in schema.names
    ]
    known = [equals(name, value) for name, value in values if value is not None]
    return known + [pc.field(name).is_null() for name in sorted(absent)]


def _as_type(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """Return a partition value as its column's type; None if that says nothing: NaN, or a value of another type.

    Where the file lacks the column, reading refuses such a value.
    """
    if value != value:  # noqa: PLR0124 - NaN equals nothing
        return None
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _all_compare(file_schema: pa.Schema, schema: pa.Schema, names: AbstractSet[str]) -> bool:
    there = names & set(file_schema.names)
    return all(_statistics_compare(file_schema.field(name).type, schema.field(name).type) for name in there)


def _statistics_compare(file_type: pa.DataType, table_type: pa.DataType) -> bool:
    if pa.types.is_nested(file_type) or pa.types.is_dictionary(file_type):
        return False
    if file_type.equals(table_type):
        return True
    return bool(pa.types.is_integer(file_type) and pa.types.is_integer(table_type))


class _Leaf(NamedTuple):
    """A column of the table, and where a file has its statistics."""

    column: Column
    stored: pa.DataType
    place: int


def _groups_by_bounds(
    file: DataFile,
    meta: FileMeta,
    parsed: pq.FileMetaData,
    used: AbstractSet[str],
    known: Sequence[Any],
    filters: Any,
    schema: pa.Schema,
) -> list[bool]:
    """Return for each row group of a file whose columns are found by id whether their bounds leave any row a chance.

    Statistics leave NaN out, so nothing is concluded from those of float columns: each is taken to hold any value
    where NaN passes, and the values within its bounds elsewhere.

    Args:
        file: which; its columns are found by id.
        known: what holds for all rows of the file.
    """
    leaves, absent = _leaves(file, meta, parsed, used)
    facts = [*known, *(pc.field(name).is_null() for name in sorted(absent))]
    if not can_pass(facts, filters, schema):
        return [False] * len(meta.group_rows)
    if meta.footer is not None and leaves:
        refuse_unsafe(file.name, meta.footer, parsed, [leaf.place for leaf in leaves])
    bounded = [leaf for leaf in leaves if not nan_can_pass(leaf.column.name, leaf.column.type, facts, filters, schema)]
    kept: list[bool] = []
    for number in range(parsed.num_row_groups):
        group = parsed.row_group(number)
        bounds = [bound for leaf in bounded if (bound := _bound(leaf, group)) is not None]
        kept.append(not bounds or can_pass([*facts, *bounds], filters, schema))
    return kept


def _leaves(
    file: DataFile, meta: FileMeta, parsed: pq.FileMetaData, used: AbstractSet[str]
) -> tuple[list[_Leaf], set[str]]:
    """Return the flat columns of the filter in a file, and the names of those that are null in all its rows."""
    assert file.columns is not None  # noqa: S101 the caller asks of files whose columns are found by id
    found = places_of(meta.schema, file.columns, file.name)
    indices = {parsed.schema.column(index).path: index for index in range(parsed.num_columns)}
    leaves: list[_Leaf] = []
    absent: set[str] = set()
    for column in file.columns.table.current:
        if column.name not in used or column.field_id in (ROW_ID_FIELD, LAST_UPDATED_FIELD):
            continue
        place = found.get(column.field_id)
        if place is None:
            if column.default is None and column.field_id not in file.columns.constants:
                absent.add(column.name)
            continue
        stored = meta.schema.field(place)
        if stored.name in indices and _comparable(stored.type, column.type):
            leaves.append(_Leaf(column, stored.type, indices[stored.name]))
    return leaves, absent


def _comparable(stored: pa.DataType, kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_timestamp(stored):
        return bool(stored.equals(kind)) and stored.unit == "us"
    alike: Sequence[Callable[[pa.DataType], bool]] = (
        types.is_signed_integer,
        types.is_floating,
        types.is_date32,
        types.is_string,
    )
    return any(test(stored) and test(kind) for test in alike)


def _bound(leaf: _Leaf, group: pq.RowGroupMetaData) -> Any:
    """What a row group's statistics say of a column; None if nothing."""
    chunk = group.column(leaf.place)
    statistics = chunk.statistics
    if statistics is None or not statistics.has_null_count:
        return None
    if statistics.null_count == chunk.num_values:
        return pc.field(leaf.column.name).is_null()
    if not statistics.has_min_max:
        return None
    try:
        low, high = (_value(leaf, value) for value in (statistics.min_raw, statistics.max_raw))
    except (UnicodeDecodeError, OverflowError, pa.ArrowException):  # cut inside of a character, or of another type
        return None
    return between(leaf.column.name, low, high, nulls=statistics.null_count > 0)


def _value(leaf: _Leaf, raw: Any) -> pa.Scalar:
    kind = leaf.column.type
    if pa.types.is_string(leaf.stored):
        return pa.scalar(raw.decode("utf-8") if isinstance(raw, bytes) else raw, kind)
    if pa.types.is_date32(leaf.stored):
        return pa.scalar(raw, pa.int32()).cast(kind)
    if pa.types.is_timestamp(leaf.stored):
        return pa.scalar(raw, pa.int64()).cast(kind)
    return pa.scalar(raw, kind)
