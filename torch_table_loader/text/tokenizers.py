"""Tokenizers by name: functions of a module, Hugging Face's files, tiktoken's encodings, and bytes."""

from __future__ import annotations

import hashlib
import importlib
from array import array
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow.datatypes import is_string
from torch_table_loader.errors import ConfigError, ConfigTypeError, MissingExtraError
from torch_table_loader.messages import did_you_mean

if TYPE_CHECKING:
    from numpy.typing import NDArray

Encode: TypeAlias = Callable[[list[str]], Sequence[Sequence[int]]]
"""Returns a list of ids for each of some texts."""


@runtime_checkable
class Loads(Protocol):
    """A value that says which tokenizer is meant, such as `Chat`."""

    def load(self) -> Tokenizer:
        """Load the tokenizer."""
        ...


_FORMS = (
    "a tokenizer must be 'bytes', 'tiktoken:NAME', a tokenizer.json or the folder of one, or 'module:attribute' of a "
    "function that takes a list of strings and returns a list of ids for each"
)


class RowFaultError(Exception):
    """A fault in a row of a batch; the caller, who knows where the batch is from, names row and file."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(row, message)
        self.row = row
        self.message = message


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer.

    Args:
        name: differs from that of any other tokenizer, as far as that can be known.
        vocabulary: every id is below it; None if that is not known.
    """

    name: str
    encode: Encode
    vocabulary: int | None = None

    @property
    def makes(self) -> tuple[str, ...]:
        """The columns that it makes beside the ids: lists of uint8, as long as these."""
        return ()

    def refuses(self, kind: pa.DataType) -> str | None:
        """Say what a column must be if it cannot be one of this type."""
        if is_string(kind):
            return None
        return "must be text for a tokenizer"

    def columns(self, given: Sequence[Sequence[Any]], id_type: str, remedy: str) -> list[pa.LargeListArray]:
        """Return the ids of the rows of some columns as `lists` does, and what else `makes` names."""
        return [self.lists(given[0], id_type, remedy)]

    def lists(self, texts: Sequence[str | None], id_type: str, remedy: str) -> pa.LargeListArray:
        """Return the ids of some texts as lists of `id_type`; a null has none.

        Raises:
            RowFaultError: an id does not fit into the type; `remedy` says what to do then.
            ConfigError: the tokenizer failed, or returned something else than lists of ids.
        """
        rows = [row for row, text in enumerate(texts) if text is not None]
        try:
            ids, sizes = self._ids([texts[row] or "" for row in rows], id_type, remedy)
        except RowFaultError as error:
            raise RowFaultError(rows[error.row], error.message) from None
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        offsets[1:][rows] = sizes
        return pa.LargeListArray.from_arrays(pa.array(np.cumsum(offsets)), pa.array(ids.astype(id_type)))

    def _ids(self, texts: list[str], id_type: str, remedy: str) -> tuple[NDArray[np.int64], list[int]]:
        """Return the ids of some texts one after another, and how many each text has."""
        try:
            lists = self.encode(texts) if texts else []
        except Exception as error:
            raise ConfigError(f"the tokenizer {self.name!r} failed: {type(error).__name__}: {error}") from error
        sizes = [len(ids) for ids in lists if isinstance(ids, Sized)]
        if not len(sizes) == len(lists) == len(texts):
            raise ConfigError(
                f"the tokenizer {self.name!r} must return a list of ids for each text, got {len(sizes)} for "
                f"{len(texts)} texts"
            )
        try:
            # An array takes nothing but integers, where pyarrow would cut the fractions of floats off.
            ids = np.frombuffer(array("q", chain.from_iterable(lists)), dtype=np.int64)
        except (TypeError, OverflowError):
            raise self._fault(lists, id_type, remedy) from None
        if len(ids) and not 0 <= ids.min() <= ids.max() <= np.iinfo(id_type).max:
            raise self._fault(lists, id_type, remedy)
        return ids, sizes

    def _fault(self, lists: Sequence[Sequence[Any]], id_type: str, remedy: str) -> Exception:
        """Return the error that names the first id that cannot be kept."""
        most = int(np.iinfo(id_type).max)
        for row, ids in enumerate(lists):
            for number in ids:
                if not isinstance(number, SupportsIndex):
                    return ConfigError(
                        f"the tokenizer {self.name!r} must return lists of ids, got {number!r} in one of them"
                    )
                if not 0 <= number.__index__() <= most:
                    return RowFaultError(
                        row,
                        f"the tokenizer {self.name!r} made the id {number} of its text, and {id_type} holds 0 to "
                        f"{most}; {remedy}",
                    )
        raise AssertionError("all ids fit")


