"""Columns of a file that are streamed, alone or beside others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from torch_table_loader.errors import TableError

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_table_loader.format_contracts import OpenFile


@contextmanager
def closing_stream(source: Iterator[pa.RecordBatch]) -> Iterator[Iterator[pa.RecordBatch]]:
    """Close a stream of batches behind the block, where it can be closed."""
    try:
        yield source
    finally:
        close: Callable[[], None] | None = getattr(source, "close", None)
        if close is not None:
            close()


class Beside:
    """Columns that are streamed beside others; nothing of them is decoded before the first rows are asked for."""

    def __init__(self, handle: OpenFile, groups: range, names: list[str], max_rows: int, row: int) -> None:
        """Read nothing yet.

        Args:
            row: the first row of the groups in the file.
        """
        self._groups = groups
        self._stack = ExitStack()
        self._open = partial(handle.batches, groups, names, max_rows)
        self._source: Iterator[pa.RecordBatch] | None = None
        self._start = row
        self._batch: pa.RecordBatch | None = None

    def rows(self, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows `start` to `stop` of the file, which are behind those before, and the place of the first."""
        if self._source is None:
            self._source = self._stack.enter_context(closing_stream(self._open()))
        row = start
        while row < stop:
            batch = self._batch
            if batch is None or self._start + batch.num_rows <= row:
                self._start += 0 if batch is None else batch.num_rows
                self._batch = next(self._source, None)
                if self._batch is None:
                    raise other_rows(self._groups, stop, f"{stop - self._start} fewer")
                continue
            low = row - self._start
            high = min(batch.num_rows, stop - self._start)
            yield row, batch.slice(low, high - low)
            row += high - low

    def close(self) -> None:
        """Close the stream."""
        self._stack.close()


def other_rows(groups: range, end: int, difference: str) -> TableError:
    """Say that row groups have other rows than the plan has."""
    return TableError(
        f"row groups {groups.start} to {groups.stop - 1} must end at row {end} of the "
        f"file, got {difference}; the file has changed since it was planned: build the loader again"
    )
