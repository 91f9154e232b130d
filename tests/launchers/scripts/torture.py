"""A training job that checkpoints every few steps, until it is told to stop or is killed. Run by torchrun."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.launchers.jobs import of_a_running_rank, own_rows
from tests.states import newest
from torch_table_loader import StructuredDataset, TableLoader


class Journal:
    """The job's checkpoints: where it stands, and by epoch the rows that were trained on up to there.

    What is not in the checkpoint has not happened. It is written whole by rank 0, of what all ranks say.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        found: list[Any] = [
            json.loads(path.read_text()) if path.exists() else {"state": None, "trained": {}, "story": {}}
        ]
        dist.broadcast_object_list(found, src=0)
        self._saved = found[0]
        self._pending: dict[str, list[int]] = {}

    @property
    def state(self) -> dict[str, Any] | None:
        """Where the job stands; None at its very start."""
        return self._saved["state"]  # type: ignore[no-any-return]

    def train(self, epoch: int, rows: list[int]) -> None:
        """Note rows that this rank has trained on."""
        self._pending.setdefault(str(epoch), []).extend(rows)

    def checkpoint(self, loader: TableLoader) -> None:
        """Write where the job stands, and for a reader who trained on how many rows since it stood elsewhere."""
        said: list[Any] = [None] * dist.get_world_size()
        own = (loader.state_dict(), self._pending, socket.gethostname())
        dist.gather_object(own, said if dist.get_rank() == 0 else None)
        self._pending = {}
        if dist.get_rank() == 0:
            state = self._saved["state"] = of_a_running_rank([state for state, _, _ in said])
            trained = [[host, {epoch: len(rows) for epoch, rows in pending.items()}] for _, pending, host in said]
            restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
            self._saved["story"].setdefault(str(state["epoch"]), []).append([newest(state), trained, restarts])
            for _, pending, _ in said:
                for epoch, rows in pending.items():
                    self._saved["trained"].setdefault(epoch, []).extend(rows)
            unfinished = self._path.with_suffix(".tmp")
            unfinished.write_text(json.dumps(self._saved))
            unfinished.replace(self._path)


def train(table: Path, work: Path, options: dict[str, Any], every: int, pause: float) -> None:
    """Train epoch after epoch, from the last checkpoint on; a step takes `pause` seconds, until told to stop."""
    journal = Journal(work / "checkpoint.json")
    loader, _ = StructuredDataset.create_dataloader(str(table), "parquet", num_ranks="auto", row_id=True, **options)
    epoch = 0
    if journal.state is not None:
        loader.load_state_dict(journal.state)
        epoch = journal.state["epoch"]
    while True:
        loader.set_epoch(epoch)
        batches = iter(loader)
        for step in range(1, 1 << 30):
            batch = next(batches, None)
            if not any_rank(batch is not None):
                break
            if batch is not None:
                journal.train(epoch, own_rows([batch]))
            time.sleep(0 if (work / "stop").exists() else pause)
            (work / "started").touch()
            if step % every == 0:
                journal.checkpoint(loader)
        journal.checkpoint(loader)
        if told_to_stop(work, epoch):
            return
        epoch += 1


def any_rank(says: bool) -> bool:
    """Say whether it is so on any rank."""
    count = torch.tensor(int(says))
    dist.all_reduce(count)
    return bool(count)


def told_to_stop(work: Path, epoch: int) -> bool:
    """Ask rank 0 whether the job may end with this epoch."""
    stop = [epoch >= 1 and (work / "stop").exists()]
    dist.broadcast_object_list(stop, src=0)
    return stop[0]


def main() -> None:
    """Read the command line and train."""
    warnings.filterwarnings("ignore", message="ranks take different numbers of steps")
    table, work = Path(sys.argv[1]), Path(sys.argv[2])
    options = json.loads(sys.argv[3])
    dist.init_process_group("gloo", timeout=timedelta(seconds=options.pop("patience", 60)))
    every, pause = options.pop("every"), options.pop("pause", 0.002)
    train(table, work, options, every, pause)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
