"""What four gloo ranks see of one table; rank 0 writes it down as JSON. Run by torchrun."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.compute as pc
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.launchers.scripts.stage import epoch, play_all, scene
from torch_table_loader import MixedDataset, StorageTimeoutError, StructuredDataset, TableError
from torch_table_loader.engine.plan_check import PlanCheck
from torch_table_loader.engine.row_store import RowStoreHandle
from torch_table_loader.testing import small_sizes


@scene
def plain(root: Path) -> Any:
    return epoch(root / "table", shuffle="splits", even_ranks=False)


@scene
def explicit(root: Path) -> Any:
    return epoch(root / "table", shuffle="splits", num_ranks=4, rank=dist.get_rank(), even_ranks=False)


@scene
def processes(root: Path) -> Any:
    return epoch(root / "table", shuffle="splits", worker_type="process", num_workers=1, even_ranks=False)


@scene
def rows_of_one_store(root: Path) -> Any:
    """All ranks begin at once, and build the store together."""
    return epoch(root / "table", shuffle="rows", row_store=str(root / "stores"), even_ranks="pad")


@scene
def rows_of_a_store_that_all_build(root: Path) -> Any:
    """No rank reads its second chunk before every rank has begun its first."""
    read, built, first = RowStoreHandle._read, [], threading.Event()

    def counted(store: RowStoreHandle, chunk: int) -> Any:
        built.append(chunk)
        if len(built) == 1:
            dist.barrier()
            first.set()
        first.wait()
        return read(store, chunk)

    with small_sizes(store_chunk_bytes=64), patch.object(RowStoreHandle, "_read", counted):
        return epoch(root / "table", shuffle="rows", row_store=str(root / "built"), even_ranks="pad") | {"built": built}


@scene
def rows_in_memory(root: Path) -> Any:
    return epoch(root / "table", shuffle="rows", row_store="memory")


@scene
def balance(root: Path) -> Any:
    return epoch(root / "table", shuffle="splits", even_ranks="balance")


@scene
def drop(root: Path) -> Any:
    return epoch(root / "table", even_ranks="drop")


@scene
def pad(root: Path) -> Any:
    return epoch(root / "table", even_ranks="pad")


def mixed_epoch(root: Path, weights: dict[str, float], **options: Any) -> dict[str, Any]:
    """Deliver an epoch of a mixture, whose ranks are its sources'."""
    ranks: dict[str, Any] = {"num_ranks": "auto", "even_ranks": "pad"}
    sources = {
        name: StructuredDataset(str(root / name), shuffle="rows", row_store=str(root / "stores"), **ranks)
        for name in ("table", "grown")
    }
    loader, _ = MixedDataset.create_dataloader(
        sources, weights, batch_size=7, even_ranks="pad", stop="all_exhausted", **options
    )
    batches = list(loader)
    return {
        "rows": [row for batch in batches for row in zip(batch["source"].tolist(), batch["x"].tolist(), strict=True)],
        "padding": [pads for batch in batches for pads in batch["padding"].tolist()],
        "steps": len(batches),
        "told": len(loader),
        "state": loader.state_dict(),
    }


@scene
def mixture(root: Path) -> Any:
    return mixed_epoch(root, {"table": 1, "grown": 1})


@scene
def other_weights_on_rank_2(root: Path) -> Any:
    return mixed_epoch(root, {"table": 1, "grown": 2 if dist.get_rank() == 2 else 1})


def mixed(root: Path, sources: dict[str, str], weights: dict[str, float], **options: Any) -> Any:
    """Make a mixture of tables that no agreement of their own compares."""
    alone: dict[str, Any] = {"num_ranks": "auto", "check_plan": False, "row_store": "memory"}
    ids = options.pop("ids_of", sources)
    made = {
        name: StructuredDataset(str(root / path), shuffle="rows", row_id=name in ids, **alone)
        for name, path in sources.items()
    }
    return MixedDataset.create_dataloader(made, weights, batch_size=7, even_ranks="pad", **options)


