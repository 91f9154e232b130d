"""What two ranks see of one table under Lightning. Run by torchrun."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning
import pyarrow.compute as pc
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.launchers.scripts.stage import play_all_and_leave, scene
from tests.states import steps_of
from torch_table_loader import StructuredDataset
from torch_table_loader.integrations.lightning import ResumeOnAnyRanks


class Model(lightning.LightningModule):
    """Notes which rows came in which epoch."""

    def __init__(self, table: Path, **options: Any) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.rows: dict[int, list[int]] = {}
        self.validated: list[int] = []
        self.places: list[list[int]] = []
        """After each batch: Lightning's count and the loader's, and each one's length of the epoch."""
        self._table = table
        self._options: dict[str, Any] = {
            "batch_size": 7,
            "num_workers": 2,
            "num_ranks": "auto",
            "even_ranks": "balance",
            "shuffle": True,
        } | options

    def train_dataloader(self) -> Any:
        return StructuredDataset.create_dataloader(str(self._table), "parquet", **self._options)[0]

    def val_dataloader(self) -> Any:
        options = self._options | {"shuffle": False}
        return StructuredDataset.create_dataloader(str(self._table), "parquet", **options)[0]

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._options.get("count_filtered", True):
            loader: Any = self.trainer.train_dataloader
            taken = len(loader) - loader.remaining
            self.places.append([batch_idx + 1, taken, int(self.trainer.num_training_batches), len(loader)])

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.rows.setdefault(self.current_epoch, []).extend(own(batch))
        return torch.mean(self.layer(batch["f"].float()[:, None])) * 1e-6

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        self.validated += own(batch)

    def predict_step(self, batch: dict[str, torch.Tensor]) -> list[int]:
        return own(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def own(batch: dict[str, torch.Tensor]) -> list[int]:
    padding = batch.get("padding")
    return (batch["x"] if padding is None else batch["x"][~padding]).tolist()


def fit(
    root: Path,
    model: Model,
    *,
    resume: str | None = None,
    keep: bool = False,
    beside: Sequence[lightning.Callback] = (),
    **options: Any,
) -> Model:
    """Train; where `keep`, with a checkpoint after every third step and every epoch."""
    chosen: dict[str, Any] = {"max_epochs": 2, "num_sanity_val_steps": 0, "limit_val_batches": 0} | options
    callbacks = [*beside]
    if keep:
        steps: dict[str, Any] = {"dirpath": root / "checkpoints", "save_top_k": -1, "filename": "{step}"}
        callbacks += [ModelCheckpoint(every_n_train_steps=3, **steps)]
        callbacks += [
            ModelCheckpoint(every_n_epochs=1, save_on_train_epoch_end=True, **steps | {"filename": "{epoch}"})
        ]
    trainer(callbacks=callbacks, enable_checkpointing=keep, **chosen).fit(model, ckpt_path=resume)
    return model


def trainer(**options: Any) -> lightning.Trainer:
    chosen: dict[str, Any] = {"logger": False, "enable_checkpointing": False} | options
    return lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", enable_progress_bar=False, enable_model_summary=False, **chosen
    )


@scene
def with_a_sampler(root: Path) -> Any:
    return fit(root, Model(root / "table"), use_distributed_sampler=True).rows


@scene
def without_a_sampler(root: Path) -> Any:
    return fit(root, Model(root / "table"), use_distributed_sampler=False).rows


@scene
def validated(root: Path) -> Any:
    """Validate inside an epoch and after it."""
    options: dict[str, Any] = {"limit_val_batches": 1.0, "val_check_interval": 4, "max_epochs": 1}
    model = fit(root, Model(root / "table"), **options)
    return {"rows": model.rows, "validated": model.validated}


def gone_on_from_each(root: Path, **options: Any) -> Any:
    whole = fit(root, Model(root / "table", **options), keep=True)
    dist.barrier()
    found, places = {}, whole.places
    for path in sorted((root / "checkpoints").glob("*.ckpt")):
        model = fit(root, Model(root / "table", **options), resume=str(path))
        found[path.stem] = model.rows
        places += model.places
    dist.barrier()
    return {"whole": whole.rows, "gone on": found, "places": places}


