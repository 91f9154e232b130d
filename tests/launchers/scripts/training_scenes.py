"""Scenes of every training framework: two epochs of one table, saved on the way, and resumed from each checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypedDict

import torch.distributed as dist

from tests.launchers.scripts.stage import scene

EPOCHS = 2
BATCH_SIZE = 7
BY_ROWS: dict[str, Any] = {"shuffle": "rows", "row_store": "memory", "even_ranks": "pad"}
ONE_RANK: dict[str, Any] = {"num_ranks": 1, "rank": 0, "check_plan": False}
"""Every process trains on all rows, as a job of one rank does."""


class Run(TypedDict):
    """What one rank trained on."""

    batches: list[list[int]]
    """Rows of each batch, padding left out."""
    counts: list[list[int]]
    """Now and then: batches of this epoch that the framework counts, and the loader; then the length by the loader."""
    epochs: float
    """Epochs that the framework has trained when it ends."""


def of_table(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a loader of these scenes."""
    common = {"batch_size": BATCH_SIZE, "num_workers": 2, "num_ranks": "auto"}
    return common | {"shuffle": "splits", "even_ranks": "balance"} | options


def own_rows(batch: dict[str, Any]) -> list[int]:
    """List the rows of a batch, padding left out."""
    padding = batch.get("padding")
    rows: list[int] = (batch["x"] if padding is None else batch["x"][~padding]).tolist()
    return rows


def count(taken: float, loader: Any) -> list[int]:
    """Return what a framework and a loader say of the batches that were taken."""
    return [round(taken), len(loader) - loader.remaining, len(loader)]


def on_rank_0(act: Callable[[], Any]) -> None:
    """Have one rank do something while the others wait."""
    dist.barrier()
    if dist.get_rank() == 0:
        act()
    dist.barrier()


def add_training_scenes(train: Callable[..., Run], saved: Callable[[Path, int], Iterable[tuple[int, Path]]]) -> None:
    """Add the scenes of a framework.

    Args:
        train: takes a folder, the options of its table, and by name `resume`, a checkpoint; `saving`, whether to keep
            checkpoints in the folder's `trained`; and `rescaled`, whether the checkpoint is of another number of ranks.
        saved: takes the folder of checkpoints and the batches of an epoch; gives how many batches had been trained at
            each checkpoint, and its path.
    """

    def resume_from_each(root: Path, before: dict[str, Any], after: dict[str, Any]) -> Any:
        whole = train(root, before, saving=True)
        dist.barrier()
        checkpoints = sorted(saved(root / "trained", len(whole["batches"]) // EPOCHS))
        rescaled = before != after
        rest = [(done, train(root, after, resume=path, rescaled=rescaled)) for done, path in checkpoints]
        on_rank_0(lambda: shutil.rmtree(root / "trained"))
        return {"whole": whole, "rest": rest}

    def resumed(root: Path) -> Any:
        return resume_from_each(root, {}, {})

    def resumed_by_rows(root: Path) -> Any:
        return resume_from_each(root, BY_ROWS, BY_ROWS)

    def on_more_ranks(root: Path) -> Any:
        return resume_from_each(root, ONE_RANK, {})

    def on_fewer_ranks(root: Path) -> Any:
        return resume_from_each(root, {}, ONE_RANK)

    for play in (resumed, resumed_by_rows, on_more_ranks, on_fewer_ranks):
        scene(play)