def told(root: Path, rank: int, **otherwise: Any) -> int:
    """Make a mixture of which one rank is told something else."""
    common: dict[str, Any] = {"sources": {"a": "table", "b": "grown"}, "weights": {"a": 1, "b": 1}}
    return len(mixed(root, **common | (otherwise if dist.get_rank() == rank else {}))[0])


@scene
def mixed_with_another_seed_on_rank_3(root: Path) -> Any:
    return told(root, 3, shuffle_seed=7)


@scene
def mixed_with_another_stop_on_rank_1(root: Path) -> Any:
    return told(root, 1, stop="forever")


@scene
def mixed_with_another_name_on_rank_2(root: Path) -> Any:
    return told(root, 2, sources={"a": "table", "c": "grown"}, weights={"a": 1, "c": 1})


@scene
def mixed_with_another_table_on_rank_1(root: Path) -> Any:
    return told(root, 1, sources={"a": "shrunk", "b": "grown"})


@scene
def mixed_in_another_order_on_rank_2(root: Path) -> Any:
    return told(root, 2, sources={"b": "grown", "a": "table"})


@scene
def mixed_with_names_that_do_not_fit_on_rank_3(root: Path) -> Any:
    return told(root, 3, weights={"a": 1, "z": 1})


@scene
def mixed_in_two_forms_on_rank_1(root: Path) -> Any:
    return told(root, 1, ids_of="a")


@scene
def mixed_with_a_block_that_cannot_be_on_rank_2(root: Path) -> Any:
    return told(root, 2, block=-1)


def after_rank_0(begin: Callable[[], Any]) -> Any:
    """Begin an epoch on rank 0, then on the others."""
    if dist.get_rank() == 0:
        begun = begin()
    dist.barrier()
    return begun if dist.get_rank() == 0 else begin()


@scene
def mixed_with_other_exclusions_on_rank_2(root: Path) -> Any:
    loader, dataset = mixed(root, {"a": "table", "b": "grown"}, {"a": 1, "b": 1}, stop="all_exhausted")
    steps = [len(list(loader))]
    dataset.exclude({"a": [1], "b": [2, 3] if dist.get_rank() == 2 else [2]})
    loader.set_epoch(1)
    return [*steps, len(list(loader))]


@scene
def rows_with_other_exclusions_on_rank_2(root: Path) -> Any:
    options: dict[str, Any] = {"batch_size": 7, "num_ranks": "auto", "even_ranks": "pad"}
    loader, dataset = StructuredDataset.create_dataloader(str(root / "table"), shuffle="rows", **options)
    dataset.exclude([1, 2] if dist.get_rank() == 2 else [1])
    return len(list(loader))


@scene
def rows_with_other_exclusions_on_a_rank_that_begins_late(root: Path) -> Any:
    """Rank 2 begins when the others have stopped waiting for it; they hear of it when they begin another epoch."""
    options: dict[str, Any] = {"batch_size": 7, "num_ranks": "auto", "even_ranks": "pad"}
    loader, dataset = StructuredDataset.create_dataloader(str(root / "table"), shuffle="rows", **options)
    late = dist.get_rank() == 2
    said: list[int | str] = []
    dataset.exclude([1, 2] if late else [1])
    with small_sizes(exclusions_s=0.1):
        for epoch in range(2):
            loader.set_epoch(epoch)
            if late and epoch == 0:
                dist.barrier()
            try:
                said.append(len(list(loader)))
            except TableError as error:
                said.append(str(error))
            if not late and epoch == 0:
                dist.barrier()
            dist.barrier()
    return said


