"""Parts of lists in a store's heap, such as tokens of documents, taken without the rest of the lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from torch_table_loader.arrow.buffers import new_array

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.store.gather import StoredRows

    Ints: TypeAlias = NDArray[np.int64]


class TokenColumns:
    """Columns of lists that are equally long in each row: all their values as one row of values, behind each other.

    A list lies in one record batch of the heap, and the lists of a record batch follow one another there.
    """

    def __init__(self, rows: StoredRows, columns: Sequence[int]) -> None:
        """Look at the heap; no value is read.

        Args:
            rows: of the store.
            columns: their numbers in the store's schema: large lists of numbers without nulls.
        """
        places = [rows.layout.heap.index(column) for column in columns]
        offsets = np.zeros(rows.num_rows + 1, dtype=np.int64)
        starts, row, tokens = [], 0, 0
        self._values: list[list[NDArray[Any]]] = [[] for _ in columns]
        for batch in rows.heap:
            starts.append(tokens)
            own = _offsets(batch.column(places[0]))
            offsets[row + 1 : row + len(own)] = own[1:] + (tokens - int(own[0]))
            row, tokens = row + len(own) - 1, tokens + int(own[-1] - own[0])
            for views, place in zip(self._values, places, strict=True):
                views.append(_values(batch.column(place)))
        self.offsets: Ints = offsets
        """int64[rows + 1], where the values of each row begin."""
        self._starts = np.array(starts, dtype=np.int64)

    @property
    def total(self) -> int:
        """Values of a column."""
        return int(self.offsets[-1])

    def lengths(self, rows: Ints) -> Ints:
        """Return how many values some rows have."""
        return self.offsets[rows + 1] - self.offsets[rows]

    def take(self, column: int, at: Ints, length: Ints, kind: Any) -> NDArray[Any]:
        """Return parts of lists behind each other.

        Args:
            column: among those that were given.
            at: int64[n] the first value of each part, no part crossing the end of a list.
            length: int64[n] how many.
            kind: numpy's type of what comes out; all values fit into it.
        """
        total = int(length.sum())
        out = new_array((total,), kind)
        if not total:
            return out
        first = np.searchsorted(self._starts, at, side="right") - 1
        # Parts that follow one another come as one.
        breaks = np.flatnonzero((at[1:] != at[:-1] + length[:-1]) | (first[1:] != first[:-1])) + 1
        heads = np.concatenate(([0], breaks))
        tails = np.append(breaks, len(at)) - 1
        batch = first[heads]
        low = at[heads] - self._starts[batch]
        high = at[tails] + length[tails] - self._starts[batch]
        views = self._values[column]
        runs = [
            views[number][start:stop]
            for number, start, stop in zip(batch.tolist(), low.tolist(), high.tolist(), strict=True)
        ]
        return np.concatenate(runs, out=out, casting="safe")


def _offsets(lists: pa.LargeListArray) -> Ints:
    found: Ints = lists.offsets.to_numpy()
    return found


def _values(lists: pa.LargeListArray) -> NDArray[Any]:
    offsets = lists.offsets
    first, last = int(offsets[0].as_py()), int(offsets[-1].as_py())
    found: NDArray[Any] = lists.values.slice(first, last - first).to_numpy(zero_copy_only=True)
    return found
