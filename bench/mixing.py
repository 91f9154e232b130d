"""How well an order mixes a table that lies sorted by time, and what it costs, in a process of its own; prints JSON.

Lakes store tables as they come, so neighbours in a file resemble each other. What counts is the batches that one step
trains on, of all ranks together.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bench.pairing import cpu_seconds
from bench.tables import BenchTable, build

Times = Iterator[NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Reader:
    """How a table is read. Both functions take the table, the rows of a step and the ranks.

    Args:
        read: gives the times (column "t") of each step's rows, of all ranks together.
        held: gives the bytes of rows that a rank holds: of ours all that are in flight, of others the buffer alone.
    """

    read: Callable[[BenchTable, int, int], Times]
    held: Callable[[BenchTable, int, int], int]


BATCH_SIZES = {"sorted": 256, "large": 1024, "days": 512, "wide": 256}
"""Rows of a step, of all ranks together, by table: keys of `bench.tables.TABLES`."""

RANKS = (1, 4)
NEAR_ROWS = 100


@dataclass(frozen=True, slots=True)
class Measures:
    """How well batches mix a table in which times are 0, 1, 2 and so on.

    Args:
        spread: the mean standard deviation of times inside a batch, over that of the table; uniform: 1, consecutive: 0.
        drift: the standard deviation of the means of batches of B rows, times √B, over that of the table; uniform: 1,
            consecutive: √B.
        near: the share of gaps between a batch's rows, sorted by time, that are at most a hundred rows; uniform:
            1 − exp(−100 B / rows), consecutive: 1.
    """

    spread: float
    drift: float
    near: float


def measures(batches: Iterable[NDArray[Any]], num_rows: int, batch_size: int) -> Measures:
    """Measure an order by its full batches.

    Args:
        batches: the times of each.
        num_rows: of the table.
        batch_size: rows of a full one.
    """
    means, deviations, near, gaps = [], [], 0, 0
    for batch in batches:
        if len(batch) == batch_size:
            times = np.sort(batch)
            means.append(times.mean())
            deviations.append(times.std())
            near += int((np.diff(times) <= NEAR_ROWS).sum())
            gaps += batch_size - 1
    table = np.sqrt(num_rows**2 / 12)
    drift = np.std(means) * np.sqrt(batch_size) / table
    return Measures(float(np.mean(deviations) / table), float(drift), near / gaps)


def ours(window: float = 0.0, **options: Any) -> Reader:
    """Read with this library, each rank a loader of its own as its user makes it.

    Args:
        window: rows of the windows of all ranks together, as a share of the table's; 0 leaves them to the default.
        options: of the loader.
    """

    def opened(table: BenchTable, batch_size: int, ranks: int, rank: int, **more: Any) -> Any:
        from torch_table_loader import StructuredDataset

        if window:
            more["shuffle_buffer_size"] = int(table.num_rows * window) // ranks
        return StructuredDataset.create_dataloader(
            str(table.folder),
            "parquet",
            batch_size=batch_size // ranks,
            rank=rank,
            num_ranks=ranks,
            **options,
            **more,
        )

    def read(table: BenchTable, batch_size: int, ranks: int) -> Times:
        more: dict[str, Any] = {}
        with tempfile.TemporaryDirectory(dir=table.folder.resolve().parent) as folder:
            if options.get("shuffle") == "rows":
                more = {"row_store": folder}
            loaders = [opened(table, batch_size, ranks, rank, **more)[0] for rank in range(ranks)]
            yield from _together([(batch["t"].numpy() for batch in loader) for loader in loaders])

    def held(table: BenchTable, batch_size: int, ranks: int) -> int:
        _, dataset = opened(table, batch_size, ranks, 0)
        return int(dataset.explain().memory_expected)

    return Reader(read, held)


def _buffer(rows: int) -> Callable[[BenchTable, int, int], int]:
    """Count the bytes of a buffer of so many rows; they take more as objects of Python."""

    def held(table: BenchTable, _batch_size: int, _ranks: int) -> int:
        return rows * sum(int(field.type.bit_width) // 8 for field in pq.read_schema(table.files[0]))

    return held


def hugging_face(buffer: int) -> Reader:
    """Stream with Hugging Face datasets, shuffled in a buffer of so many rows a rank."""

    def read(table: BenchTable, batch_size: int, ranks: int) -> Times:
        import datasets
        from datasets.distributed import split_dataset_by_node

        datasets.disable_progress_bars()
        files = [str(file) for file in table.files]
        with tempfile.TemporaryDirectory(dir=table.folder.resolve().parent) as cache:
            stream: Any = datasets.load_dataset(
                "parquet", data_files=files, split="train", streaming=True, cache_dir=cache
            )
            parts = [stream.shuffle(seed=1, buffer_size=buffer) for _ in range(ranks)]
            if ranks > 1:
                parts = [split_dataset_by_node(part, rank, ranks) for rank, part in enumerate(parts)]
            steps = [part.with_format("numpy").batch(batch_size // ranks) for part in parts]
            yield from _together([(np.asarray(batch["t"]) for batch in each) for each in steps])

    return Reader(read, _buffer(buffer))


def torch_dataloader_utils(buffer: int) -> Reader:
    """Read with torch-dataloader-utils 0.2.0, shuffled in a buffer of so many rows a rank; 0 shuffles files alone."""

    def read(table: BenchTable, batch_size: int, ranks: int) -> Times:
        from torch_dataloader_utils import StructuredDataset

        more: dict[str, Any] = {"shuffle_buffer_size": buffer} if buffer else {}
        steps = []
        for rank in range(ranks):
            loader, data = StructuredDataset.create_dataloader(
                str(table.folder),
                "parquet",
                batch_size=batch_size // ranks,
                num_workers=0,
                shuffle=True,
                rank=rank,
                num_ranks=ranks,
                **more,
            )
            data.set_epoch(0)
            steps.append(batch["t"].numpy() for batch in loader)
        yield from _together(steps)

    return Reader(read, _buffer(buffer))


DEFAULT, WINDOW = "ours, shuffle=True", "ours, shuffle=True, windows of a 20th of the table"
SPLITS = 'ours, shuffle="splits"'

READERS: Mapping[str, Reader] = {
    DEFAULT: ours(shuffle=True),
    WINDOW: ours(shuffle=True, window=1 / 20),
    "ours, shuffle=True, windows of 10,000": ours(shuffle=True, shuffle_buffer_size=10_000),
    SPLITS: ours(shuffle="splits"),
    f"{SPLITS}, windows of 10,000": ours(shuffle="splits", shuffle_buffer_size=10_000),
    f"{SPLITS}, windows of a 20th of the table": ours(shuffle="splits", window=1 / 20),
    'ours, shuffle="rows"': ours(shuffle="rows"),
    "datasets, buffer of 1,000": hugging_face(1_000),
    "datasets, buffer of 10,000": hugging_face(10_000),
    "torch-dataloader-utils": torch_dataloader_utils(0),
    "torch-dataloader-utils, buffer of 10,000": torch_dataloader_utils(10_000),
}
"""What is measured; a row store is built anew for each epoch, and its cost is part of the epoch's."""

