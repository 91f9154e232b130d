"""A store of which nothing is in memory, as where it is larger than that: what a window of the order costs.

No limit is set on the machine's memory. Before each window the store's pages are taken out of this process and out of
the system's cache (``MADV_DONTNEED``, ``POSIX_FADV_DONTNEED``), so that all of it is read from the disk again.
"""

from __future__ import annotations

import mmap
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from torch_table_loader.store.read_ahead import ReadAhead
from torch_table_loader.store.spec import RECORDS

WINDOW_BYTES = 256 << 20
"""Of pages: what a lane may ask for ahead with two lanes and the default `row_store_memory`."""
_BLOCK = 32_768


def windows(loader: Any, rounds: int) -> dict[str, Any]:
    """Gather windows of an epoch from a cold store, with the system told what comes and without.

    Args:
        loader: in row mode, its store in files.
        rounds: windows.

    Returns:
        Rows of a window; and for each way rows per second, bytes read from the disk a row, and requests.
    """
    job = loader._position.job
    store = job.items.store
    stored = store.rows()
    path = store.place / RECORDS
    width = stored.layout.width
    order = job.work(job.start(0)).items.order.take(np.arange(min(WINDOW_BYTES // 4096, stored.num_rows)))
    read_ahead = ReadAhead([(path, width)], WINDOW_BYTES)
    found: dict[str, list[tuple[float, float, float]]] = {"told": [], "not told": []}
    for _ in range(rounds):
        for way, samples in found.items():
            _drop(path, stored.records)
            before, began = _read_bytes(), time.perf_counter()
            requests = read_ahead.expect(order) if way == "told" else 0
            for start in range(0, len(order), _BLOCK):
                stored.gather(order[start : start + _BLOCK])
            seconds = time.perf_counter() - began
            samples.append((len(order) / seconds, (_read_bytes() - before) / len(order), requests))
    names = ("rows_per_second", "disk_bytes_per_row", "requests")
    ways = {
        way: dict(zip(names, map(statistics.median, zip(*samples, strict=True)), strict=True))
        for way, samples in found.items()
    }
    return {"window_rows": len(order), "store_bytes": path.stat().st_size} | ways


def _drop(path: Path, records: Any) -> None:
    """Take a mapped file out of memory."""
    _base(records).madvise(mmap.MADV_DONTNEED)  # pages that are mapped would stay in the cache
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def _base(array: Any) -> Any:
    """Find the mapping that an array is a view of."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array.obj if isinstance(array, memoryview) else array


def _read_bytes() -> int:
    """Bytes that this process made the disk read."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


__all__ = ["windows"]
