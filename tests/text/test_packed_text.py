"""Text becomes tokens where a row store keeps them: each text once, under the promises that stored tokens have."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.plain import meant_warnings
from tests.text.packing_reference import full_pack
from tests.text.word_tokenizers import words
from torch_table_loader import ConfigError, ConfigTypeError, Pack, StructuredDataset, TableError, TableLoader

TEXTS = [*(f"text {row} {'and more ' * (row % 5)}" for row in range(30)), "", None, "the last one"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("texts")
    columns = {"text": pa.array(TEXTS), "id": list(range(len(TEXTS))), "ids": [[1]] * len(TEXTS)}
    pq.write_table(pa.table(columns), root / "0.parquet", row_group_size=7)
    return root


def make(root: Path, pack: Pack, **options: Any) -> TableLoader:
    asked: dict[str, Any] = {"check_plan": False, "columns": ["id"], "shuffle": "rows", "batch_size": 2} | options
    with meant_warnings():
        return StructuredDataset.create_dataloader(str(root), pack=pack, **asked)[0]


def documents_in(batches: Any) -> dict[int, list[int]]:
    """Put the tokens of each document together, with the place of their sequences in the order of delivery."""
    found: dict[int, list[int]] = {}
    for batch in batches:
        owners = batch["documents"]["id"].tolist()
        for docs, ids in zip(batch["doc_ids"].tolist(), batch["input_ids"].tolist(), strict=True):
            for doc, token in zip(docs, ids, strict=True):
                if doc >= 0:
                    found.setdefault(owners[doc], []).append(token)
    return found


def begun(texts: list[str]) -> list[list[int]]:
    """Put a token before each text, an empty one too."""
    return [[7, *ids] for ids in words(texts)]


@pytest.mark.parametrize("tokenizer", ["bytes", "tests.text.word_tokenizers:sized", begun])
@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
@pytest.mark.parametrize("worker_type", ["thread", "process"])
@daily(3)
def test_every_text_comes_once_as_its_tokens(
    table: Path, tmp_path: Path, tokenizer: Any, strategy: Any, worker_type: Any
) -> None:
    pack = full_pack(seq_len=16, tokens="text", tokenizer=tokenizer, strategy=strategy, sep_id=60_000)
    options = {"row_store": str(tmp_path), "worker_type": worker_type, "num_workers": 2}
    whole = list(make(table, pack, **options))
    assert len(whole) == len(make(table, pack, **options))
    own = {"bytes": lambda texts: [list(text.encode()) for text in texts], begun: begun}.get(tokenizer, words)
    expected = {
        row: [*own([text])[0], 60_000] for row, text in enumerate(TEXTS) if text or (text == "" and own is begun)
    }
    assert {row: sorted(ids) for row, ids in documents_in(whole).items()} == {
        row: sorted(ids) for row, ids in expected.items()
    }
    first = make(table, pack, **options)
    taken = list(islice(first, 3))
    other = make(table, pack, **{**options, "num_workers": 1})
    other.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert documents_in([*taken, *other]).keys() == expected.keys()


def test_texts_are_tokenized_when_the_store_is_built_alone(table: Path, tmp_path: Path) -> None:
    calls: list[int] = []

    def counted(texts: list[str]) -> list[list[int]]:
        calls.append(len(texts))
        return words(texts)

    options: dict[str, Any] = {"row_store": str(tmp_path), "num_workers": 0}
    for seq_len in (8, 8, 5):
        list(make(table, full_pack(seq_len=seq_len, tokens="text", tokenizer=counted), **options))
        assert sum(calls) == sum(text is not None for text in TEXTS)


@pytest.mark.parametrize(
    ("tokenizer", "error", "message"),
    [
        (lambda texts: [[-1] for _ in texts], TableError, r"0\.parquet.*column 'text', row 0 of this batch.*id -1"),
        (lambda texts: words(texts[:-1]), ConfigError, "a list of ids for each text"),
        (lambda texts: 1 / 0, ConfigError, "ZeroDivisionError"),
    ],
)
def test_a_tokenizer_that_fails_is_named(table: Path, tokenizer: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        list(make(table, full_pack(seq_len=8, tokens="text", tokenizer=tokenizer), row_store="memory", num_workers=0))


@pytest.mark.parametrize(
    ("pack", "options", "message"),
    [
        ({"tokenizer": "bytes"}, {"shuffle": False}, 'tokenizer needs shuffle="rows".*torch-table-loader tokenize'),
        ({"tokenizer": "bytes", "tokens": "ids"}, {}, "must be text for a tokenizer"),
        ({"tokenizer": "bytes", "tokens": "id"}, {}, "must be text for a tokenizer"),
        ({"tokenizer": "none:such"}, {}, "cannot be imported"),
        ({"tokenizer": "bytes", "aligned": ["ids"]}, {}, "aligned describes tokens"),
        ({"tokenizer": "bytes", "lengths": "id"}, {}, "lengths describes tokens"),
        ({}, {}, "is text.*tokenize, and read that, or pass tokenizer="),
    ],
)
def test_what_does_not_fit_is_refused(table: Path, pack: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(table, full_pack(**{"seq_len": 8, "tokens": "text", **pack}), **options)


def test_a_tokenizer_is_a_name_or_a_function() -> None:
    with pytest.raises(ConfigTypeError, match="a name, a function or a Chat, got 3"):
        full_pack(seq_len=8, tokenizer=3)
