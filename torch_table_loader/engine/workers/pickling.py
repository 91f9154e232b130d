"""Pickling for worker processes: results of the caller's functions, errors with their type, what an epoch changes."""

from __future__ import annotations

import io
import pickle
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from multiprocessing.reduction import ForkingPickler
from types import WrapperDescriptorType
from typing import IO, Any

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


_Path = tuple[str | int, ...]

_MOST_PARTS = 64
"""Entries of a sequence in which parts are looked for, at most: a mixture has as many sources."""


def _parts(value: Any, path: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    """Yield what a value of frozen dataclasses and short tuples was made of, each with the way to it.

    What a value keeps beside what it was made of, such as results that it found, may differ in another process.
    """
    inside: list[tuple[str | int, Any]] = []
    about = getattr(value, "__dataclass_params__", None)
    if about is not None and about.frozen:
        inside += [(each.name, getattr(value, each.name)) for each in fields(value) if each.init]
    elif isinstance(value, tuple) and len(value) <= _MOST_PARTS:
        inside += enumerate(value)
    for step, part in inside:
        if not isinstance(part, int | float | str | bytes | None):
            yield (*path, step), part
            yield from _parts(part, (*path, step))


class _Smaller(ForkingPickler):
    """Writes the way to what the other process has, in place of that."""

    def __init__(self, file: IO[bytes], known: Mapping[int, _Path]) -> None:
        super().__init__(file)
        self._known = known

    def persistent_id(self, value: Any) -> _Path | None:
        return self._known.get(id(value))


class _Restoring(pickle.Unpickler):
    """Finds what was left out in the value that this process has."""

    def __init__(self, data: bytes, before: Any) -> None:
        super().__init__(io.BytesIO(data))
        self._before = before

    def persistent_load(self, path: _Path) -> Any:
        found = self._before
        for step in path:
            found = found[step] if isinstance(step, int) else getattr(found, step)
        return found


def difference(value: Any, before: Any, most: int) -> bytes | None:
    """Pickle a value without the parts that are those of another one, which a process has got.

    Args:
        before: of dataclasses; its parts have not changed since.
        most: bytes.

    Returns:
        What `restored` takes; None if it does not pickle, or is too much.
    """
    file = io.BytesIO()
    try:
        _Smaller(file, {id(part): path for path, part in _parts(before)}).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    data = file.getvalue()
    if len(data) > most:
        return None
    return data


def restored(data: bytes, before: Any) -> Any:
    """Return a value of which `difference` was sent, given the same value before it."""
    return _Restoring(data, before).load()


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
