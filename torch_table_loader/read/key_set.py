"""Sets of keys, in which the rows of a batch are looked up: equality deletes.

pyarrow builds its hash table again at each look-up. So key columns are converted into words that numpy hashes and
compares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from typing_extensions import override

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.arrays import offsets_of
from torch_table_loader.arrow.datatypes import whole_type
from torch_table_loader.planning.distinct import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words: TypeAlias = NDArray[np.uint64]
    Mask: TypeAlias = NDArray[np.bool_]

_TABLE_SPARSITY = 16
"""A table with one entry for each number is made of integer keys whose range is at most so many times their count, …"""

_TABLE_BYTES = 1 << 24
"""… or whose table is at most this large; other keys are hashed."""

_BITS_OF_FILTER = 3
"""The filter lets at most one in 8 rows pass whose key is not in the set."""

_LEAST = -(2**63)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio."""

_NULL = np.uint64(0xBF58476D1CE4E5B9)
_MOST_WORDS = 32
"""Words that are hashed of a string's beginning, and of the end of a longer one; what lies between is compared only."""


class KeySet:
    """Distinct keys of one or more columns, each with the commit that deleted it last; null equals null.

    It is made once and asked for each batch, whose rows then cost a few steps of numpy, however many keys there are.

    Args:
        keys: one array for each key column, of equal lengths.
        commits: for each key the sequence number of its commit, at least 0; None for 0 in all.
    """

    def __init__(self, keys: Sequence[pa.ChunkedArray | pa.Array], commits: NDArray[np.int64] | None = None) -> None:
        if commits is None:
            commits = np.zeros(len(keys[0]), dtype=np.int64)
        *columns, last = _distinct(keys, commits)
        self._commits = distinct(last)
        ranks = (np.searchsorted(self._commits, last) + 1).astype(np.min_scalar_type(len(self._commits)))
        self._found = _table_of(columns, ranks)

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return self._found.num_bytes

    def lacks(self, columns: Sequence[pa.Array], after: int = -1) -> NDArray[np.bool_]:
        """Return for each row whether no commit with a sequence number above `after` deleted its key: new bool [rows].

        The columns must have the types of the keys.
        """
        return self._found.lacks(columns, int(np.searchsorted(self._commits, after, side="right")))


def _distinct(keys: Sequence[pa.ChunkedArray | pa.Array], commits: NDArray[np.int64]) -> list[Any]:
    """Return the columns of the distinct keys, and the last commit of each."""
    names = [str(place) for place in range(len(keys))]
    table = pa.table([*keys, commits], names=[*names, "commit"])
    last = table.group_by(names, use_threads=False).aggregate([("commit", "max")])
    columns = [last.column(name).combine_chunks() for name in names]
    return [*columns, last.column("commit_max").to_numpy()]


class _NumberTable:
    """Integer keys: an entry for each number of a range, 0 or the rank of the key's last commit.

    The first and the last entry are 0; they stand for all numbers below and above the range.
    """

    def __init__(self, base: np.int64, table: NDArray[Any], null: int) -> None:
        self._base, self._table, self._null = base, table, null

    @classmethod
    def of(cls, keys: pa.Array, ranks: NDArray[Any]) -> _NumberTable | None:
        """Make a table; None where keys are not integers, or their range is too wide."""
        kind, known = keys.type, keys.is_valid().to_numpy(zero_copy_only=False)
        if not (pt.is_integer(kind) or pt.is_date32(kind) or pt.is_time(kind) or pt.is_timestamp(kind)):
            return None
        numbers = integers(keys).astype(np.int64, copy=False)[known]
        if not len(numbers):
            return None
        low, high = int(numbers.min()), int(numbers.max())
        span = high - low + 1
        if span * ranks.itemsize > max(_TABLE_BYTES, _TABLE_SPARSITY * len(numbers)):
            return None
        base = np.int64(low - 1 if low > _LEAST else -_LEAST - 1)
        table = np.zeros(span + 2, dtype=ranks.dtype)
        table[numbers - base] = ranks[known]
        return cls(base, table, int(ranks[~known].max(initial=0)))

    @property
    def num_bytes(self) -> int:
        return self._table.nbytes

    def lacks(self, columns: Sequence[pa.Array], rank: int) -> NDArray[np.bool_]:
        """Return for each number whether it is not a key of a rank above `rank`."""
        (column,) = columns
        # A difference that wraps around 64 bits does not hit a key: only equal integers have equal differences.
        places = np.subtract(integers(column), self._base, dtype=np.int64)
        missing: NDArray[np.bool_] = self._table.take(places, mode="clip") <= rank
        if column.null_count:
            missing[column.is_null().to_numpy(zero_copy_only=False)] = self._null <= rank
        return missing


