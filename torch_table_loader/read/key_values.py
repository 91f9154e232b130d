"""Key columns in a form that numpy hashes and compares: pyarrow builds its hash table anew at each look-up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_table_loader.arrow.arrays import offsets_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words: TypeAlias = NDArray[np.uint64]
    Mask: TypeAlias = NDArray[np.bool_]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio."""

_NULL = np.uint64(0xBF58476D1CE4E5B9)
_MOST_WORDS = 32
"""Words that are hashed of a string's beginning, and of the end of a longer one; what lies between is compared only."""


class KeyValues(Protocol):
    """The values of one key column; null equals null, and NaN equals NaN."""

    @property
    def num_bytes(self) -> int:
        """Memory that they take."""

    def hashed(self, so_far: Words) -> Words:
        """Hash each value into what was hashed of the row so far."""

    def equal(self, rows: NDArray[np.intp], other: Any, places: NDArray[np.intp]) -> Mask:
        """Return whether the values at `rows` are those of another of its kind at `places`."""


def key_values(column: pa.Array) -> KeyValues:
    """Choose the form of a column.

    Args:
        column: of any primitive type.
    """
    kind = column.type
    varies = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return _Varying(column.cast(pa.large_binary())) if any(each(kind) for each in varies) else _Fixed(column)


def mixed(so_far: Words, words: Any) -> Words:
    """Hash words into hashes, of which the first bits are spread best (Knuth, TAOCP 3, 6.4: multiplicative hashing).

    Args:
        so_far: the hashes of what came before, or zeros.
        words: what comes next: one for each hash, or one for all.

    >>> numbers = np.arange(1000, dtype=np.uint64)
    >>> len(set((mixed(numbers, np.uint64(0)) >> np.uint64(44)).tolist()))
    1000
    """
    hashes: Words = so_far ^ words
    hashes *= _GOLDEN
    hashes ^= hashes >> np.uint64(29)
    return hashes


def integers(column: pa.Array) -> NDArray[Any]:
    """The values of integers, dates and times as integers of their width; what stands for nulls does not matter."""
    width = column.type.bit_width
    plain = column.view(pa.int32() if width == 32 else pa.int64()) if width in (32, 64) else column
    if plain.null_count:
        plain = pc.fill_null(plain, 0)
    numbers: NDArray[Any] = plain.to_numpy(zero_copy_only=False)
    return numbers


class _Fixed:
    """Values of one width, each as words that are equal where the values are."""

    __slots__ = ("_valid", "_words")

    def __init__(self, column: pa.Array) -> None:
        self._valid = _valid(column)
        self._words = _words(column)
        if self._valid is not None:
            self._words = [np.where(self._valid, words, 0) for words in self._words]

    @property
    def num_bytes(self) -> int:
        return sum(words.nbytes for words in self._words) + (0 if self._valid is None else self._valid.nbytes)

    def hashed(self, so_far: Words) -> Words:
        for words in self._words:
            so_far = mixed(so_far, words)
        return so_far if self._valid is None else np.where(self._valid, so_far, mixed(so_far, _NULL))

    def equal(self, rows: NDArray[np.intp], other: _Fixed, places: NDArray[np.intp]) -> Mask:
        same = _both_or_none(self._valid, rows, other._valid, places)
        for mine, theirs in zip(self._words, other._words, strict=True):
            same &= mine[rows] == theirs[places]
        return same


class _Varying:
    """Strings and bytes."""

    __slots__ = ("_column", "_valid")

    def __init__(self, column: pa.LargeBinaryArray) -> None:
        self._column = column
        self._valid = _valid(column)

    @property
    def num_bytes(self) -> int:
        return int(self._column.nbytes)

    def hashed(self, so_far: Words) -> Words:
        starts, lengths, text = _bytes_of(self._column)
        if self._valid is not None:
            lengths = np.where(self._valid, lengths, 0)
        so_far = mixed(so_far, lengths.astype(np.uint64))
        rows = np.flatnonzero(lengths)
        for word in range(_MOST_WORDS):
            if not len(rows):
                break
            left = lengths[rows] - 8 * word
            # A word of less than 8 bytes: what follows it in memory is another string's.
            beyond = (8 * np.maximum(8 - left, 0)).astype(np.uint64)
            so_far[rows] = mixed(so_far[rows], text[starts[rows] + 8 * word] << beyond)
            rows = rows[left > 8]
        if len(rows):
            ends = starts[rows] + lengths[rows]
            for word in range(1, _MOST_WORDS + 1):
                so_far[rows] = mixed(so_far[rows], text[ends - 8 * word])
        return so_far if self._valid is None else np.where(self._valid, so_far, mixed(so_far, _NULL))

    def equal(self, rows: NDArray[np.intp], other: _Varying, places: NDArray[np.intp]) -> Mask:
        mine, theirs = self._column.take(pa.array(rows)), other._column.take(pa.array(places))
        same: Mask = pc.fill_null(pc.equal(mine, theirs), True).to_numpy(zero_copy_only=False)
        return same & _both_or_none(self._valid, rows, other._valid, places)


def _valid(column: pa.Array) -> Mask | None:
    if not column.null_count:
        return None
    valid: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _both_or_none(mine: Mask | None, rows: NDArray[np.intp], theirs: Mask | None, places: NDArray[np.intp]) -> Mask:
    """Whether of each pair both are null or none is."""
    if mine is None and theirs is None:
        return np.ones(len(rows), dtype=np.bool_)
    left = np.True_ if mine is None else mine[rows]
    right = np.True_ if theirs is None else theirs[places]
    return np.equal(left, right)


def _words(column: pa.Array) -> Sequence[Words]:
    kind = column.type
    if pa.types.is_null(kind):
        return [np.zeros(len(column), dtype=np.uint64)]
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal(kind):
        return _words_of_bytes(column)
    if pa.types.is_floating(kind):
        numbers = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False).astype(np.float64)
        numbers[np.isnan(numbers)] = np.nan  # of NaN there are many
        return [numbers.view(np.uint64)]
    whole = column.cast(pa.int8()) if pa.types.is_boolean(kind) else column
    return [integers(whole).astype(np.int64, copy=False).view(np.uint64)]


def _words_of_bytes(column: pa.Array) -> Sequence[Words]:
    width, first = column.type.byte_width, column.offset
    values = column.buffers()[1]
    held = np.empty(0, dtype=np.uint8) if values is None else np.frombuffer(values, dtype=np.uint8)
    padded = np.zeros((len(column), -(-width // 8) * 8), dtype=np.uint8)
    padded[:, :width] = held[first * width : (first + len(column)) * width].reshape(-1, width)
    return list(np.ascontiguousarray(padded.view(np.uint64).T))


def _bytes_of(column: pa.LargeBinaryArray) -> tuple[NDArray[np.int64], NDArray[np.int64], Words]:
    """Where strings begin, how long they are, and their bytes, of which eight are one word wherever it begins."""
    offsets, values = offsets_of(column), column.buffers()[2]
    text = np.zeros(int(offsets[-1] - offsets[0]) + 8, dtype=np.uint8)
    if len(text) > 8:
        text[:-8] = np.frombuffer(values, dtype=np.uint8)[offsets[0] : offsets[-1]]
    words: Words = np.ndarray((len(text) - 7,), dtype=np.dtype("<u8"), buffer=text.data, strides=(1,))
    return offsets[:-1] - offsets[0], np.diff(offsets), words
