"""`Pack(documents=...)`: a function of the caller's changes documents before they are cut into sequences."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.plain import meant_warnings
from torch_table_loader import (
    ConfigError,
    ConfigTypeError,
    MixedDataset,
    Pack,
    ResumeError,
    StructuredDataset,
)

LENGTHS = [5, 0, 3, 8, 1, 12, 4, 4, 7, 2, 6, 9, 3, 1, 5, 10, 2, 4, 6, 11]
MODES = [(shuffle, strategy) for shuffle in (False, True, "rows") for strategy in ("concat", "pad", "best_fit")]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("documents")
    documents = [[100 * row + at for at in range(length)] for row, length in enumerate(LENGTHS)]
    for file in range(2):
        mine = documents[file * 10 : file * 10 + 10]
        columns = {
            "input_ids": pa.array(mine, pa.list_(pa.uint16())),
            "row": pa.array(range(file * 10, file * 10 + 10)),
        }
        columns["mask"] = pa.array([[token % 2 for token in tokens] for tokens in mine], pa.list_(pa.int8()))
        pq.write_table(pa.table(columns), root / f"{file}.parquet", row_group_size=4)
    return str(root)


def batch_of(documents: list[list[int]], **others: list[list[int]]) -> pa.RecordBatch:
    columns = {"input_ids": pa.array(documents, pa.list_(pa.int64()))}
    return pa.RecordBatch.from_pydict(columns | {name: pa.array(lists) for name, lists in others.items()})


def seeded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Put the document's seed in the place of its tokens."""
    given = zip(batch["input_ids"].to_pylist(), batch["seed"].to_pylist(), strict=True)
    return batch_of([[seed % 2**31] * len(tokens or ()) for tokens, seed in given])