def rows_told_apart(root: Path, own: list[int], **options: Any) -> Any:
    """Let each rank exclude rows of its own, together with the others; say what is excluded and what then comes."""
    chosen: dict[str, Any] = {"batch_size": 7, "num_ranks": "auto", "even_ranks": "pad", **options}
    loader, dataset = StructuredDataset.create_dataloader(str(root / "table"), shuffle="rows", **chosen)
    dataset.exclude(own, gather=True)
    dataset.include(own[:1], gather=True)
    batches = list(loader)
    return {
        "excluded": dataset.excluded.tolist(),
        "rows": [row for batch in batches for row in batch["x"].tolist()],
        "padding": [pads for batch in batches for pads in batch["padding"].tolist()],
    }


@scene
def gathered(root: Path) -> Any:
    """Rank 3 has none to name."""
    rank = dist.get_rank()
    return rows_told_apart(root, [10 * rank, 10 * rank + 5, 100] if rank < 3 else [])


@scene
def gathered_without_a_comparison(root: Path) -> Any:
    rank = dist.get_rank()
    return rows_told_apart(root, [10 * rank, 10 * rank + 5, 100] if rank < 3 else [], check_plan=False)


@scene
def gathered_in_a_tensor_parallel_mesh(root: Path) -> Any:
    """All four ranks name rows, and two and two read the same."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return rows_told_apart(root, [20 + dist.get_rank(), 30 + dist.get_rank()], num_ranks=mesh)


@scene
def gathered_of_a_mixture(root: Path) -> Any:
    """Ranks name rows of different sources."""
    rank = dist.get_rank()
    loader, dataset = mixed(root, {"a": "table", "b": "grown"}, {"a": 1, "b": 1}, stop="all_exhausted")
    dataset.exclude({"ab"[rank % 2]: [rank, 20]}, gather=True)
    dataset.include({"a": [2]} if rank == 3 else {}, gather=True)
    steps = len(list(loader))
    return {"steps": steps, "excluded": {name: ids.tolist() for name, ids in dataset.excluded.items()}}


@scene
def gathered_with_a_row_that_is_not_there_on_rank_0(root: Path) -> Any:
    return rows_told_apart(root, [10_000 if dist.get_rank() == 0 else 1])


@scene
def gathered_with_a_row_that_is_not_there_on_rank_2(root: Path) -> Any:
    return rows_told_apart(root, [10_000 if dist.get_rank() == 2 else 1])


@scene
def gathered_without_rank_2(root: Path) -> Any:
    return gathered_without(root, 2)


@scene
def gathered_without_rank_0(root: Path) -> Any:
    return gathered_without(root, 0)


def gathered_without(root: Path, absent: int) -> Any:
    """Let one rank come when the others have stopped waiting for it, and then go on together."""
    with patch.object(PlanCheck.__init__, "__kwdefaults__", {"timeout": timedelta(seconds=2)}):
        dataset = StructuredDataset(str(root / "table"), shuffle="rows", num_ranks="auto", even_ranks="pad")
    late, said = dist.get_rank() == absent, "nothing"
    if late:
        dist.barrier()
    try:
        dataset.exclude([1], gather=True)
    except StorageTimeoutError as error:
        said = str(error)
    if not late:
        dist.barrier()
    dist.barrier()
    before = dataset.excluded.tolist()
    dataset.exclude([dist.get_rank()], gather=True)
    return {"said": said, "before": before, "after": dataset.excluded.tolist()}


@scene
def mixed_with_other_weights_later_on_rank_1(root: Path) -> Any:
    """Where an iterator has begun already, new weights hold from its first step."""
    loader, dataset = mixed(root, {"a": "table", "b": "grown"}, {"a": 1, "b": 1}, stop="all_exhausted")
    batches = iter(loader) if dist.get_rank() else None
    dataset.set_weights({"a": 2, "b": 1})
    batches = batches or iter(loader)
    steps = len(list(batches))
    loader.set_epoch(1)
    if dist.get_rank() == 1:
        dataset.set_weights({"a": 1, "b": 5})
    with small_sizes(exclusions_s=0.001):
        return [steps, after_rank_0(lambda: len(next(iter(loader))["x"]))]


@scene
def mixed_with_other_weights_at_step_2_on_rank_3(root: Path) -> Any:
    loader, dataset = mixed(root, {"a": "table", "b": "grown"}, {"a": 1, "b": 1}, stop="all_exhausted")
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    dataset.set_weights({"a": 2, "b": 3 if dist.get_rank() == 3 else 1})
    return after_rank_0(lambda: len(next(batches)["x"]))


@scene
def another_seed_on_rank_3(root: Path) -> Any:
    return epoch(root / "table", shuffle_seed=7 if dist.get_rank() == 3 else 42, even_ranks="balance")


@scene
def other_columns_on_rank_1(root: Path) -> Any:
    return epoch(root / "table", columns=["x", "f"] if dist.get_rank() == 1 else ["x"], even_ranks="balance")


@scene
def another_filter_on_rank_2(root: Path) -> Any:
    return epoch(root / "table", filters=pc.field("k") < (7 if dist.get_rank() == 2 else 8), even_ranks="balance")


@scene
def another_batch_size_on_rank_1(root: Path) -> Any:
    return epoch(root / "table", batch_size=8 if dist.get_rank() == 1 else 7, even_ranks="balance")


@scene
def another_seed_in_a_tensor_parallel_pair(root: Path) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 2:
        store.wait(["rank 3 has refused"])  # the part that both have is counted after that
    try:
        return epoch(root / "table", num_ranks=mesh, shuffle_seed=7 if dist.get_rank() == 3 else 42)["steps"]
    finally:
        if dist.get_rank() == 3:
            store.set("rank 3 has refused", "")


@scene
def another_seed_unchecked(root: Path) -> Any:
    return epoch(root / "table", shuffle_seed=dist.get_rank(), even_ranks="balance", check_plan=False)["steps"]


@scene
def rank_2_sees_one_file_more(root: Path) -> Any:
    return epoch(root / ("grown" if dist.get_rank() == 2 else "table"), even_ranks="balance")


@scene
def rank_1_misses_a_file(root: Path) -> Any:
    return epoch(root / ("shrunk" if dist.get_rank() == 1 else "table"), even_ranks="balance")["steps"]


@scene
def rank_1_sees_a_file_of_another_size(root: Path) -> Any:
    return epoch(root / ("rewritten" if dist.get_rank() == 1 else "table"), even_ranks="balance")["steps"]


@scene
def default_of_one_rank(root: Path) -> Any:
    return epoch(root / "table", num_ranks=None)["steps"]


@scene
def environment_that_disagrees(root: Path) -> Any:
    said = os.environ["RANK"]
    os.environ["RANK"] = str((int(said) + 1) % 4)
    try:
        return epoch(root / "table")["steps"]
    finally:
        os.environ["RANK"] = said


@scene
def silent_rank_0(root: Path) -> Any:
    agreement = PlanCheck(dist.get_rank(), 4, check=True, pinned=False, timeout=timedelta(seconds=1))
    try:
        if dist.get_rank():
            agreement.common_files([])
    finally:
        dist.barrier()


@scene
def absent_rank_3(root: Path) -> Any:
    agreement = PlanCheck(dist.get_rank(), 4, check=True, pinned=False, timeout=timedelta(seconds=1))
    try:
        if dist.get_rank() < 3:
            agreement.check({"seed": 1})
    finally:
        dist.barrier()


@scene
def rank_1_asks_for_a_column_that_is_not_there(root: Path) -> Any:
    return epoch(root / "table", columns=["nope"] if dist.get_rank() == 1 else ["x"])["steps"]


@scene
def rank_0_finds_no_table(root: Path) -> Any:
    return epoch(root / ("nowhere" if dist.get_rank() == 0 else "table"))["steps"]


@scene
def more_ranks_than_processes(root: Path) -> Any:
    return epoch(root / "table", num_ranks=8, rank=dist.get_rank(), even_ranks="balance")["steps"]


if __name__ == "__main__":
    play_all()
