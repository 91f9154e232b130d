"""What an epoch changes, pickled for worker processes, which have the rest from the epoch before."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import fields
from multiprocessing.reduction import ForkingPickler
from typing import IO, Any

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