def rotated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Turn each document by a number of tokens that its seed says."""
    given = zip(batch["input_ids"].to_pylist(), batch["seed"].to_pylist(), strict=True)
    return batch_of([np.roll(tokens, seed % 7).tolist() for tokens, seed in given])


def halved(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Leave out the second half of each document, and every third document."""
    documents = batch["input_ids"].to_pylist()
    return batch_of([tokens[: len(tokens) // 2] if tokens and tokens[0] % 300 else [] for tokens in documents])


def loader_of(table: str, pack: Pack, **options: Any) -> Any:
    asked: dict[str, Any] = {"batch_size": 2, "check_plan": False, "num_workers": 2, "columns": ["row"], **options}
    with meant_warnings():
        return StructuredDataset.create_dataloader(table, pack=pack, **asked)[0]


def tokens_by_row(*loaders: Any) -> dict[int, Counter[int]]:
    """Return the tokens that came of each row of the table."""
    found: dict[int, Counter[int]] = {}
    for loader in loaders:
        steps = 0
        for batch in loader:
            steps += 1
            rows = np.asarray(batch["documents"]["row"])
            owner, ids = np.asarray(batch["doc_ids"]).reshape(-1), np.asarray(batch["input_ids"]).reshape(-1)
            for row, token in zip(rows[owner[owner >= 0]].tolist(), ids[owner >= 0].tolist(), strict=True):
                found.setdefault(row, Counter())[token] += 1
        assert steps == len(loader)
    return found


@pytest.mark.parametrize(("shuffle", "strategy"), MODES)
@daily(3)
def test_what_the_function_returns_comes_once(table: str, shuffle: Any, strategy: Any) -> None:
    expected = {}
    for row, length in enumerate(LENGTHS):
        if kept := [] if row % 3 == 0 else [100 * row + at for at in range(length // 2)]:
            expected[row] = Counter(kept)
    pack = Pack(seq_len=5, strategy=strategy, documents=halved)
    for ranks in (1, 3):
        loaders = [loader_of(table, pack, shuffle=shuffle, num_ranks=ranks, rank=rank) for rank in range(ranks)]
        assert tokens_by_row(*loaders) == expected


@pytest.mark.parametrize(("shuffle", "strategy"), MODES)
@daily(lambda shuffle, strategy: shuffle == "rows" or strategy == "concat")
def test_a_filter_leaves_documents_that_change_as_without_it(table: str, shuffle: Any, strategy: Any) -> None:
    pack = Pack(seq_len=5, strategy=strategy, documents=seeded, same_lengths=True)
    all_of_them = tokens_by_row(loader_of(table, pack, shuffle=shuffle))
    left = tokens_by_row(loader_of(table, pack, shuffle=shuffle, filters="row > 5"))
    assert left == {row: tokens for row, tokens in all_of_them.items() if row > 5}


@pytest.mark.parametrize(("shuffle", "strategy"), MODES)
@daily(3)
def test_seeds_are_of_row_and_epoch_alone(table: str, shuffle: Any, strategy: Any) -> None:
    pack = Pack(seq_len=5, strategy=strategy, documents=seeded, same_lengths=True)
    alone = loader_of(table, pack, shuffle=shuffle, num_workers=0)
    others = [loader_of(table, pack, shuffle=shuffle, num_ranks=2, rank=rank) for rank in range(2)]
    of_epochs = []
    for epoch in (0, 1):
        for loader in (alone, *others):
            loader.set_epoch(epoch)
        found = tokens_by_row(alone)
        assert {row: sum(counts.values()) for row, counts in found.items()} == {
            row: length for row, length in enumerate(LENGTHS) if length
        }
        assert all(len(counts) == 1 for counts in found.values())
        assert tokens_by_row(*others) == found
        of_epochs.append({next(iter(counts)) for counts in found.values()})
    assert all(len(seeds) == sum(map(bool, LENGTHS)) for seeds in of_epochs)
    assert of_epochs[0].isdisjoint(of_epochs[1]) == (shuffle != "rows")  # a store is built once


@pytest.mark.parametrize(("shuffle", "strategy"), MODES)
@pytest.mark.parametrize("served", [{"num_workers": 0}, {"worker_type": "forkserver"}], ids=str)
@daily(3)
def test_it_resumes_with_the_same_documents(table: str, shuffle: Any, strategy: Any, served: dict[str, Any]) -> None:
    pack = Pack(seq_len=5, strategy=strategy, documents=rotated, same_lengths=True)
    loader = loader_of(table, pack, shuffle=shuffle, **served)
    batches = iter(loader)
    taken = [next(batches)["input_ids"].tolist() for _ in range(3)]
    state = loader.state_dict()
    whole = taken + [batch["input_ids"].tolist() for batch in batches]
    other = loader_of(table, pack, shuffle=shuffle, num_workers=served.get("num_workers", 2))
    other.load_state_dict(state)
    assert taken + [batch["input_ids"].tolist() for batch in other] == whole
    changed = loader_of(table, Pack(seq_len=5, strategy=strategy, documents=seeded, same_lengths=True), shuffle=shuffle)
    with pytest.raises(ResumeError, match="stage"):
        changed.load_state_dict(state)


@pytest.mark.parametrize("shuffle", [True, "rows"])
def test_sources_of_a_mixture_are_changed(table: str, shuffle: Any) -> None:
    pack = Pack(seq_len=5, documents=halved)
    with meant_warnings():
        sources = {name: StructuredDataset(table, pack=pack, shuffle=shuffle, columns=["row"]) for name in ("a", "b")}
        loader, _ = MixedDataset.create_dataloader(sources, "rows", batch_size=2, check_plan=False)
    expected = tokens_by_row(loader_of(table, pack, shuffle=shuffle))
    assert tokens_by_row(loader) == {row: counts + counts for row, counts in expected.items()}


def test_a_mask_changes_with_its_tokens(table: str) -> None:
    def trained(batch: pa.RecordBatch) -> pa.RecordBatch:
        documents = batch["input_ids"].to_pylist()
        return batch_of(documents, mask=[[int(at < 2) for at in range(len(tokens))] for tokens in documents])

    pack = Pack(seq_len=12, strategy="pad", documents=trained, same_lengths=True, loss_mask="mask")
    labels = [row for batch in loader_of(table, pack) for row in batch["labels"].tolist()]
    assert sorted(sum(label >= 0 for label in row) for row in labels) == sorted(
        min(length - 1, 1) for length in LENGTHS if length
    )


def test_counts_are_kept_by_the_functions_name(table: str, tmp_path: Path) -> None:
    for function in (halved, rotated, halved):
        loader = loader_of(table, Pack(seq_len=5, documents=function), plan_cache=str(tmp_path / "plans"))
        assert sum(1 for _ in loader) == len(loader)


@pytest.mark.parametrize(("shuffle", "strategy"), MODES[:6])
@daily(2)
def test_lengths_that_follow_the_seed_are_an_error(table: str, shuffle: Any, strategy: Any) -> None:
    def shortened(batch: pa.RecordBatch) -> pa.RecordBatch:
        given = zip(batch["input_ids"].to_pylist(), batch["seed"].to_pylist(), strict=True)
        return batch_of([tokens[seed % 3 :] for tokens, seed in given])

    with pytest.raises(ConfigError, match=r"Pack: documents=.*shortened made \d+ (tokens|sequences) of rows"):
        list(loader_of(table, Pack(seq_len=2, strategy=strategy, documents=shortened), shuffle=shuffle))


@pytest.mark.parametrize("shuffle", [True, "rows"])
@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda batch: batch.slice(1), "return 4 rows, as it was given, got 3"),
        (lambda batch: batch.drop_columns(["input_ids"]), "a RecordBatch of the columns input_ids, got"),
        (lambda batch: None, "a RecordBatch of the columns input_ids, got NoneType"),
        (lambda batch: pa.RecordBatch.from_pydict({"input_ids": [["a"]] * 4}), "return lists of int64 as 'input_ids'"),
        (lambda batch: 1 / 0, "failed: ZeroDivisionError"),
    ],
)
def test_what_it_may_not_return_is_an_error(table: str, shuffle: Any, function: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        list(loader_of(table, Pack(seq_len=2, documents=function), shuffle=shuffle))


def test_another_length_where_lengths_stay_is_an_error(table: str) -> None:
    with pytest.raises(ConfigError, match="keep the number of tokens of each document with same_lengths=True"):
        list(loader_of(table, Pack(seq_len=2, documents=halved, same_lengths=True)))


def test_what_does_not_fit_is_refused(table: str) -> None:
    wrong: Any = 3
    with pytest.raises(ConfigTypeError, match="must be a function"):
        Pack(seq_len=4, documents=wrong)
    with pytest.raises(ConfigError, match="about what documents= returns"):
        Pack(seq_len=4, same_lengths=True)
    with pytest.raises(ConfigError, match="how long documents are before"):
        Pack(seq_len=4, documents=halved, lengths="n")
    with pytest.raises(ConfigError, match="spans are places in the stored documents"):
        Pack(seq_len=4, documents=halved, spans=["s"])
    local = functools.partial(lambda batch: batch)
    with pytest.raises(ConfigError, match=r"Pack\(documents=...\) must pickle"):
        loader_of(table, Pack(seq_len=4, documents=local), worker_type="spawn")


class Surplus:
    """Returns more tokens when documents are read than when they were counted, without seeds; or fewer."""

    def __init__(self, *, more: bool) -> None:
        self.more = more

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return each document, or the first half of it."""
        whole = any(batch["seed"].to_pylist()) == self.more
        documents = batch["input_ids"].to_pylist()
        return batch_of(
            [(tokens or []) if whole else (tokens or [])[: (1 + len(tokens or [])) // 2] for tokens in documents]
        )


@pytest.mark.parametrize("more", [True, False])
@pytest.mark.parametrize("strategy", ["concat", "pad", "best_fit"])
@pytest.mark.parametrize(("ranks", "lanes"), [(1, 0), (3, 2)])
@daily(5)
def test_a_stream_names_the_function_that_makes_other_lengths_than_were_counted(
    table: str, strategy: Any, more: bool, ranks: int, lanes: int
) -> None:
    pack = Pack(seq_len=2, strategy=strategy, documents=Surplus(more=more))
    unit = "tokens" if strategy == "concat" else "sequences"
    said = rf"Pack: documents=tests\S+:Surplus made \d+ {unit} of rows \d+ to \d+ of \d\.parquet, row group \d, when"
    for rank in range(ranks):
        loader = loader_of(table, pack, num_ranks=ranks, rank=rank, num_workers=lanes, shuffle="splits", split_size=4)
        with pytest.raises(ConfigError, match=said):
            list(loader)


def test_a_mixture_of_streams_names_it_too(table: str) -> None:
    pack = Pack(seq_len=2, documents=Surplus(more=True))
    with meant_warnings():
        sources = {name: StructuredDataset(table, pack=pack, shuffle="splits", split_size=9) for name in ("a", "b")}
        loader, _ = MixedDataset.create_dataloader(sources, weights="rows", batch_size=2, num_workers=1)
    with pytest.raises(ConfigError, match=r"Pack: documents=tests\S+:Surplus made .* when they were counted"):
        list(loader)
