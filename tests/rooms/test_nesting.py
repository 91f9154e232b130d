"""How deep JSON nests is known exactly, without a parser."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from torch_table_loader.errors import TableError
from torch_table_loader.nesting import check_nesting, depth, load_json, too_deep
from torch_table_loader.testing import small_sizes

_TEXTS = ('"', "\\", '\\"', "[[[", "}{", "]", "é[", "\n", "\U0001f600{", "\\\\", "x", "")


def _value(draw: random.Random, levels: int) -> Any:
    kind = draw.choice(("text", "number", "list", "dict")) if levels else draw.choice(("text", "number"))
    if kind == "text":
        return "".join(draw.choices(_TEXTS, k=draw.randrange(5)))
    if kind == "number":
        return draw.choice((0, -1.5, None, True))
    values = [_value(draw, levels - 1) for _ in range(draw.randrange(4))]
    return values if kind == "list" else {f"{_value(draw, 0)}{i}": value for i, value in enumerate(values)}


def _levels(value: Any) -> int:
    if isinstance(value, dict | list):
        return 1 + max(map(_levels, value.values() if isinstance(value, dict) else value), default=0)
    return 0


def test_depth_is_that_of_the_parsed_value() -> None:
    draw = random.Random(0)
    for _ in range(500):
        values = [_value(draw, draw.randrange(7)) for _ in range(3)]
        text = "\n".join(json.dumps(value, ensure_ascii=draw.random() < 0.5) for value in values)
        assert depth(text.encode()) == max(map(_levels, values)), text


def test_the_first_bracket_that_is_too_deep_is_named() -> None:
    draw = random.Random(1)
    for _ in range(200):
        text = json.dumps(_value(draw, 7), ensure_ascii=False)
        most = draw.randrange(6)
        with small_sizes(json_levels=most):
            place = too_deep(text)
        data = text.encode()
        if place is None:
            assert depth(data) <= most
        else:
            assert (depth(data[:place]), depth(data[: place + 1]), data[place : place + 1] in b"[{") == (
                most,
                most + 1,
                True,
            )


@pytest.mark.parametrize("opened", [b"[", b'{"a":', b'[{"":', b'{"a\\"":[', b'[\n"]",'])
@pytest.mark.parametrize("closed", [b"", b"]", b"}", b'"'])
def test_what_is_torn_is_refused_as_well(opened: bytes, closed: bytes) -> None:
    data = opened * 10_000 + closed * 10_000
    with pytest.raises(TableError, match=r"a\.json must nest objects and arrays at most 200 .* got more at .* flatter"):
        check_nesting(data, "a.json")


@pytest.mark.parametrize("data", [b"", b'"', b"\\", b"]" * 500 + b"[", b'"' + b"[" * 500, b"{}[]" * 500, "\ud800[]"])
def test_what_is_not_deep_passes(data: bytes | str) -> None:
    assert too_deep(data) is None


def test_a_bracket_that_closes_nothing_takes_no_level_away() -> None:
    assert too_deep(b"]" * 500 + b"[" * 201) == 700


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_all_encodings_of_json_are_looked_at(encoding: str) -> None:
    # In UTF-16, U+2222 is two bytes that are quotes in UTF-8, and U+5b5b two brackets.
    value = {"\u2222\u5b5b": ["\u2222", {"\\": '\u5c22"'}]}
    assert load_json(json.dumps(value, ensure_ascii=False).encode(encoding), "a") == value
    deep = '{"\u2222": ' + "[" * 200 + "]" * 200 + "}"
    with pytest.raises(TableError, match=r"v1\.json must nest .* at byte 207;"):
        load_json(deep.encode(encoding), "v1.json")
    assert load_json(("[" * 200 + "]" * 200).encode(encoding), "a")


def test_the_limit_is_below_that_of_the_parsers() -> None:
    text = '{"a": [' * 100 + "]}" * 100
    assert too_deep(text) is None
    assert _levels(load_json(text, "a")) == 200
