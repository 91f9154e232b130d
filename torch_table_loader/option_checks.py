"""The checks of single options: each takes the name and the value of one, and returns what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, Literal, get_args

from torch_table_loader.column_options import check_functions, check_strings, check_unsupported, names_of
from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.messages import did_you_mean
from torch_table_loader.ragged import check_ragged
from torch_table_loader.remote_options import RemoteOptions
from torch_table_loader.row_store_option import as_row_store
from torch_table_loader.schedules import as_schedule
from torch_table_loader.scrubbing import shown_url
from torch_table_loader.units import integer, parse_bytes, seconds
from torch_table_loader.weights import Weights, as_weights

WorkerType = Literal["thread", "process", "fork", "spawn", "forkserver"]

MOST_ROWS = 2**40
MOST_LANES = 2**16

Check = Callable[[str, Any], Any]
"""Given the name and the value of an option, returns the value to keep, or raises ConfigError."""


def whole(least: int | None, most: int | None) -> Check:
    """Check an integer, and keep it as Python's own: numpy's do not print or serialize as one."""
    return partial(_integer, least, most)


def _integer(least: int | None, most: int | None, name: str, value: Any) -> int:
    return integer(name, value, least, most)


def batch_sizes(name: str, value: Any) -> Any:
    """Check a size of global batches, or a schedule of some; one that does not change is an int."""
    sizes = as_schedule(value).mapped(partial(_integer, 1, MOST_ROWS, name))
    return sizes if len(sizes.values) > 1 else sizes.last


def one_of(*allowed: Any) -> Check:
    return partial(_chosen, allowed)


def _chosen(allowed: Sequence[Any], name: str, value: Any) -> Any:
    if value not in allowed:
        near = did_you_mean(repr(value), [repr(each) for each in allowed]) if isinstance(value, str) else ""
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}{near}")
    return value


def switch(name: str, value: Any) -> Any:
    if not isinstance(value, bool):
        raise ConfigTypeError(f"{name} must be True or False, got {value!r}")
    return value


def size(name: str, value: Any) -> int | str:
    """Check a size; one in bytes is kept as Python's own integer, one in words as it was written."""
    num_bytes = parse_bytes(value, name)
    return value if isinstance(value, str) else num_bytes


def split_size(name: str, value: Any) -> int | str:
    return size(name, value) if isinstance(value, str) else integer(name, value, 1, MOST_ROWS)


def window(name: str, value: Any) -> int | None:
    return integer(name, value, 0, MOST_ROWS) or None


def epochs(name: str, value: Any) -> int | str:
    return "forever" if value == "forever" else integer(name, value, 1, MOST_ROWS)


def names(name: str, value: Any) -> Any:
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(entry, str) for entry in value):
        remedy = f"; pass {name}=[{shown(value)}]" if isinstance(value, str) else ""
        raise ConfigTypeError(f"{name} must be a list of strings, got {shown(value)}{remedy}")
    if twice := sorted({entry for entry in value if list(value).count(entry) > 1}):
        raise ConfigError(f"{name} names {shown(twice[0])} twice; name each once")
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
    return value if isinstance(value, str) else names(name, value)


def function(name: str, value: Any) -> Any:
    if not callable(value):
        raise ConfigTypeError(f"{name} must be callable, got {type(value).__name__}")
    return value


def functions(name: str, value: Any) -> Any:
    check_functions(name, value)
    return value


def fills(name: str, value: Any) -> Any:
    if value != "mask" and not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be None, 'mask' or {{column: fill}}, got {value!r}")
    return value


def layouts(_: str, value: Any) -> Any:
    check_ragged(value)
    return value


def forms(_: str, value: Any) -> Any:
    check_strings(value)
    return value


def unsupported(_: str, value: Any) -> Any:
    check_unsupported(value)
    return value


def progress(name: str, value: Any) -> Any:
    if isinstance(value, str | None) and value != "workers":
        raise ConfigTypeError(f'{name} must be True or False, seconds, or "workers", got {value!r}')
    return value if isinstance(value, bool | str) else seconds(name, value)


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
    return value if found else integer(name, value, 1, MOST_ROWS)


def directory(name: str, value: Any) -> Any:
    if not isinstance(value, str | PathLike):
        raise ConfigTypeError(f"{name} must be a directory's path or URL, got {value!r}")
    return value


def row_store(_: str, value: Any) -> Any:
    as_row_store(value)
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
    return repr(shown_url(value) if isinstance(value, str) else value)
