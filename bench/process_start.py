"""From the start of a process to the first batch of one small local file, against ``import torch`` alone; prints JSON.

Both run in processes of their own, in turn. What is compared is CPU time, since a shared machine lends more or less of
itself from one second to the next.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.pairing import cpu_seconds

ROUNDS = 9

_FIRST_BATCH = """
import sys
from torch_table_loader import StructuredDataset
loader, _ = StructuredDataset.create_dataloader(sys.argv[1], "parquet", batch_size=1024, num_workers=2)
next(iter(loader))
loader.close()
"""


def small_file(root: Path) -> Path:
    """Write the file if it is not there: ten thousand rows of eight columns."""
    path = root / "process-start" / "a.parquet"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(1)
        pq.write_table(pa.table({f"f{i}": rng.standard_normal(10_000, dtype=np.float32) for i in range(8)}), path)
    return path


def cpu_of(code: str, file: Path) -> float:
    """Run code in a new process and return its CPU seconds; bytecode is kept beside the file, as installers keep it."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = cpu_seconds()
    environment = kept | {"PYTHONPYCACHEPREFIX": str(file.parent / "bytecode")}
    subprocess.run([sys.executable, "-c", code, str(file)], check=True, env=environment)
    return cpu_seconds() - before


def measure(root: Path, rounds: int = ROUNDS) -> dict[str, float]:
    """Give the medians of both, in CPU seconds."""
    file = small_file(root)
    spent: dict[str, list[float]] = {}
    both = {"import torch": "import torch", "first batch": _FIRST_BATCH}
    for turn in range(rounds + 1):
        for name in both if turn % 2 else reversed(both):
            spent.setdefault(name, []).append(cpu_of(both[name], file))
    return {name: statistics.median(each[1:]) for name, each in spent.items()}  # the first ones wrote bytecode


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path("build/bench"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    sys.stdout.write(json.dumps(measure(options.root, options.rounds)) + "\n")


if __name__ == "__main__":
    main()
