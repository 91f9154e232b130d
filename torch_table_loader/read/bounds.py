"""What Parquet statistics say of the columns of a table that finds them by id, whatever a file calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from torch_table_loader.arrow.reserved import LAST_UPDATED_FIELD, ROW_ID_FIELD
from torch_table_loader.read.field_ids import places_of
from torch_table_loader.read.parquet_statistics import refuse_unsafe

if TYPE_CHECKING:
    from torch_table_loader.records import Column, DataFile, FileMeta

CanPass = Callable[[Any], bool]
"""Whether a filter can be true of a row of which this much is known."""


class _Leaf(NamedTuple):
    """A column of the table, and where a file has its statistics."""

    column: Column
    stored: pa.DataType
    place: int


def groups_by_bounds(
    file: DataFile, meta: FileMeta, parsed: pq.FileMetaData, used: AbstractSet[str], known: Any, can_pass: CanPass
) -> list[bool]:
    """Say for each row group whether the bounds of its columns leave any row a chance to pass.

    Statistics leave NaN out, so nothing is concluded from those of float columns: each is taken to hold any value
    where NaN passes, and the values within its bounds elsewhere.

    Args:
        file: which; its columns are found by id.
        meta: its metadata.
        parsed: its footer, parsed.
        used: the columns of the filter.
        known: what holds for all rows of the file, as an expression; or None.
        can_pass: asks the filter.
    """
    leaves, absent = _leaves(file, meta, parsed, used)
    facts = ([] if known is None else [known]) + [pc.field(name).is_null() for name in sorted(absent)]
    if facts and not can_pass(reduce(and_, facts)):
        return [False] * len(meta.group_rows)
    if meta.footer is not None and leaves:
        refuse_unsafe(file.name, meta.footer, parsed, [leaf.place for leaf in leaves])
    told = [leaf for leaf in leaves if not _nan_passes(leaf, facts, can_pass)]
    kept: list[bool] = []
    for number in range(parsed.num_row_groups):
        group = parsed.row_group(number)
        bounds = [bound for leaf in told if (bound := _bound(leaf, group)) is not None]
        kept.append(not bounds or can_pass(reduce(and_, [*facts, *bounds])))
    return kept


def _leaves(
    file: DataFile, meta: FileMeta, parsed: pq.FileMetaData, used: AbstractSet[str]
) -> tuple[list[_Leaf], set[str]]:
    """Find the flat columns of the filter in a file, and name those that are null in all its rows."""
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


def _nan_passes(leaf: _Leaf, facts: Sequence[Any], can_pass: CanPass) -> bool:
    if not pa.types.is_floating(leaf.stored):
        return False
    nan = pc.field(leaf.column.name) == pa.scalar(float("nan"), leaf.column.type)
    return can_pass(reduce(and_, [*facts, nan]))


def _bound(leaf: _Leaf, group: pq.RowGroupMetaData) -> Any:
    """What a row group's statistics say of a column; None if nothing."""
    chunk = group.column(leaf.place)
    statistics = chunk.statistics
    if statistics is None or not statistics.has_null_count:
        return None
    field = pc.field(leaf.column.name)
    if statistics.null_count == chunk.num_values:
        return field.is_null()
    if not statistics.has_min_max:
        return None
    try:
        low, high = (_value(leaf, value) for value in (statistics.min_raw, statistics.max_raw))
    except (UnicodeDecodeError, OverflowError, pa.ArrowException):  # cut inside of a character, or of another type
        return None
    if pa.types.is_floating(leaf.stored) and low.as_py() == 0 == high.as_py():
        return None  # they write 0 as −0 too, which `isin` tells from 0
    between = (field >= low) & (field <= high)
    return between | field.is_null() if statistics.null_count else between


def _value(leaf: _Leaf, raw: Any) -> pa.Scalar:
    kind = leaf.column.type
    if pa.types.is_string(leaf.stored):
        return pa.scalar(raw.decode("utf-8") if isinstance(raw, bytes) else raw, kind)
    if pa.types.is_date32(leaf.stored):
        return pa.scalar(raw, pa.int32()).cast(kind)
    if pa.types.is_timestamp(leaf.stored):
        return pa.scalar(raw, pa.int64()).cast(kind)
    return pa.scalar(raw, kind)
