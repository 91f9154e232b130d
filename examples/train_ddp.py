"""Train on click logs under DDP, here or on S3: validate each epoch, and resume at the next row after a kill.

torchrun --standalone --nproc-per-node 2 examples/train_ddp.py s3://bucket/clicks CHECKPOINT
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

from torch_table_loader import Batch, StructuredDataset

EPOCHS, SAVE_EVERY = 2, 10


def losses(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    logits = model(batch["price"][:, None])[:, 0]
    each = binary_cross_entropy_with_logits(logits, batch["label"].float(), reduction="none")
    return each[~batch["padding"]] if "padding" in batch else each  # repeats give all ranks equally many steps


def main(table: str, checkpoint: Path) -> None:
    dist.init_process_group()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    clicks = StructuredDataset(table, batch_size=256, columns=["label", "price"], even_ranks="balance", device=device)
    parts = clicks.split({"train": 0.9, "val": 0.1}, by="ad")
    dataset = parts["train"].with_options(shuffle=True)
    train, val = dataset.loader(), parts["val"].loader()
    model = DistributedDataParallel(torch.nn.Linear(1, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    states = {"model": model.module, "optimizer": optimizer, "loader": train}
    if checkpoint.exists():  # of any number of ranks
        for name, state in torch.load(checkpoint, map_location=device).items():
            states[name].load_state_dict(state)
    for epoch in range(dataset.epoch, EPOCHS):
        train.set_epoch(epoch)
        rows = 0
        for step, batch in enumerate(train, start=1):
            optimizer.zero_grad()
            loss = losses(model, batch)
            torch.autograd.backward(loss.mean())
            optimizer.step()
            rows += len(loss)
            if step % SAVE_EVERY == 0 and dist.get_rank() == 0:
                torch.save({name: each.state_dict() for name, each in states.items()}, f"{checkpoint}.new")
                Path(f"{checkpoint}.new").replace(checkpoint)  # a job that is killed leaves a whole one
        loss = torch.cat([losses(model.module, batch).detach() for batch in val])
        sums = torch.tensor([rows, len(loss), loss.sum()], device=device)
        dist.all_reduce(sums)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {sums[0]:.0f} rows, validation loss {sums[2] / sums[1]:.4f}", flush=True)
    os._exit(0)  # after DDP on gloo a thread of its own may abort a normal exit (torch 2.13)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
