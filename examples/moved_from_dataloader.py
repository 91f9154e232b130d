"""What was a map-style dataset with DataLoader, DistributedSampler and random_split, read from the table itself.

torchrun --nproc-per-node 2 examples/moved_from_dataloader.py TABLE CHECKPOINT
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

from torch_table_loader import StructuredDataset

EPOCHS = 3


def collate(batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Make pairs as the old collate_fn did; it gets a batch of columns, not a list of samples."""
    return torch.log1p(batch["price"].float())[:, None], batch["label"].float()


def main(path: str, checkpoint: Path) -> None:
    distributed.init_process_group("gloo")
    # random_split: by a hash of a column, so that a row stays in its part when the table grows.
    table = StructuredDataset(path, columns=["price", "label"], filters="price >= 0", batch_size=256)
    parts = table.split({"train": 0.9, "val": 0.1}, by="ad")
    # DistributedSampler: each rank finds its part, and all take equally many steps.
    mine = parts["train"].with_options(shuffle="rows", row_store="memory", even_ranks="balance")
    train = mine.with_options(collate_fn=collate).loader()
    val = parts["val"].with_options(num_ranks="auto", even_ranks=False, collate_fn=collate).loader()
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    states: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": train}
    if checkpoint.exists():  # StatefulDataLoader: the state fits any number of ranks
        for name, saved in torch.load(checkpoint).items():
            states[name].load_state_dict(saved)
    for epoch in range(train.dataset.epoch, EPOCHS):
        train.set_epoch(epoch)
        for features, labels in train:
            optimizer.zero_grad()
            torch.autograd.backward(binary_cross_entropy_with_logits(model(features)[:, 0], labels))
            optimizer.step()
        with torch.no_grad():
            right = [((model(features)[:, 0] > 0) == (labels > 0.5)).float() for features, labels in val]
        total = torch.tensor([torch.cat(right).sum(), sum(map(len, right))])
        distributed.all_reduce(total)
        if distributed.get_rank() == 0:
            torch.save({name: each.state_dict() for name, each in states.items()}, checkpoint)
            sys.stdout.write(f"epoch {epoch}: {total[0] / total[1]:.3f} of {int(total[1])} rows right\n")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)  # after DDP on gloo a thread of its own may abort a normal exit (torch 2.13)
