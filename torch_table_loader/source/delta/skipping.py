"""Which files of a Delta Lake table a filter leaves, by partition values and the statistics of the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from torch_table_loader.arrow import compute as pc
from torch_table_loader.predicates.expressions import expression_columns
from torch_table_loader.predicates.facts import between, can_pass, equals, nan_can_pass
from torch_table_loader.source.delta.delta_schema import DeltaColumns
from torch_table_loader.source.delta.live_files import partition_array

_MILLISECOND = 1000
"""Microseconds; writers cut the statistics of times to milliseconds, downwards."""


def kept_files(adds: pa.Table, columns: DeltaColumns, partition: Sequence[str], filters: Any) -> pa.Table:
    """Return the files that may hold a row that passes a filter, a pyarrow Expression over the columns."""
    schema = columns.schema
    try:
        used = expression_columns(filters, schema)
    except pa.ArrowException:  # it does not fit the table, and is refused later
        return adds
    facts = [_partition_facts(adds, name, schema.field(name).type) for name in sorted(used & set(partition))]
    stored = sorted((used & columns.physical.keys()) - set(partition))
    bounded = [name for name in stored if _counts(schema.field(name), filters, schema)]
    facts += [_Bounds(adds, columns.physical[name]).facts(schema.field(name)) for name in bounded]
    if not facts or not adds.num_rows:
        return adds
    known = [[fact for fact in each if fact is not None] for each in zip(*facts, strict=True)]
    passing = [place for place, facts in enumerate(known) if can_pass(facts, filters, schema)]
    return adds.take(pa.array(passing, pa.int64()))


def _partition_facts(adds: pa.Table, name: str, kind: pa.DataType) -> list[Any]:
    facts: dict[Any, Any] = {}
    found = []
    for value in partition_array(adds, name).cast(kind):
        key = value if not value.is_valid else str(value)
        if key not in facts:
            nan = value.is_valid and pa.types.is_floating(kind) and value.as_py() != value.as_py()
            facts[key] = None if nan else equals(name, value)
        found.append(facts[key])
    return found


def _counts(field: pa.Field, filters: Any, schema: pa.Schema) -> bool:
    """Return whether a column's statistics can decide a filter: those of floats leave NaN out."""
    types, kind = pa.types, field.type
    if types.is_floating(kind):
        return not nan_can_pass(field.name, kind, (), filters, schema)
    alike = (types.is_signed_integer, types.is_date32, types.is_timestamp, types.is_string, types.is_decimal)
    return any(test(kind) for test in alike)


class _Bounds:
    """The statistics of one column in each file."""

    def __init__(self, adds: pa.Table, physical: str) -> None:
        self._rows = adds["num_records"].to_pylist()
        self._nulls, self._low, self._high = (_inside(adds, name, physical) for name in ("null_count", "min", "max"))

    def facts(self, field: pa.Field) -> list[Any]:
        """Return what is known of the column in each file; None for nothing."""
        return [self._fact(place, field) for place in range(len(self._rows))]

    def _fact(self, place: int, field: pa.Field) -> Any:
        rows = self._rows[place]
        nulls = None if self._nulls is None else self._nulls[place].as_py()
        if rows is not None and nulls == rows:
            return pc.field(field.name).is_null()
        if self._low is None or self._high is None:
            return None
        low, high = self._low[place], self._high[place]
        if not low.is_valid or not high.is_valid:
            return None
        try:
            low, high = _widened(low, field.type, 0), _widened(high, field.type, _MILLISECOND)
        except pa.ArrowException:  # of another type than the column is now
            return None
        return between(field.name, low, high, nulls=nulls != 0)


def _widened(value: pa.Scalar, kind: pa.DataType, by: int) -> pa.Scalar:
    if not pa.types.is_timestamp(kind):
        return value.cast(kind)
    return pa.scalar(value.cast(kind).value + by, pa.int64()).cast(kind)


def _inside(adds: pa.Table, name: str, physical: str) -> Any:
    """Return a column's part of a struct of statistics; None if it has none."""
    if name not in adds.schema.names:
        return None
    kind = adds.schema.field(name).type
    if kind.get_field_index(physical) < 0:
        return None
    return pa.chunked_array([chunk.field(physical) for chunk in adds[name].chunks], kind.field(physical).type)
