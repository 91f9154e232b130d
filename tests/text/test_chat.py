"""Conversations become tokens and masks as transformers makes them, while they are read and in token tables."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.chats import CHATS, FOLDER, MARKED, PLAIN, TEMPLATES, TOOLS, says, truth
from tests.tables.plain import meant_warnings
from torch_table_loader import (
    Chat,
    ConfigError,
    ConfigTypeError,
    Pack,
    ResumeError,
    StructuredDataset,
    TableError,
    TableLoader,
    tokenize_table,
)
from torch_table_loader.cli.main import main

TRUTH: dict[str, list[Any]] = json.loads((FOLDER / "truth.json").read_text())
ASSISTANT = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


Made = Callable[..., list[list[Any]]]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Return ids and mask of each of some conversations, as a token table has them."""
    tables = itertools.count()

    def of(chat: Chat, chats: list[Any], tools: Any = None) -> list[list[Any]]:
        folder = tmp_path / f"table {next(tables)}"
        folder.mkdir()
        table = table_of(chats)
        if tools is not None:
            table = table.set_column(1, "tools", pa.array([tools] * len(chats)))
        pq.write_table(table, folder / "t.parquet")
        dataset = StructuredDataset(str(folder / "t.parquet"), num_workers=1, output_format="arrow")
        tokenize_table(dataset, folder / "out", chat, column="messages")
        found = pq.read_table(folder / "out")
        columns = (found[name].to_pylist() for name in ("input_ids", "assistant_mask"))
        return [list(each) for each in zip(*columns, strict=True)]

    return of


def test_transformers_makes_what_is_kept_as_truth() -> None:
    transformers = pytest.importorskip("transformers")
    opened = transformers.AutoTokenizer.from_pretrained(str(FOLDER))
    assert truth(opened) == TRUTH


@pytest.mark.parametrize("name", TEMPLATES)
def test_tokens_and_masks_are_those_of_transformers(name: str, made: Made) -> None:
    chat = Chat(str(FOLDER), TEMPLATES[name], tools="tools")
    assert made(chat, CHATS, TOOLS) == TRUTH[name]
    assert made(chat, CHATS, json.dumps(TOOLS)) == TRUTH[name]
    assert any(mask for _, mask in TRUTH[name])


def test_without_marks_prefixes_tell_the_same(made: Made) -> None:
    plain = Chat(str(FOLDER), tools="tools")
    assert made(plain, CHATS, TOOLS) == TRUTH["marked"]
    last = made(Chat(str(FOLDER), turns="last", tools="tools"), CHATS, TOOLS)
    marked = made(Chat(str(FOLDER), MARKED, "last", tools="tools"), CHATS, TOOLS)
    assert last == marked
    assert [ids for ids, _ in last] == [ids for ids, _ in TRUTH["marked"]]
    assert sum(map(sum, (mask for _, mask in last))) < sum(map(sum, (mask for _, mask in TRUTH["marked"])))


def test_a_character_of_several_tokens_is_trained_whole(made: Made) -> None:
    [[ids, mask]] = made(Chat(str(FOLDER), "{% generation %}{{ messages[0].content }}{% endgeneration %}."), CHATS[5:])
    assert mask == [1] * (len(ids) - 1) + [0]
    fox = [[says("assistant", "🦊")]]
    [[ids, mask]] = made(Chat(str(FOLDER), "{% generation %}{{ messages[0].content }}{% endgeneration %}."), fox)
    assert len(ids) == 5
    assert mask == [1, 1, 1, 1, 0]


def table_of(chats: list[Any]) -> pa.Table:
    """Return conversations as a table, in which fields that a message lacks are null."""
    call = pa.struct([("name", pa.string()), ("arguments", pa.struct([("x", pa.int64()), ("y", pa.int64())]))])
    calls = pa.list_(pa.struct([("type", pa.string()), ("function", call)]))
    message = pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", calls)])
    columns = {
        "messages": pa.array(chats, pa.list_(message)),
        "tools": pa.array([json.dumps(TOOLS)] * len(chats)),
        "n": pa.array(range(len(chats))),
    }
    return pa.table(columns)


