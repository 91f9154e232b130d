"""Which times Python has objects for: not those after the year 9999, which bits of other numbers may be."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.arrays import offsets_of, plain
from torch_table_loader.arrow.datatypes import children_of, plain_type
from torch_table_loader.errors import TableError


def holds_times(kind: pa.DataType) -> bool:
    """Return whether there are dates, times or durations in values of a type.

    >>> holds_times(pa.list_(pa.date32())), holds_times(pa.int64())
    (True, False)
    """
    kind = plain_type(kind)
    return _is_time(kind) or any(holds_times(child.type) for child in children_of(kind))


def check_times(name: str, column: pa.Array) -> None:
    """Refuse a column with a time that Python has no object for.

    Raises:
        TableError: names the column.
    """
    for times in _times(column):
        try:
            for extreme in pc.min_max(times.view(_number(times.type))).values():
                extreme.cast(times.type).as_py()
        except (ValueError, OverflowError) as error:
            raise TableError(
                f"each value of column {name!r} must be one that Python has an object for, got {error}; fix the "
                "values, leave the column out, or use output_format='arrow'"
            ) from error


def _is_time(kind: pa.DataType) -> bool:
    return bool(pt.is_date(kind) or pt.is_timestamp(kind) or pt.is_time(kind) or pt.is_duration(kind))


def _number(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def _times(array: pa.Array) -> Iterator[pa.Array]:
    if not holds_times(array.type):
        return
    array = plain(array)
    kind = array.type
    if _is_time(kind):
        yield array
    elif pt.is_struct(kind):
        for child in array.flatten():
            yield from _times(child)
    elif pt.is_map(kind):
        first, last = offsets_of(array)[[0, -1]].tolist()
        for child in (array.keys, array.items):
            yield from _times(child.slice(first, last - first))
    else:
        yield from _times(array.flatten())
