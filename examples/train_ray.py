"""Trains on two workers of Ray Train; after a failure the job goes on at the next row behind its last checkpoint.

python examples/train_ray.py TABLE FOLDER_OF_RUNS
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from ray import train
from ray.train.torch import TorchTrainer, prepare_model
from torch.nn.functional import binary_cross_entropy_with_logits

from torch_table_loader import StructuredDataset

EPOCHS, STEPS_BETWEEN_CHECKPOINTS = 2, 20


def train_worker(config: dict[str, Any]) -> None:
    """Train a model of one weight on the columns `price` and `label`."""
    loader, dataset = StructuredDataset.create_dataloader(
        config["table"], columns=["price", "label"], shuffle=True, batch_size=64, even_ranks="balance"
    )
    model = prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rank = train.get_context().get_world_rank()
    if (checkpoint := train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder, "state.pt"), weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
    for epoch in range(dataset.epoch, EPOCHS):
        loader.set_epoch(epoch)
        for step, batch in enumerate(loader, 1):
            loss = binary_cross_entropy_with_logits(model(batch["price"][:, None])[:, 0], batch["label"].float())
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            if step % STEPS_BETWEEN_CHECKPOINTS == 0:
                with tempfile.TemporaryDirectory() as folder:  # the state is the same on every rank: one is enough
                    state = {"model": model.state_dict(), "loader": loader.state_dict()}
                    torch.save(state, Path(folder, "state.pt"))
                    checkpoint = train.Checkpoint.from_directory(folder) if rank == 0 else None
                    train.report({"epoch": epoch, "loss": loss.item()}, checkpoint)


if __name__ == "__main__":
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"table": str(Path(sys.argv[1]).absolute())},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=sys.argv[2], failure_config=train.FailureConfig(max_failures=2)),
    )
    sys.stdout.write(f"{trainer.fit().metrics}\n")
