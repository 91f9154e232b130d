"""What two ranks see of one table under the Hugging Face Trainer, with the mixin of the docs. Run by torchrun."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainingArguments

from tests.rooms.test_docs import ROOT, blocks_of
from tests.torch.scripts.stage import play_all_and_leave, scene
from torch_table_loader import StructuredDataset, TableLoader

RECIPE: dict[str, Any] = {"__name__": "recipe"}
exec(next(b.text for b in blocks_of(ROOT / "docs/frameworks.md") if "class TableTrainer(" in b.text), RECIPE)  # noqa: S102


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


def train(root: Path, resume: Path | None = None, **options: Any) -> dict[str, Any]:
    """Train; gives the rows of each batch, and the numbers of the steps that were saved."""
    chosen: dict[str, Any] = {"num_train_epochs": 2, "save_strategy": "no"} | options
    arguments = TrainingArguments(str(root / "trained"), use_cpu=True, report_to=[], disable_tqdm=True, **chosen)

    def make_loader() -> TableLoader:
        return StructuredDataset.create_dataloader(
            str(root / "table"),
            batch_size=7,
            num_workers=2,
            columns=["x", "f"],
            shuffle=True,
            num_ranks="auto",
            even_ranks="balance",
        )[0]

    model = Model()
    trainer = RECIPE["TableTrainer"](model, arguments, make_loader=make_loader)
    done = trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return {"batches": model.rows, "steps": done.global_step, "place": trainer.state.epoch}


@scene
def two_epochs(root: Path) -> Any:
    return train(root)


@scene
def some_steps(root: Path) -> Any:
    return train(root, max_steps=13)


@scene
def accumulated_and_gone_on(root: Path) -> Any:
    """Eleven batches, four to an update: three updates an epoch, the last one of three batches."""
    options: dict[str, Any] = {"gradient_accumulation_steps": 4}
    whole = train(root, save_strategy="steps", save_steps=1, **options)
    dist.barrier()
    found = {path.name: train(root, path, **options) for path in sorted((root / "trained").glob("checkpoint-*"))}
    return {"whole": whole, "gone on": found}


if __name__ == "__main__":
    play_all_and_leave()
