"""Tokenizers by name."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from tests.text.word_tokenizers import sized, words
from torch_table_loader import (
    ConfigError,
    ConfigTypeError,
    MissingExtraError,
    ResumeError,
    StructuredDataset,
    tokenize_table,
)

Tokenized = Callable[..., pa.ChunkedArray]


@pytest.fixture
def tokenized(tmp_path: Path) -> Tokenized:
    """Return tokens of texts; a second call with the same texts finds the first one's table."""

    def tokens(texts: list[str], tokenizer: Any, **options: Any) -> pa.ChunkedArray:
        folder = tmp_path / f"texts of {zlib.crc32(repr(texts).encode())}"
        folder.mkdir(exist_ok=True)
        if not (folder / "t.parquet").exists():
            pq.write_table(pa.table({"text": texts}), folder / "t.parquet")
        dataset = StructuredDataset(str(folder / "t.parquet"), num_workers=1, output_format="arrow")
        out = folder / "tokens"
        tokenize_table(dataset, out, tokenizer, **options)
        return pq.read_table(out)["input_ids"]

    return tokens


UNKNOWN, SMALL = pa.int32(), pa.uint16()
"""Types of the ids of a tokenizer that may have more than 65,536, and of one that has fewer."""


def word_level(folder: Path) -> tokenizers.Tokenizer:
    """Save a tokenizer whose highest id is beyond the number of its words, and which cuts and pads."""
    made = tokenizers.Tokenizer(WordLevel({"<unk>": 0, "a": 1, "b": 2, "c": 70_000, "<s>": 4}, unk_token="<unk>"))  # noqa: S106
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 4)])
    made.enable_truncation(2)
    made.enable_padding(length=5)
    made.save(str(folder / "tokenizer.json"))
    return made


def test_a_file_or_its_folder_is_a_hugging_face_tokenizer_that_neither_cuts_nor_pads(
    tmp_path: Path, tokenized: Tokenized
) -> None:
    word_level(tmp_path)
    for given in (str(tmp_path), str(tmp_path / "tokenizer.json")):
        loaded = tokenized(["a b c a", "", "x"], given)
        assert loaded.to_pylist() == [[1, 2, 70_000, 1], [], [0]]
        assert loaded.type.value_type == UNKNOWN
    assert tokenized(["a", ""], str(tmp_path), special_tokens=True).to_pylist() == [[4, 1], [4]]
    with pytest.raises(ResumeError, match="special tokens"):
        tokenized(["a", ""], str(tmp_path))


def test_another_file_has_another_name(tmp_path: Path, tokenized: Tokenized) -> None:
    made = word_level(tmp_path)
    tokenized(["a"], str(tmp_path))
    made.no_padding()
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ResumeError, match="tokenizer"):
        tokenized(["a"], str(tmp_path))


def test_bytes_and_functions(tokenized: Tokenized) -> None:
    as_bytes = tokenized(["hé"], "bytes")
    assert (as_bytes.to_pylist(), as_bytes.type.value_type) == ([[104, 195, 169]], SMALL)
    for name, function, kind in (("words", words, UNKNOWN), ("sized", sized, SMALL)):
        for given in (f"tests.text.word_tokenizers:{name}", function):
            texts = [f"some {given}", ""]
            found = tokenized(texts, given)
            assert (found.to_pylist(), found.type.value_type) == (words(texts), kind)


def test_a_function_has_the_name_by_which_it_is_found(tokenized: Tokenized) -> None:
    tokenized(["a"], words)
    assert tokenized(["a"], "tests.text.word_tokenizers:words").to_pylist() == words(["a"])
    with pytest.raises(ResumeError, match="tokenizer"):
        tokenized(["a"], "tests.text.word_tokenizers:numbers")


def test_encodings_of_tiktoken_take_special_tokens_for_text(
    monkeypatch: pytest.MonkeyPatch, tokenized: Tokenized
) -> None:
    def get_encoding(name: str) -> SimpleNamespace:
        if name != "small":
            raise ValueError(name)

        def encode_ordinary_batch(texts: list[str], *, num_threads: int) -> list[list[int]]:
            assert num_threads == 1
            return [[len(text)] for text in texts]

        return SimpleNamespace(encode_ordinary_batch=encode_ordinary_batch, max_token_value=99)

    fake = ModuleType("tiktoken")
    vars(fake).update(get_encoding=get_encoding, list_encoding_names=lambda: ["small"])
    monkeypatch.setitem(sys.modules, "tiktoken", fake)
    found = tokenized(["ab", ""], "tiktoken:small")
    assert (found.to_pylist(), found.type.value_type) == ([[2], [0]], SMALL)
    with pytest.raises(ConfigError, match=r"no encoding 'smal'; did you mean small\?"):
        tokenized(["ab", ""], "tiktoken:smal")


@pytest.mark.parametrize(("given", "package"), [("tiktoken:x", "tiktoken"), ("tokenizer.json", "tokenizers")])
def test_a_package_that_is_missing_is_named_with_its_extra(
    given: str, package: str, monkeypatch: pytest.MonkeyPatch, tokenized: Tokenized
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'torch-table-loader\[text\]'"):
        tokenized(["a"], given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nothing", "there is no file or folder 'nothing'"),
        ("no.such.module:f", "cannot be imported: No module named 'no'; .* PYTHONPATH"),
        ("tests.text.word_tokenizers:wrds", r"has no 'wrds'; did you mean words"),
        ("tests.text.word_tokenizers:STOP_FILE", "is a str"),
        ("missing.json", "cannot be read: No such file or directory; the folder of a fast tokenizer"),
    ],
)
def test_what_is_no_tokenizer_is_refused(given: str, message: str, tokenized: Tokenized) -> None:
    with pytest.raises(ConfigError, match=message):
        tokenized(["a"], given)


def test_a_folder_or_file_without_a_tokenizer_is_refused(tmp_path: Path, tokenized: Tokenized) -> None:
    with pytest.raises(ConfigError, match="the folder of a fast tokenizer has a"):
        tokenized(["a"], str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"is not a tokenizer\.json that tokenizers can read"):
        tokenized(["a"], str(tmp_path))
    with pytest.raises(ConfigTypeError, match="a tokenizer must be 'bytes'"):
        tokenized(["a"], 7)
