"""Arrow arrays as lists of Python values, whatever else is installed."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.arrow.arrays import null_mask, offsets_of, plain
from torch_table_loader.arrow.datatypes import children_of, plain_type


def python_values(array: pa.Array) -> list[Any]:
    """Return what Arrow makes of values in Python, but numpy's times for nanoseconds, which Python's do not hold.

    Arrow returns those as times of pandas where it is installed, and else cuts or refuses them.

    >>> python_values(pa.array([[1], None], pa.list_(pa.timestamp("ns"))))
    [[np.datetime64('1970-01-01T00:00:00.000000001')], None]
    """
    if not _holds_nanoseconds(array.type):
        found: list[Any] = array.to_pylist()
        return found
    array = plain(array)
    kind = array.type
    if is_nanoseconds(kind):
        found = list(
            array.view(pa.int64()).fill_null(0).to_numpy().view("M8[ns]" if pt.is_timestamp(kind) else "m8[ns]")
        )
    elif pt.is_union(kind):  # one by one, since each may be of another type
        return [python_values(pa.array([each.value]))[0] for each in array]
    elif pt.is_struct(kind):
        names = [child.name for child in children_of(kind)]
        columns = [python_values(child) for child in array.flatten()]
        found = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    else:
        found = _lists(array)
    if array.null_count:
        for row in np.flatnonzero(null_mask(array)).tolist():
            found[row] = None
    return found


def is_nanoseconds(kind: pa.DataType) -> bool:
    """Return whether values are times, times of day or durations in nanoseconds."""
    return bool((pt.is_timestamp(kind) or pt.is_time(kind) or pt.is_duration(kind)) and kind.unit == "ns")


@lru_cache(maxsize=1024)
def _holds_nanoseconds(kind: pa.DataType) -> bool:
    kind = plain_type(kind)
    return is_nanoseconds(kind) or any(_holds_nanoseconds(child.type) for child in children_of(kind))


def _lists(array: pa.Array) -> list[Any]:
    """Return lists, or pairs of maps, with anything in place of a null."""
    kind = array.type
    if pt.is_fixed_size_list(kind):
        bounds = np.arange(array.offset, array.offset + len(array) + 1) * kind.list_size
    else:
        bounds = offsets_of(array)
    first, last = bounds[[0, -1]].tolist()
    inner = (array.keys, array.items) if pt.is_map(kind) else (array.values,)
    values = [python_values(each.slice(first, last - first)) for each in inner]
    flat = list(zip(*values, strict=True)) if pt.is_map(kind) else values[0]
    places = (bounds - first).tolist()
    return [flat[start:stop] for start, stop in pairwise(places)]
