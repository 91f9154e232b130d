"""Builds the row store of a table as ``torch-table-loader store build`` does, with several processes at it for sure.

Usage: build_store.py WORK TABLE [ray | loader]; the builders are the ranks of torchrun, or tasks on a Ray cluster of
two nodes. With "loader" the ranks make a loader, and build when they ask for its first batch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch.distributed as dist

from torch_table_loader import StructuredDataset
from torch_table_loader.cli.main import main
from torch_table_loader.contracts import Storage
from torch_table_loader.dataset import live_rows
from torch_table_loader.read.parquet import ParquetReader
from torch_table_loader.read.tasks import TaskReader
from torch_table_loader.records import ReadTask

MOST_SECONDS = 60.0


def meet(folder: Path) -> None:
    """Let a process's reads wait until two processes are at theirs, so that each has a chunk."""
    (folder / str(os.getpid())).touch()
    end = time.monotonic() + MOST_SECONDS
    while len(list(folder.iterdir())) < 2:
        assert time.monotonic() < end, f"waited {MOST_SECONDS} s for another builder"
        time.sleep(0.01)


def die_once(folder: Path) -> None:
    """Kill the first process that reads."""
    try:
        (folder / "died").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


SCENES = {"meet": meet, "die_once": die_once, "plan": Path.exists}


def disturb(work: Path) -> None:
    """Have every read of this process begin with the scene that runs."""
    read = TaskReader.read

    def disturbed(reader: TaskReader, task: ReadTask, storage: Storage | None = None) -> Iterator[pa.RecordBatch]:
        name = (work / "scene").read_text()
        SCENES[name](work / name)
        yield from read(reader, task, storage)

    TaskReader.read = disturbed  # type: ignore[method-assign, assignment]


def play(work: Path, table: str, name: str, *options: str) -> None:
    """Build a store of its own for a scene."""
    (work / name).mkdir(exist_ok=True)
    (work / "scene").write_text(name)
    assert main(["store", "build", table, "--store", str(work / f"{name}-stores"), *options]) == 0


def on_ray(work: Path, table: str) -> None:
    """Play every scene on a cluster of two nodes with a CPU each."""
    from tests.launchers.scripts.ray_jobs import two_nodes

    def refuse(*_: Any) -> None:
        raise AssertionError("what the tasks have planned is in the cache, and is read by nobody else")

    hook: Callable[[], Any] = lambda: disturb(work)  # noqa: E731 it is sent by value
    with two_nodes(runtime_env={"worker_process_setup_hook": hook}):
        play(work, table, "meet", "--engine", "ray")
        play(work, table, "die_once", "--engine", "ray")
        ParquetReader.inspect = TaskReader.read = refuse  # type: ignore[method-assign, assignment]
        play(work, table, "plan", "--engine", "ray", "--plan-cache", str(work / "cache"), "--filter", "x >= 0")


def in_a_loader(work: Path, table: str) -> None:
    """Iterate a loader on this rank; write down which chunks it built, and which rows it was given."""
    (work / "meet").mkdir(exist_ok=True)
    (work / "scene").write_text("meet")
    dist.init_process_group("gloo")
    loader, dataset = StructuredDataset.create_dataloader(
        table, shuffle="rows", batch_size=64, even_ranks="pad", num_ranks="auto", row_store=str(work / "meet-stores")
    )
    rows = [row for batch in loader for row in batch["x"][~batch["padding"]].tolist()]
    seen = {"built": sorted(live_rows(dataset, "a test").store.built), "rows": rows}
    (work / f"{dist.get_rank()}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    work, table, *how = sys.argv[1:]
    if how == ["ray"]:
        on_ray(Path(work), table)
    else:
        disturb(Path(work))
        in_a_loader(Path(work), table) if how else play(Path(work), table, "meet")
