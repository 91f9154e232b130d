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

    def holds(self, columns: Sequence[pa.Array]) -> NDArray[np.bool_]:
        """Say for each row whether its key is in the set.

        Args:
            columns: one array a key column, of the types of the keys.
        """
        if len(columns) == 1:
            return self._columns[0].holds(columns[0])
        code = self._columns[0].places(columns[0])
        found: NDArray[np.bool_] = code >= 0
        for values, known, column in zip(self._columns[1:], self._pairs, columns[1:], strict=True):
            own = values.places(column)
            joined = code * len(values) + own
            place = np.minimum(np.searchsorted(known, joined), max(0, len(known) - 1))
            found &= own >= 0
            found &= known[place] == joined if len(known) else False
            code = place
        return found


class _Values:
    """The distinct values of one column."""

    def __init__(self, column: pa.ChunkedArray | pa.Array) -> None:
        distinct = pc.unique(column)
        self._values = distinct.combine_chunks() if isinstance(distinct, pa.ChunkedArray) else distinct
        self._null = bool(self._values.null_count)
        self._low, self._table = _table_of(self._values)

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

    def holds(self, column: pa.Array) -> NDArray[np.bool_]:
        """Whether each value is among them."""
        if self._table is None:
            found: NDArray[np.bool_] = pc.is_in(column, value_set=self._values, skip_nulls=False).to_numpy(
                zero_copy_only=False
            )
            return found
        numbers = _integers(column) - self._low
        inside = (numbers >= 0) & (numbers < len(self._table))
        found = self._table[np.where(inside, numbers, 0)] & inside
        if column.null_count:
            found[column.is_null().to_numpy(zero_copy_only=False)] = self._null
        return found


def _table_of(values: pa.Array) -> tuple[int, NDArray[np.bool_] | None]:
    """A table that says of each integer in a range whether it is there; None where the range is too wide."""
    kind = values.type
    whole = (
        pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_time(kind) or pa.types.is_timestamp(kind)
    )
    known = values.drop_null()
    if not whole or not len(known):
        return 0, None
    numbers = _integers(known)
    low, high = int(numbers.min()), int(numbers.max())
    span = high - low + 1
    if span > max(_TABLE_BYTES, _TABLE_SPARSITY * len(numbers)):
        return 0, None
    table = np.zeros(span, dtype=np.bool_)
    table[numbers - low] = True
    return low, table


def _integers(column: pa.Array) -> NDArray[Any]:
    """The values as int64; what stands in place of nulls does not matter."""
    width = column.type.bit_width
    plain = column.view(pa.int32() if width == 32 else pa.int64()) if width in (32, 64) else column
    if plain.null_count:
        plain = pc.fill_null(plain, 0)
    numbers: NDArray[Any] = plain.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return numbers


__all__ = ["KeySet"]
