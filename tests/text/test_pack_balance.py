"""`balance="attention"`: the same sequences in each global batch, dealt by what attention costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.plain import meant_warnings
from tests.text.packing_reference import full_pack
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


def steps_of(root: Path, pack: Pack, **world: Any) -> list[Any]:
    """Give what all ranks take in each step, rank by rank."""
    return list(zip(*(make(root, pack, rank=rank, **world) for rank in range(world["num_ranks"])), strict=False))


@pytest.mark.parametrize("strategy", ["concat", "windows", "pad", "best_fit"])
@daily(2)
def test_a_global_batch_has_the_same_sequences_and_ranks_equal_costs(table: Path, strategy: Any) -> None:
    world: dict[str, Any] = {"num_ranks": 4, "batch_size": 4, "num_workers": 2, "drop_last": True}
    plain = steps_of(table, full_pack(seq_len=SEQ_LEN, strategy=strategy), **world)
    even = steps_of(table, full_pack(seq_len=SEQ_LEN, strategy=strategy, balance="attention"), **world)
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


def test_a_mixture_refuses_it(table: Path) -> None:
    pack = full_pack(seq_len=SEQ_LEN, balance="attention")
    with meant_warnings():
        source = StructuredDataset(str(table), pack=pack, shuffle="rows", check_plan=False)
    with meant_warnings(), pytest.raises(ConfigError, match="deals sequences in turn"):
        MixedDataset({"a": source}, {"a": 1}, check_plan=False)
