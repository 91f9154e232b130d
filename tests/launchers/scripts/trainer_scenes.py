"""What two ranks see of one table under the Hugging Face Trainer. Run by torchrun."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback, TrainingArguments

from tests.launchers.scripts.stage import play_all_and_leave, scene
from torch_table_loader import StructuredDataset, TableLoader
from torch_table_loader.integrations.transformers import TableTrainer


class Model(torch.nn.Module):
    """Notes which rows came, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.rows: list[list[int]] = []

    def forward(self, x: torch.Tensor, f: torch.Tensor, padding: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        own = x if padding is None else x[~padding]
        self.rows.append(own.tolist())
        return {"loss": torch.mean(self.layer(f.float()[:, None])) * 1e-6}


class Lengths(TrainerCallback):
    """Notes what the loader says of an epoch, after each update."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Note its length, and how many of its batches were taken."""
        loader: Any = self.loaders[0]
        self.seen.append([state.global_step, len(loader), len(loader) - loader.remaining])

    loaders: list[TableLoader]


def train(root: Path, resume: Path | None = None, table: dict[str, Any] | None = None, **options: Any) -> Any:
    """Train; gives the rows of each batch, and the numbers of the steps that were saved."""
    chosen: dict[str, Any] = {"num_train_epochs": 2, "save_strategy": "no"} | options
    arguments = TrainingArguments(str(root / "trained"), use_cpu=True, report_to=[], disable_tqdm=True, **chosen)

    of_table: dict[str, Any] = {"num_workers": 2, "columns": ["x", "f"], "num_ranks": "auto", "even_ranks": "balance"}
    of_table |= {"shuffle": True} | (table or {})

    lengths = Lengths()

    def make_loader() -> TableLoader:
        loader = StructuredDataset.create_dataloader(str(root / "table"), batch_size=7, **of_table)[0]
        lengths.loaders = [loader]
        return loader

    model = Model()
    trainer = TableTrainer(model, arguments, make_loader=make_loader, callbacks=[lengths])
    done = trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    ends = trainer.state
    return {
        "batches": model.rows,
        "steps": done.global_step,
        "place": ends.epoch,
        "max_steps": ends.max_steps,
        "lengths": lengths.seen,
    }


@scene
def two_epochs(root: Path) -> Any:
    return train(root)


@scene
def some_steps(root: Path) -> Any:
    return train(root, max_steps=13)


ONE_RANK: dict[str, Any] = {"num_ranks": 1, "rank": 0, "check_plan": False}
"""Both processes train on all rows, as a job of one rank does."""


def gone_on(root: Path, before: dict[str, Any] | None = None, after: dict[str, Any] | None = None, **told: Any) -> Any:
    """Train, and go on from each checkpoint, as ranks of another job perhaps."""
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1} | told
    whole = train(root, table=before, **saving)
    dist.barrier()
    saved = sorted((root / "trained").glob("checkpoint-*"))
    found = {path.name: train(root, path, after, **told) for path in saved}
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(root / "trained")
    dist.barrier()
    return {"whole": whole, "gone on": found}


@scene
def accumulated_and_gone_on(root: Path) -> Any:
    """Eleven batches, four to an update: three updates an epoch, the last one of three batches."""
    return gone_on(root, gradient_accumulation_steps=4)


@scene
def by_rows_and_gone_on(root: Path) -> Any:
    options = {"shuffle": "rows", "row_store": "memory", "even_ranks": "pad"}
    return gone_on(root, options, options, gradient_accumulation_steps=4)


@scene
def on_more_ranks(root: Path) -> Any:
    return gone_on(root, ONE_RANK, gradient_accumulation_steps=4)


@scene
def on_fewer_ranks(root: Path) -> Any:
    return gone_on(root, None, ONE_RANK, gradient_accumulation_steps=4)


@scene
def so_many_steps_on_fewer_ranks(root: Path) -> Any:
    """Steps were asked for: so many come, in however many epochs."""
    return gone_on(root, None, ONE_RANK, max_steps=14, save_steps=6)


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
