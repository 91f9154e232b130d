"""Train under Lightning: its checkpoints keep the loader's place, and its sampler is not needed.

torchrun --standalone --nproc-per-node 2 examples/train_lightning.py TABLE CHECKPOINTS
"""

import os
import sys
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from torch_table_loader import StructuredDataset

EPOCHS, SAVE_EVERY = 2, 10


class Model(lightning.LightningModule):
    def __init__(self, table: str) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.table, self.rows = table, 0

    def train_dataloader(self) -> Any:
        loader, _ = StructuredDataset.create_dataloader(
            self.table,
            batch_size=256,
            columns=["label", "price"],
            shuffle=True,
            num_ranks="auto",  # here, and not before, the ranks have found each other
            even_ranks="balance",  # equally many steps on each rank
        )
        return loader

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.rows += len(batch["label"]) - int(batch.get("padding", torch.zeros(1)).sum())
        return torch.nn.functional.mse_loss(self.layer(batch["price"][:, None])[:, 0], batch["label"].float())

    def on_train_epoch_end(self) -> None:
        rows = self.trainer.strategy.reduce(torch.tensor(self.rows, device=self.device), reduce_op="sum")
        self.print(f"epoch {self.current_epoch}: {rows} rows")
        self.rows = 0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    saving = ModelCheckpoint(sys.argv[2], every_n_train_steps=SAVE_EVERY, save_last=True)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = lightning.Trainer(devices=world, max_epochs=EPOCHS, callbacks=[saving], logger=False)
    trainer.fit(Model(sys.argv[1]), ckpt_path="last")
    sys.stdout.flush()
    os._exit(0)  # after DDP on gloo a thread of its own may abort a normal exit (torch 2.13)
