"""Trains a small model on the click log over all ranks, then proves what the loader delivered.

Run it with ``make demo``, or with ``torchrun --standalone --nproc-per-node 2 -m demo.train``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from demo.make_clicks import CATEGORICAL, DENSE
from demo.model import ClickModel
from torch_table_loader import StructuredDataset

COLUMNS = ["label", *DENSE, *CATEGORICAL]
Batch = Mapping[str, torch.Tensor]


def open_table(folder: Path, batch_size: int, **options: Any) -> Any:
    """Make the loader of this rank's part of a table.

    Args:
        folder: the table, hive-partitioned by day.
        batch_size: rows of a batch on this rank.
        **options: what else the facade takes.
    """
    loader, _ = StructuredDataset.create_dataloader(
        str(folder),
        "parquet",
        batch_size=batch_size,
        columns=COLUMNS,
        partitioning="hive",
        num_ranks="auto",
        even_ranks="balance",
        num_workers=2,
        **options,
    )
    return loader


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
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, loader: Any, epoch: int, num_rows: int
) -> torch.Tensor:
    """Train on one epoch of this rank's part.

    Args:
        model: the wrapped model.
        optimizer: of its parameters.
        loader: of the click log.
        epoch: from 0.
        num_rows: of the whole log.

    Returns:
        int32 of shape ``(num_rows,)``: how often this rank was given each row.
    """
    seen = torch.zeros(num_rows, dtype=torch.int32)
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
            ids = batch["row_id"][real]
            seen.index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))
            loss = binary_cross_entropy_with_logits(model(batch)[real], batch["label"][real].float())
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            if step % 10 == 0:
                bar.set_postfix(loss=f"{loss.item():.4f}", refresh=False)
            bar.update(min(len(ids) * world, num_rows - bar.n))
    return seen


def check_epoch(seen: torch.Tensor, epoch: int) -> list[str]:
    """Prove over all ranks that each row of the log was delivered exactly once.

    Args:
        seen: how often this rank was given each row.
        epoch: from 0.

    Returns:
        What went wrong; the proof itself is printed by rank 0.
    """
    mine = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    mine[dist.get_rank()] = seen.sum()
    dist.all_reduce(mine)
    dist.all_reduce(seen)
    missing, repeated = int((seen == 0).sum()), int((seen > 1).sum())
    parts = ", ".join(f"rank {rank}: {rows:,}" for rank, rows in enumerate(mine.tolist()))
    say(f"epoch {epoch + 1}: rows per rank: {parts}")
    if missing or repeated:
        return [f"epoch {epoch + 1}: {missing:,} rows never came and {repeated:,} came more than once"]
    say(f"epoch {epoch + 1}: proved: every one of the {len(seen):,} row ids came exactly once over all ranks")
    return []


def say(line: str) -> None:
    """Print a line once in the job."""
    if dist.get_rank() == 0:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def train(root: Path, batch_size: int, epochs: int) -> list[str]:
    """Train and prove; give what went wrong."""
    # The count comes from the footers by pyarrow, so that the loader under proof has no say in it.
    num_rows = sum(pq.read_metadata(path).num_rows for path in (root / "clicks").rglob("*.parquet"))
    loader = open_table(root / "clicks", batch_size, shuffle=True, row_id=True)
    holdout = open_table(root / "holdout", batch_size)
    torch.manual_seed(0)
    model = DistributedDataParallel(ClickModel())
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    say(f"{num_rows:,} rows, {dist.get_world_size()} ranks, {len(loader):,} steps an epoch on each")
    before = held_out_loss(model.module, holdout)
    failures: list[str] = []
    for epoch in range(epochs):
        failures += check_epoch(train_epoch(model, optimizer, loader, epoch, num_rows), epoch)
    after = held_out_loss(model.module, holdout)
    say(f"loss on the held out day: before {before:.4f}, after {after:.4f}")
    if not after < before:
        failures.append(f"the loss did not fall: {before:.4f} before, {after:.4f} after")
    return failures


def main() -> None:
    """Read the command line, join the job, train, and exit with 1 where a proof failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("build/demo"), help="folder of the two tables")
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
