"""What jobs keep resident, beside the bound that `explain()` states: each in a child process that measures itself.

A child first reads a small table as the job reads its own, and then the job's: what the second adds to the peak of the
first is neither imports nor code, threads and processes. Where processes read, the sum over all of them counts, and of
a page that n of them share an n-th each. Planning counts, which `bench.shapes` leaves out.

Pages that Arrow's allocator keeps are resident too. So it is named: "jemalloc" or "system"; mimalloc, which pyarrow
takes by itself, may keep more. `python -m bench.resident` prints the table, with JSON as its last line.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench.pairing import peak_mib, reset_peak
from bench.shapes import COUNT, IN_PROCESSES, Shape, epoch_of, shape_of, write
from torch_table_loader import Budget

ALLOCATORS = ("jemalloc", "system")
"""Those of pyarrow that give back what they do not use."""

TIMES, FLOOR = 1.5, 128 << 20
"""So many times its bound a job may keep resident, and no bound counts as less than so many bytes."""

_SMALL_BATCHES, _ROWS_OF_A_BUDGET = 50, 8
_SAMPLE_S = 0.02


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes that a job may hold by its own word, and by how many its resident memory grew."""

    bound: int
    grew: int

    @property
    def holds(self) -> bool:
        """Whether the job kept to its word."""
        return self.grew <= TIMES * max(FLOOR, self.bound)


def resident(shape: Shape, folder: Path, allocator: str) -> Resident:
    """Write the tables of a shape into an empty folder, and read them in a child."""
    batch = shape.options["batch_size"]
    rows = _SMALL_BATCHES * (_ROWS_OF_A_BUDGET if isinstance(batch, Budget) else batch)
    small = replace(shape, rows=min(shape.rows, max(1, rows // shape.files // max(1, shape.sources))))
    for name, each in {"small": small, "table": shape}.items():
        (folder / name).mkdir(parents=True)
        write(each, folder / name)
    told = subprocess.run(
        [sys.executable, "-m", "bench.resident", "--child", str(folder), str(shape.number)],
        env=os.environ | {"ARROW_DEFAULT_MEMORY_POOL": allocator},
        check=True,
        capture_output=True,
        text=True,
    )
    return Resident(**json.loads(told.stdout.splitlines()[-1]))


def _read_here(shape: Shape, folder: Path) -> Resident:
    watched = peak_of_family if shape.options.get("worker_type") == "process" else own_peak
    epoch_of(shape, folder / "small")  # what is imported now is there from here on
    with watched() as before:
        epoch_of(shape, folder / "small")
    with watched() as whole:
        bound = epoch_of(shape, folder / "table")
    return Resident(bound, whole[0] - before[0])


@contextmanager
def own_peak() -> Iterator[list[int]]:
    """Give the peak of this process, once it is over."""
    found = [0]
    reset_peak()
    yield found
    found[0] = int(peak_mib() * 2**20)


@contextmanager
def peak_of_family() -> Iterator[list[int]]:
    """Give the most that this process and its children had together, once it is over."""
    found, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(_SAMPLE_S):
            found[0] = max(found[0], sum(_share(process) for process in _family()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def _family() -> list[int]:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [os.getpid(), *map(int, children.split())]


def _share(process: int) -> int:
    """Return the resident bytes of a process, each page divided by the processes that have it; 0 if it has ended."""
    try:
        told = Path(f"/proc/{process}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = re.search(r"^Pss:\s+(\d+) kB", told, re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def main() -> None:
    """Measure all shapes, or those whose numbers are given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", type=Path, help="the folder of the tables of one shape, which this process reads")
    parser.add_argument("--allocator", default=ALLOCATORS[0])
    parser.add_argument("numbers", nargs="*", type=int)
    options = parser.parse_args()
    if options.child is not None:
        found = _read_here(shape_of(options.numbers[0]), options.child)
        sys.stdout.write(json.dumps(asdict(found)) + "\n")
        return
    told = []
    for number in options.numbers or range(COUNT + IN_PROCESSES):
        shape = shape_of(number)
        with tempfile.TemporaryDirectory() as folder:
            own = resident(shape, Path(folder), options.allocator)
        told.append({**asdict(own), "holds": own.holds})
        sys.stdout.write(f"{own.bound / 2**20:8.1f} MiB{own.grew / 2**20:8.1f} MiB {own.holds!s:6}{shape}\n")
        sys.stdout.flush()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
