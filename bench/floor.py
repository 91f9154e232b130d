"""The floor: what decoding the columns costs with pyarrow alone, on two threads; where asked for, less deleted rows."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Queue

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Live = Mapping[tuple[int, int], pa.UInt32Array]
"""The rows that are not deleted, by the place of the file and the row group."""

_COLUMNS_TO_COPY = 2
"""Columns that are read, and copied without the deleted rows, at a time: the fastest of 1 to all, on A and on B."""


def decode(
    files: Sequence[Path], columns: Sequence[str] | None = None, threads: int = 2, live: Live | None = None
) -> int:
    """Decode every row group once and drop it.

    Two threads take the next (file, row group), read it without pyarrow's own threads into a queue of two
    tables, and the caller's thread drops what comes.

    Args:
        files: Parquet files.
        columns: names; None for all.
        threads: how many decode.
        live: rows to copy out of what was decoded; None leaves all as it is.

    Returns:
        The rows that came out.
    """
    work = _Work(files, columns, live)
    workers = [threading.Thread(target=work.run, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    rows, running = 0, threads
    while running:
        item = work.ready.get()
        if item is None:
            running -= 1
        elif isinstance(item, BaseException):
            raise item
        else:
            rows += item.num_rows
    for worker in workers:
        worker.join()  # a thread that Python's end kills inside pyarrow aborts the process
    return rows


class _Work:
    """The (file, row group) pairs that are left, and the queue of what was decoded."""

    def __init__(self, files: Sequence[Path], columns: Sequence[str] | None, live: Live | None) -> None:
        self._files = files
        self._live = live
        self._columns = None if columns is None else list(columns)
        self._footers = [pq.read_metadata(file) for file in files]
        self._left = iter(
            [(place, group) for place, footer in enumerate(self._footers) for group in range(footer.num_row_groups)]
        )
        self._taking = threading.Lock()
        self.ready: Queue[pa.Table | pa.RecordBatch | BaseException | None] = Queue(2)

    def run(self) -> None:
        """Decode until nothing is left; None in the queue ends it."""
        opened: dict[int, pq.ParquetFile] = {}
        try:
            while (taken := self._take()) is not None:
                place, group = taken
                if place not in opened:
                    opened[place] = pq.ParquetFile(self._files[place], metadata=self._footers[place])
                if self._live is None:
                    self.ready.put(opened[place].read_row_group(group, columns=self._columns, use_threads=False))
                else:
                    self.ready.put(self._copied(opened[place], group, self._live[place, group]))
        except BaseException as error:  # noqa: BLE001  the caller's thread raises it
            self.ready.put(error)
        finally:
            self.ready.put(None)

    def _copied(self, file: pq.ParquetFile, group: int, live: pa.UInt32Array) -> pa.RecordBatch:
        names = file.schema_arrow.names if self._columns is None else self._columns
        arrays: list[pa.Array] = []
        for start in range(0, len(names), _COLUMNS_TO_COPY):
            table = file.read_row_group(group, columns=names[start : start + _COLUMNS_TO_COPY], use_threads=False)
            arrays += pc.take(table.to_batches()[0], live, boundscheck=False).columns
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def _take(self) -> tuple[int, int] | None:
        with self._taking:
            return next(self._left, None)


__all__ = ["Live", "decode"]
