"""Tokenizers by name."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import tokenizers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from tests.text.word_tokenizers import sized, words
from torch_table_loader import ConfigError, ConfigTypeError, MissingExtraError
from torch_table_loader.text.tokenizers import load_tokenizer


def word_level(folder: Path) -> tokenizers.Tokenizer:
    """Save a tokenizer whose highest id is beyond the number of its words, and which cuts and pads."""
    made = tokenizers.Tokenizer(WordLevel({"<unk>": 0, "a": 1, "b": 2, "c": 70_000, "<s>": 4}, unk_token="<unk>"))  # noqa: S106
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 4)])
    made.enable_truncation(2)
    made.enable_padding(length=5)
    made.save(str(folder / "tokenizer.json"))
    return made


def test_a_file_or_its_folder_is_a_hugging_face_tokenizer_that_neither_cuts_nor_pads(tmp_path: Path) -> None:
    word_level(tmp_path)
    for given in (str(tmp_path), str(tmp_path / "tokenizer.json")):
        loaded = load_tokenizer(given)
        assert list(map(list, loaded.encode(["a b c a", "", "x"]))) == [[1, 2, 70_000, 1], [], [0]]
        assert loaded.vocabulary == 70_001
    with_special = load_tokenizer(str(tmp_path), special_tokens=True)
    assert list(map(list, with_special.encode(["a", ""]))) == [[4, 1], [4]]
    assert with_special.name != loaded.name


def test_another_file_has_another_name(tmp_path: Path) -> None:
    made = word_level(tmp_path)
    before = load_tokenizer(str(tmp_path)).name
    made.no_padding()
    made.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(str(tmp_path)).name != before


def test_bytes_and_functions() -> None:
    assert load_tokenizer("bytes").encode(["hé"]) == [[104, 195, 169]]
    assert load_tokenizer("bytes").vocabulary == 256
    by_name, given = load_tokenizer("tests.text.word_tokenizers:words"), load_tokenizer(words)
    assert by_name.encode is given.encode is words
    assert by_name.name == given.name == "tests.text.word_tokenizers:words"
    assert by_name.vocabulary is None
    assert load_tokenizer("tests.text.word_tokenizers:sized").vocabulary == load_tokenizer(sized).vocabulary == 50_000


def test_encodings_of_tiktoken_take_special_tokens_for_text(monkeypatch: pytest.MonkeyPatch) -> None:
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
    loaded = load_tokenizer("tiktoken:small")
    assert (loaded.encode(["ab", ""]), loaded.vocabulary, loaded.name) == ([[2], [0]], 100, "tiktoken:small")
    with pytest.raises(ConfigError, match=r"no encoding 'smal'; did you mean small\?"):
        load_tokenizer("tiktoken:smal")


@pytest.mark.parametrize(("given", "package"), [("tiktoken:x", "tiktoken"), ("tokenizer.json", "tokenizers")])
def test_a_package_that_is_missing_is_named_with_its_extra(
    given: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'torch-table-loader\[text\]'"):
        load_tokenizer(given)


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
def test_what_is_no_tokenizer_is_refused(given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(given)


def test_a_folder_or_file_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the folder of a fast tokenizer has a"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"is not a tokenizer\.json that tokenizers can read"):
        load_tokenizer(str(tmp_path))
    with pytest.raises(ConfigTypeError, match="a tokenizer must be 'bytes'"):
        load_tokenizer(7)  # type: ignore[arg-type]
