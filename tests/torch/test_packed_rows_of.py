"""`rows_of` of packed streams names the documents under each sequence, in any world and past any change of it."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.tables.plain import meant_warnings
from tests.torch.packing_reference import write_documents
from torch_table_loader import Pack, StructuredDataset, TableLoader
from torch_table_loader.extend import RowSpan
from torch_table_loader.pack import PackStrategy

GROUPS: list[list[int | None]] = [[5, 0, 17, 1], [0, 2, 1], [None, 40, 3], [9, 9, 2, 2, 30], [12, 33, 4, 6]]
"""The second has as many tokens as rows, though not one token a row."""

PACKS = st.builds(
    Pack,
    seq_len=st.integers(1, 45),
    strategy=st.sampled_from(["concat", "pad", "best_fit"]),
    eos_id=st.sampled_from([None, 2]),
    min_length=st.sampled_from([1, 3]),
    long_docs=st.just("split"),
    block_docs=st.sampled_from([1, 3, 4096]),
)

WORLDS = st.fixed_dictionaries(
    {
        "num_ranks": st.integers(1, 3),
        "num_workers": st.integers(0, 2),
        "batch_size": st.integers(1, 4),
        "even_ranks": st.sampled_from([None, "balance", "pad"]),
    }
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("documents")
    write_documents(root, GROUPS)
    return root


def make(root: Path, pack: Pack, **options: Any) -> TableLoader:
    with meant_warnings():
        asked: dict[str, Any] = {"check_plan": False, "row_id": True, "columns": ["id"], "pack": pack}
        return StructuredDataset.create_dataloader(str(root), "parquet", **(asked | options))[0]


def check(root: Path, loader: TableLoader, batches: list[Any]) -> None:
    """Compare what `rows_of` says of the first steps with what came."""
    files = sorted(root.glob("*.parquet"))
    sizes = [pq.read_metadata(file).num_rows for file in files]
    starts = dict(zip((file.name for file in files), np.cumsum([0, *sizes]).tolist(), strict=False))
    for step, batch in enumerate(batches):
        spans: Any = loader.rows_of(step)
        assert all(isinstance(span, RowSpan) and span.row_stop == span.row_start + 1 for span in spans)
        ids = [starts[span.file] + span.row_start for span in spans]
        assert ids == np.asarray(batch["documents"]["row_id"]).tolist()


@settings(max_examples=examples(10), deadline=None)
@given(pack=PACKS, world=WORLDS, shuffle=st.booleans(), steps=st.integers(0, 4))
def test_documents_come_as_rows_of_says(
    table: Path, pack: Pack, world: dict[str, Any], shuffle: bool, steps: int
) -> None:
    for rank in range(world["num_ranks"]):
        with make(table, pack, shuffle=shuffle, rank=rank, **world) as loader:
            check(table, loader, list(loader))
    with make(table, pack, shuffle=shuffle, rank=0, **world) as loader:
        with closing(iter(loader)) as batches:
            list(islice(batches, steps))
        state = loader.state_dict()
    other = world | {"num_ranks": 2, "rank": 1, "num_workers": 3, "batch_size": world["batch_size"] + 1}
    with make(table, pack, shuffle=shuffle, **other) as loader:
        loader.load_state_dict(state)
        rest = list(loader)
        loader.load_state_dict(state)
        check(table, loader, rest)


@pytest.mark.parametrize("strategy", ["concat", "pad", "best_fit"])
def test_as_many_tokens_or_sequences_as_rows_are_not_taken_for_rows(tmp_path: Path, strategy: PackStrategy) -> None:
    write_documents(tmp_path, [[0, 2, 1]], files=1)
    for seq_len in (1, 2):
        with make(tmp_path, Pack(seq_len=seq_len, strategy=strategy), batch_size=1) as loader:
            check(tmp_path, loader, list(loader))


def test_a_schedule_of_lengths_counts_steps_from_each_length(table: Path) -> None:
    with make(table, Pack(seq_len=3, seq_len_from={2: 7}), batch_size=2) as loader:
        check(table, loader, list(islice(loader, 2)))
