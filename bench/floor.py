"""The floor: what decoding the columns costs with pyarrow alone, on two threads; where asked for, less deleted rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.decoding import decode_on_threads

Live = Mapping[tuple[int, int], pa.UInt32Array]
"""The rows that are not deleted, by the place of the file and the row group."""

_COLUMNS_TO_COPY = 2
"""Columns that are read, and copied without the deleted rows, at a time: the fastest of 1 to all, on A and on B."""


def decode(
    files: Sequence[Path],
    columns: Sequence[str] | None = None,
    threads: int = 2,
    live: Live | None = None,
    widened: int = 0,
) -> int:
    """Decode every row group once and drop it; see `decode_on_threads`.

    Args:
        files: Parquet files.
        columns: names; None for all.
        threads: how many decode.
        live: rows to copy out of what was decoded; None leaves all as it is.
        widened: how many copies as int64 are made of the values of the first column, a list.

    Returns:
        The rows that came out.
    """
    footers = [pq.read_metadata(file) for file in files]
    names = None if columns is None else list(columns)

    def open_file(place: int) -> pq.ParquetFile:
        return pq.ParquetFile(files[place], metadata=footers[place])

    def read(file: pq.ParquetFile, place: int, group: int) -> pa.Table | pa.RecordBatch:
        if live is None:
            table = file.read_row_group(group, columns=names, use_threads=False)
            for _ in range(widened):
                table.column(0).chunk(0).values.to_numpy().astype("int64")
            return table
        return _copied(file, group, live[place, group], file.schema_arrow.names if names is None else names)

    groups = [(place, group) for place, footer in enumerate(footers) for group in range(footer.num_row_groups)]
    return decode_on_threads(groups, open_file, read, threads)


def _copied(file: pq.ParquetFile, group: int, live: pa.UInt32Array, names: Sequence[str]) -> pa.RecordBatch:
    arrays: list[pa.Array] = []
    for start in range(0, len(names), _COLUMNS_TO_COPY):
        table = file.read_row_group(group, columns=names[start : start + _COLUMNS_TO_COPY], use_threads=False)
        arrays += pc.take(table.to_batches()[0], live, boundscheck=False).columns
    return pa.RecordBatch.from_arrays(arrays, names=names)
