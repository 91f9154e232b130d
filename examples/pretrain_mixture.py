"""Pre-train a small transformer on a mixture of two Iceberg tables of tokens; a job that was killed goes on anywhere.

torchrun --standalone --nproc-per-node 2 examples/pretrain_mixture.py WAREHOUSE CHECKPOINT STEPS
"""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torch_table_loader import IcebergDataset, MixedDataset, Pack

SEQ_LEN, VOCABULARY, SAVE_EVERY, MORE_CODE_FROM = 32, 256, 4, 6


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 16)
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(16, VOCABULARY)

    def forward(self, ids: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        causal = torch.ones(SEQ_LEN, SEQ_LEN, dtype=torch.bool).tril()
        seen = (documents[:, :, None] == documents[:, None, :]) & causal
        hidden = self.layer(self.embedding(ids), ~seen.repeat_interleave(2, 0))  # a mask for each of two heads
        logits: torch.Tensor = self.head(hidden)
        return logits


def main(warehouse: str, checkpoint: Path, steps: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    catalog = {"name": "lake", "type": "sql", "uri": f"sqlite:///{warehouse}/catalog.db", "warehouse": warehouse}
    pack = Pack(seq_len=SEQ_LEN, eos_id=0, labels="shifted", output=["input_ids", "labels", "doc_ids"])
    job: dict[str, Any] = {"num_ranks": "auto", "even_ranks": "pad", "num_workers": 1}
    sources = {name: partial(IcebergDataset, f"lm.{name}", catalog) for name in ("web", "code")}
    loader, dataset = MixedDataset.create_dataloader(
        sources,
        {"web": 0.8, "code": 0.2},
        unit="tokens",
        stop="forever",
        global_batch_size=8,
        pack=pack,
        row_store="memory",
        **job,
    )
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])  # of any number of ranks
        step = saved["step"]
    batches = iter(loader)
    while step < steps:
        if step == MORE_CODE_FROM:
            dataset.set_weights({"web": 0.4, "code": 0.6})  # from the next step on, on every rank
        batch, step = next(batches), step + 1
        logits = model(batch["input_ids"], batch["doc_ids"])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")
        counted = torch.stack([loss.detach(), (batch["labels"] >= 0).sum().float()])
        dist.all_reduce(counted)
        optimizer.zero_grad()
        torch.autograd.backward(loss * dist.get_world_size() / counted[1])  # DDP takes the mean over ranks
        optimizer.step()
        if dist.get_rank() == 0:
            sys.stdout.write(f"step {step}: loss {counted[0] / counted[1]:.5f}\n")
            if step % SAVE_EVERY == 0:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state | {"loader": loader.state_dict()}, checkpoint)
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # after DDP on gloo a thread of its own may abort a normal exit (torch 2.13)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
