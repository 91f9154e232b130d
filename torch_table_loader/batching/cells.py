"""Arrow buffers of fixed-width values as numpy arrays: viewed where they may be, copied where they must be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow.arrays import bits, null_mask, plain
from torch_table_loader.batching.kinds import DenseKind
from torch_table_loader.errors import TableError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RowError(TableError):
    """A fault in one row of a record batch; whoever knows which row of the table that is raises another in its place.

    Args:
        message: names the column and the row of the batch.
        row: number of the row in the batch; None if only a column is known.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


def refuse_null(path: str, nulls: NDArray[np.bool_]) -> RowError:
    """Return where the first null is, and what can be done."""
    column, inside, _ = path.partition(".item")
    where = f"value {int(nulls.argmax())} of the lists" if inside else f"row {int(nulls.argmax())}"
    remedy = f"pass nulls={{{path!r}: fill}}" + ("" if inside else ' or nulls="mask"')
    return RowError(
        f"column {column!r} has a null at {where} of this batch, but its type cannot hold one; {remedy}",
        None if inside else int(nulls.argmax()),
    )


def refuse_long_lists(path: str, offsets: NDArray[Any], most: int) -> None:
    """Refuse lists that are longer than padded rows."""
    lengths = np.diff(offsets)
    if lengths.max(initial=0) <= most:
        return
    row = int((lengths > most).argmax())
    raise RowError(
        f"column {path!r} has a list of {lengths[row]} values at row {row} of this batch, and Pad(length={most}) is "
        f'shorter; pass truncate="right" (or "left") to cut it, a greater length, or filter such rows out',
        row,
    )


class Cell(ABC):
    """Turns an Arrow array of one type into rows of a fixed shape."""

    __slots__ = ()

    @property
    @abstractmethod
    def kind(self) -> DenseKind:
        """The form of what comes out."""

    @property
    @abstractmethod
    def refuses_null(self) -> bool:
        """Whether a null, at whatever depth, is an error."""

    @abstractmethod
    def values(self, array: pa.Array, seen: set[int], hidden: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        """Return the values, writable, and shared with nobody.

        Args:
            seen: addresses of buffers that were handed out already; it grows.
            hidden: rows that the caller overwrites, and where nulls do not matter.

        Raises:
            TableError: a null that nothing was chosen for.
        """


@dataclass(frozen=True, slots=True)
class FlatCell(Cell):
    """Numbers, booleans, points in time, decimals.

    Args:
        stored: dtype of the Arrow buffer; bool means bits.
        fill: what a null becomes; None refuses nulls.
        cast: cast to doubles first, for decimals.
    """

    path: str
    stored: np.dtype[Any]
    dtype: np.dtype[Any]
    fill: Any = None
    cast: bool = False

    @property
    def kind(self) -> DenseKind:
        """One value a row."""
        return DenseKind(self.dtype)

    @property
    def refuses_null(self) -> bool:
        """Whether nothing was chosen for nulls."""
        return self.fill is None

    @override
    def values(self, array: pa.Array, seen: set[int], hidden: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        if self.cast:
            array = array.cast(pa.float64())
        values = self._view(array, seen)
        if array.null_count:
            nulls = null_mask(array)
            if hidden is not None:
                nulls &= ~hidden
            if self.fill is not None:
                np.putmask(values, nulls, self.fill)
            elif nulls.any():
                raise refuse_null(self.path, nulls)
        return values

    def _view(self, array: pa.Array, seen: set[int]) -> NDArray[Any]:
        length = len(array)
        buffer = array.buffers()[1]
        if buffer is None or length == 0:
            return np.empty(length, self.dtype)
        stored = self.stored
        if stored.kind == "b":
            return bits(buffer, array.offset, length)
        values = np.frombuffer(buffer, stored, length, array.offset * stored.itemsize)
        if stored is not self.dtype and stored != self.dtype:
            return values.astype(self.dtype)
        # A slice of a mutable buffer is ours alone (the reader decoded it for this call); a second array on the
        # same buffer, a memory map and foreign memory are not.
        address = buffer.address
        if not buffer.is_mutable or address in seen:
            return values.copy()
        seen.add(address)
        return values


@dataclass(frozen=True, slots=True)
class GridCell(Cell):
    """Fixed-size lists, also of fixed-size lists.

    Args:
        fill: what a null list becomes, broadcast to its shape; None refuses it.
    """

    path: str
    item: Cell
    size: int
    fill: Any = None

    @property
    def kind(self) -> DenseKind:
        """One array of a fixed shape a row."""
        return DenseKind(self.item.kind.dtype, (self.size, *self.item.kind.inner))

    @property
    def refuses_null(self) -> bool:
        """Whether nothing was chosen for null lists, or for nulls inside them."""
        return self.fill is None or self.item.refuses_null

    @override
    def values(self, array: pa.Array, seen: set[int], hidden: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        length = len(array)
        nulls = null_mask(array) if array.null_count else None
        if nulls is not None and self.fill is None:
            bad = nulls if hidden is None else nulls & ~hidden
            if bad.any():
                raise refuse_null(self.path, bad)
        child = plain(array.values.slice(array.offset * self.size, length * self.size))
        covered = nulls if hidden is None else hidden if nulls is None else nulls | hidden
        inner = None if covered is None or not child.null_count else np.repeat(covered, self.size)
        values = self.item.values(child, seen, inner).reshape((length, *self.kind.inner))
        if nulls is not None and self.fill is not None:
            values[nulls] = self.fill
        return values
