"""A stage between rows and batches: whatever it makes of a row is counted, dealt out and resumed as rows are."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.launchers.jobs import topologies
from tests.states import is_ended, steps_of, with_options
from tests.tables.plain import meant_warnings, write_table
from torch_table_loader import ResumeError, StructuredDataset, TableLoader
from torch_table_loader.engine.jobs.modes import open_stream
from torch_table_loader.engine.rank_info import RankInfo
from torch_table_loader.extend import PathSource
from torch_table_loader.options import LoaderOptions
from torch_table_loader.rank_dataset import RankDataset
from torch_table_loader.read.row_stage import Counted, Made, RowStage

GROUPS = [[5, 0, 7], [9], [3, 1]]
ROWS = sum(map(sum, GROUPS))


class Parts(RowStage):
    """Makes ``(x * step) % 4`` rows of a row, numbered in the column ``part``."""

    def __init__(self, step: int = 3) -> None:
        self.step = step

    @property
    def key(self) -> str:
        return f"parts-{self.step}"

    @property
    def reads(self) -> tuple[str, ...]:
        return ("x",)

    def schema(self, given: pa.Schema) -> pa.Schema:
        return given.append(pa.field("part", pa.int64(), nullable=False))

    def counts(self, batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
        x: np.ndarray[Any, np.dtype[np.int64]] = batch.column("x").to_numpy().astype(np.int64)
        return (x * self.step) % 4

    def counted(self, batch: pa.RecordBatch) -> Counted:
        return int(self.counts(batch).sum()), None

    def rows(self, batch: pa.RecordBatch) -> Made:
        counts = self.counts(batch)
        rows = np.repeat(np.arange(batch.num_rows), counts)
        part = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        taken = batch.take(pa.array(rows))
        made = taken.append_column(self.schema(taken.schema).field("part"), pa.array(part))
        return made.num_rows, lambda start, stop: made.slice(start, stop - start)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("table")
    write_table(root, GROUPS)
    return root


def make(root: Path, stage: RowStage | None = None, **options: Any) -> TableLoader:
    keywords: dict[str, Any] = {"check_plan": False, "columns": ["x"]} | options
    asked = LoaderOptions(**keywords)
    ranks = RankInfo(asked.rank or 0, asked.num_ranks if isinstance(asked.num_ranks, int) else 1, "here")
    source = PathSource.open(str(root), "parquet")
    with meant_warnings():
        job = open_stream(source, asked, ranks, None, stage=Parts() if stage is None else stage)
        dataset = StructuredDataset.__new__(StructuredDataset)
        RankDataset.__init__(dataset, job)
        return TableLoader(dataset)


def parts(batches: Any) -> list[tuple[int, int]]:
    """Return the row and the part of every row of some batches, padding left out."""
    return [
        (x, part)
        for batch in batches
        for x, part, pads in zip(
            batch["x"].tolist(),
            batch["part"].tolist(),
            batch["padding"].tolist() if "padding" in batch else [False] * len(batch["x"]),
            strict=True,
        )
        if not pads
    ]


def expected(root: Path, step: int = 3, least: int = 0) -> list[tuple[int, int]]:
    """Return every part of every row, in the order of the table."""
    with meant_warnings():
        loader, _ = StructuredDataset.create_dataloader(str(root), columns=["x"], shuffle=False, num_workers=0)
    rows = [x for batch in loader for x in batch["x"].tolist()]
    assert len(rows) == ROWS
    return [(x, part) for x in rows if x >= least for part in range(x * step % 4)]


@settings(max_examples=examples(6))
@given(chain=st.lists(topologies(), min_size=1, max_size=3), taken=st.integers(0, 9), least=st.sampled_from([0, 11]))
def test_every_part_comes_once_on_any_chain_of_jobs(
    table: Path, chain: list[dict[str, Any]], taken: int, least: int
) -> None:
    chain = [{**shape, "drop_last": False} | ({"even_ranks": "pad"} if shape["even_ranks"] else {}) for shape in chain]
    filters = pc.field("x") >= least if least else None
    state: dict[str, Any] | None = None
    seen: list[tuple[int, int]] = []
    for number, shape in enumerate(chain):
        steps = taken if number + 1 < len(chain) else None
        states = []
        for rank in range(shape["num_ranks"]):
            loader = make(table, rank=rank, shuffle="splits", filters=filters, **shape)
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            left = loader.remaining
            batches = list(islice(loader, steps))
            assert len(batches) == (left if steps is None else min(left, steps))
            seen += parts(batches)
            states.append(loader.state_dict())
        running = [each for each in states if not is_ended(each)]
        state = running[0] if running else max(states, key=steps_of)
    assert sorted(seen) == sorted(expected(table, least=least))


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_threads_and_processes_give_the_same_batches_in_the_order_of_the_table(table: Path, worker_type: str) -> None:
    loader = make(table, batch_size=4, num_workers=1, worker_type=worker_type)
    assert parts(loader) == expected(table)
    assert len(loader) == -(-len(expected(table)) // 4)
    assert [len(batch["x"]) for batch in loader][:-1] == [4] * (len(loader) - 1)


def test_ranks_are_even_in_rows_that_come_out(table: Path) -> None:
    loaders = [make(table, rank=rank, num_ranks=3, batch_size=2, even_ranks="balance") for rank in range(3)]
    assert len({len(loader) for loader in loaders}) == 1
    assert sorted(part for loader in loaders for part in parts(loader)) == sorted(expected(table))


def test_a_batch_goes_on_inside_the_rows_that_come_of_one_row(table: Path) -> None:
    whole = parts(make(table, batch_size=1))
    for taken in range(len(whole)):
        loader = make(table, batch_size=1)
        list(islice(loader, taken))
        fresh = make(table, batch_size=1)
        fresh.load_state_dict(loader.state_dict())
        assert parts(fresh) == whole[taken:]


def test_a_state_names_its_stage(table: Path) -> None:
    state = make(table).state_dict()
    with pytest.raises(ResumeError, match=r"pack= .* was 'parts-3' and is 'parts-2'"):
        make(table, Parts(2)).load_state_dict(state)
    with meant_warnings():
        plain, _ = StructuredDataset.create_dataloader(str(table), columns=["x"])
    own = plain.state_dict()
    with pytest.raises(ResumeError, match=r"pack= .* was 'parts-3' and is None"):
        plain.load_state_dict(with_options(own, stage="parts-3"))
