"""Count the functions and files of the package that a batch passes, and a state on its way out and in.

    python -m tools.hops [--names]

Lanes are read in the caller's thread, so that one profile sees all. Each step is taken once before it is counted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import torch_table_loader
from torch_table_loader import MixedDataset, StructuredDataset, TableLoader

PACKAGE = Path(torch_table_loader.__file__).parent
GROUP_ROWS, BATCH_ROWS = 500, 100


def passed(deed: Callable[[], object]) -> list[tuple[str, str]]:
    """Return file and name of each function of the package that something calls, in the order of their first calls."""
    found: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, _argument: object) -> None:
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_qualname
        if event == "call" and path.is_relative_to(PACKAGE) and not name.endswith(">"):
            found[path.relative_to(PACKAGE).as_posix(), name] = None

    sys.setprofile(note)
    try:
        deed()
    finally:
        sys.setprofile(None)
    return list(found)


def loaders(table: str) -> dict[str, Callable[[], TableLoader]]:
    """Return what makes a loader of each mode."""
    options: dict[str, Any] = {"check_plan": False}
    rows = options | {"shuffle": "rows", "row_store": "memory"}
    served: dict[str, Any] = {"batch_size": BATCH_ROWS, "num_workers": 0}

    def mixture() -> TableLoader:
        sources = {name: StructuredDataset(table, **rows) for name in ("a", "b")}
        return MixedDataset.create_dataloader(sources, {"a": 1, "b": 1}, check_plan=False, **served)[0]

    return {
        "stream": lambda: StructuredDataset.create_dataloader(table, shuffle="splits", **options, **served)[0],
        "rows": lambda: StructuredDataset.create_dataloader(table, **rows, **served)[0],
        "mixture": mixture,
    }


def main() -> None:
    """Print a line for each mode and step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true", help="name the functions, too")
    names = parser.parse_args().names
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2):
            columns = {"x": np.arange(2 * GROUP_ROWS), "f": np.zeros(2 * GROUP_ROWS)}
            pq.write_table(pa.table(columns), Path(folder) / f"{number}.parquet", row_group_size=GROUP_ROWS)
        for mode, make in loaders(folder).items():
            loader, fresh = make(), make()
            list(loader)
            loader.set_epoch(1)
            batches = iter(loader)
            for _ in range(GROUP_ROWS // BATCH_ROWS if mode == "stream" else 0):
                next(batches)  # up to a batch that has to be read
            state = make().state_dict()
            steps: dict[str, Callable[[], object]] = {
                "batch": partial(next, batches),
                "state out": loader.state_dict,
                "state in": partial(fresh.load_state_dict, state),
            }
            for step, deed in steps.items():
                found = passed(deed)
                print(f"{mode}, {step}: {len(found)} functions in {len({file for file, _ in found})} files")
                for file, name in found if names else []:
                    print(f"    {file}  {name}")


if __name__ == "__main__":
    main()
