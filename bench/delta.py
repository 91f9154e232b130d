"""Delta Lake tables over the bench tables' own files, and how long it takes to plan one of many files.

Run as a program it compares planning with ``deltalake.DeltaTable(...).file_uris()`` and prints JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.ours import rows_of
from bench.tables import BenchTable
from tests.tables.delta import DeltaWriter, field_of

KINDS = ("plain", "vector")
"""What deletes a table has: none, or 5 % of rows by deletion vectors."""

DELETED = 0.05
_TYPES = {"int64": "long", "int32": "integer", "double": "double", "float": "float"}
_NUM_COLUMNS = 8
_ROWS = 1_000_000
_SEED = 20_260_102
_VERSION = 1


def location(table: BenchTable, kind: str) -> str:
    """Write the log of a table over a bench table's files if it is not there, and say where it is.

    Args:
        table: whose files become data files.
        kind: one of `KINDS`.
    """
    root = table.folder.parent.resolve() / f"delta-{table.folder.name}-{kind}-v{_VERSION}"
    if not root.exists():
        unfinished = root.with_suffix(".tmp")
        shutil.rmtree(unfinished, ignore_errors=True)
        columns = [field_of(entry.name, _TYPES[str(entry.type)]) for entry in pq.read_schema(table.files[0])]
        writer, rng = DeltaWriter(unfinished, columns), np.random.default_rng(_SEED)
        for file in table.files:
            num_rows = pq.read_metadata(file).num_rows
            path = writer.adopt(file.resolve(), num_rows)
            if kind == "vector":
                writer.delete(path, np.flatnonzero(rng.random(num_rows) < DELETED).tolist())
        writer.commit()
        unfinished.rename(root)
    return str(root)


def ours(table: BenchTable, batch_size: int, kind: str) -> Callable[[], int]:
    """Open a table with this library; each call of what comes back is one epoch and returns its rows."""
    from torch_table_loader import DeltaDataset

    loader, _ = DeltaDataset.create_dataloader(location(table, kind), batch_size=batch_size, num_workers=2)
    return lambda: sum(rows_of(batch) for batch in loader)


def write_many(root: Path, num_files: int) -> None:
    """Write a table of many small data files of `_NUM_COLUMNS` columns, each with its statistics."""
    writer = DeltaWriter(root, [field_of(f"x{at}", "double") for at in range(_NUM_COLUMNS)], features=())
    names = [f"x{at}" for at in range(_NUM_COLUMNS)]
    table = pa.table({name: [0.5, 1.5] for name in names})
    for at in range(num_files):
        writer.append([], table=table, name=f"part-{at:05}.parquet")
    writer.commit()


def time_planning(root: Path, num_files: int, rounds: int) -> dict[str, float]:
    """Plan a table in turn with this library and with deltalake.

    Args:
        root: where it is written, if it is not there.
        num_files: data files.
        rounds: pairs to take.

    Returns:
        The median ratios of CPU seconds, of planning and of making a loader with ``footers="lazy"`` over theirs, and
        the median CPU seconds of each.
    """
    from deltalake import DeltaTable

    from torch_table_loader import DeltaDataset
    from torch_table_loader.delta.delta_options import find_table
    from torch_table_loader.delta.delta_source import DeltaRequest

    folder = root.resolve() / f"delta-many-{num_files}-v{_VERSION}"
    if not folder.is_dir():
        unfinished = folder.with_suffix(".tmp")
        shutil.rmtree(unfinished, ignore_errors=True)
        write_many(unfinished, num_files)
        unfinished.rename(folder)
    request = DeltaRequest(find_table(folder, None), lazy=True)
    ways: dict[str, Callable[[], int]] = {
        "theirs": lambda: len(DeltaTable(folder).file_uris()),
        "planned": lambda: len(request.open({}).files),
        "made": lambda: len(DeltaDataset(folder, footers="lazy").table.files),
    }
    if len({plan() for plan in ways.values()}) > 1:
        raise RuntimeError("the sides planned different numbers of files; they are no pair")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in list(ways)[:: -1 if turn % 2 else 1]:
            begin = time.process_time()  # of all threads; a machine that others use gives no better clock
            ways[name]()
            seconds[name].append(time.process_time() - begin)
    found = {name: statistics.median(each) for name, each in seconds.items()}
    for name in ("planned", "made"):
        pairs = zip(seconds[name], seconds["theirs"], strict=True)
        found[f"{name} over theirs"] = statistics.median(left / right for left, right in pairs)
    return found


def main() -> None:
    """Read the command line, plan, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path("build/bench"))
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    sys.stdout.write(json.dumps(time_planning(options.root, options.files, options.rounds)) + "\n")


if __name__ == "__main__":
    main()
