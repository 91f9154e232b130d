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


def taken(table: pa.Table, places: pa.Array) -> list[pa.Array]:
    """Copy rows of a table: its columns, each in one piece.

    Args:
        table: of any number of chunks.
        places: uint32, each inside the table; this is not checked.

    >>> [column.to_pylist() for column in taken(pa.table({"a": [5, 6, 7]}), pa.array([0, 2], pa.uint32()))]
    [[5, 7]]
    """
    batches = table.to_batches()
    if len(batches) == 1:
        return list(pc.take(batches[0], places, boundscheck=False).columns)
    return [column.combine_chunks() for column in pc.take(table, places, boundscheck=False).columns]


def rows_without_columns(num_rows: int) -> pa.RecordBatch:
    """Make a batch that has rows and no columns.

    >>> rows_without_columns(3).num_rows
    3
    """
    return pa.record_batch([pa.nulls(num_rows)], names=["none"]).select([])
