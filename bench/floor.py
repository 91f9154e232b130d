"""The floor: what decoding the columns costs with pyarrow alone, on two threads, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from queue import Queue

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
    footers = [pq.read_metadata(file) for file in files]
    work = iter([(place, group) for place, footer in enumerate(footers) for group in range(footer.num_row_groups)])
    taking = threading.Lock()
    ready: Queue[object] = Queue(2)
    names = None if columns is None else list(columns)

    def run() -> None:
        opened: dict[int, pq.ParquetFile] = {}
        try:
            while True:
                with taking:
                    place, group = next(work, (-1, -1))
                if place < 0:
                    return
                if place not in opened:
                    opened[place] = pq.ParquetFile(files[place], metadata=footers[place])
                ready.put(opened[place].read_row_group(group, columns=names, use_threads=False))
        except BaseException as error:  # noqa: BLE001  the caller's thread raises it
            ready.put(error)
        finally:
            ready.put(None)

    workers = [threading.Thread(target=run, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    rows, running = 0, threads
    while running:
        item = ready.get()
        if item is None:
            running -= 1
        elif isinstance(item, BaseException):
            raise item
        else:
            rows += item.num_rows  # type: ignore[attr-defined]
    for worker in workers:
        worker.join()  # a thread that Python's end kills inside pyarrow aborts the process
    return rows


__all__ = ["decode"]
