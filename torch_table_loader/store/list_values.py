"""Lists that a store keeps flat, such as tokens of documents: parts of them can be taken without the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from torch_table_loader.arrow.buffers import new_array
from torch_table_loader.errors import TableError
from torch_table_loader.store.spec import REMEDY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]


class Spans(NamedTuple):
    """Parts of lists, from element `start` to before element `stop` among those of all rows: int64[n] each.

    None crosses the end of a list.
    """

    start: Ints
    stop: Ints


class ListValues:
    """Values of the elements of lists: all elements, or some stretches of them.

    Args:
        starts: int64[stretches] the first element of each stretch, ascending.
        stretches: for each stretch, an array with a record of values for each element.
    """

    def __init__(self, starts: Ints, stretches: Sequence[NDArray[Any]]) -> None:
        self._starts = starts
        self._sizes = np.array([len(stretch) for stretch in stretches], dtype=np.int64)
        names = stretches[0].dtype.names or () if len(stretches) else ()
        self._values = [[stretch[name] for stretch in stretches] for name in names]

    @classmethod
    def consecutive(cls, stretches: Sequence[NDArray[Any]]) -> ListValues:
        """Build from consecutive stretches that together are all elements of a store."""
        some = [stretch for stretch in stretches if len(stretch)]
        ends = np.cumsum([0, *(len(stretch) for stretch in some)], dtype=np.int64)
        return cls(ends[:-1], some)

    def take(self, column: int, at: Ints, length: Ints, kind: Any) -> NDArray[Any]:
        """Return parts of lists, concatenated, in a numpy type that all values fit in.

        Args:
            column: its number among the flat columns.
            at: int64[n] the first element of each part, no part crossing the end of a list.
            length: int64[n] its number of elements.
        """
        total = int(length.sum())
        kind = np.dtype(kind)
        out = new_array((total, *kind.shape), kind.base)
        if not total:
            return out
        first = np.searchsorted(self._starts, at, side="right") - 1
        # Consecutive parts are taken as one.
        breaks = np.flatnonzero((at[1:] != at[:-1] + length[:-1]) | (first[1:] != first[:-1])) + 1
        heads = np.concatenate(([0], breaks))
        tails = np.append(breaks, len(at)) - 1
        stretch = first[heads]
        low = at[heads] - self._starts[stretch]
        high = at[tails] + length[tails] - self._starts[stretch]
        if low.min() < 0 or length.min() < 0 or (high > self._sizes[stretch]).any():
            raise TableError(f"the lengths of the lists of a row store do not fit their values; {REMEDY}")
        views = self._values[column]
        runs = [
            views[number][start:stop]
            for number, start, stop in zip(stretch.tolist(), low.tolist(), high.tolist(), strict=True)
        ]
        return np.concatenate(runs, out=out, casting="safe")
