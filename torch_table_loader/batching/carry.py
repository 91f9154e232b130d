"""The rows that wait for more: what is left of a chunk when whole batches or windows were cut off."""

from __future__ import annotations

from typing import Generic

from torch_table_loader.batching.rows import R, RowsCodec


class Carry(Generic[R]):
    """Rows that wait, in order.

    Args:
        codec: joins them.
    """

    __slots__ = ("_codec", "_parts", "num_rows")

    def __init__(self, codec: RowsCodec[R]) -> None:
        """Hold nothing."""
        self._codec = codec
        self._parts: list[R] = []
        self.num_rows = 0

    def add(self, rows: R, start: int) -> None:
        """Hold the rows from `start` on.

        A small rest is copied, since a view would keep the whole chunk in memory until the next one is there.
        """
        left = rows.num_rows - start
        if left == 0:
            return
        if start == 0:
            part = rows
        else:
            part = rows.slice(start, rows.num_rows)
            if left <= start:
                part = self._codec.concat([part])
        self._parts.append(part)
        self.num_rows += left

    def parts(self, rows: R, stop: int) -> list[R]:
        """Return all that waits and the rows up to `stop`, as runs in order; nothing waits then."""
        if stop:
            self._parts.append(rows.slice(0, stop))
        parts, self._parts, self.num_rows = self._parts, [], 0
        return parts

    def fill(self, rows: R, stop: int) -> R:
        """Return what `parts` does, joined."""
        return self._joined(self.parts(rows, stop))

    def empty(self) -> R:
        """Return all that waits, joined; nothing waits then. At least one row must."""
        parts, self._parts, self.num_rows = self._parts, [], 0
        return self._joined(parts)

    def _joined(self, parts: list[R]) -> R:
        return parts[0] if len(parts) == 1 else self._codec.concat(parts)
