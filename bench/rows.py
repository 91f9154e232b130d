"""Row mode, measured in a process of its own; prints JSON. Everything is a ratio of one run, the two in turn."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench import cold
from bench.floor import decode
from bench.ours import rows_of, values
from bench.pairing import Pairs, interleave, measure
from bench.shuffled import SHUFFLED
from bench.tables import BenchTable, build
from torch_table_loader import RowStore, StructuredDataset
from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.permutation import Permutation

BATCH = 8192
_WRITERS = 2
_PIECE = 1 << 22


def loader_of(table: BenchTable, **options: Any) -> Any:
    """Make a loader in row mode, with two lanes on two threads."""
    defaults: dict[str, Any] = {"batch_size": BATCH, "num_workers": 2, "row_store": RowStore(memory="8GiB")}
    defaults |= {"ragged": "offsets"} | values(table.name)
    return StructuredDataset.create_dataloader(str(table.folder), shuffle="rows", **(defaults | options))[0]


def epochs(loader: Any) -> Callable[[], int]:
    """Give a function that delivers the next epoch and counts its rows."""
    epoch = iter(range(10**6))

    def run() -> int:
        loader.set_epoch(next(epoch))
        return sum(map(rows_of, loader))

    return run


@contextmanager
def folder_beside(table: BenchTable) -> Iterator[str]:
    """Give an empty folder on the table's disk, and remove it."""
    folder = tempfile.mkdtemp(dir=table.folder.resolve().parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def warm(table: BenchTable, place: str, against: str, rounds: int) -> dict[str, Any]:
    """Race an epoch from the warm store against the floor or another way to shuffle.

    Args:
        table: what is read.
        place: "memory" or "files".
        against: "floor", or a key of `SHUFFLED`.
        rounds: pairs.
    """
    with folder_beside(table) as folder:
        ours = epochs(loader_of(table, row_store="memory" if place == "memory" else folder))
        other = (lambda: decode(table.files)) if against == "floor" else SHUFFLED[against](table, BATCH)
        return _plain(interleave(ours, other, rounds) if against == "floor" else _uneven(ours, other, rounds))


def first(table: BenchTable, rounds: int) -> dict[str, Any]:
    """Race the first epoch, its store built in memory, against DuckDB's shuffle."""
    other = SHUFFLED["DuckDB ORDER BY random()"](table, BATCH)

    def ours() -> int:
        return sum(map(rows_of, loader_of(table, row_store="memory")))

    return _plain(_uneven(ours, other, rounds))


def building(table: BenchTable, place: str, rounds: int) -> dict[str, float]:
    """Time the build of a store, decoding the table once, and writing as many bytes there.

    Before each of these as much memory is touched: a virtual machine's host gives pages when they are first touched,
    which may take longer than all the rest, and whoever comes next would find them there.

    Returns:
        Median seconds of each, and of ``(build - write) / decode``.
    """
    found: dict[str, list[float]] = {"build": [], "decode": [], "write": []}
    decode(table.files)
    for _ in range(rounds):
        with folder_beside(table) as folder:
            loader = loader_of(table, row_store="memory" if place == "memory" else folder)
            store = loader._position.job.live_rows[""].store
            target = None if place == "memory" else Path(folder) / "bare"
            num_bytes = store.spec.num_bytes
            np.ones(num_bytes, dtype=np.uint8)
            found["decode"].append(_seconds(lambda: decode(table.files)))
            np.ones(num_bytes, dtype=np.uint8)
            found["build"].append(_seconds(store.rows))
            del store
            gc.collect()  # a loader and its dataset know each other: the store's memory is given back here, untimed
            np.ones(num_bytes, dtype=np.uint8)
            found["write"].append(_seconds(partial(_write, num_bytes, target)))
    ratios = [(b - w) / d for b, w, d in zip(found["build"], found["write"], found["decode"], strict=True)]
    medians = {name: statistics.median(values) for name, values in found.items()}
    return medians | {"ratio": statistics.median(ratios)}


def resuming(table: BenchTable, rounds: int) -> dict[str, float]:
    """Compare the first batch after resuming with the first batch of an epoch: by place in the epoch, the ratio."""
    loader = loader_of(table, row_store="memory")
    states = {}
    for share in (0.1, 0.5, 0.9):
        loader.set_epoch(0)
        batches = iter(loader)
        for _ in range(int(len(loader) * share)):
            next(batches)
        states[str(share)] = loader.state_dict()
        batches.close()
    fresh: list[float] = []
    resumed: dict[str, list[float]] = {part: [] for part in states}
    for epoch in range(1, 4 * rounds):
        for part, state in states.items():
            loader.load_state_dict(state)
            resumed[part].append(_first_batch(loader))
            loader.set_epoch(epoch)
            fresh.append(_first_batch(loader))
    return {part: statistics.median(seconds) / statistics.median(fresh) for part, seconds in resumed.items()}


def permutation(rounds: int) -> dict[str, Any]:
    """Race the permutation of 10^8 rows, block by block, against numpy's; and start an epoch of 10^12 rows."""
    size, block = 10**8, 65_536
    order = Permutation(size, derive_key(0, 0, "rows"))
    rng = np.random.default_rng(0)

    def ours() -> int:
        for start in range(0, size, block):
            order.slice(start, min(start + block, size))
        return size

    def numpys() -> int:
        return len(rng.permutation(size))

    keys = [derive_key(0, epoch, "rows") for epoch in range(99)]
    start = statistics.median(_seconds(partial(Permutation, 10**12, key)) for key in keys)
    return {"pairs": _plain(_uneven(ours, numpys, rounds)), "start_ms": start * 1e3}


def _first_batch(loader: Any) -> float:
    began = time.perf_counter()
    batches = iter(loader)
    next(batches)
    seconds = time.perf_counter() - began
    batches.close()
    return seconds


def _write(num_bytes: int, path: Path | None) -> None:
    """Write bytes with as many threads as build a store: to a new file and onto the disk, or into new memory."""
    piece = np.ones(_PIECE, dtype=np.uint8)
    starts = range(0, num_bytes, _PIECE)
    with ThreadPoolExecutor(_WRITERS) as pool:
        if path is None:
            into = np.empty(num_bytes, dtype=np.uint8)
            list(pool.map(lambda at: np.copyto(into[at : at + _PIECE], piece[: num_bytes - at]), starts))
            return
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        list(pool.map(lambda at: os.pwrite(file, piece[: num_bytes - at].data, at), starts))
        os.fsync(file)
        os.close(file)


def _uneven(left: Callable[[], int], right: Callable[[], int], rounds: int) -> Pairs:
    """Run both in turn, where one of them delivers a part of the rows."""
    left()
    right()
    pairs = [(measure(left), measure(right)) for _ in range(rounds)]
    return Pairs(tuple(mine for mine, _ in pairs), tuple(other for _, other in pairs))


def _plain(pairs: Pairs) -> dict[str, Any]:
    return {side: [dataclasses.asdict(sample) for sample in getattr(pairs, side)] for side in ("left", "right")}


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["warm", "first", "build", "resume", "permutation", "cold"])
    parser.add_argument("--table", default="A-zstd")
    parser.add_argument("--root", type=Path, default=Path("build/bench"))
    parser.add_argument("--place", choices=["memory", "files"], default="memory")
    parser.add_argument("--against", default="floor")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold-gib", type=int, default=16, help="size of the store that is read cold")
    typed = parser.parse_args()
    warnings.simplefilter("ignore")
    table = build(typed.table, typed.root)
    runs: dict[str, Callable[[], Any]] = {
        "warm": lambda: warm(table, typed.place, typed.against, typed.rounds),
        "first": lambda: first(table, typed.rounds),
        "build": lambda: building(table, typed.place, typed.rounds),
        "resume": lambda: resuming(table, typed.rounds),
        "permutation": lambda: permutation(typed.rounds),
        "cold": lambda: _cold(table, typed.cold_gib << 30, typed.rounds),
    }
    sys.stdout.write(json.dumps(runs[typed.what]()) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a rival's threads may abort a process that ends; what was measured is out


def _cold(table: BenchTable, num_bytes: int, rounds: int) -> Any:
    with folder_beside(table) as small, folder_beside(table) as large:
        stored = loader_of(table, row_store=small)._position.job.live_rows[""].store.rows()
        pairs, read = cold.against_fio(stored, Path(large), num_bytes, rounds)
        return {"pairs": _plain(pairs), "disk_bytes_per_row": read}


if __name__ == "__main__":
    main()
