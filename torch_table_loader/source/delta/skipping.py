"""Which files of a Delta Lake table a filter leaves, by partition values and the statistics of the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa

from torch_table_loader.arrow import compute as pc
from torch_table_loader.source.delta.delta_schema import DeltaColumns
from torch_table_loader.source.delta.live_files import partition_array
from torch_table_loader.source.expression_tree import Call, Field, Node, UnknownFormError, parse

_MILLISECOND = 1000
"""Microseconds; writers cut the statistics of times to milliseconds, downwards."""


def kept_files(adds: pa.Table, columns: DeltaColumns, partition: Sequence[str], filters: Any) -> pa.Table:
    """Return the files that may hold a row that passes a filter.

    Args:
        filters: a pyarrow Expression over the columns.
    """
    schema = columns.schema
    try:
        used = set(_names(parse(filters))) & set(schema.names)
    except UnknownFormError:
        return adds
    facts = [_partition_facts(adds, name, schema.field(name).type) for name in sorted(used & set(partition))]
    stored = sorted((used & columns.physical.keys()) - set(partition))
    bounded = [name for name in stored if _counts(schema.field(name), filters, schema)]
    facts += [_Bounds(adds, columns.physical[name]).facts(schema.field(name)) for name in bounded]
    if not facts or not adds.num_rows:
        return adds
    known = [[fact for fact in each if fact is not None] for each in zip(*facts, strict=True)]
    return adds.take(pa.array(_passing(known, filters, schema), pa.int64()))


def _passing(known: Sequence[Sequence[Any]], filters: Any, schema: pa.Schema) -> list[int]:
    """Return the places of those facts of which the filter can be true."""
    import pyarrow.dataset as ds  # about 40 MB of libraries, for those who filter

    form = ds.IpcFileFormat()

    def can_pass(facts: Sequence[Any]) -> bool:
        if not facts:
            return True
        # No file is opened: the dataset looks at what is known of its fragment alone.
        fragment = form.make_fragment(pa.BufferReader(b""), partition_expression=reduce(and_, facts))
        try:
            return bool(list(ds.FileSystemDataset([fragment], schema, form).get_fragments(filter=filters)))
        except pa.ArrowException:
            return True  # pyarrow cannot decide

    return [place for place, facts in enumerate(known) if can_pass(facts)]


def _names(node: Node) -> Iterator[str]:
    if isinstance(node, Field):
        yield node.path[0]
    elif isinstance(node, Call):
        for argument in node.arguments:
            yield from _names(argument)


def _partition_facts(adds: pa.Table, name: str, kind: pa.DataType) -> list[Any]:
    field = pc.field(name)
    facts: dict[Any, Any] = {}
    found = []
    for value in partition_array(adds, name).cast(kind):
        key = value if not value.is_valid else str(value)
        if key not in facts:
            nan = value.is_valid and pa.types.is_floating(kind) and value.as_py() != value.as_py()
            facts[key] = None if nan else field == value if value.is_valid else field.is_null()
        found.append(facts[key])
    return found


def _counts(field: pa.Field, filters: Any, schema: pa.Schema) -> bool:
    """Whether the statistics of a column say something of a filter: those of floats leave NaN out."""
    types, kind = pa.types, field.type
    if types.is_floating(kind):
        nan = pc.field(field.name) == pa.scalar(float("nan"), kind)
        return not _passing([[nan]], filters, schema)
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
        column, rows = pc.field(field.name), self._rows[place]
        nulls = None if self._nulls is None else self._nulls[place].as_py()
        if rows is not None and nulls == rows:
            return column.is_null()
        if self._low is None or self._high is None:
            return None
        low, high = self._low[place], self._high[place]
        if not low.is_valid or not high.is_valid:
            return None
        try:
            low, high = _widened(low, field.type, 0), _widened(high, field.type, _MILLISECOND)
        except pa.ArrowException:  # of another type than the column is now
            return None
        if pa.types.is_floating(field.type) and low.as_py() == 0 == high.as_py():
            return None  # they write 0 as −0 too, which `isin` tells from 0
        between = (column >= low) & (column <= high)
        return between if nulls == 0 else between | column.is_null()


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
