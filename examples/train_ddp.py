"""Train under DDP: each row once an epoch over all ranks, and a job that was killed goes on at the next batch.

torchrun --standalone --nproc-per-node 2 examples/train_ddp.py TABLE CHECKPOINT
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torch_table_loader import StructuredDataset

EPOCHS, SAVE_EVERY = 2, 10


def main(table: str, checkpoint: Path) -> None:
    dist.init_process_group()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    loader, dataset = StructuredDataset.create_dataloader(
        table,
        batch_size=256,
        columns=["label", "price"],
        shuffle=True,
        num_ranks="auto",
        even_ranks="balance",  # equally many steps on each rank
        device=device,
    )
    model = DistributedDataParallel(torch.nn.Linear(1, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])  # of any number of ranks
    for epoch in range(dataset.epoch, EPOCHS):
        loader.set_epoch(epoch)
        rows = torch.zeros(1, dtype=torch.int64, device=device)
        for step, batch in enumerate(loader, start=1):
            loss = torch.nn.functional.mse_loss(model(batch["price"][:, None])[:, 0], batch["label"].float())
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            rows += len(batch["label"]) - batch.get("padding", torch.zeros(1)).sum().long()
            if step % SAVE_EVERY == 0 and dist.get_rank() == 0:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state | {"loader": loader.state_dict()}, checkpoint)
        dist.all_reduce(rows)
        if dist.get_rank() == 0:
            sys.stdout.write(f"epoch {epoch}: {rows.item()} rows\n")
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # after DDP on gloo a thread of its own may abort a normal exit (torch 2.13)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
