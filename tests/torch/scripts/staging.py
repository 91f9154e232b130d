"""Scenes that every rank of a job plays, and what each rank saw of them."""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

Scene = Callable[[Path], Any]


def play_all(scenes: Mapping[str, Scene], root: Path, out: Path) -> None:
    """Play scenes on every rank of the process group; an error or warning is part of what a rank saw.

    Args:
        scenes: by name; each is given `root` and returns JSON-able data.
        root: a folder that the ranks share.
        out: where rank 0 writes down what each rank saw.
    """
    seen: dict[str, list[Any]] = {}
    for name, play in scenes.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                value, error = play(root), None
            except Exception as raised:  # noqa: BLE001 - it is written down
                value, error = None, f"{type(raised).__name__}: {raised}"
        told = [f"{Path(entry.filename).name}: {entry.message}" for entry in caught]
        seen[name] = [None] * dist.get_world_size()
        dist.all_gather_object(seen[name], {"value": value, "error": error, "warnings": told})
    if dist.get_rank() == 0:
        out.write_text(json.dumps(seen))


def leave() -> None:
    """End this rank of a job.

    gloo's threads outlive the group of a DDP model and may want the interpreter while it ends, which aborts the process
    (torch 2.13): leave without its clean-up.
    """
    dist.barrier()
    dist.destroy_process_group()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
