"""Train under Accelerate: `prepare` takes the loader as it is, and a checkpoint keeps its place.

accelerate launch --num_processes 2 examples/train_accelerate.py TABLE CHECKPOINT
"""

import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator

from torch_table_loader import StructuredDataset

EPOCHS, SAVE_EVERY = 2, 10


def main(table: str, checkpoint: Path) -> None:
    accelerator = Accelerator(gradient_accumulation_steps=4, cpu=not torch.cuda.is_available())
    loader, dataset = StructuredDataset.create_dataloader(
        table,
        batch_size=256,
        columns=["label", "price"],
        shuffle=True,
        even_ranks="balance",  # of Accelerate's ranks, since the accelerator is there
    )
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if checkpoint.exists():
        accelerator.load_state(str(checkpoint))  # the loader goes on at the next batch: nothing is to be skipped
    for epoch in range(dataset.epoch, EPOCHS):
        loader.set_epoch(epoch)
        rows = torch.zeros(1, dtype=torch.int64, device=accelerator.device)
        for step, batch in enumerate(loader, start=1):
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(batch["price"][:, None])[:, 0], batch["label"].float())
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            rows += len(batch["label"]) - batch.get("padding", torch.zeros(1)).sum().long()
            if step % SAVE_EVERY == 0:
                accelerator.save_state(str(checkpoint))
        accelerator.print(f"epoch {epoch}: {accelerator.reduce(rows).item()} rows")
    accelerator.end_training()
    sys.stdout.flush()
    os._exit(0)  # after DDP on gloo a thread of its own may abort a normal exit (torch 2.13)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
