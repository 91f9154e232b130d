"""How text files are written: what ``format=`` takes beside names."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.messages import first_twice

GivenTypes = Mapping[str, pa.DataType | str]
"""Types of columns by their names, as pyarrow's or by what pyarrow calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Csv:
    """How CSV files are written (RFC 4180), compressed or not: what ``format=`` takes.

    An empty field is null, and empty text if it stands in quotes.

    Args:
        delimiter: the character between fields; None: a tab in files whose names end with ``.tsv``, else a comma.
        quote: the character around fields that hold delimiters or line breaks, which is doubled inside; None: none.
        encoding: of the text, by a name that Python knows.
        header: True: the first line names the columns; False: they are called f0, f1 and so on; or a list of names,
            and the first line is a row.
        null_values: words that are null where they stand without quotes, in any column. None: those that pyarrow takes,
            such as NA and null, in columns that hold no text.
        types: types of some columns, as pyarrow's or by its names; the others are guessed. Not beside ``schema=``.

    Raises:
        ConfigError: a setting is wrong.
    """

    delimiter: str | None = None
    quote: str | None = '"'
    encoding: str = "utf-8"
    header: bool | Sequence[str] = True
    null_values: Sequence[str] | None = None
    types: GivenTypes = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every setting."""
        if self.delimiter is not None:
            _check_character("delimiter", self.delimiter)
        if self.quote is not None:
            _check_character("quote", self.quote)
        if self.quote is not None and self.quote == (self.delimiter or ","):
            raise ConfigError(f"Csv(quote={self.quote!r}) must be another character than delimiter=; change one")
        object.__setattr__(self, "encoding", _known_encoding(self.encoding))
        if not isinstance(self.header, bool):
            names = _words("header", self.header, "True, False or a list of names of columns")
            if not names or (twice := first_twice(names)) is not None:
                raise ConfigError(
                    f"Csv(header=) must have one name or more, none of them twice, got {list(names)}"
                    + (f"; {twice!r} is there twice" if names else "")
                )
            object.__setattr__(self, "header", names)
        if self.null_values is not None:
            object.__setattr__(self, "null_values", _words("null_values", self.null_values, "a list of words"))
        object.__setattr__(self, "types", _given_types("Csv", self.types))

    @property
    def settings(self) -> str:
        """What differs from the defaults."""
        return _settings(self, Csv())


@dataclass(frozen=True, slots=True, kw_only=True)
class Json:
    """How JSON files are written, compressed or not: what ``format=`` takes.

    An object is a row: one a line (https://jsonlines.org), over several lines, or in an array. Keys that it lacks are
    null.

    Args:
        types: types of some keys, as pyarrow's or by its names; the others are guessed. Not beside ``schema=``.

    Raises:
        ConfigError: a setting is wrong.
    """

    types: GivenTypes = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the types."""
        object.__setattr__(self, "types", _given_types("Json", self.types))

    @property
    def encoding(self) -> str:
        """The encoding of the text, which for JSON is one."""
        return "utf-8"

    @property
    def settings(self) -> str:
        """What differs from the defaults."""
        return _settings(self, Json())


def _settings(given: Csv | Json, plain: Csv | Json) -> str:
    values = {each.name: getattr(given, each.name) for each in fields(given)}
    values["types"] = {name: str(kind) for name, kind in sorted(given.types.items())}
    return ", ".join(f"{name}={value!r}" for name, value in values.items() if value != getattr(plain, name))


def _given_types(kind: str, given: Any) -> dict[str, pa.DataType]:
    """Return the types that a caller gave columns, as pyarrow's.

    Args:
        kind: what takes them, for messages.

    Raises:
        ConfigError: a name is not one of a type.
        ConfigTypeError: they are not a mapping of names to types.
    """
    if not isinstance(given, Mapping) or not all(
        isinstance(name, str) and isinstance(each, str | pa.DataType) for name, each in given.items()
    ):
        raise ConfigTypeError(
            f'{kind}(types=) must be types by the names of columns, such as {{"id": "string"}}, got {given!r}'
        )
    try:
        return {name: pa.type_for_alias(each) if isinstance(each, str) else each for name, each in given.items()}
    except ValueError as error:
        raise ConfigError(f"{kind}(types=) must have types that pyarrow knows, got {given!r} ({error})") from error


def _check_character(name: str, given: Any) -> None:
    if not isinstance(given, str):
        raise ConfigTypeError(f"Csv({name}=) must be a character, got {type(given).__name__} {given!r}")
    if len(given) != 1 or not given.isascii() or given in "\r\n":
        raise ConfigError(f"Csv({name}=) must be one ASCII character that ends no line, got {given!r}")


def _words(name: str, given: Any, what: str) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(each, str) for each in given):
        raise ConfigTypeError(f"Csv({name}=) must be {what}, got {type(given).__name__} {given!r}")
    return tuple(given)


def _known_encoding(given: Any) -> str:
    if not isinstance(given, str):
        raise ConfigTypeError(f"Csv(encoding=) must be the name of an encoding, got {type(given).__name__} {given!r}")
    try:
        "".encode(given)
        return codecs.lookup(given).name
    except LookupError as error:
        raise ConfigError(
            f'Csv(encoding=) must be an encoding of text that Python knows, such as "latin-1", got {given!r}'
        ) from error
