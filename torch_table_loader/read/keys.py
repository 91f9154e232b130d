"""Sets of keys, against which the rows of a batch are looked up: equality deletes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.planning.distinct import distinct
from torch_table_loader.read.key_values import KeyValues, integers, key_values

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TABLE_SPARSITY = 16
"""A table of one entry a number serves integer keys of a range up to so many times their count, …"""

_TABLE_BYTES = 1 << 24
"""… or up to this size; wider ranges are hashed."""

_BITS_OF_FILTER = 3
"""A row whose key is not there is taken for one that may be once in 8 times or less."""

_LEAST = -(2**63)


class KeySet:
    """Distinct keys of one or more columns, each with the commit that deleted it last; null equals null.

    It is made once and asked for each batch, so that the rows of a batch cost a few steps of numpy, however many keys
    there are.
    """

    def __init__(self, keys: Sequence[pa.ChunkedArray | pa.Array], commits: NDArray[np.int64] | None = None) -> None:
        """Take the keys.

        Args:
            keys: one array a key column, of equal lengths.
            commits: for each key the sequence number of its commit, at least 0; None: 0 for all.
        """
        commits = np.zeros(len(keys[0]), dtype=np.int64) if commits is None else commits
        *columns, last = _distinct(keys, commits)
        self._commits = distinct(last)
        ranks = (np.searchsorted(self._commits, last) + 1).astype(np.min_scalar_type(len(self._commits)))
        table = _NumberTable.of(columns[0], ranks) if len(columns) == 1 else None
        self._found: _NumberTable | _HashTable = _HashTable(columns, ranks) if table is None else table

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return self._found.num_bytes

    def lacks(self, columns: Sequence[pa.Array], after: int = -1) -> NDArray[np.bool_]:
        """Say for each row whether no commit deleted its key.

        Args:
            columns: one array a key column, of the types of the keys.
            after: only commits of a larger sequence number count.

        Returns:
            bool [rows], which nobody else has.
        """
        return self._found.lacks(columns, int(np.searchsorted(self._commits, after, side="right")))


def _distinct(keys: Sequence[pa.ChunkedArray | pa.Array], commits: NDArray[np.int64]) -> list[Any]:
    """Return the distinct keys, a column each, and for each its last commit."""
    names = [str(place) for place in range(len(keys))]
    table = pa.table([*keys, commits], names=[*names, "commit"])
    last = table.group_by(names, use_threads=False).aggregate([("commit", "max")])
    columns = [last.column(name).combine_chunks() for name in names]
    return [*columns, last.column("commit_max").to_numpy()]


class _NumberTable:
    """Integer keys: an entry for each number of a range, 0 or the rank of the key's last commit.

    The entries beside the range are 0, and stand for all numbers below and above it.
    """

    def __init__(self, base: np.int64, table: NDArray[Any], null: int) -> None:
        self._base, self._table, self._null = base, table, null

    @classmethod
    def of(cls, keys: pa.Array, ranks: NDArray[Any]) -> _NumberTable | None:
        """Make a table; None where keys are no integers, or their range is too wide."""
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
        """Say for each number whether it is no key of a rank above `rank`."""
        (column,) = columns
        # What wraps around 64 bits does not end in the table: only equal integers have equal differences.
        places = np.subtract(integers(column), self._base, dtype=np.int64)
        missing: NDArray[np.bool_] = self._table.take(places, mode="clip") <= rank
        if column.null_count:
            missing[column.is_null().to_numpy(zero_copy_only=False)] = self._null <= rank
        return missing


class _HashTable:
    """Keys in the order of their hashes.

    The first bits of a hash say whether any key has them, which most rows need no more than, and some fewer bits where
    the keys are that have these.
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
        """Say for each row whether it is no key of a rank above `rank`."""
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
