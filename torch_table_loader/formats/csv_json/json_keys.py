"""How many keys a JSON text has, and in how many lines: a parser makes a value of each key in each line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from torch_table_loader.errors import TableError
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_QUOTE, _COLON, _NEWLINE = b'":\n'
_WORD = 8
_MIXED = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
"""Odd numbers: what a key begins and ends with, and its length, are multiplied by them."""


class KeyedText:
    """A text of lines that is refused once few bytes of it would become many values.

    Keys are told apart by their first and last bytes and their length, and those at the edge of a piece are not seen:
    their number is about right.
    """

    closed = False

    def __init__(self, source: Any, name: str) -> None:
        self._source = source
        self._name = name
        self._keys = np.empty(0, np.uint64)
        self._lines = self._num_bytes = 0

    def read(self, length: int = -1) -> bytes:
        """Read on.

        Raises:
            TableError: the lines have too many different keys.
        """
        piece: bytes = self._source.read(length)
        text = np.frombuffer(piece, np.uint8)
        self._num_bytes += len(text)
        self._lines += int(np.count_nonzero(text == _NEWLINE))
        self._add(_hashes(piece, text))
        if self._lines * len(self._keys) > self._num_bytes + sizes().sparse_values:
            raise TableError(
                f"{self._name} has about {len(self._keys):,} different keys in its first {self._lines:,} lines, which "
                f"would become {self._lines * len(self._keys):,} values; pass schema= with the keys that are needed, "
                "or write keys that few lines have as a list of pairs"
            )
        return piece

    def close(self) -> None:
        """Leave the text."""
        self.closed = True

    def _add(self, found: NDArray[np.uint64]) -> None:
        if not len(self._keys):
            self._keys = np.unique(found)
            return
        at = np.minimum(np.searchsorted(self._keys, found), len(self._keys) - 1)
        new = found[self._keys[at] != found]
        if len(new):
            self._keys = np.union1d(self._keys, new)


def _hashes(piece: bytes, text: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return a number for each key of a piece of text: a string with a colon after it."""
    quotes = np.flatnonzero(text == _QUOTE)
    ends = quotes[1:][text[np.minimum(quotes[1:] + 1, len(text) - 1)] == _COLON]
    starts = quotes[np.searchsorted(quotes, ends) - 1] + 1
    inside = (ends >= _WORD) & (starts + _WORD <= len(text))
    ends, starts = ends[inside], starts[inside]
    if not len(ends):
        return np.empty(0, np.uint64)
    words = np.ndarray((len(text) - _WORD + 1,), "<u8", buffer=piece, strides=(1,))
    length = (ends - starts).astype(np.uint64)
    missing = np.uint64(_WORD) * (np.uint64(_WORD) - np.minimum(length, np.uint64(_WORD)))
    last, first = words[ends - _WORD] >> np.minimum(missing, np.uint64(63)), words[starts]
    first = (first << np.minimum(missing, np.uint64(63))) * (length > 0)
    found: NDArray[np.uint64] = np.zeros(len(ends), np.uint64)
    for part, factor in zip((last, first, length), _MIXED, strict=True):
        found = (found + part) * np.uint64(factor)
        found ^= found >> np.uint64(32)
    return found
