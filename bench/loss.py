"""What a small network learns in one epoch of a table whose signal turns with time, by order; prints JSON.

Batches of neighbours in time teach it the last signal alone, and it forgets the ones before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.tables import BenchTable, build, turning

SEEDS = (0, 1, 2)
BATCH = 256
_FEATURES = ["t", "x0", "x1"]
_TEST_ROWS = 50_000
_RATE = 0.01


ORDERS: Mapping[str, Mapping[str, Any]] = {
    'ours, shuffle="rows"': {"shuffle": "rows", "row_store": "memory"},
    "ours, shuffle=True": {"shuffle": True},
    'ours, shuffle="splits"': {"shuffle": "splits"},
}
"""Options of the loader, by what `bench.mixing.READERS` calls the order; by rows comes first."""


def loss(table: BenchTable, seed: int, **options: Any) -> float:
    """Train a network for one epoch, and return its loss on other rows, from all of the time; log 2 is a coin's.

    Args:
        table: is "turning".
        seed: of the network and of the order.
        options: of the loader.
    """
    from torch_table_loader import StructuredDataset

    torch.manual_seed(seed)
    layers = (torch.nn.Linear(len(_FEATURES), 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU())
    network = torch.nn.Sequential(*layers, torch.nn.Linear(64, 1))
    loader, _ = StructuredDataset.create_dataloader(
        str(table.folder),
        "parquet",
        batch_size=BATCH,
        shuffle_seed=seed,
        columns={"x": _FEATURES, "y": ["y"]},
        drop_last=True,
        **options,
    )
    criterion = torch.nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(network.parameters(), lr=_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(loader))
    for batch in loader:
        optimizer.zero_grad()
        criterion(network(batch["x"]), batch["y"]).backward()
        optimizer.step()
        schedule.step()
    rng = np.random.default_rng(seed)
    rows = turning(rng, rng.random(_TEST_ROWS))
    features = torch.from_numpy(np.stack([rows[name] for name in _FEATURES], axis=1))
    with torch.no_grad():
        return float(criterion(network(features), torch.from_numpy(rows["y"])[:, None]))


def main() -> None:
    """Read the command line, train, print the ratio of each order's mean loss to that by rows, with the losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    table = build("turning", options.root)
    losses = {who: [loss(table, seed, **how) for seed in SEEDS] for who, how in ORDERS.items()}
    means = {who: statistics.fmean(each) for who, each in losses.items()}
    by_rows = next(iter(means.values()))
    told = {who: (mean / by_rows, f"{mean:.3f}, and {by_rows:.3f} by rows") for who, mean in means.items()}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    os._exit(0)  # as elsewhere in the bench: a reader's threads end with the process


if __name__ == "__main__":
    main()
