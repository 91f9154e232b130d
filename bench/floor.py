"""The floor: what decoding the columns costs with pyarrow alone, on two threads, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from queue import Queue

import pyarrow as pa
import pyarrow.parquet as pq


def decode(files: Sequence[Path], columns: Sequence[str] | None = None, threads: int = 2) -> int:
    """Decode every row group once and drop it.

    Two threads take the next (file, row group), read it without pyarrow's own threads into a queue of two
    tables, and the caller's thread drops what comes.

    Args:
        files: Parquet files.
        columns: names; None for all.
        threads: how many decode.

    Returns:
        The rows that came out.
    """
    work = _Work(files, columns)
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

    def __init__(self, files: Sequence[Path], columns: Sequence[str] | None) -> None:
        self._files = files
        self._columns = None if columns is None else list(columns)
        self._footers = [pq.read_metadata(file) for file in files]
        self._left = iter(
            [(place, group) for place, footer in enumerate(self._footers) for group in range(footer.num_row_groups)]
        )
        self._taking = threading.Lock()
        self.ready: Queue[pa.Table | BaseException | None] = Queue(2)

    def run(self) -> None:
        """Decode until nothing is left; None in the queue ends it."""
        opened: dict[int, pq.ParquetFile] = {}
        try:
            while (taken := self._take()) is not None:
                place, group = taken
                if place not in opened:
                    opened[place] = pq.ParquetFile(self._files[place], metadata=self._footers[place])
                self.ready.put(opened[place].read_row_group(group, columns=self._columns, use_threads=False))
        except BaseException as error:  # noqa: BLE001  the caller's thread raises it
            self.ready.put(error)
        finally:
            self.ready.put(None)

    def _take(self) -> tuple[int, int] | None:
        with self._taking:
            return next(self._left, None)


__all__ = ["decode"]
