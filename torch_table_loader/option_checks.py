"""The checks of single options: each takes the name and the value of one, and returns what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, Literal, get_args

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.installed import load
from torch_table_loader.messages import first_twice, nearest
from torch_table_loader.option_values import (
    Budget,
    Hash,
    Pad,
    RaggedLayout,
    RemoteOptions,
    StringLayout,
    UnsupportedForm,
    Vocabulary,
    Weights,
    as_row_store,
    as_weights,
    names_of,
)
from torch_table_loader.samples import SamplesOption
from torch_table_loader.schedules import as_schedule
from torch_table_loader.scrubbing import shown_url
from torch_table_loader.units import integer, parse_bytes, seconds
from torch_table_loader.units import one_of as chosen

WorkerType = Literal["thread", "process", "fork", "spawn", "forkserver"]

MOST_ROWS = 2**40
MOST_LANES = 2**16

Check = Callable[[str, Any], Any]
"""Given the name and the value of an option, returns the value to keep, or raises ConfigError."""


def whole(least: int | None, most: int | None) -> Check:
    """Check an integer, and keep it as Python's own: numpy's do not print or serialize as one."""
    return partial(integer, least=least, most=most)


def batch_size(name: str, value: Any) -> int | Budget:
    if isinstance(value, Budget):
        return value
    if value is None:
        raise ConfigTypeError(
            f"{name} must be an int, got None: batches are made here; leave it out for batches of 1,024 rows, and pass "
            "batch_size=None to a DataLoader of your own alone"
        )
    return integer(name, value, 1, MOST_ROWS)


def batch_sizes(name: str, value: Any) -> Any:
    """Check a size of global batches, or a schedule of some; one that does not change is an int."""
    sizes = as_schedule(value).mapped(partial(integer, name, least=1, most=MOST_ROWS))
    if len(sizes.values) > 1:
        return sizes
    return sizes.last


def one_of(*allowed: Any) -> Check:
    return partial(chosen, allowed)


def switch(name: str, value: Any) -> Any:
    if not isinstance(value, bool):
        raise ConfigTypeError(f"{name} must be True or False, got {value!r}")
    return value


def size(name: str, value: Any) -> int | str:
    """Check a size; one in bytes is kept as Python's own integer, one in words as it was written."""
    num_bytes = parse_bytes(value, name)
    if isinstance(value, str):
        return value
    return num_bytes


def split_size(name: str, value: Any) -> int | str:
    if isinstance(value, str):
        return size(name, value)
    return integer(name, value, 1, MOST_ROWS)


def window(name: str, value: Any) -> int | str | None:
    if isinstance(value, str):
        return size(name, value)
    return integer(name, value, 0, MOST_ROWS) or None


def epochs(name: str, value: Any) -> int | str:
    if value == "forever":
        return "forever"
    return integer(name, value, 1, MOST_ROWS)


def names(name: str, value: Any) -> Any:
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(entry, str) for entry in value):
        remedy = ""
        if isinstance(value, str):
            remedy = f"; pass {name}=[{shown(value)}]"
        raise ConfigTypeError(f"{name} must be a list of strings, got {shown(value)}{remedy}")
    if (twice := first_twice(value)) is not None:
        raise ConfigError(f"{name} names {shown(twice)} twice; name each once")
    return value


