"""Batches of bounded length, and batches of rows without columns."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc


def bounded(batch: pa.RecordBatch, max_rows: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch into slices of at most `max_rows` rows, without copying.

    Args:
        batch: any batch; one without rows gives nothing.
        max_rows: no slice has more.

    >>> [part.num_rows for part in bounded(pa.record_batch({"a": [1, 2, 3]}), 2)]
    [2, 1]
    """
    if 0 < batch.num_rows <= max_rows:
        yield batch
        return
    for start in range(0, batch.num_rows, max_rows):
        yield batch.slice(start, max_rows)


def taken(column: pa.ChunkedArray, places: pa.Array) -> pa.Array:
    """Copy rows of a column into one array.

    Args:
        column: of any number of chunks.
        places: uint32, each inside the column; this is not checked.

    >>> taken(pa.chunked_array([[5, 6, 7]]), pa.array([0, 2], pa.uint32())).to_pylist()
    [5, 7]
    """
    if column.num_chunks == 1:
        return pc.take(column.chunk(0), places, boundscheck=False)
    found = pc.take(column, places, boundscheck=False)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def rows_without_columns(num_rows: int) -> pa.RecordBatch:
    """Make a batch that has rows and no columns.

    >>> rows_without_columns(3).num_rows
    3
    """
    return pa.record_batch([pa.nulls(num_rows)], names=["none"]).select([])


__all__ = ["bounded", "rows_without_columns", "taken"]
