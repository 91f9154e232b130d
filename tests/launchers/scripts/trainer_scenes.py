"""What two ranks see of one table under the Hugging Face Trainer. Run by torchrun."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainingArguments

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
from torch_table_loader import StructuredDataset, TableLoader
from torch_table_loader.integrations.transformers import TableTrainer


class Model(torch.nn.Module):
    """Notes which rows came, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.rows: list[list[int]] = []

    def forward(self, x: torch.Tensor, f: torch.Tensor, padding: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        self.rows.append(own_rows({"x": x} if padding is None else {"x": x, "padding": padding}))
        return {"loss": torch.mean(self.layer(f.float()[:, None])) * 1e-6}


class Counts(TrainerCallback):
    """Notes after each update what the Trainer and the loader say of an epoch."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Count the batches of this epoch."""
        loader = self.loaders[0]
        place = (state.epoch % 1 or 1) * len(loader)
        self.seen.append(count(place, loader))

    loaders: list[TableLoader]


UPDATE = 4
"""Batches of an update; the last one of an epoch takes what is left."""


def fit(root: Path, table: dict[str, Any], resume: Path | None = None, **options: Any) -> tuple[Model, Counts, Any]:
    """Train; gives the model and what was counted, and the Trainer's state."""
    chosen: dict[str, Any] = {"num_train_epochs": EPOCHS, "gradient_accumulation_steps": UPDATE, "save_strategy": "no"}
    chosen |= options
    arguments = TrainingArguments(str(root / "trained"), use_cpu=True, report_to=[], disable_tqdm=True, **chosen)
    counts = Counts()

    def make_loader() -> TableLoader:
        options = of_table({"columns": ["x", "f"]} | table)
        loader = StructuredDataset.create_dataloader(str(root / "table"), **options)[0]
        counts.loaders = [loader]
        return loader

    model = Model()
    trainer = TableTrainer(model, arguments, make_loader=make_loader, callbacks=[counts])
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return model, counts, trainer.state


def train(
    root: Path, table: dict[str, Any], *, resume: Path | None = None, saving: bool = False, rescaled: bool = False
) -> Run:
    """Train as every framework does; the Trainer needs no word that the number of ranks is another."""
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1} if saving else {}
    model, counts, ends = fit(root, table, resume, **options)
    assert ends.global_step == ends.max_steps
    return {"batches": model.rows, "counts": [] if rescaled else counts.seen, "epochs": ends.epoch}


def saved(folder: Path, steps: int) -> Iterator[tuple[int, Path]]:
    """Find the checkpoints, which are named by the number of updates."""
    updates = -(-steps // UPDATE)
    for path in folder.glob("checkpoint-*"):
        epoch, made = divmod(int(path.name.removeprefix("checkpoint-")), updates)
        yield epoch * steps + made * UPDATE, path


add_training_scenes(train, saved)


@scene
def whole(root: Path) -> Any:
    return fit(root, {})[0].rows


@scene
def some_steps(root: Path) -> Any:
    model, _, ends = fit(root, {}, max_steps=13, gradient_accumulation_steps=1)
    return {"batches": model.rows, "steps": ends.global_step}


@scene
def so_many_steps_on_fewer_ranks(root: Path) -> Any:
    """Steps were asked for: so many come, in however many epochs."""
    asked: dict[str, Any] = {"max_steps": 14, "gradient_accumulation_steps": UPDATE}
    fit(root, {}, save_strategy="steps", save_steps=6, **asked)
    torch.distributed.barrier()
    paths = sorted((root / "trained").glob("checkpoint-*"))
    return {path.name: fit(root, ONE_RANK, path, **asked)[2].global_step for path in paths}


class Twice(torch.nn.Module):
    """Gives twice what it is given, as a prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": torch.mean(self.layer(label.float()[:, None])), "logits": 2 * x}


@scene
def evaluated(root: Path) -> Any:
    """Evaluate a table twice, one of two by name, and predict with one; ranks have unequal rows at the end."""
    arguments = TrainingArguments(str(root / "evaluated"), use_cpu=True, report_to=[], disable_tqdm=True)

    def opened(**options: Any) -> StructuredDataset:
        rows: dict[str, Any] = {"shuffle": "rows", "row_store": "memory", "even_ranks": "pad"} | options
        named = {"x": "x", "label": "f"}
        return StructuredDataset(
            str(root / "table"), batch_size=7, num_workers=2, num_ranks="auto", columns=named, **rows
        )

    def told(evaluation: Any) -> dict[str, Any]:
        return {"rows": sorted((evaluation.predictions // 2).tolist()), "labels": len(evaluation.label_ids)}

    def make_loader() -> TableLoader:
        return opened().loader()

    few, whole = opened(filters="x < 10"), opened()
    datasets: Any = {"few": few, "whole": whole}
    trainer = TableTrainer(Twice(), arguments, make_loader=make_loader, eval_dataset=datasets, compute_metrics=told)
    found = [trainer.evaluate() for _ in range(2)]
    predicted: Any = trainer.predict(few)
    streams = opened(shuffle=False, row_store=None, even_ranks="balance")
    loss_only = TableTrainer(Twice(), arguments, make_loader=make_loader, eval_dataset=streams)
    return {
        "evaluated": [
            {name: each[f"eval_{name}"] for name in ("few_rows", "whole_rows", "few_labels")} for each in found
        ],
        "predicted": sorted((predicted.predictions // 2).tolist()),
        "loss": loss_only.evaluate()["eval_loss"],
    }


if __name__ == "__main__":
    play_all_and_leave()
