"""What four gloo ranks see on device meshes, and training under DDP and FSDP. Run by torchrun."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.launchers.scripts.stage import epoch, play_all, scene
from torch_table_loader import StructuredDataset, TableLoader

BALANCED: dict[str, Any] = {"shuffle": "splits", "even_ranks": "balance"}


@scene
def pairs(root: Path) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return epoch(root / "table", num_ranks=mesh, **BALANCED)


@scene
def pairs_by_their_submesh(root: Path) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return epoch(root / "table", num_ranks=mesh["dp"], **BALANCED)


@scene
def pairs_of_rows(root: Path) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    options = {"num_ranks": mesh, "row_store": str(root / "stores")}
    return epoch(root / "table", shuffle="rows", even_ranks="pad", **options)


@scene
def data_parallel(root: Path) -> Any:
    return epoch(root / "table", num_ranks=init_device_mesh("cpu", (4,), mesh_dim_names=("dp",)), **BALANCED)


@scene
def hybrid_sharding(root: Path) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    return epoch(root / "table", num_ranks=mesh, **BALANCED)


@scene
def without_names(root: Path) -> Any:
    return epoch(root / "table", num_ranks=init_device_mesh("cpu", (2, 2)), **BALANCED)


@scene
def a_dimension_of_another_name(root: Path) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("batch", "tp"))
    return epoch(root / "table", num_ranks=mesh["batch"], **BALANCED)


@scene
def no_dimension_is_data_parallel(root: Path) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("batch", "tp"))
    return epoch(root / "table", num_ranks=mesh, **BALANCED)["steps"]


@scene
def a_dimension_that_is_not(root: Path) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return epoch(root / "table", num_ranks=mesh["tp"], **BALANCED)["steps"]


@scene
def mesh_and_rank(root: Path) -> Any:
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    return epoch(root / "table", num_ranks=mesh, rank=dist.get_rank())["steps"]


@scene
def auto_and_rank(root: Path) -> Any:
    return epoch(root / "table", num_ranks="auto", rank=dist.get_rank())["steps"]


def model() -> torch.nn.Module:
    """Give a small network, the same on every rank."""
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))


def trained(loader: TableLoader, network: torch.nn.Module, epochs: int = 2) -> Iterator[dict[str, Any]]:
    """Train, synchronising each step; gives what each epoch saw, and its last loss."""
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    for number in range(epochs):
        loader.set_epoch(number)
        seen: dict[str, Any] = {"rows": [], "padding": [], "steps": 0, "told": len(loader)}
        for batch in loader:
            optimizer.zero_grad()
            loss = (network(batch["f"].float()[:, None] / 100) ** 2).mean()
            loss.backward()
            optimizer.step()
            seen["rows"] += batch["x"].tolist()
            seen["padding"] += batch["padding"].tolist() if "padding" in batch else [False] * len(batch["x"])
            seen["steps"] += 1
        seen["loss"] = loss.item()
        yield seen


def loader_of(root: Path, **options: Any) -> TableLoader:
    """Make the loader that training reads."""
    chosen = {"batch_size": 7, "num_workers": 2} | BALANCED | options
    return StructuredDataset.create_dataloader(str(root / "table"), **chosen)[0]


def weights(network: torch.nn.Module) -> list[float]:
    """Give all weights, put together from the ranks."""
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in network.parameters()]
    return [weight for each in whole for weight in each.detach().flatten().tolist()]


@scene
def ddp(root: Path) -> Any:
    network = DistributedDataParallel(model())
    return list(trained(loader_of(root, num_ranks="auto"), network)), weights(network)


@scene
def ddp_with_unequal_steps_under_join(root: Path) -> Any:
    network = DistributedDataParallel(model())
    with Join([network]):
        return list(trained(loader_of(root, num_ranks="auto", even_ranks=False), network, epochs=1))


@scene
def fsdp(root: Path) -> Any:
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    network = model()
    fully_shard(network, mesh=mesh)
    return list(trained(loader_of(root, num_ranks=mesh), network)), weights(network)


@scene
def fsdp_of_hybrid_shards(root: Path) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    network = model()
    fully_shard(network, mesh=mesh)
    return list(trained(loader_of(root, num_ranks=mesh), network)), weights(network)


if __name__ == "__main__":
    play_all()