def columns(name: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return names(name, value)
    for key, own in value.items():
        if not isinstance(key, str) or not key:
            raise ConfigTypeError(f"{name} must have strings as keys of a batch, got {shown(key)}")
        if not isinstance(own, str):
            names(f"{name}[{key!r}]", own)
            if not own:
                raise ConfigError(f"{name}[{key!r}] names no column; name at least one, or leave it out")
    names(name, names_of(value))
    return dict(value)


def files(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return value
    return names(name, value)


def function(name: str, value: Any) -> Any:
    if not callable(value):
        raise ConfigTypeError(f"{name} must be callable, got {type(value).__name__}")
    return value


def functions(name: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ConfigTypeError(f"{name} must be {{column: function}}, got {type(value).__name__} {value!r}")
    for column, function in value.items():
        _check_column(name, column)
        if not callable(function):
            raise ConfigTypeError(f"{name}[{column!r}] must be callable, got {type(function).__name__} {function!r}")
    return value


def fills(name: str, value: Any) -> Any:
    if value != "mask" and not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be None, 'mask' or {{column: fill}}, got {value!r}")
    return value


def _check_column(name: str, column: Any) -> None:
    if not isinstance(column, str):
        raise ConfigTypeError(f"{name} must name columns by str, got {type(column).__name__} {column!r}")


def _no_hint(_: Any) -> str:
    return ""


def _by_column(
    name: str,
    value: Any,
    kinds: Any,
    words: Sequence[str],
    each: str,
    whole: str = "",
    hint: Callable[[Any], str] = _no_hint,
) -> Any:
    """Check a form of columns, a value of some types or a word: one for all, or some by column."""

    def check(called: str, form: Any, forms: str) -> None:
        if not (isinstance(form, kinds) or (isinstance(form, str) and form in words)):
            raise ConfigError(f"{called} must be {forms}, got {form!r}{hint(form)}")

    if not isinstance(value, Mapping):
        check(name, value, f"{whole or each}, or {{column: one of these}}")
        return value
    for column, form in value.items():
        _check_column(name, column)
        check(f"{name}[{column!r}]", form, each)
    return value


def layouts(name: str, value: Any) -> Any:
    words = get_args(RaggedLayout)
    known = ", ".join(map(repr, words))
    return _by_column(name, value, Pad, words, f"one of {known} or a Pad(...)", f"one of None, {known}, a Pad(...)")


def strings(name: str, value: Any) -> Any:
    words = get_args(StringLayout)
    forms = f"one of {', '.join(map(repr, words))}, a Vocabulary(values) or a Hash(buckets=...)"
    return _by_column(name, value, Hash | Vocabulary, words, forms, hint=_form_of_strings)


def _form_of_strings(given: Any) -> str:
    """Return what to pass in place of a word, or of a class, that is not a form of strings."""
    if given == "hash" or given is Hash:
        return '; pass strings=Hash(buckets=...), or strings={"column": Hash(buckets=...)} for some columns alone'
    if isinstance(given, str):
        return ""
    return '; pass strings={"column": Vocabulary(values)}'


def unsupported(name: str, value: Any) -> Any:
    words = get_args(UnsupportedForm)
    return _by_column(name, value, (), words, " or ".join(f'"{word}"' for word in words))


def progress(name: str, value: Any) -> Any:
    known = 'True or False, seconds, "workers", or what the bar says in front'
    if value is None:
        raise ConfigTypeError(f"{name} must be {known}, got None")
    if value != "workers" and isinstance(value, str) and (not value.strip() or nearest(value, ["workers"], spare=0)):
        raise ConfigError(f"{name} must be {known}, such as 'train', got {value!r}")
    if isinstance(value, bool | str):
        return value
    return seconds(name, value)


def workers(name: str, value: Any) -> Any:
    kinds = get_args(WorkerType)
    if value not in kinds and not hasattr(value, "get_start_method"):
        raise ConfigError(
            f"{name} must be one of {', '.join(map(repr, kinds))}, or a context of multiprocessing.get_context(), got "
            f"{value!r}"
        )
    return value


def ranks(name: str, value: Any) -> Any:
    found = is_mesh(value) or (isinstance(value, str) and value == "auto")
    if found:
        return value
    return integer(name, value, 1, MOST_ROWS)


def directory(name: str, value: Any) -> Any:
    if not isinstance(value, str | PathLike):
        raise ConfigTypeError(f"{name} must be a directory's path or URL, got {value!r}")
    return value


def row_store(_: str, value: Any) -> Any:
    as_row_store(value)
    return value


def pack(name: str, value: Any) -> SamplesOption:
    if not isinstance(value, SamplesOption):
        load("text")  # a build without it has no value that would do
        raise ConfigTypeError(f"{name} must be a Pack(seq_len=..., ...), got {type(value).__name__} {value!r}")
    return value


def weights(_: str, value: Any) -> Weights:
    return as_weights(value)


def storage(_: str, value: Any) -> Any:
    RemoteOptions.of(value)
    return value


def is_mesh(value: Any) -> bool:
    """Return whether a value is a DeviceMesh, or has the methods of one that are needed."""
    return all(hasattr(value, name) for name in ("ndim", "size", "get_coordinate"))


def shown(value: object) -> str:
    """Return a value as messages may show it: of URLs, also in lists, without their secrets.

    >>> shown(["https://me:word@host/a", 5])
    "['https://host/a', 5]"
    """
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, str):
        return repr(shown_url(value))
    return repr(value)
