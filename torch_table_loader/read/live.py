"""The live rows of a file, for a reader that asks row group by row group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from torch_table_loader.read.file_plan import FilePlan

_ROWS_AHEAD = 1 << 22
"""Rows of which a bit is held each: threads would wait for one another at each of many small steps."""


class LivePlaces:
    """Where the rows are that no position deletes."""

    def __init__(self, plan: FilePlan) -> None:
        """Compute nothing yet.

        Args:
            plan: of the file.
        """
        self._plan = plan
        self._start = self._stop = 0
        self._bits: pa.BooleanArray = pa.array([], pa.bool_())
        self._ascending: pa.UInt32Array = pa.array([], pa.uint32())

    def among(self, start: int, stop: int) -> pa.UInt32Array:
        """Return the live rows among rows `start` to `stop` of the file, counted from `start`."""
        if not self._start <= start <= stop <= self._stop:
            self._start, self._stop = start, max(stop, min(start + _ROWS_AHEAD, self._plan.group_starts[-1]))
            self._bits = self._plan.live_bits(self._start, self._stop)
        if len(self._ascending) < stop - start:
            self._ascending = pa.array(np.arange(stop - start, dtype=np.uint32))
        return pc.filter(self._ascending.slice(0, stop - start), self._bits.slice(start - self._start, stop - start))
