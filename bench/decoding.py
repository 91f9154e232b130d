"""How pyarrow alone decodes a table's files: the reference that ``bench`` compares with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Queue
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    pass

Decoded: TypeAlias = "pa.Table | pa.RecordBatch"


def decode_on_threads(
    groups: Sequence[tuple[int, int]],
    open_file: Callable[[int], pq.ParquetFile],
    read: Callable[[pq.ParquetFile, int, int], Decoded],
    threads: int,
) -> int:
    """Read row groups on threads, and discard the result.

    Each thread takes the next (file, row group) and reads it, without pyarrow's own threads, into a queue of two
    tables. The caller's thread discards them.

    Args:
        groups: number of the file and of the row group.
        open_file: opens a file for one thread.
        read: reads a row group of an open file: takes the file, its number and the row group's.

    Returns:
        The number of decoded rows.
    """
    work = _Work(groups, open_file, read)
    workers = [threading.Thread(target=work.run, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    rows, running, failure = 0, threads, None
    while running:
        item = work.ready.get()
        if item is None:
            running -= 1
        elif isinstance(item, BaseException):
            failure = item
        else:
            rows += item.num_rows
    for worker in workers:
        worker.join()  # a thread that is killed inside pyarrow when Python ends aborts the process
    if failure is not None:
        raise failure
    return rows


class _Work:
    """The (file, row group) pairs that are left, and the queue of decoded tables."""

    def __init__(
        self,
        groups: Sequence[tuple[int, int]],
        open_file: Callable[[int], pq.ParquetFile],
        read: Callable[[pq.ParquetFile, int, int], Decoded],
    ) -> None:
        self._open = open_file
        self._read = read
        self._left = iter(groups)
        self._taking = threading.Lock()
        self.ready: Queue[Decoded | BaseException | None] = Queue(2)

    def run(self) -> None:
        """Decode until nothing is left; None in the queue marks the end."""
        opened: dict[int, pq.ParquetFile] = {}
        try:
            while (taken := self._take()) is not None:
                file, group = taken
                if file not in opened:
                    opened = {file: self._open(file)}
                self.ready.put(self._read(opened[file], file, group))
        except BaseException as error:  # noqa: BLE001 the caller's thread raises it
            self._left = iter(())
            self.ready.put(error)
        finally:
            self.ready.put(None)

    def _take(self) -> tuple[int, int] | None:
        with self._taking:
            return next(self._left, None)
