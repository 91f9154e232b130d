"""The lengths of documents in narrow integers, and the tokens before each block of them.

With these, finding where a document begins takes one sum, and finding the document of a token takes one search over
blocks and one within a block. They take the bytes of the lengths plus an eighth of a byte a document, and may stay in
a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from torch_table_loader.planning.token_windows import Slices, between
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

SUMMED = 64
"""Documents of a block; part of the layout of files of lengths."""


class DocumentLengths:
    """The tokens of each document of a table.

    Args:
        padded: unsigned [blocks · 64], the length of each document, then zeros.
        sums: int64[blocks + 1], the tokens before each block, then the tokens of all blocks.
    """

    def __init__(self, padded: NDArray[Any], sums: Ints, count: int) -> None:
        """Store the arrays, which may be mapped from a file."""
        self.padded, self.sums, self.count = padded, sums, count
        self._blocks = padded.reshape(-1, SUMMED)

    @classmethod
    def of(cls, lengths: NDArray[Any]) -> DocumentLengths:
        """Store lengths in the narrowest integers that can hold them.

        >>> made = DocumentLengths.of(np.array([3, 0, 300]))
        >>> made.total, made.starts(np.array([2])).tolist(), made.find(np.array([2, 3])).tolist()
        (303, [3], [0, 2])
        """
        padded = np.zeros(-(-len(lengths) // SUMMED) * SUMMED, dtype=narrowest(int(lengths.max(initial=0))))
        padded[: len(lengths)] = lengths
        sums = np.zeros(len(padded) // SUMMED + 1, dtype=np.int64)
        np.cumsum(padded.reshape(-1, SUMMED).sum(axis=1, dtype=np.int64), out=sums[1:])
        return cls(padded, sums, len(lengths))

    @property
    def total(self) -> int:
        """Tokens of all documents."""
        return int(self.sums[-1])

    @property
    def longest(self) -> tuple[int, int]:
        """The tokens of the longest document, and the first document of that length; 0 if there is none."""
        if not self.count:
            return 0, 0
        document = int(self.padded.argmax())
        return int(self.padded[document]), document

    def take(self, documents: Ints) -> Ints:
        """Return the tokens of the given documents."""
        return self.padded.take(documents).astype(np.int64)

    def batches(self) -> Iterator[tuple[int, Ints]]:
        """Yield the tokens of all documents in batches, each with the number of its first document."""
        at_once = sizes().lengths_at_once
        for first in range(0, self.count, at_once):
            yield first, self.padded[first : min(first + at_once, self.count)].astype(np.int64)

    def starts(self, documents: Ints) -> Ints:
        """Return the tokens before each of the given documents; quick where these follow one another."""
        heads = np.flatnonzero(np.diff(documents, prepend=-2) != 1)
        lengths = self.take(documents)
        before = lengths.cumsum() - lengths
        shift = _by_parts(self._starts, documents[heads]) - before[heads]
        found: Ints = before + shift.repeat(np.diff(heads, append=len(documents)))
        return found

    def find(self, tokens: Ints) -> Ints:
        """Return the document that has each token of the table; tokens are below `total`."""
        return _by_parts(self._find, tokens)

    def cut(self, starts: Ints, stops: Ints) -> Slices:
        """Find the documents in stretches of the table's tokens; see `token_windows.cut`."""
        if not self.total:
            none = np.empty(0, dtype=np.int64)
            return Slices(none, none, none, np.zeros(len(starts) + 1, dtype=np.int64))
        return between(self.find(starts), self.find(stops - 1) + 1, self._bounds, starts, stops)

    def _bounds(self, documents: Ints) -> tuple[Ints, Ints]:
        begins = self.starts(documents)
        return begins, begins + self.take(documents)

    def _starts(self, documents: Ints) -> Ints:
        number, place = np.divmod(documents, SUMMED)
        block = self._blocks[number]
        block[np.arange(SUMMED) >= place[:, np.newaxis]] = 0
        found: Ints = self.sums[number] + block.sum(axis=1, dtype=np.int64)
        return found

    def _find(self, tokens: Ints) -> Ints:
        number = np.minimum(np.searchsorted(self.sums, tokens, side="right") - 1, len(self._blocks) - 1)
        ends = np.cumsum(self._blocks[number], axis=1, dtype=np.int64)
        inside = np.count_nonzero(ends <= (tokens - self.sums[number])[:, np.newaxis], axis=1)
        found: Ints = number * SUMMED + inside
        return found


def narrowest(most: int) -> np.dtype[Any]:
    """Return the narrowest unsigned integer type that holds a number.

    >>> [str(narrowest(most)) for most in (255, 256, 70_000, 2**40)]
    ['uint8', 'uint16', 'uint32', 'uint64']
    """
    return np.min_scalar_type(most)


def _by_parts(find: Callable[[Ints], Ints], wanted: Ints) -> Ints:
    at_once = sizes().lookups_at_once
    if len(wanted) <= at_once:
        return find(wanted)
    return np.concatenate([find(wanted[first : first + at_once]) for first in range(0, len(wanted), at_once)])