_PACKAGES = {
    "ours": "torch_table_loader",
    "datasets": "datasets",
    "torch-dataloader-utils": "torch_dataloader_utils",
}
"""What a reader imports before its time begins, by the first words of its name."""


def _together(ranks: Sequence[Iterable[NDArray[Any]]]) -> Times:
    """Join the batches of a step, as long as all ranks have one."""
    for parts in zip(*ranks, strict=False):
        yield np.concatenate(parts)


def measured(who: str, table: BenchTable, batch_size: int, ranks: int) -> dict[str, Any]:
    """Read an epoch, and return its measures, rows, CPU nanoseconds a row and bytes held; a remark where it failed.

    Args:
        who: a key of `READERS`.
        table: has the column "t", which counts its rows.
        batch_size: rows of a step.
        ranks: how many, all in this process.
    """
    try:
        for package in ("torch", _PACKAGES[who.partition(",")[0]]):
            importlib.import_module(package)
    except ModuleNotFoundError as error:
        return {"remark": str(error)}
    reader = READERS[who]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = cpu_seconds()
        batches = list(reader.read(table, batch_size, ranks))
        spent, held = cpu_seconds() - began, reader.held(table, batch_size, ranks)
    if not any(len(batch) == batch_size for batch in batches):
        return {"remark": "no full batch of all ranks"}
    rows = sum(map(len, batches))
    found = dataclasses.asdict(measures(batches, table.num_rows, batch_size))
    return found | {"rows": rows, "nanos": spent / rows * 1e9, "held": held}


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", required=True, choices=BATCH_SIZES)
    parser.add_argument("--root", type=Path, default=Path("build/bench"))
    parser.add_argument("--who", required=True, choices=READERS)
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args()
    table = build(options.table, options.root)
    told = measured(options.who, table, BATCH_SIZES[options.table], options.ranks)
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    os._exit(0)  # threads of a reader may abort a process that ends; what was measured is out


if __name__ == "__main__":
    main()
