"""Trains a small model on the click log over all ranks, then proves what the loader delivered.

The log is an Iceberg table (``make demo``, ``make demo-s3``) or plain Parquet (``make demo-parquet``). Run it by hand
with ``torchrun --standalone --nproc-per-node 2 -m demo.train --data build/demo/lake``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from demo.make_clicks import CATEGORICAL, DENSE, LIVE
from demo.make_lake import BRANCH, CATALOG, NEW_COLUMN
from demo.model import ClickModel
from torch_table_loader import IcebergDataset, StructuredDataset

COLUMNS = ["click_id", "label", *DENSE, *CATEGORICAL]
Batch = Mapping[str, torch.Tensor]


def open_table(root: Path, name: str, batch_size: int, **options: Any) -> Any:
    """Make the loader of this rank's part of a table.

    Args:
        root: the demo's folder; that of Iceberg tables says where their catalog is.
        name: "clicks" or "holdout".
        batch_size: rows of a batch on this rank.
        **options: what else the facade takes.
    """
    options |= {
        "batch_size": batch_size,
        "columns": COLUMNS,
        "num_ranks": "auto",
        "even_ranks": "balance",
        "num_workers": 2,
    }
    catalog = root / CATALOG
    if not catalog.exists():
        return StructuredDataset.create_dataloader(str(root / name), "parquet", **options)[0]
    if name == "clicks":
        options |= {"branch": BRANCH, "nulls": {NEW_COLUMN: 0.0}}
    return IcebergDataset.create_dataloader(f"demo.{name}", json.loads(catalog.read_text()), **options)[0]


def real_rows(batch: Batch) -> torch.Tensor:
    """Mark the rows that are the table's own: all but those that a batch says are padding."""
    padding = batch.get("padding")
    return torch.ones(len(batch["label"]), dtype=torch.bool) if padding is None else ~padding


def held_out_loss(model: torch.nn.Module, loader: Iterable[Batch]) -> float:
    """Give the mean loss over the held out day, over all ranks."""
    sums = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for batch in loader:
            losses = binary_cross_entropy_with_logits(model(batch), batch["label"].float(), reduction="none")
            real = real_rows(batch).double()
            sums += torch.stack((losses.double() @ real, real.sum()))
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])


def train_epoch(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, loader: Any, epoch: int, live: torch.Tensor
) -> torch.Tensor:
    """Train on one epoch of this rank's part.

    Args:
        model: the wrapped model.
        optimizer: of its parameters.
        loader: of the click log.
        epoch: from 0.
        live: see `check_epoch`.

    Returns:
        int32 of shape ``(rows of the log,)``: how often this rank was given each row.
    """
    seen = torch.zeros(len(live), dtype=torch.int32)
    num_rows = int(live.sum())
    loader.set_epoch(epoch)
    world = dist.get_world_size()
    with tqdm(
        total=num_rows,
        desc=f"epoch {epoch + 1}",
        unit=" rows",
        unit_scale=True,
        mininterval=0.5 if sys.stderr.isatty() else 5,
        disable=dist.get_rank() != 0,
    ) as bar:
        for step, batch in enumerate(loader):
            real = real_rows(batch)
            ids = batch["click_id"][real]
            seen.index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))
            loss = binary_cross_entropy_with_logits(model(batch)[real], batch["label"][real].float())
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            if step % 10 == 0:
                bar.set_postfix(loss=f"{loss.item():.4f}", refresh=False)
            bar.update(min(len(ids) * world, num_rows - bar.n))
    return seen


def check_epoch(seen: torch.Tensor, live: torch.Tensor, epoch: int) -> list[str]:
    """Prove over all ranks that each live row of the log was delivered exactly once, and no other.

    Args:
        seen: how often this rank was given each row.
        live: bool of shape ``(rows of the log,)``: those that were not deleted.
        epoch: from 0.

    Returns:
        What went wrong; the proof itself is printed by rank 0.
    """
    mine = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    mine[dist.get_rank()] = seen.sum()
    dist.all_reduce(mine)
    dist.all_reduce(seen)
    missing, repeated, dead = (int(rows.sum()) for rows in (live & (seen == 0), live & (seen > 1), ~live & (seen > 0)))
    parts = ", ".join(f"rank {rank}: {rows:,}" for rank, rows in enumerate(mine.tolist()))
    say(f"epoch {epoch + 1}: rows per rank: {parts}")
    if missing or repeated or dead:
        counts = f"{missing:,} rows never came, {repeated:,} came more than once, and {dead:,} came that were deleted"
        return [f"epoch {epoch + 1}: {counts}"]
    say(
        f"epoch {epoch + 1}: proved: each of the {int(live.sum()):,} live rows came exactly once over all ranks, "
        f"and none of the {int((~live).sum()):,} deleted ones"
    )
    return []


def say(line: str) -> None:
    """Print a line once in the job."""
    if dist.get_rank() == 0:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def train(root: Path, batch_size: int, epochs: int) -> list[str]:
    """Train and prove; give what went wrong."""
    # Which rows are live is the word of those who wrote the log: the loader under proof has no say in it.
    live = torch.from_numpy(np.load(root / LIVE))
    loader = open_table(root, "clicks", batch_size, shuffle=True)
    holdout = open_table(root, "holdout", batch_size)
    torch.manual_seed(0)
    model = DistributedDataParallel(ClickModel())
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    rows = f"{int(live.sum()):,} live rows of {len(live):,}"
    say(f"{rows}, {dist.get_world_size()} ranks, {len(loader):,} steps an epoch on each")
    before = held_out_loss(model.module, holdout)
    failures: list[str] = []
    for epoch in range(epochs):
        failures += check_epoch(train_epoch(model, optimizer, loader, epoch, live), live, epoch)
    after = held_out_loss(model.module, holdout)
    say(f"loss on the held out day: before {before:.4f}, after {after:.4f}")
    if not after < before:
        failures.append(f"the loss did not fall: {before:.4f} before, {after:.4f} after")
    return failures


def main() -> None:
    """Read the command line, join the job, train, and exit with 1 where a proof failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("build/demo/lake"), help="folder of the two tables")
    parser.add_argument("--batch-size", type=int, default=4096, help="rows of a batch on each rank")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        failures = train(options.data, options.batch_size, options.epochs)
        for failure in failures:
            say(f"FAILED: {failure}")
        say("the demo failed" if failures else "the demo proved what it promised")
    finally:
        dist.destroy_process_group()
    # gloo's threads outlive the group of a DDP model and may want the interpreter while it ends, which aborts the
    # process (torch 2.13): leave without its clean-up.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if failures else 0)


if __name__ == "__main__":
    main()