def load_tokenizer(given: str | Encode | Loads, *, special_tokens: bool = False) -> Tokenizer:
    """Load a tokenizer.

    Args:
        given: "bytes", for the bytes of UTF-8; "tiktoken:cl100k_base"; the path of a Hugging Face ``tokenizer.json``
            or of its folder; "module:attribute", for any function that takes a list of strings and returns a list of
            ids for each; or that function. The attribute ``vocab_size`` of a function is believed. Or a `Chat`.
        special_tokens: whether tokenizers of Hugging Face add their special tokens, such as begin and end.

    Raises:
        ConfigError: there is no such tokenizer, or it cannot be loaded.
        MissingExtraError: its package is not installed.
    """
    if isinstance(given, Loads):
        if special_tokens:
            raise ConfigError("special_tokens are the chat template's own; leave special_tokens out beside a Chat")
        return given.load()
    if callable(given):
        return Tokenizer(name_of(given), given, _vocabulary_of(given))
    if not isinstance(given, str):
        raise ConfigTypeError(f"{_FORMS}; got {given!r}")
    path = Path(given).expanduser()
    if not (path.exists() or path.suffix == ".json"):
        if given == "bytes":
            return Tokenizer("bytes", utf8_bytes, 256)
        kind, _, name = given.partition(":")
        if kind == "tiktoken" and name:
            return _of_tiktoken(name)
        if kind and name:
            return _of_module(given, kind, name)
        raise ConfigError(f"{_FORMS}; there is no file or folder {given!r}")
    if path.is_dir():
        path /= "tokenizer.json"
    return _of_file(path, special_tokens=special_tokens)


def name_of(function: Callable[..., Any]) -> str:
    """Return the module and the name of a function."""
    kind = type(function)
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', kind.__qualname__)}"


def utf8_bytes(texts: list[str]) -> list[list[int]]:
    """Return the bytes of texts.

    >>> utf8_bytes(["aé", ""])
    [[97, 195, 169], []]
    """
    return [list(text.encode()) for text in texts]


def _vocabulary_of(encode: Any) -> int | None:
    size = getattr(encode, "vocab_size", None)
    if isinstance(size, int) and size > 0:
        return size
    return None


def _of_module(given: str, module: str, attribute: str) -> Tokenizer:
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"the tokenizer {given!r} cannot be imported: {error}; modules are found in installed packages and in the "
            "folders of PYTHONPATH"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"the tokenizer {given!r} has no {part!r}{did_you_mean(part, dir(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigTypeError(f"{_FORMS}; {given!r} is a {type(found).__name__}")
    return Tokenizer(given, found, _vocabulary_of(found))


def _of_file(path: Path, *, special_tokens: bool) -> Tokenizer:
    """Load a Hugging Face tokenizer; see `load_file`."""
    tokenizer, name, vocabulary = load_file(path)

    def encode(texts: list[str]) -> list[list[int]]:
        return [found.ids for found in tokenizer.encode_batch_fast(texts, add_special_tokens=special_tokens)]

    if special_tokens:
        name += " with special tokens"
    return Tokenizer(name, encode, vocabulary)


def load_file(path: Path) -> tuple[Any, str, int]:
    """Load a Hugging Face tokenizer, its name and its vocabulary; it neither cuts nor pads, whatever its file says.

    Raises:
        ConfigError: there is none, or it cannot be read.
        MissingExtraError: its package is not installed.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtraError(
            f"Hugging Face tokenizers need their package ({error}); pip install 'torch-table-loader[text]'"
        ) from error
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the tokenizer {str(path)!r} cannot be read: {error.strerror}; the folder of a fast tokenizer has a "
            "tokenizer.json, which its save_pretrained(folder) writes"
        ) from error
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:
        raise ConfigError(f"{str(path)!r} is not a tokenizer.json that tokenizers can read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    name = f"tokenizer.json {hashlib.sha256(data).hexdigest()}"
    return tokenizer, name, max(tokenizer.get_vocab().values(), default=-1) + 1


def _of_tiktoken(name: str) -> Tokenizer:
    """Load an encoding of tiktoken; what looks like a special token in a text is text."""
    try:
        import tiktoken
    except ImportError as error:
        raise MissingExtraError(
            f"tiktoken's encodings need its package ({error}); pip install 'torch-table-loader[text]'"
        ) from error
    try:
        encoding = tiktoken.get_encoding(name)
    except ValueError as error:
        known = tiktoken.list_encoding_names()
        raise ConfigError(f"tiktoken has no encoding {name!r}{did_you_mean(name, known, spare=len(known))}") from error
    except OSError as error:
        raise ConfigError(
            f"tiktoken could not fetch its encoding {name!r}: {error}; set TIKTOKEN_CACHE_DIR to a folder that has it"
        ) from error

    def encode(texts: list[str]) -> list[list[int]]:
        found: list[list[int]] = encoding.encode_ordinary_batch(texts, num_threads=1)
        return found

    return Tokenizer(f"tiktoken:{name}", encode, encoding.max_token_value + 1)
