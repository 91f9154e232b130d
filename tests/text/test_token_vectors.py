"""Vectors a token are cut like the tokens, however documents become sequences, and come as `[batch, seq_len, k]`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.plain import meant_warnings
from torch_table_loader import ConfigError, MixedDataset, Pack, StructuredDataset, TableError, TableLoader

EOS = 9_999
PAIR = pa.list_(pa.list_(pa.float32(), 2))


def write(root: Path, first: int = 0) -> Path:
    """Write documents whose token ids all differ; the vector of token t is [t, -t]."""
    root.mkdir()
    rng = np.random.default_rng(first)
    for file in range(2):
        documents = []
        for length in rng.integers(0, 12, size=40).tolist():
            documents.append(list(range(first, first + length)))
            first += length
        pairs = [[[token, -token] for token in tokens] for tokens in documents]
        columns = {"input_ids": pa.array(documents, pa.list_(pa.int32())), "pair": pa.array(pairs, PAIR)}
        pq.write_table(pa.table(columns), root / f"{file}.parquet", row_group_size=17)
    return root


def loader_of(root: Path, pack: Pack, **options: Any) -> TableLoader:
    with meant_warnings():
        return StructuredDataset.create_dataloader(str(root), pack=pack, batch_size=2, check_plan=False, **options)[0]


def check(loader: TableLoader, seq_len: int, expected: int) -> None:
    seen: list[int] = []
    for batch in loader:
        ids, pairs = np.asarray(batch["input_ids"]), np.asarray(batch["pair"])
        assert pairs.shape == (*ids.shape, 2)
        assert ids.shape[1] == seq_len
        assert pairs.dtype == np.float32
        stored = (np.asarray(batch["doc_ids"]) >= 0) & (ids != EOS)
        assert (pairs[stored] == np.stack([ids[stored], -ids[stored]], axis=1)).all()
        assert (pairs[~stored] == 0).all()
        seen += ids[stored].tolist()
    assert sorted(seen) == list(range(expected))


OPTIONS = (
    {"shuffle": "splits"},
    {"shuffle": "rows", "row_store": "memory"},
    {"shuffle": "splits", "worker_type": "process", "num_workers": 2},
    {"shuffle": "splits", "output_format": "numpy"},
)
PACKINGS = [(strategy, options) for strategy in ("concat", "pad", "best_fit") for options in OPTIONS]


@pytest.mark.parametrize(("strategy", "options"), [*PACKINGS, ("windows", OPTIONS[1])], ids=str)
@daily(5)
def test_vectors_are_those_of_their_tokens(tmp_path: Path, strategy: Any, options: dict[str, Any]) -> None:
    root = write(tmp_path / "t")
    total = sum(len(tokens) for tokens in pq.read_table(root)["input_ids"].to_pylist())
    pack = Pack(seq_len=7, strategy=strategy, aligned=["pair"], eos_id=EOS, output=["input_ids", "doc_ids"])
    check(loader_of(root, pack, **options), 7, total)


@pytest.mark.parametrize("shuffle", [True, "rows"])
def test_vectors_of_a_mixture(tmp_path: Path, shuffle: Any) -> None:
    first = write(tmp_path / "a")
    total = sum(len(tokens) for tokens in pq.read_table(first)["input_ids"].to_pylist())
    second = write(tmp_path / "b", total)
    total += sum(len(tokens) for tokens in pq.read_table(second)["input_ids"].to_pylist())
    pack = Pack(seq_len=5, aligned=["pair"], output=["input_ids", "doc_ids"])
    with meant_warnings():
        sources = {root.name: StructuredDataset(str(root), pack=pack, shuffle=shuffle) for root in (first, second)}
        loader, _ = MixedDataset.create_dataloader(sources, "rows", batch_size=3, check_plan=False)
    check(loader, 5, total)


@pytest.mark.parametrize("pairs", [[[[1, None], [2, 3]], []], [[[1, 2], None], []]], ids=["number", "vector"])
@pytest.mark.parametrize("shuffle", [True, "rows"])
def test_a_null_in_a_vector_is_an_error(tmp_path: Path, pairs: Any, shuffle: Any) -> None:
    columns = {"input_ids": pa.array([[1, 2], []], pa.list_(pa.int32())), "pair": pa.array(pairs, PAIR)}
    pq.write_table(pa.table(columns), tmp_path / "0.parquet")
    with pytest.raises(TableError, match="column 'pair' has a null inside the list of row 0"):
        list(loader_of(tmp_path, Pack(seq_len=4, aligned=["pair"]), shuffle=shuffle))


@pytest.mark.parametrize("kind", [pa.list_(pa.bool_(), 2), pa.list_(pa.float32()), pa.string()], ids=str)
def test_other_values_are_refused(tmp_path: Path, kind: pa.DataType) -> None:
    columns = {"input_ids": pa.array([[1]], pa.list_(pa.int32())), "pair": pa.array([[]], pa.list_(kind))}
    pq.write_table(pa.table(columns), tmp_path / "0.parquet")
    with pytest.raises(ConfigError, match=r"'pair' (must be a list of numbers, or of fixed-size lists|has vectors of)"):
        loader_of(tmp_path, Pack(seq_len=4, aligned=["pair"]))
    with pytest.raises(ConfigError, match="'pair' must be a list of numbers, one for each token"):
        loader_of(tmp_path, Pack(seq_len=4, loss_mask="pair"))
