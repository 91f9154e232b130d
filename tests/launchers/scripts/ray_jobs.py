"""What the workers of Ray Train see of one table, on a cluster of two nodes with a CPU each.

Usage: ray_jobs.py TABLE OUT; each worker of each attempt writes down what it saw under OUT.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import train
from ray.cluster_utils import Cluster
from ray.train.torch import TorchTrainer
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}
EPOCHS, EVERY = 2, 3


@contextmanager
def two_nodes(**settings: Any) -> Iterator[str]:
    """Run two Ray nodes, which share nothing but this machine's disk, and connect to them; give their address."""
    cluster: Any = Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
    try:
        cluster.add_node(**NODE)
        ray.init(address=cluster.address, log_to_driver=False, **settings)
        yield str(cluster.address)
    finally:
        ray.shutdown()
        cluster.shutdown()


def found(config: dict[str, Any]) -> None:
    """Write down which rank this is, by what Ray Train alone says; no process group and no RANK is there."""
    from torch_table_loader import LoaderOptions
    from torch_table_loader.engine.rank_info import resolve_ranks

    info = resolve_ranks(LoaderOptions(num_ranks="auto"))
    seen = {
        "found": info,
        "environment": sorted({"RANK", "WORLD_SIZE"} & set(os.environ)),
        "node": ray.get_runtime_context().get_node_id(),
    }
    Path(config["out"], f"found-{info.rank}.json").write_text(json.dumps(seen))


def until_killed(config: dict[str, Any]) -> None:
    """Train with a checkpoint every few steps; rank 1 kills itself in the middle of epoch 1, once."""
    from torch_table_loader import StructuredDataset

    options: dict[str, Any] = {"batch_size": 7, "num_workers": 2, "shuffle": "splits", "even_ranks": "balance"}
    loader, _ = StructuredDataset.create_dataloader(config["table"], num_ranks="auto", **options)
    rank = train.get_context().get_world_rank()
    began, rows = None, []
    first = attempt = 0
    if (checkpoint := train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            began = json.loads(Path(folder, "state.json").read_text())
        loader.load_state_dict(began["loader"])
        first, attempt = began["epoch"], 1
    for epoch in range(first, EPOCHS):
        loader.set_epoch(epoch)
        taken = began["taken"] if began is not None and epoch == first else 0
        for step, batch in enumerate(loader, taken + 1):
            rows.append((epoch, step, batch["x"].tolist()))
            if step % EVERY == 0:
                save({"loader": loader.state_dict(), "epoch": epoch, "taken": step}, rank)
            if attempt == 0 and (epoch, step) == (1, 2 * EVERY + 2):
                train.get_all_reported_checkpoints()  # Ray has taken note of what was saved
                write(config, attempt, rank, rows, began)
                if rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
    write(config, attempt, rank, rows, began)


def save(state: dict[str, Any], rank: int) -> None:
    """Hand a checkpoint to Ray Train; every rank's state is the same, so that of rank 0 is enough."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "state.json").write_text(json.dumps(state))
        train.report({}, train.Checkpoint.from_directory(folder) if rank == 0 else None)


def write(config: dict[str, Any], attempt: int, rank: int, rows: list[Any], began: Any) -> None:
    """Write down what a worker has trained on."""
    node = ray.get_runtime_context().get_node_id()
    seen = {"node": node, "rows": rows, "began": began and [began["epoch"], began["taken"]]}
    Path(config["out"], f"attempt-{attempt}-{rank}.json").write_text(json.dumps(seen))


def run(trainer: Callable[..., Any], work: Callable[[dict[str, Any]], None], table: Path, out: Path) -> None:
    """Run a function on two workers."""
    trainer(
        work,
        train_loop_config={"table": str(table), "out": str(out)},
        scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=train.RunConfig(
            name=work.__name__, storage_path=str(out), failure_config=train.FailureConfig(max_failures=1)
        ),
    ).fit()


def main() -> None:
    """Play both scenes on one cluster."""
    table, out = map(Path, sys.argv[1:])
    with two_nodes():
        run(DataParallelTrainer, found, table, out)
        run(TorchTrainer, until_killed, table, out)


if __name__ == "__main__":
    main()