@scene
def gone_on(root: Path) -> Any:
    return gone_on_from_each(root)


@scene
def gone_on_by_rows(root: Path) -> Any:
    shutil.rmtree(root / "checkpoints", ignore_errors=True) if dist.get_rank() == 0 else None
    dist.barrier()
    return gone_on_from_each(root, shuffle="rows", row_store="memory", even_ranks="pad")


@scene
def one_loader_for_two_trainers(root: Path) -> Any:
    model = Model(root / "table")
    loader = model.train_dataloader()
    found = []
    for _ in range(2):
        model.rows = {}
        model.train_dataloader = lambda: loader  # type: ignore[method-assign]
        found.append(fit(root, model).rows)
    return found


ONE_RANK: dict[str, Any] = {"num_ranks": 1, "rank": 0, "check_plan": False}
"""Both processes train on all rows, as a job of one rank does."""


def on_another_world(root: Path, before: dict[str, Any], after: dict[str, Any]) -> Any:
    """Go on as another number of ranks from what was saved after every third step, for two epochs in all."""
    shutil.rmtree(root / "checkpoints", ignore_errors=True) if dist.get_rank() == 0 else None
    dist.barrier()
    whole = fit(root, Model(root / "table", **before), keep=True).rows
    dist.barrier()
    saved = sorted((root / "checkpoints").glob("*.ckpt"))
    return {
        "whole": whole,
        "gone on": {
            path.stem: fit(root, Model(root / "table", **after), resume=str(path), beside=[ResumeOnAnyRanks()]).rows
            for path in saved
        },
    }


@scene
def on_more_ranks(root: Path) -> Any:
    return on_another_world(root, ONE_RANK, {})


@scene
def on_fewer_ranks(root: Path) -> Any:
    return on_another_world(root, {}, ONE_RANK)


@scene
def on_more_ranks_without_the_callback(root: Path) -> Any:
    """Lightning then counts the steps of one rank among those of two."""
    path = root / f"of one rank {dist.get_rank()}.ckpt"
    alone = Model(root / "table", **ONE_RANK).train_dataloader()
    batches = iter(alone)
    before = [row for _ in range(3) for row in own(next(batches))]
    checkpoint = torch.load(root / "checkpoints/step=3.ckpt", weights_only=False)
    checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"] = [alone.state_dict()]
    torch.save(checkpoint, path)
    return {"before": before, "after": fit(root, Model(root / "table"), resume=str(path)).rows}


@scene
def under_fabric(root: Path) -> Any:
    """A loop of one's own: two epochs, of which the second is left after three batches, saved and gone on with."""

    def begin() -> tuple[Any, Any, dict[str, Any]]:
        fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
        fabric.launch()
        loader: Any = Model(root / "table").train_dataloader()
        return fabric, fabric.setup_dataloaders(loader), {"loader": loader}

    fabric, batches, kept = begin()
    epochs = [[own(batch) for batch in batches]]
    kept["loader"].set_epoch(1)
    epochs.append([own(batch) for _, batch in zip(range(3), batches, strict=False)])
    fabric.save(root / "fabric.ckpt", kept)
    fabric, batches, kept = begin()
    fabric.load(root / "fabric.ckpt", kept)
    return [*epochs, [own(batch) for batch in batches]]


@scene
def predicted(root: Path) -> Any:
    model = Model(root / "table")
    batches: Any = trainer().predict(model, model.val_dataloader())
    return [row for rows in batches for row in rows]


@scene
def uncounted(root: Path) -> Any:
    """Where rows are not counted Lightning reads a batch ahead, which the state takes for trained."""
    options: dict[str, Any] = {"filters": pc.field("k") < 9, "count_filtered": False, "even_ranks": None}
    model = fit(root, Model(root / "table", **options), max_steps=3)
    loader: Any = model.trainer.train_dataloader
    return {"trained": len(model.rows[0]) // 7, "taken": steps_of(loader.state_dict())}


if __name__ == "__main__":
    play_all_and_leave()
