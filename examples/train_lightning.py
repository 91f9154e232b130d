"""Train on an Iceberg table with Lightning: validate, stop early, and resume at the next row on any number of ranks.

torchrun --standalone --nproc-per-node 2 examples/train_lightning.py WAREHOUSE CHECKPOINTS
"""

import os
import sys

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from torch_table_loader import Batch, IcebergDataset, TableLoader
from torch_table_loader.integrations.lightning import ResumeOnAnyRanks


class Churn(lightning.LightningModule):
    def __init__(self, warehouse: str) -> None:
        super().__init__()
        self.catalog = {"type": "sql", "name": "lake", "uri": f"sqlite:///{warehouse}/catalog.db"}
        self.layers = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))

    def setup(self, stage: str) -> None:  # noqa: ARG002 - the ranks have found each other by now
        columns = {"x": ["age", "income"], "churn": "churn"}
        table = IcebergDataset("shop.customers", self.catalog, columns=columns, batch_size=256, even_ranks="balance")
        self.parts = table.split({"train": 0.9, "val": 0.1}, by="id")

    def train_dataloader(self) -> TableLoader:
        return self.parts["train"].with_options(shuffle=True).loader()

    def val_dataloader(self) -> TableLoader:
        return self.parts["val"].loader()

    def training_step(self, batch: Batch) -> torch.Tensor:
        real = ~batch["padding"] if "padding" in batch else slice(None)  # repeats give all ranks equally many steps
        logits = self.layers(batch["x"])[real, 0]
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, batch["churn"][real])

    def validation_step(self, batch: Batch) -> None:
        self.log("loss", self.training_step(batch), batch_size=len(batch["churn"]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.1)


if __name__ == "__main__":
    saving = ModelCheckpoint(sys.argv[2], every_n_train_steps=5, save_last=True)
    callbacks = [saving, EarlyStopping("loss", min_delta=0.01), ResumeOnAnyRanks()]
    trainer = lightning.Trainer(devices=int(os.environ["WORLD_SIZE"]), max_epochs=50, callbacks=callbacks, logger=False)
    trainer.fit(Churn(sys.argv[1]), ckpt_path="last")
