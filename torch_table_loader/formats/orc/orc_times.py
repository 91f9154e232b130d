"""Times of ORC near 1970, of which its library takes a second off where the clock of a zone is before 1970, not UTC.

Writers cut a time before 1970 to the second towards 1970, beside its nanoseconds; readers take a second off again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

_SECOND = 1_000_000_000
_NEAR = 2 * 86_400 * _SECOND
_CUT = 999_999
"""Nanoseconds of a second beyond which it counts as cut."""


def correct_seconds(batch: pa.RecordBatch, zone: str) -> None:
    """Correct, in place, the times of a stripe that a writer in a zone wrote.

    Args:
        batch: in memory of its own.
        zone: whose clock the times are of; "" for UTC.
    """
    arrays = [array for column in batch.columns for array in _times(column)]
    if not zone or not arrays:
        return
    from zoneinfo import ZoneInfo

    ahead = dt.datetime(1970, 1, 1, tzinfo=ZoneInfo(zone)).utcoffset() or dt.timedelta()
    if not ahead:
        return
    for array in arrays:
        values = np.frombuffer(array.buffers()[1], np.int64)
        near = np.flatnonzero((values > -_NEAR) & (values < _NEAR))
        seconds, rest = np.divmod(values[near], _SECOND)
        stored = seconds + ((seconds < 0) & (rest > _CUT))
        taken = (stored - int(ahead.total_seconds()) < 0) & (rest > _CUT)
        if (wrong := stored - taken != seconds).any():
            values[near[wrong]] = ((stored - taken) * _SECOND + rest)[wrong]


def _times(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the timestamps of a zone's clock in an array, with all that is nested."""
    kind = array.type
    if pt.is_timestamp(kind) and kind.tz is None:
        yield array
    elif pt.is_struct(kind):
        for place in range(kind.num_fields):
            yield from _times(array.field(place))
    elif pt.is_map(kind):
        yield from _times(array.keys)
        yield from _times(array.items)
    elif pt.is_list(kind) or pt.is_large_list(kind):
        yield from _times(array.values)
