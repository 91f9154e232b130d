"""Pickling for worker processes: results of the caller's functions, and errors with their type."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from types import WrapperDescriptorType
from typing import Any

from torch_table_loader.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Pickled:
    """A value that was pickled where it was made, because torch's queue would lose a failure to pickle.

    It leaves the queue as the value itself.
    """

    data: bytes

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a call that restores the value."""
        return pickle.loads, (self.data,)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of an error, from which it is rebuilt without calling its `__init__`."""

    kind: type[BaseException]
    args: tuple[Any, ...]
    attributes: dict[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.kind, self.args, self.attributes)


def pickled_batch(batch: Any) -> Pickled:
    """Pickle the result of a `collate_fn` or of column functions.

    Raises:
        ConfigError: the result cannot be pickled.
    """
    try:
        return Pickled(bytes(ForkingPickler.dumps(batch)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            "what collate_fn, transforms and decode return must pickle to cross from a worker process, and "
            f"{type(batch).__name__} does not: {error}; return tensors, arrays or plain values, or pass "
            'worker_type="thread"'
        ) from error


def pickled_error(error: BaseException) -> Pickled:
    """Pickle an error with its type, arguments and notes; its traceback becomes a note.

    An error whose type cannot be pickled becomes a RuntimeError in the other process.
    """
    text = "".join(traceback.format_exception(error)).rstrip()
    error.add_note(f"in a worker process:\n{text}")
    if (data := _pickled(error)) is not None and _is_same(data, error):
        return Pickled(data)
    if (data := _pickled(_Parts(type(error), _args_of(error), vars(error)))) is not None:
        return Pickled(data)
    plain = RuntimeError(f"{type(error).__name__}: {error}")
    plain.add_note(f"in a worker process:\n{text}")
    return Pickled(pickle.dumps(plain))


def _pickled(value: Any) -> bytes | None:
    try:
        return bytes(ForkingPickler.dumps(value))
    except Exception:  # noqa: BLE001 a __reduce__ of the caller's may raise anything
        return None


def _is_same(data: bytes, error: BaseException) -> bool:
    """Return whether an error survives pickling; many take other arguments than they pass to their base."""
    try:
        found = pickle.loads(data)  # noqa: S301 our own
    except Exception:  # noqa: BLE001 as an __init__ of the caller's may raise anything
        return False
    return type(found) is type(error) and str(found) == str(error)


def twin_of(error: BaseException) -> BaseException:
    """Return a copy of an error, without its traceback, for another thread to raise."""
    twin = _rebuilt(type(error), _args_of(error), vars(error))
    twin.__cause__ = error.__cause__
    return twin


def _rebuilt(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    """Build an error without calling an `__init__` that is not Python's own."""
    error = kind.__new__(kind, *args)
    if isinstance(error, OSError):
        OSError.__init__(error, *args)
    else:
        if isinstance(kind.__init__, WrapperDescriptorType):  # which takes what is in args
            error.__init__(*args)  # type: ignore[misc]
        error.args = args
    vars(error).update(attributes)
    return error


def _args_of(error: BaseException) -> tuple[Any, ...]:
    """Return the arguments of an error; an OSError hides its file name from `args`."""
    if isinstance(error, OSError):
        return tuple(OSError.__reduce__(error)[1])
    return tuple(error.args)
