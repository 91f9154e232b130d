"""What `explain()` and `metrics()` say of packing is what comes out; and documents are counted without their tokens."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.tables.plain import meant_warnings
from tests.tables.reading import open_parquet
from tests.tables.token_files import LAYOUTS
from tests.text.packing_reference import full_pack
from torch_table_loader import ConfigError, Pack, StructuredDataset, TableError, TableLoader
from torch_table_loader.text.pack_counts import PackCounts
from torch_table_loader.text.token_files import TokenReader

LENGTHS = [5, 0, 17, 1, None, 40, 3, 9, 9, 2, 2, 30, 1, 12, 33, 4, 6]


def write(root: Path, lengths: list[int | None] = LENGTHS, said: list[int | None] | None = None) -> Path:
    """Write documents whose tokens are 1000 times their number, and a column that says their lengths."""
    lists = [None if length is None else [1000 * row + 1] * length for row, length in enumerate(lengths)]
    columns = {
        "input_ids": pa.array(lists, pa.list_(pa.int32())),
        "id": pa.array(range(len(lengths)), pa.int64()),
        "num_tokens": pa.array(lengths if said is None else said, pa.uint16()),
    }
    pq.write_table(pa.table(columns), root / "0.parquet", row_group_size=4)
    return root


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("documents"))


def opened(root: Path, pack: Pack, **options: Any) -> tuple[TableLoader, StructuredDataset]:
    chosen: dict[str, Any] = {"check_plan": False, "columns": ["id"], "num_workers": 2} | options
    with meant_warnings():
        return StructuredDataset.create_dataloader(str(root), pack=pack, **chosen)


def summed(batches: list[Any]) -> tuple[int, int, int, Counter[int]]:
    """Count sequences, tokens and parts in batches, and the parts of each document."""
    docs = [np.asarray(batch["doc_ids"]) for batch in batches]
    owners = [owner for batch in batches if "documents" in batch for owner in batch["documents"]["id"].tolist()]
    parts = sum(int(each.max()) + 1 for each in docs)
    return sum(map(len, docs)), sum(int((each >= 0).sum()) for each in docs), parts, Counter(owners)


PACKS = st.builds(
    Pack,
    seq_len=st.integers(1, 45),
    strategy=st.sampled_from(["concat", "pad", "best_fit"]),
    sep_id=st.sampled_from([None, 3]),
    min_length=st.sampled_from([1, 3]),
    lengths=st.sampled_from([None, "num_tokens"]),
    block_docs=st.sampled_from([3, 4096]),
)
HOWS = st.sampled_from(["split", "truncate", "drop"])


@settings(max_examples=examples(40), deadline=None)
@given(pack=PACKS, how=HOWS, rows=st.booleans(), ranks=st.integers(1, 3), batch_size=st.integers(1, 4))
def test_what_is_told_is_what_comes(table: Path, pack: Pack, how: Any, rows: bool, ranks: int, batch_size: int) -> None:
    fields = {name: getattr(pack, name) for name in pack.__dataclass_fields__}
    pack = full_pack(**{**fields, "long_docs": "split" if pack.strategy == "concat" else how})
    batches, delivered = [], PackCounts(pack.width)
    for rank in range(ranks):
        shuffle: Any = "rows" if rows else True
        world = {"num_ranks": ranks, "rank": rank, "even_ranks": False if rows else "balance"}
        loader, dataset = opened(table, pack, batch_size=batch_size, shuffle=shuffle, **world)
        told = dataset.explain().packing
        own = list(loader)
        batches += own
        counts = loader.metrics().packing
        assert counts is not None or not own
        assert (counts.sequences, counts.tokens, counts.parts) == summed(own)[:3] if counts else True
        delivered = delivered + counts if counts else delivered
    sequences, tokens, parts, of_documents = summed(batches)
    assert told is not None
    assert (delivered.sequences, delivered.tokens, delivered.parts) == (sequences, tokens, parts)
    assert told.tokens == tokens
    if rows or ranks == 1:  # else ranks may fill up their last steps with padding
        assert told.sequences == sequences
        assert told.fill == (tokens / (sequences * pack.width) if sequences else None)
    if told.parts is None:
        assert pack.strategy == "concat"
        assert not rows
    else:
        assert told.parts == parts
        whole = {
            row: (n or 0) + (pack.sep_id is not None) for row, n in enumerate(LENGTHS) if (n or 0) >= pack.min_length
        }
        long = sum(length > pack.width for length in whole.values())
        expected = {how: long} if pack.strategy != "concat" else {"split": sum(n > 1 for n in of_documents.values())}
        assert told.split == expected.get("split", 0)
        assert (told.truncated, told.dropped) == (expected.get("truncate", 0), expected.get("drop", 0))


@pytest.mark.parametrize("stride", [None, 3])
def test_windows_are_told_as_they_come(table: Path, stride: int | None) -> None:
    pack = full_pack(seq_len=7, strategy="windows", stride=stride)
    loader, dataset = opened(table, pack, shuffle="rows", batch_size=3)
    told = dataset.explain().packing
    sequences, tokens, parts, _ = summed(list(loader))
    assert told is not None
    assert (told.sequences, told.tokens, told.parts) == (sequences, tokens, parts)
    ends = np.cumsum([length or 0 for length in LENGTHS])
    starts = np.arange(sequences) * (stride or 7)
    whole = [any(a <= end - (n or 0) and end <= a + 7 for a in starts) for end, n in zip(ends, LENGTHS, strict=True)]
    assert told.split == sum(not entire for entire, n in zip(whole, LENGTHS, strict=True) if n)


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@pytest.mark.parametrize("collated", [False, True])
def test_metrics_count_what_was_taken(table: Path, worker_type: Any, collated: bool) -> None:
    options = {"worker_type": worker_type, "batch_size": 2, "collate_fn": dict if collated else None}
    loader, dataset = opened(table, full_pack(seq_len=11, strategy="best_fit"), **options)
    batches = list(islice(loader, 3))
    counts = loader.metrics().packing
    assert counts is not None
    assert (counts.sequences, counts.tokens, counts.parts) == summed(batches)[:3]
    assert f"packed: {counts.sequences} sequences of 11 tokens, " in str(loader.metrics())
    assert "\nPacking\n" in str(dataset.explain())
    assert opened(table, full_pack(seq_len=11), batch_size=2)[0].metrics is not None


def test_a_table_without_pack_says_nothing_of_packing(table: Path) -> None:
    with meant_warnings():
        loader, dataset = StructuredDataset.create_dataloader(str(table), columns=["id"], num_workers=0)
    list(loader)
    assert dataset.explain().packing is None
    assert loader.metrics().packing is None


def test_what_packing_makes_is_kept_in_the_plan_cache(table: Path, tmp_path: Path) -> None:
    told = []
    for _ in range(2):
        _, dataset = opened(table, full_pack(seq_len=9, strategy="best_fit"), plan_cache=str(tmp_path))
        told.append(dataset.explain().packing)
    assert told[0] == told[1]
    assert told[1] is not None
    assert told[1].tokens == sum(length or 0 for length in LENGTHS)


# ---- lengths from a column -------------------------------------------------------------------------------


def test_a_column_of_lengths_is_read_instead_of_tokens(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[str, ...]] = []
    batches_of = open_parquet().batches

    def noted(handle: Any, groups: range, columns: Any, max_rows: int) -> Any:
        read.append(tuple(columns))
        return batches_of(handle, groups, columns, max_rows)

    pack = full_pack(seq_len=9, strategy="best_fit", lengths="num_tokens", sep_id=3)
    with monkeypatch.context() as patched:
        patched.setattr(open_parquet(), "batches", noted)
        loader, _ = opened(table, pack, batch_size=2, num_workers=0, filters=pc.field("id") != 5)
        steps = len(loader)
    assert read
    assert not any("input_ids" in columns for columns in read)
    batches = list(loader)
    assert len(batches) == steps
    assert set(batches[0]["documents"]) == {"id"}
    other = list(opened(table, full_pack(seq_len=9, strategy="best_fit", sep_id=3), batch_size=2, num_workers=0)[0])
    assert "documents" in other[0]


def test_a_column_of_lengths_that_is_asked_for_comes_along(table: Path) -> None:
    pack = full_pack(seq_len=50, strategy="pad", lengths="num_tokens")
    for shuffle in (False, "rows"):
        loader, _ = opened(table, pack, columns=["num_tokens"], shuffle=shuffle, batch_size=3)
        for batch in loader:
            assert (
                np.bincount(batch["doc_ids"][batch["doc_ids"] >= 0]).tolist()
                == batch["documents"]["num_tokens"].tolist()
            )


@pytest.mark.parametrize("strategy", ["concat", "pad", "best_fit"])
@pytest.mark.parametrize("shuffle", [False, "rows"])
def test_a_length_that_is_wrong_is_an_error(tmp_path: Path, strategy: Any, shuffle: Any) -> None:
    write(tmp_path, [5, 6, 7, 8], [5, 6, 6, 9])
    pack = full_pack(seq_len=8, strategy=strategy, lengths="num_tokens")
    with pytest.raises(TableError, match=r"0\.parquet.*says 6 tokens in row 2.*has 7") as found:
        list(opened(tmp_path, pack, shuffle=shuffle, num_workers=0)[0])
    assert "leave lengths out" in str(found.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": "num_tokens", "eos_id": 2}, "added only where they are missing"),
        ({"lengths": "input_ids"}, "named twice"),
        ({"lengths": "n_tokens"}, "no column 'n_tokens'"),
        ({"lengths": "title"}, "column of integers"),
        ({"lengths": 3}, "must be a column name"),
        ({"balance": "compute"}, "balance must be one of"),
        ({"balance": "attention"}, 'needs shuffle="rows"'),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, options: Any, message: str) -> None:
    pq.write_table(pa.table({"input_ids": [[1]], "num_tokens": [1], "title": ["a"], "id": [0]}), tmp_path / "0.parquet")
    with pytest.raises(ConfigError, match=message):
        opened(tmp_path, full_pack(seq_len=4, **options))


def test_a_negative_length_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": [[1]], "n": [-1], "id": [0]}), tmp_path / "0.parquet")
    with pytest.raises(TableError, match="got -1 in row 0"):
        opened(tmp_path, full_pack(seq_len=4, strategy="pad", lengths="n"))


# ---- lengths from an index -------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["megatron", "datatrove"])
@pytest.mark.parametrize("strategy", ["concat", "pad", "best_fit"])
@pytest.mark.parametrize("split_rows", [None, 7])
@daily(4)
def test_token_files_are_counted_by_their_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, strategy: Any, split_rows: int | None
) -> None:
    suffix, writer = LAYOUTS[form]
    documents = [[100 + row] * (row * 7 % 23) for row in range(40)]
    writer(tmp_path / f"x{suffix}", documents)
    pack = full_pack(seq_len=16, tokens="tokens", strategy=strategy, min_length=3, sep_id=9, block_docs=5)
    options: dict[str, Any] = {"columns": None, "batch_size": 2, "split_size": split_rows}
    if split_rows is not None:
        options["split_strategy"] = "row_balanced"

    def unreadable(*_: Any) -> Any:
        raise AssertionError("a file was opened")

    with monkeypatch.context() as patched:
        patched.setattr(TokenReader, "open", unreadable)
        with meant_warnings():
            loader, dataset = StructuredDataset.create_dataloader(
                str(tmp_path), form, pack=pack, check_plan=False, num_workers=2, **options
            )
        steps, told = len(loader), dataset.explain().packing
    batches = list(loader)
    assert len(batches) == steps
    sequences, tokens, parts, _ = summed(batches)
    assert told is not None
    assert tokens == sum(len(document) + 1 for document in documents if len(document) >= 3)
    assert (told.sequences, told.tokens) == (sequences, tokens)
    assert told.parts in (None, parts)


def test_an_index_that_counts_wrong_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suffix, writer = LAYOUTS["datatrove"]
    writer(tmp_path / f"x{suffix}", [[1, 2, 3]] * 6)
    lengths: Any = TokenReader.list_lengths
    monkeypatch.setattr(TokenReader, "list_lengths", lambda *args: lengths(*args) * 2)
    pack = full_pack(seq_len=3, tokens="tokens", strategy="pad")
    with pytest.raises(TableError, match="as was counted"), meant_warnings():
        list(StructuredDataset.create_dataloader(str(tmp_path), "datatrove", pack=pack, check_plan=False)[0])