@pytest.mark.parametrize("strategy", ["concat", "best_fit", "pad", "windows"])
@pytest.mark.parametrize("labels", ["hf", "shifted"])
@daily(4)
def test_labels_are_what_the_assistant_wrote_on_any_world(tmp_path: Path, strategy: Any, labels: Any) -> None:
    rows = [*CHATS, None, [], *CHATS[::-1]]
    pq.write_table(table_of(rows), tmp_path / "t.parquet", row_group_size=3)
    chat = Chat(str(FOLDER), MARKED, tools="tools")
    wanted: Counter[int] = Counter()
    for ids, mask in [*TRUTH["marked"], *TRUTH["marked"][::-1]]:
        trained = zip(ids[1:], mask[1:], strict=True)  # nothing comes before the first token of a document
        wanted.update(token for token, on in trained if on)
    found: Counter[int] = Counter()
    tokens = 0
    for rank in range(3):
        pack = Pack(seq_len=700, tokens="messages", tokenizer=chat, strategy=strategy, labels=labels, pad_id=-1)
        with meant_warnings():
            world: dict[str, Any] = {"num_ranks": 3, "rank": rank, "even_ranks": "pad", "check_plan": False}
            path, options = str(tmp_path / "t.parquet"), {"batch_size": 1, "num_workers": 1, **world}
            dataset = StructuredDataset(path, shuffle="rows", pack=pack, **options)
        loader = TableLoader(dataset)
        batches = list(loader)
        assert len(batches) == len(loader)
        for batch in batches:
            tokens += int((batch["input_ids"] >= 0).sum())
            found.update(batch["labels"][batch["labels"] != -100].tolist())
    assert tokens == 2 * sum(len(ids) for ids, _ in TRUTH["marked"])
    cut = sum(wanted.values()) - sum(found.values())
    assert 0 <= cut <= (0 if strategy in ("best_fit", "pad") else 2)
    assert not found - wanted


def test_a_run_goes_on_in_the_middle_and_refuses_another_template(tmp_path: Path) -> None:
    pq.write_table(table_of(CHATS * 5), tmp_path / "t.parquet")

    def loader(template: str) -> TableLoader:
        pack = Pack(seq_len=80, tokens="messages", tokenizer=Chat(str(FOLDER), template), strategy="best_fit")
        with meant_warnings():
            return StructuredDataset.create_dataloader(
                str(tmp_path / "t.parquet"), shuffle="rows", pack=pack, batch_size=2, num_workers=2, check_plan=False
            )[0]

    def shown(batches: Any) -> list[Any]:
        return [(batch["input_ids"].tolist(), batch["labels"].tolist()) for batch in batches]

    first = loader(PLAIN)
    batches = iter(first)
    taken, state = shown(islice(batches, 3)), first.state_dict()
    rest = shown(batches)
    again = loader(PLAIN)
    again.load_state_dict(state)
    assert taken
    assert shown(again) == rest
    other = loader(ASSISTANT)
    with pytest.raises(ResumeError, match="saved under other options: stage"):
        other.load_state_dict(state)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_token_table_has_the_mask(tmp_path: Path, workers: int) -> None:
    pq.write_table(table_of(CHATS), tmp_path / "t.parquet")
    dataset = StructuredDataset(str(tmp_path / "t.parquet"), num_workers=1, output_format="arrow")
    chat = Chat(str(FOLDER), MARKED, tools="tools")
    share = tokenize_table(dataset, tmp_path / "out", chat, column="messages", lengths="tokens", num_workers=workers)
    found = pq.read_table(tmp_path / "out")
    assert share.finished
    assert found.schema.names == ["input_ids", "assistant_mask", "n", "tokens"]
    columns = (found[name].to_pylist() for name in ("input_ids", "assistant_mask"))
    assert [list(each) for each in zip(*columns, strict=True)] == TRUTH["marked"]
    pack = Pack(seq_len=300, strategy="pad", loss_mask="assistant_mask")
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path / "out"), pack=pack, batch_size=9, num_workers=1)
    labels = next(iter(loader))["labels"].numpy()
    for row, (ids, mask) in zip(labels, TRUTH["marked"], strict=True):
        wanted = np.where(mask, ids, -100)
        wanted[0] = -100
        assert row[: len(ids)].tolist() == wanted.tolist()


