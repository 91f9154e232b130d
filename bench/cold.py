"""A store larger than memory: rows in random order, against random reads of the same size by fio.

No limit is set on the machine's memory. Before each round the store's pages are taken out of this process and out of
the system's cache (``MADV_DONTNEED``, ``POSIX_FADV_DONTNEED``), so that all that is read comes from the disk. The
records hold random bytes: only their size matters.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.pairing import Pairs, Sample, measure
from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.permutation import Permutation
from torch_table_loader.store.gather import PAGE, ReadAhead, StoredRows
from torch_table_loader.store.record_layout import RECORDS

WINDOW_BYTES = 256 << 20
"""Of pages: what a lane may ask for ahead with two lanes and the default memory of a `RowStore`."""
_LANES = 2
_WINDOWS = 4
"""A lane's, in a round."""
_BLOCK = 8192
_DEPTH = 64
_FIO_SECONDS = 4
_PIECE = 64 << 20


def against_fio(stored: StoredRows, folder: Path, num_bytes: int, rounds: int) -> tuple[Pairs, float]:
    """Race two lanes, which gather rows of a cold store, against fio's random reads of whole pages.

    Args:
        stored: the rows of a small store in files; its layout is taken over.
        folder: where the large file is written; on the disk to be measured.
        num_bytes: of the large file.
        rounds: pairs.

    Returns:
        The pairs, where fio's rows are its reads; and the bytes that the disk read for each of our rows.
    """
    path = folder / "records"
    _fill(path, num_bytes)
    width = stored.layout.width
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.madvise(mmap.MADV_RANDOM)  # as a store maps its files
    num_rows = num_bytes // width
    records = np.frombuffer(mapped, dtype=np.uint8, count=num_rows * width)
    ahead = ReadAhead([(path, width)], WINDOW_BYTES)
    large = StoredRows(stored.layout, num_rows, {RECORDS: records}, frozenset(), [], read_ahead=ahead)
    order = Permutation(num_rows, derive_key(0, 0, "rows"))
    share = _WINDOWS * (WINDOW_BYTES // PAGE)
    ours: list[Sample] = []
    fio: list[Sample] = []
    read = 0
    for turn in range(rounds):
        if turn % 2:
            fio.append(_fio(path))
        mapped.madvise(mmap.MADV_DONTNEED)  # pages that are mapped would stay in the cache
        _drop(path)
        begins = range(turn * _LANES * share, (turn + 1) * _LANES * share, share)
        before = _read_bytes()
        ours.append(measure(partial(_gather, large, order, begins, share)))
        read += _read_bytes() - before
        if not turn % 2:
            fio.append(_fio(path))
    return Pairs(tuple(ours), tuple(fio)), read / sum(sample.rows for sample in ours)


def _gather(stored: StoredRows, order: Permutation, begins: range, share: int) -> int:
    """Take each lane's part of the order on a thread of its own, as lanes do; return the rows."""

    def blocks(begin: int) -> Iterator[tuple[Any, None]]:
        for start in range(begin, begin + share, _BLOCK):
            yield order.slice(start, start + _BLOCK), None

    def lane(begin: int) -> int:
        taken = 0
        for rows, places, _ in stored.windows(blocks(begin)):
            rows.gather(places)
            taken += len(places)
        return taken

    with ThreadPoolExecutor(_LANES) as pool:
        return sum(pool.map(lane, begins))


def _fio(path: Path) -> Sample:
    """Read pages at random with as many jobs as there are lanes, past the system's cache."""
    command = ["fio", "--name=pages", f"--filename={path}", "--readonly", "--rw=randread", f"--bs={PAGE}"]
    command += ["--direct=1", "--ioengine=libaio", f"--iodepth={_DEPTH}", f"--numjobs={_LANES}", "--group_reporting"]
    command += ["--time_based", f"--runtime={_FIO_SECONDS}", "--output-format=json"]
    told = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["jobs"][0]
    cpu = (told["usr_cpu"] + told["sys_cpu"]) / 100 * _FIO_SECONDS * _LANES
    return Sample(told["read"]["runtime"] / 1e3, cpu, told["read"]["total_ios"])


def _fill(path: Path, num_bytes: int) -> None:
    piece = np.random.default_rng(0).integers(0, 256, _PIECE, dtype=np.uint8).tobytes()
    with path.open("wb") as file:
        for start in range(0, num_bytes, _PIECE):
            file.write(piece[: num_bytes - start])
        file.flush()
        os.fsync(file.fileno())


def _drop(path: Path) -> None:
    """Take a file out of the system's cache."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def _read_bytes() -> int:
    """Bytes that this process made the disk read."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


__all__ = ["WINDOW_BYTES", "against_fio"]
