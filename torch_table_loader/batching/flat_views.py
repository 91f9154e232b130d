"""Views of many columns of numbers at once, which hold Python's lock for a few steps and not for some each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter, itemgetter, methodcaller, mul
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_table_loader.batching.decoders import FixedDecoder, FlatCell

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.batching.decoders import Decoder, Stack

_VALUES = itemgetter(1)
_BUFFERS, _NULLS, _OFFSET = methodcaller("buffers"), attrgetter("null_count"), attrgetter("offset")
_IS_MUTABLE, _ADDRESS = attrgetter("is_mutable"), attrgetter("address")


class FlatViews:
    """Views of many columns of Arrow's own numbers, with no step in Python for each; see `Cell.values`.

    Args:
        cells: those of the columns.
    """

    def __init__(self, cells: Sequence[FlatCell]) -> None:
        self._cells = cells
        self._dtypes = [cell.dtype for cell in cells]
        self._widths = [dtype.itemsize for dtype in self._dtypes]

    @classmethod
    def of(cls, decoders: Sequence[Decoder | Stack]) -> FlatViews | None:
        """Return those of decoders that give Arrow's own numbers alone; None if some do more."""
        cells = [each.cell for each in decoders if isinstance(each, FixedDecoder) and not each.masked]
        if len(found := [each for each in cells if isinstance(each, FlatCell) and each.views]) == len(decoders):
            return cls(found)
        return None

    def __call__(self, arrays: Sequence[pa.Array], length: int) -> list[NDArray[Any]]:
        """Return the values of arrays of so many rows; of which one takes more than a view, each is looked at."""
        buffers = list(map(_VALUES, map(_BUFFERS, arrays)))
        if not length or any(map(_NULLS, arrays)) or not all(map(_IS_MUTABLE, buffers)):
            return self._looked_at(arrays)
        if len(set(map(_ADDRESS, buffers))) < len(buffers):
            return self._looked_at(arrays)
        starts = map(mul, map(_OFFSET, arrays), self._widths)
        return list(map(np.frombuffer, buffers, self._dtypes, repeat(length), starts))

    def _looked_at(self, arrays: Sequence[pa.Array]) -> list[NDArray[Any]]:
        seen = set[int]()
        return [cell.values(array, seen) for cell, array in zip(self._cells, arrays, strict=True)]
