"""What two ranks see of one table under Lightning. Run by torchrun."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning
import pyarrow.compute as pc
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.launchers.scripts.stage import play_all_and_leave, scene
from tests.launchers.scripts.training_scenes import (
    EPOCHS,
    ONE_RANK,
    Run,
    add_training_scenes,
    count,
    of_table,
    own_rows,
)
from tests.states import steps_of
from torch_table_loader import StructuredDataset
from torch_table_loader.integrations.lightning import ResumeOnAnyRanks


class Model(lightning.LightningModule):
    """Notes which rows came."""

    def __init__(self, table: Path, **options: Any) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.batches: list[list[int]] = []
        self.validated: list[int] = []
        self.counts: list[list[int]] = []
        self._table = table
        self._options = of_table(options)

    def train_dataloader(self) -> Any:
        return StructuredDataset.create_dataloader(str(self._table), "parquet", **self._options)[0]

    def val_dataloader(self) -> Any:
        options = self._options | {"shuffle": False}
        return StructuredDataset.create_dataloader(str(self._table), "parquet", **options)[0]

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._options.get("count_filtered", True):
            loader: Any = self.trainer.train_dataloader
            self.counts.append(count(batch_idx + 1, loader))
            assert self.trainer.num_training_batches in (len(loader), float("inf"))

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.batches.append(own_rows(batch))
        return torch.mean(self.layer(batch["f"].float()[:, None])) * 1e-6

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        self.validated += own_rows(batch)

    def predict_step(self, batch: dict[str, torch.Tensor]) -> list[int]:
        return own_rows(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def fit(
    root: Path,
    model: Model,
    *,
    resume: Path | None = None,
    saving: bool = False,
    beside: Sequence[lightning.Callback] = (),
    **options: Any,
) -> Model:
    """Train; where `saving`, with a checkpoint after every third step and every epoch."""
    chosen: dict[str, Any] = {"max_epochs": EPOCHS, "num_sanity_val_steps": 0, "limit_val_batches": 0} | options
    callbacks = [*beside]
    if saving:
        steps: dict[str, Any] = {"dirpath": root / "trained", "save_top_k": -1, "filename": "{step}"}
        callbacks += [ModelCheckpoint(every_n_train_steps=3, **steps)]
        callbacks += [
            ModelCheckpoint(every_n_epochs=1, save_on_train_epoch_end=True, **steps | {"filename": "{epoch}"})
        ]
    trainer(callbacks=callbacks, enable_checkpointing=saving, **chosen).fit(model, ckpt_path=resume)
    return model


def trainer(**options: Any) -> lightning.Trainer:
    chosen: dict[str, Any] = {"logger": False, "enable_checkpointing": False} | options
    return lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", enable_progress_bar=False, enable_model_summary=False, **chosen
    )


def train(
    root: Path, table: dict[str, Any], *, resume: Path | None = None, saving: bool = False, rescaled: bool = False
) -> Run:
    """Train as every framework does."""
    beside = [ResumeOnAnyRanks()] if rescaled else []
    model = fit(root, Model(root / "table", **table), resume=resume, saving=saving, beside=beside)
    return {"batches": model.batches, "counts": model.counts, "epochs": model.trainer.current_epoch}


def saved(folder: Path, steps: int) -> Iterator[tuple[int, Path]]:
    """Find the checkpoints, which are named by the step or by the epoch that they end."""
    for path in folder.glob("*.ckpt"):
        kind, number = path.stem.split("=")
        yield int(number) if kind == "step" else (int(number) + 1) * steps, path


add_training_scenes(train, saved)


@scene
def with_a_sampler(root: Path) -> Any:
    return fit(root, Model(root / "table"), use_distributed_sampler=True).batches


@scene
def without_a_sampler(root: Path) -> Any:
    return fit(root, Model(root / "table"), use_distributed_sampler=False).batches


@scene
def validated(root: Path) -> Any:
    """Validate inside an epoch and after it."""
    options: dict[str, Any] = {"limit_val_batches": 1.0, "val_check_interval": 4, "max_epochs": 1}
    model = fit(root, Model(root / "table"), **options)
    return {"batches": model.batches, "validated": model.validated}


@scene
def one_loader_for_two_trainers(root: Path) -> Any:
    model = Model(root / "table")
    loader = model.train_dataloader()
    found = []
    for _ in range(2):
        model.batches = []
        model.train_dataloader = lambda: loader  # type: ignore[method-assign]
        found.append(fit(root, model).batches)
    return found


@scene
def on_more_ranks_without_the_callback(root: Path) -> Any:
    """Lightning then counts the steps of one rank among those of two."""
    whole, rescaled = root / "of two ranks", root / f"of one rank {torch.distributed.get_rank()}.ckpt"
    alone = Model(root / "table", **ONE_RANK).train_dataloader()
    batches = iter(alone)
    before = [row for _ in range(3) for row in own_rows(next(batches))]
    fit(whole, Model(root / "table"), saving=True, max_steps=3)
    torch.distributed.barrier()
    checkpoint = torch.load(whole / "trained/step=3.ckpt", weights_only=False)
    checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"] = [alone.state_dict()]
    torch.save(checkpoint, rescaled)
    return {"before": before, "batches": fit(root, Model(root / "table"), resume=rescaled, max_epochs=1).batches}


@scene
def under_fabric(root: Path) -> Any:
    """A loop of one's own: two epochs, of which the second is left after three batches, saved and gone on with."""

    def begin() -> tuple[Any, Any, dict[str, Any]]:
        fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
        fabric.launch()
        loader: Any = Model(root / "table").train_dataloader()
        return fabric, fabric.setup_dataloaders(loader), {"loader": loader}

    fabric, batches, kept = begin()
    epochs = [[own_rows(batch) for batch in batches]]
    kept["loader"].set_epoch(1)
    epochs.append([own_rows(batch) for _, batch in zip(range(3), batches, strict=False)])
    fabric.save(root / "fabric.ckpt", kept)
    fabric, batches, kept = begin()
    fabric.load(root / "fabric.ckpt", kept)
    return [*epochs, [own_rows(batch) for batch in batches]]


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
    return {"trained": len(model.batches), "taken": steps_of(loader.state_dict())}


if __name__ == "__main__":
    play_all_and_leave()
