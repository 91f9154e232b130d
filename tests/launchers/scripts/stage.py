"""Scenes that ranks play together; rank 0 writes down what each rank saw, as JSON."""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from torch_table_loader import StructuredDataset

SCENES: dict[str, Callable[[Path], Any]] = {}


def scene(play: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Have a function played on every rank, under its name."""
    SCENES[play.__name__] = play
    return play


def epoch(path: Path, **options: Any) -> dict[str, Any]:
    """Deliver an epoch of this rank."""
    chosen: dict[str, Any] = {"batch_size": 7, "num_workers": 2, "num_ranks": "auto"} | options
    loader, _ = StructuredDataset.create_dataloader(str(path), "parquet", **chosen)
    told = len(loader)
    rows: list[int] = []
    padding: list[bool] = []
    steps = 0
    for batch in loader:
        steps += 1
        rows += batch["x"].tolist()
        padding += batch["padding"].tolist() if "padding" in batch else [False] * len(batch["x"])
    return {"rows": rows, "padding": padding, "steps": steps, "told": told}


def play_all() -> None:
    """Play every scene; an error or warning is part of what a rank saw."""
    root, out = map(Path, sys.argv[1:])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    seen = {}
    for name, play in SCENES.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                value, error = play(root), None
            except Exception as raised:  # noqa: BLE001 - it is written down
                value, error = None, f"{type(raised).__name__}: {raised}"
        told = [f"{Path(entry.filename).name}: {entry.message}" for entry in caught]
        mine = {"value": value, "error": error, "warnings": told}
        seen[name] = [None] * dist.get_world_size()
        dist.all_gather_object(seen[name], mine)
    if dist.get_rank() == 0:
        out.write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()
    gc.collect()  # gloo's threads end here: one that lets a tensor go while the interpreter ends aborts the process


def play_all_and_leave() -> None:
    """Play every scene of a framework, whose DDP models live on, and leave without the interpreter's clean-up.

    gloo's threads outlive the group of such a model and may want the interpreter while it ends, which aborts the
    process (torch 2.13).
    """
    play_all()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
