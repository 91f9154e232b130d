"""A job goes on with a table that grew: what was left of the epoch and what came since, each row once."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.generators import HalvesV2
from tests.torch.jobs import State, is_ended, of_a_running_rank, topologies
from tests.torch.tables import SCHEMA, Groups, as_values, key, meant_warnings, rows
from torch_table_loader import ResumeError, StructuredDataset, TableLoader
from torch_table_loader.planning.cutting import RoundRobinStrategy

FILTER = pc.field("k") < 4

CUTTERS: list[dict[str, Any]] = [
    {"shuffle": True},
    {"split_rows": 5, "shuffle": True},
    {"split_rows": 5},
    {"split_strategy": "row_balanced", "split_rows": 4, "shuffle": True},
]
GENERATORS: list[dict[str, Any]] = [
    {"split_strategy": HalvesV2()},
    {"split_strategy": RoundRobinStrategy(shuffle=True)},
]

growths = st.lists(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), max_size=3), min_size=2, max_size=4)
"""For each version of a table the row groups of the files that it adds."""


class Folder:
    """A folder that grows; the files of each version have names before, between and after those of older ones."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rows = self.versions = self.files = 0

    def grow(self, groups: Groups) -> int:
        """Write a file for each list of row groups, and say how many rows there are now."""
        self.versions += 1
        for number, sizes in enumerate(groups):
            path = self.root / f"{number * 7 % 3}-{self.versions % 3}-{self.versions}-{number}.parquet"
            with pq.ParquetWriter(path, SCHEMA) as writer:
                for size in sizes:
                    writer.write_table(rows(self.rows, self.rows + size))
                    self.rows += size
            import os

            self.files += 1
            os.utime(path, ns=(self.files * 10**9, self.files * 10**9))
        return self.rows


def make(root: Path, **options: Any) -> TableLoader:
    """Make a loader that goes on with what is new."""
    with meant_warnings():
        chosen = {"check_plan": False, "schema": SCHEMA, "on_growth": "continue"} | options
        return StructuredDataset.create_dataloader(str(root), "parquet", **chosen)[0]


def own_rows(batches: Any) -> list[int]:
    """Give `x` of every row, padding left out."""
    values = [as_values(batch) for batch in batches]
    return [
        row
        for each in values
        for row, pads in zip(each.rows, each.padding or [False] * len(each.rows), strict=True)
        if not pads
    ]


def run(
    root: Path, state: State | None, steps: int | None, epoch: int, **options: Any
) -> tuple[list[list[int]], list[State], list[int]]:
    """Let every rank go on from a state for some steps (None: to the end); gives rows, states and steps by rank."""
    seen, states, lengths = [], [], []
    for rank in range(options["num_ranks"]):
        loader = make(root, rank=rank, **options)
        loader.set_epoch(epoch)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        assert loader.dataset.epoch == epoch
        lengths.append(len(loader))
        batches = list(islice(loader, steps))
        assert steps is not None or len(batches) == lengths[-1]
        seen.append(own_rows(batches))
        states.append(loader.state_dict())
    return seen, states, lengths


def loses_rows(topology: dict[str, Any]) -> bool:
    return bool(topology["drop_last"]) or topology["even_ranks"] == "drop"


@st.composite
def lives(draw: st.DrawFn) -> tuple[dict[str, Any], list[tuple[Groups, dict[str, Any], int]]]:
    """Draw what the parts of an epoch share, and of each what the table gets before it, its topology and its steps."""
    generated = draw(st.booleans())
    shared = dict(draw(st.sampled_from(GENERATORS if generated else CUTTERS)))
    if draw(st.booleans()):
        shared["filters"] = FILTER
    kept = st.sampled_from([False, False, True])
    parts: list[tuple[Groups, dict[str, Any], int]] = []
    for groups in draw(growths):
        same = parts and draw(kept)
        topology = parts[-1][1] if same else draw(topologies(generated=generated))
        parts.append((groups, topology, draw(st.integers(0, 6))))
    return shared, parts


@settings(max_examples=40, deadline=None)
@given(life=lives(), epoch=st.integers(0, 2))
def test_every_row_of_a_folder_that_grows_comes_once(
    life: tuple[dict[str, Any], list[tuple[Groups, dict[str, Any], int]]], epoch: int
) -> None:
    shared, parts = life
    state: State | None = None
    seen: list[int] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Folder(Path(name))
        folder.grow([[3]])
        for number, (groups, topology, steps) in enumerate(parts):
            total = folder.grow(groups)
            last = number == len(parts) - 1
            delivered, states, lengths = run(folder.root, state, None if last else steps, epoch, **shared, **topology)
            seen += sum(delivered, [])
            if topology["even_ranks"] is not None:
                assert len(set(lengths)) == 1
            state = of_a_running_rank(states)
            if is_ended(state):
                return  # all ranks have ended unequally: of those states only the longest loads
    expected = [row for row in range(total) if "filters" not in shared or key(row) < 4]
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(expected)
    if not loses_rows(parts[-1][1]):
        assert sorted(seen) == expected
