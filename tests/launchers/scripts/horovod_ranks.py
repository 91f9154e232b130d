"""What the ranks of a Horovod job see of one table; each writes it down as JSON. Run by horovodrun."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch

from torch_table_loader import LoaderOptions, StructuredDataset, TableLoader
from torch_table_loader.engine.rank_info import resolve_ranks


def open_loader(table: Path, names: list[str], **options: Any) -> TableLoader:
    """Make the loader of this rank, which it finds by itself."""
    chosen: dict[str, Any] = {"batch_size": 7, "num_workers": 2, "shuffle": "splits", "num_ranks": "auto"} | options
    loader, _ = StructuredDataset.create_dataloader(table, files=names, **chosen)
    return loader


def train(loader: Iterable[Any]) -> list[list[int]]:
    """Take batches in a loop that sums a gradient over the ranks each step; give their rows."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1e-9), [("weight", weight)])
    taken = []
    for batch in loader:
        optimizer.zero_grad()
        torch.autograd.backward((weight * batch["f"].float().sum()).sum())
        optimizer.step()
        taken.append(batch["x"].tolist())
    return taken


def main() -> None:
    """Play every scene; a rank that is done with its batches joins the others."""
    table, out = map(Path, sys.argv[1:])
    hvd.init()
    said = {name: value for name, value in os.environ.items() if name.endswith(("RANK", "SIZE"))}
    for name in said:
        del os.environ[name]  # what is found now, is found in Horovod itself
    seen: dict[str, Any] = {"environment": sorted(said), "found": resolve_ranks(LoaderOptions(num_ranks="auto"))}
    names: list[str] = hvd.broadcast_object(sorted(path.name for path in table.iterdir()))

    loader = open_loader(table, names)
    seen["uneven"] = {"rows": train(loader), "told": len(loader), "last_to_join": hvd.join()}

    loader = open_loader(table, names, even_ranks="balance")
    seen["even"] = {"rows": train(loader), "told": len(loader)}

    halfway = open_loader(table, names, even_ranks="balance")
    batches = iter(halfway)
    first = train(islice(batches, 3))
    states = hvd.allgather_object(halfway.state_dict())
    again = open_loader(table, names, even_ranks="balance")
    again.load_state_dict(states[0])
    seen["resumed"] = {"rows": first + train(again), "one_state": states[0] == states[1]}

    (out / f"{hvd.rank()}.json").write_text(json.dumps(seen))
    hvd.shutdown()


if __name__ == "__main__":
    main()
