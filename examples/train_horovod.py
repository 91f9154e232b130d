"""Trains on Horovod: each process reads its own part of the table, and together they read every row once an epoch.

horovodrun -np 2 --gloo python examples/train_horovod.py TABLE
"""

from __future__ import annotations

import sys
from pathlib import Path

import horovod.torch as hvd
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from torch_table_loader import StructuredDataset


def main(table: Path, epochs: int = 2) -> None:
    """Train a model of one weight on the columns `price` and `label`."""
    hvd.init()
    names = sorted(file.relative_to(table).as_posix() for file in table.rglob("*.parquet"))
    loader, _ = StructuredDataset.create_dataloader(
        table,
        columns=["price", "label"],
        files=hvd.broadcast_object(names),  # all ranks read the files that rank 0 saw
        batch_size=256,
        shuffle=True,
        even_ranks="balance",
    )
    model = torch.nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        rows = 0
        for batch in loader:
            loss = binary_cross_entropy_with_logits(model(batch["price"][:, None])[:, 0], batch["label"].float())
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            rows += len(batch["label"])
        total = hvd.allreduce(torch.tensor(rows), op=hvd.Sum)
        if hvd.rank() == 0:
            sys.stdout.write(f"epoch {epoch}: {total} rows\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
