"""`balance="attention"`: the same sequences in each global batch, dealt by what attention costs, in any world."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.tables.plain import meant_warnings
from tests.torch.packing_reference import full_pack
from torch_table_loader import ConfigError, MixedDataset, Pack, StructuredDataset, TableLoader

LENGTHS = np.random.default_rng(0).geometric(1 / 14, 160)
SEQ_LEN = 32

Sequence = tuple[tuple[int, int], ...]
"""A sequence as the document and the id of each token."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("documents")
    lists = [[1000 * row + at for at in range(length)] for row, length in enumerate(LENGTHS)]
    columns = {"input_ids": pa.array(lists, pa.list_(pa.int32())), "id": list(range(len(lists)))}
    pq.write_table(pa.table(columns), root / "0.parquet", row_group_size=20)
    return root


def make(root: Path, pack: Pack, **options: Any) -> TableLoader:
    with meant_warnings():
        asked: dict[str, Any] = {"check_plan": False, "columns": ["id"], "shuffle": "rows"} | options
        return StructuredDataset.create_dataloader(str(root), pack=pack, **asked)[0]


def sequences_of(batch: Any) -> list[Sequence]:
    owners = batch["documents"]["id"].tolist()
    rows = zip(batch["doc_ids"].tolist(), batch["input_ids"].tolist(), strict=True)
    return [tuple((owners[doc], token) for doc, token in zip(docs, ids, strict=True) if doc >= 0) for docs, ids in rows]


def cost(batch: Any) -> int:
    parts = batch["doc_ids"][batch["doc_ids"] >= 0]
    return int((np.bincount(parts) ** 2).sum())


def steps_of(root: Path, pack: Pack, state: Any = None, steps: int | None = None, **world: Any) -> tuple[Any, Any]:
    """Give what all ranks take in each step, rank by rank, and the state."""
    taken, states = [], []
    for rank in range(world["num_ranks"]):
        loader = make(root, pack, rank=rank, **world)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        taken.append(list(islice(loader, steps)))
        states.append(loader.state_dict())
    return list(zip(*taken, strict=False)), states[0]


@pytest.mark.parametrize("strategy", ["concat", "windows", "pad", "best_fit"])
def test_a_global_batch_has_the_same_sequences_and_ranks_equal_costs(table: Path, strategy: Any) -> None:
    world: dict[str, Any] = {"num_ranks": 4, "batch_size": 4, "num_workers": 2, "drop_last": True}
    plain, _ = steps_of(table, full_pack(seq_len=SEQ_LEN, strategy=strategy), **world)
    even, _ = steps_of(table, full_pack(seq_len=SEQ_LEN, strategy=strategy, balance="attention"), **world)
    assert len(plain) == len(even) > 3
    spreads = []
    for one, other in zip(plain, even, strict=True):
        assert sorted(s for batch in one for s in sequences_of(batch)) == sorted(
            s for batch in other for s in sequences_of(batch)
        )
        before, after = (np.array([cost(batch) for batch in step]) for step in (one, other))
        assert after.max() <= before.max()
        spreads.append((before.max() / before.mean(), after.max() / after.mean()))
    usual = np.median(spreads, axis=0)
    assert usual[1] < 1.08 < usual[0]


WORLDS = st.fixed_dictionaries(
    {"num_ranks": st.integers(1, 4), "num_workers": st.integers(0, 2), "batch_size": st.integers(1, 4)}
)


@settings(max_examples=examples(8), deadline=None)
@given(strategy=st.sampled_from(["concat", "best_fit"]), one=WORLDS, two=WORLDS, steps=st.integers(0, 4))
def test_another_world_delivers_the_rest(table: Path, strategy: Any, one: Any, two: Any, steps: int) -> None:
    pack = full_pack(seq_len=SEQ_LEN, strategy=strategy, balance="attention")
    first, state = steps_of(table, pack, steps=steps, even_ranks="pad", **one)
    rest, _ = steps_of(table, pack, state, even_ranks="pad", **two)
    found = [s for step in [*first, *rest] for batch in step for s in sequences_of(batch) if s]
    whole = [s for batch in make(table, full_pack(seq_len=SEQ_LEN, strategy=strategy)) for s in sequences_of(batch)]
    assert sorted(found) == sorted(whole)


def test_it_says_which_rows_a_batch_has(table: Path) -> None:
    loader = make(table, full_pack(seq_len=SEQ_LEN, balance="attention"), num_ranks=3, rank=1, batch_size=3)
    for step, batch in enumerate(islice(loader, 4)):
        spans: Any = loader.rows_of(step)
        assert [span.row_start for span in spans] == batch["documents"]["id"].tolist()


def test_a_mixture_refuses_it(table: Path) -> None:
    pack = full_pack(seq_len=SEQ_LEN, balance="attention")
    with meant_warnings():
        source = StructuredDataset(str(table), pack=pack, shuffle="rows", check_plan=False)
    with meant_warnings(), pytest.raises(ConfigError, match="deals sequences in turn"):
        MixedDataset({"a": source}, {"a": 1}, check_plan=False)
