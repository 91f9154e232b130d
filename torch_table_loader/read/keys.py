"""Sets of keys, against which the rows of a batch are looked up: equality deletes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TABLE_SPARSITY = 16
"""A table of booleans serves integer keys of a range up to so many times their number, …"""

_TABLE_BYTES = 1 << 24
"""… or up to this size; wider ranges are hashed."""

_LEAST = -(2**63)


class KeySet:
    """Distinct keys of one or more columns; null equals null.

    Each column's value becomes its place among the distinct values of that column, and the places of all columns
    become one number: a batch costs one look-up a column and no row is compared in Python.
    """

    def __init__(self, keys: Sequence[pa.ChunkedArray | pa.Array]) -> None:
        """Take the keys.

        Args:
            keys: one array a key column, of equal lengths.
        """
        self._columns: list[_Values] = []
        self._pairs: list[NDArray[np.int64]] = []
        code: NDArray[np.int64] | None = None
        for column in keys:
            values = _Values(column)
            self._columns.append(values)
            own = values.places(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
            if code is None:
                code = own
                continue
            joined = code * len(values) + own
            known = np.unique(joined)
            self._pairs.append(known)
            code = np.searchsorted(known, joined)

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return sum(values.num_bytes for values in self._columns) + sum(pairs.nbytes for pairs in self._pairs)

    def lacks(self, columns: Sequence[pa.Array]) -> NDArray[np.bool_]:
        """Say for each row whether its key is not in the set.

        Args:
            columns: one array a key column, of the types of the keys.

        Returns:
            bool [rows], which nobody else has.
        """
        if len(columns) == 1:
            return self._columns[0].lacks(columns[0])
        code = self._columns[0].places(columns[0])
        found: NDArray[np.bool_] = code >= 0
        for values, known, column in zip(self._columns[1:], self._pairs, columns[1:], strict=True):
            own = values.places(column)
            joined = code * len(values) + own
            place = np.minimum(np.searchsorted(known, joined), max(0, len(known) - 1))
            found &= own >= 0
            found &= known[place] == joined if len(known) else False
            code = place
        return np.logical_not(found, out=found)


class _Values:
    """The distinct values of one column."""

    def __init__(self, column: pa.ChunkedArray | pa.Array) -> None:
        distinct = pc.unique(column)
        self._values = distinct.combine_chunks() if isinstance(distinct, pa.ChunkedArray) else distinct
        self._null = bool(self._values.null_count)
        self._base, self._table = _table_of(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def num_bytes(self) -> int:
        return int(self._values.nbytes) + (0 if self._table is None else self._table.nbytes)

    def places(self, column: pa.Array) -> NDArray[np.int64]:
        """The place of each value among the distinct ones, or −1."""
        found = pc.index_in(column, value_set=self._values, skip_nulls=False)
        places: NDArray[np.int64] = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        return places

    def lacks(self, column: pa.Array) -> NDArray[np.bool_]:
        """Whether each value is not among them."""
        if self._table is None:
            found: NDArray[np.bool_] = pc.is_in(column, value_set=self._values, skip_nulls=False).to_numpy(
                zero_copy_only=False
            )
            return ~found
        # What wraps around 64 bits does not end in the table: only equal integers have equal differences.
        places = np.subtract(_integers(column), self._base, dtype=np.int64)
        missing: NDArray[np.bool_] = self._table.take(places, mode="clip")
        if column.null_count:
            missing[column.is_null().to_numpy(zero_copy_only=False)] = not self._null
        return missing


def _table_of(values: pa.Array) -> tuple[np.int64, NDArray[np.bool_] | None]:
    """A table that says of each integer in a range whether it is missing, and of those beside it that they are.

    Returns:
        The integer of the table's first entry, which stands for all below the range, as its last does for all above;
        and the table, None where the range is too wide.
    """
    kind = values.type
    whole = (
        pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_time(kind) or pa.types.is_timestamp(kind)
    )
    known = values.drop_null()
    if not whole or not len(known):
        return np.int64(0), None
    numbers = _integers(known).astype(np.int64, copy=False)
    low, high = int(numbers.min()), int(numbers.max())
    span = high - low + 1
    if span > max(_TABLE_BYTES, _TABLE_SPARSITY * len(numbers)):
        return np.int64(0), None
    base = np.int64(low - 1 if low > _LEAST else -_LEAST - 1)
    table: NDArray[np.bool_] = np.ones(span + 2, dtype=np.bool_)
    table[numbers - base] = False
    return base, table


def _integers(column: pa.Array) -> NDArray[Any]:
    """The values as integers of their width; what stands in place of nulls does not matter."""
    width = column.type.bit_width
    plain = column.view(pa.int32() if width == 32 else pa.int64()) if width in (32, 64) else column
    if plain.null_count:
        plain = pc.fill_null(plain, 0)
    numbers: NDArray[Any] = plain.to_numpy(zero_copy_only=False)
    return numbers


__all__ = ["KeySet"]