def test_the_command_line_makes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(table_of(CHATS), tmp_path / "t.parquet")
    (tmp_path / "marked.jinja").write_text(MARKED)
    command = ["tokenize", str(tmp_path / "t.parquet"), str(tmp_path / "out"), "--tokenizer", str(FOLDER), "--quiet"]
    assert main([*command, "--template", str(tmp_path / "marked.jinja"), "--num-workers", "1"]) != 0
    assert "pass --chat too" in capsys.readouterr().err
    chat = ["--chat", "--template", str(tmp_path / "marked.jinja"), "--tools", "tools", "--num-workers", "1"]
    assert main([*command, *chat]) == 0
    found = pq.read_table(tmp_path / "out")
    assert found["assistant_mask"].to_pylist() == [mask for _, mask in TRUTH["marked"]]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ ''.__class__.__base__ }}", "unsafe"),
        ("{{ raise_exception.__globals__['json'] }}", "unsafe"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "recursion"),
        ("{% set ns = namespace() %}{% set ns._x = 1 %}", "underscore"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{{ strftime_now('%Y') }}", "told the day"),
        ("{{ raise_exception('no system messages') }}", "no system messages"),
        ("{{ messages[0].content + 1 }}", "can only concatenate"),
        ("{{ lipsum() }}", "undefined"),
    ],
)
@daily(4)
def test_what_a_template_must_not_do_fails_with_its_row(tmp_path: Path, template: str, message: str) -> None:
    pq.write_table(table_of([None, CHATS[0]]), tmp_path / "t.parquet")
    dataset = StructuredDataset(str(tmp_path / "t.parquet"), num_workers=1, output_format="arrow")
    with pytest.raises(TableError, match=rf"t.parquet, row 1: .*{message}"):
        tokenize_table(dataset, tmp_path / "out", Chat("bytes", template), column="messages", nulls="empty")


def test_a_template_that_writes_a_turn_otherwise_is_refused(made: Made) -> None:
    forgets = "{% for m in messages %}{% if not loop.last %}-{% else %}{{ m.content }}{% endif %}{% endfor %}"
    for rows in (CHATS[:1], CHATS[2:3]):
        with pytest.raises(TableError, match=r"row 0: .*cannot be told; pass turns=\"last\", or a template="):
            made(Chat("bytes", forgets), rows)
    thinks = ASSISTANT.replace("{{ m.content }}", "{{ m.content if loop.last else '' }}")
    answered = [[says("user", ""), says("assistant", "one"), says("user", ""), says("assistant", "two")]]
    with pytest.raises(TableError, match=r"row 0: .*cannot be told"):
        made(Chat("bytes", thinks), answered)
    [[ids, mask]] = made(Chat("bytes", thinks, "last"), answered)
    assert bytes(token for token, on in zip(ids, mask, strict=True) if on) == b"two;"


def test_wrong_values_are_refused(tmp_path: Path, made: Made) -> None:
    with pytest.raises(ConfigError, match="ships no template"):
        Chat("bytes")
    with pytest.raises(ConfigError, match="turns"):
        Chat("bytes", "x", "first")  # type: ignore[arg-type]
    with pytest.raises(ConfigTypeError, match="values of JSON"):
        Chat("bytes", "x", variables={"x": object()})
    with pytest.raises(ConfigError, match="cannot be parsed"):
        made(Chat("bytes", "{% if %}"), CHATS)
    (tmp_path / "tokenizer.json").write_bytes((FOLDER / "tokenizer.json").read_bytes())
    with pytest.raises(ConfigError, match="ships no chat template"):
        made(Chat(str(tmp_path)), CHATS)
    pq.write_table(table_of(CHATS), tmp_path / "t.parquet")
    dataset = StructuredDataset(str(tmp_path / "t.parquet"), num_workers=1, output_format="arrow")
    with pytest.raises(ConfigError, match="special_tokens"):
        tokenize_table(dataset, tmp_path / "out", Chat(str(FOLDER)), column="messages", special_tokens=True)
    with pytest.raises(ConfigError, match="loss_mask describes tokens of the table"):
        Pack(seq_len=4, tokenizer=Chat(str(FOLDER)), loss_mask="other")
    pack = Pack(seq_len=4, tokens="n", tokenizer=Chat(str(FOLDER)))
    with pytest.raises(ConfigError, match="must be a list of messages"):
        StructuredDataset(source=table_of(CHATS), shuffle="rows", pack=pack)
    missing = Pack(seq_len=4, tokens="messages", tokenizer=Chat(str(FOLDER), tools="nowhere"))
    with pytest.raises(ConfigError, match="nowhere"):
        StructuredDataset(source=table_of(CHATS), shuffle="rows", pack=missing)