def _table_of(columns: Sequence[pa.Array], ranks: NDArray[Any]) -> _NumberTable | _HashTable:
    if len(columns) == 1 and (numbers := _NumberTable.of(columns[0], ranks)) is not None:
        return numbers
    return _HashTable(columns, ranks)


class _HashTable:
    """Keys in the order of their hashes.

    A filter says whether any key has the first bits of a hash, which settles most rows. Fewer bits say where the keys
    with these bits begin.
    """

    def __init__(self, keys: Sequence[pa.Array], ranks: NDArray[Any]) -> None:
        bits = max(1, len(ranks).bit_length())
        self._values = [key_values(column) for column in keys]
        hashes = _hashes(self._values, len(ranks))
        order = np.argsort(hashes)
        self._order = order.astype(np.min_scalar_type(len(order)))
        self._hashes, self._ranks = hashes[order], ranks[order]
        self._starts = np.searchsorted(_first(self._hashes, bits), np.arange(2**bits + 1)).astype(self._order.dtype)
        self._bits, self._more_bits = bits, bits + _BITS_OF_FILTER
        self._any = np.zeros(2**self._more_bits, dtype=np.bool_)
        self._any[_first(self._hashes, self._more_bits)] = True

    @property
    def num_bytes(self) -> int:
        own = (self._order, self._hashes, self._ranks, self._starts, self._any)
        return sum(array.nbytes for array in own) + sum(values.num_bytes for values in self._values)

    def lacks(self, columns: Sequence[pa.Array], rank: int) -> NDArray[np.bool_]:
        """Return for each row whether it is not a key of a rank above `rank`."""
        rows = [key_values(column) for column in columns]
        hashes = _hashes(rows, len(columns[0]))
        missing = np.ones(len(hashes), dtype=np.bool_)
        left = np.flatnonzero(self._any.take(_first(hashes, self._more_bits)))
        wanted = hashes[left]
        bucket = _first(wanted, self._bits)
        at, stop = self._starts[bucket].astype(np.intp), self._starts[bucket + 1]
        while len(left):
            same = np.flatnonzero(self._hashes.take(at, mode="clip") == wanted)
            same = same[self._equal(rows, left[same], at[same])]
            same = same[self._ranks[at[same]] > rank]
            missing[left[same]] = False
            at += 1
            more = at < stop
            more[same] = False
            left, wanted, at, stop = left[more], wanted[more], at[more], stop[more]
        return missing

    def _equal(self, rows: Sequence[KeyValues], asked: NDArray[np.intp], at: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Compare keys whose hashes are equal."""
        equal = np.ones(len(asked), dtype=np.bool_)
        for mine, theirs in zip(rows, self._values, strict=True):
            equal &= mine.equal(asked, theirs, self._order[at])
        return equal


def _first(hashes: NDArray[np.uint64], bits: int) -> NDArray[np.int64]:
    return (hashes >> np.uint64(64 - bits)).view(np.int64)


def _hashes(values: Sequence[KeyValues], num_rows: int) -> NDArray[np.uint64]:
    hashes = np.zeros(num_rows, dtype=np.uint64)
    for column in values:
        hashes = column.hashed(hashes)
    return hashes


class KeyValues(ABC):
    """The values of one key column; null equals null, and NaN equals NaN."""

    __slots__ = ("_valid",)

    def __init__(self, column: pa.Array) -> None:
        self._valid: Mask | None = None
        if column.null_count:
            self._valid = column.is_valid().to_numpy(zero_copy_only=False)

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Memory that they take."""

    def hashed(self, so_far: Words) -> Words:
        """Hash each value into what was hashed of the row so far."""
        hashes = self._hashed(so_far)
        if self._valid is None:
            return hashes
        return np.where(self._valid, hashes, mixed(hashes, _NULL))

    def equal(self, rows: NDArray[np.intp], other: Any, places: NDArray[np.intp]) -> Mask:
        """Return whether the values at `rows` are those of another of its kind at `places`."""
        same = self._same(rows, other, places)
        if self._valid is None and other._valid is None:
            return same
        alike: Mask = np.equal(self._valid_at(rows), other._valid_at(places))
        return same & alike

    def _valid_at(self, rows: NDArray[np.intp]) -> Mask | np.bool_:
        if self._valid is None:
            return np.True_
        return self._valid[rows]

    @abstractmethod
    def _hashed(self, so_far: Words) -> Words:
        """Hash each value that is not null; a null may give any hash, but always the same."""

    @abstractmethod
    def _same(self, rows: NDArray[np.intp], other: Any, places: NDArray[np.intp]) -> Mask:
        """Return whether values are equal; two nulls are."""


def key_values(column: pa.Array) -> KeyValues:
    """Return the values of a column of any primitive type."""
    kind = column.type
    if any(test(kind) for test in (pt.is_string, pt.is_large_string, pt.is_binary, pt.is_large_binary)):
        return _VaryingValues(column.cast(pa.large_binary()))
    return _FixedValues(column)


def mixed(so_far: Words, words: Any) -> Words:
    """Hash words, one for each hash or one for all, into the hashes of what came before, or zeros.

    The first bits are spread best (Knuth, TAOCP 3, 6.4: multiplicative hashing).

    >>> numbers = np.arange(1000, dtype=np.uint64)
    >>> len(set((mixed(numbers, np.uint64(0)) >> np.uint64(44)).tolist()))
    1000
    """
    hashes: Words = so_far ^ words
    hashes *= _GOLDEN
    hashes ^= hashes >> np.uint64(29)
    return hashes


def integers(column: pa.Array) -> NDArray[Any]:
    """Return integers, dates and times as integers of their width; a null is any number."""
    if column.type.bit_width in (32, 64):
        column = column.view(whole_type(column.type))
    if column.null_count:
        column = pc.fill_null(column, 0)
    numbers: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return numbers


class _FixedValues(KeyValues):
    """Values of one width, each as words that are equal where the values are."""

    __slots__ = ("_words",)

    def __init__(self, column: pa.Array) -> None:
        super().__init__(column)
        self._words = _words(column)
        if self._valid is not None:
            self._words = [np.where(self._valid, words, 0) for words in self._words]

    @property
    @override
    def num_bytes(self) -> int:
        return sum(words.nbytes for words in self._words) + (0 if self._valid is None else self._valid.nbytes)

    @override
    def _hashed(self, so_far: Words) -> Words:
        for words in self._words:
            so_far = mixed(so_far, words)
        return so_far

    @override
    def _same(self, rows: NDArray[np.intp], other: _FixedValues, places: NDArray[np.intp]) -> Mask:
        same = np.ones(len(rows), dtype=np.bool_)
        for mine, theirs in zip(self._words, other._words, strict=True):
            same &= mine[rows] == theirs[places]
        return same


class _VaryingValues(KeyValues):
    """Strings and bytes."""

    __slots__ = ("_column",)

    def __init__(self, column: pa.LargeBinaryArray) -> None:
        super().__init__(column)
        self._column = column

    @property
    @override
    def num_bytes(self) -> int:
        return int(self._column.nbytes)

    @override
    def _hashed(self, so_far: Words) -> Words:
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
        return so_far

    @override
    def _same(self, rows: NDArray[np.intp], other: _VaryingValues, places: NDArray[np.intp]) -> Mask:
        mine, theirs = self._column.take(pa.array(rows)), other._column.take(pa.array(places))
        same: Mask = pc.fill_null(pc.equal(mine, theirs), True).to_numpy(zero_copy_only=False)
        return same


def _words(column: pa.Array) -> Sequence[Words]:
    kind = column.type
    if pt.is_null(kind):
        return [np.zeros(len(column), dtype=np.uint64)]
    if pt.is_fixed_size_binary(kind) or pt.is_decimal(kind):
        return _words_of_bytes(column)
    if pt.is_floating(kind):
        numbers = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False).astype(np.float64)
        numbers[np.isnan(numbers)] = np.nan  # of NaN there are many
        return [numbers.view(np.uint64)]
    if pt.is_boolean(kind):
        column = column.cast(pa.int8())
    return [integers(column).astype(np.int64, copy=False).view(np.uint64)]


def _words_of_bytes(column: pa.Array) -> Sequence[Words]:
    width, first = column.type.byte_width, column.offset
    values = column.buffers()[1]
    stored = np.empty(0, dtype=np.uint8) if values is None else np.frombuffer(values, dtype=np.uint8)
    padded = np.zeros((len(column), -(-width // 8) * 8), dtype=np.uint8)
    padded[:, :width] = stored[first * width : (first + len(column)) * width].reshape(-1, width)
    return list(np.ascontiguousarray(padded.view(np.uint64).T))


def _bytes_of(column: pa.LargeBinaryArray) -> tuple[NDArray[np.int64], NDArray[np.int64], Words]:
    """Return where strings begin, how long they are, and as words the eight bytes from each byte of theirs on."""
    offsets, values = offsets_of(column), column.buffers()[2]
    text = np.zeros(int(offsets[-1] - offsets[0]) + 8, dtype=np.uint8)
    if len(text) > 8:
        text[:-8] = np.frombuffer(values, dtype=np.uint8)[offsets[0] : offsets[-1]]
    words: Words = np.ndarray((len(text) - 7,), dtype=np.dtype("<u8"), buffer=text.data, strides=(1,))
    return offsets[:-1] - offsets[0], np.diff(offsets), words
