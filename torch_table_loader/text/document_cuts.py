"""A rank's slices of documents under context parallelism, each cut by itself, as Transformer Engine takes them.

In its THD format a batch is one row of documents. Each is padded to a multiple of twice the number of ranks, and cut
into as many chunks, of which rank r of n has those numbered r and 2n − 1 − r. Edges of documents are those of the whole
row, with and without that padding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class DocumentCuts:
    """Where a rank's slices of the documents of some batches are.

    Args:
        lengths: int64[n] tokens of each document.
        padded: int64[n] the same with padding.
        source: int64[tokens] where each token of the slices is in the flat batches; of padding, any place.
        inside: int64[tokens] its place in its document.
        is_padding: bool[tokens].
        firsts: the first document of each batch, then the number of documents.
        ranks: that share each document.
    """

    lengths: Ints
    padded: Ints
    source: Ints
    inside: Ints
    is_padding: NDArray[np.bool_]
    firsts: Ints
    ranks: int

    @classmethod
    def of(cls, at: Ints, lengths: Ints, firsts: Ints, context: tuple[int, int]) -> DocumentCuts:
        """Cut documents.

        Args:
            at: int64[n] where each begins in the flat batches.
            context: the rank, and the number of ranks.

        >>> cuts = DocumentCuts.of(np.array([0, 7]), np.array([7, 3]), np.array([0, 2]), (0, 2))
        >>> cuts.taken(np.arange(10), -1).tolist()
        [0, 1, 6, -1, 7, -1]
        """
        rank, ranks = context
        chunk = -(-lengths // (2 * ranks))
        sizes = 2 * chunk
        inside = np.arange(int(sizes.sum())) - (np.cumsum(sizes) - sizes).repeat(sizes)
        second = inside >= chunk.repeat(sizes)
        inside += (rank * chunk).repeat(sizes)
        inside += np.where(second, (2 * (ranks - 1 - rank) * chunk).repeat(sizes), 0)
        last = (lengths - 1).repeat(sizes)
        source = at.repeat(sizes) + np.minimum(inside, last)
        return cls(lengths, sizes * ranks, source, inside, inside > last, firsts, ranks)

    def taken(self, values: NDArray[Any], fill: float) -> NDArray[Any]:
        """Return the slices of what each token has; padding has `fill`."""
        found = values[self.source]
        found[self.is_padding] = fill
        return found

    @property
    def sizes(self) -> Ints:
        """The tokens of each batch of slices."""
        ends = np.concatenate(([0], np.cumsum(self.padded // self.ranks)))
        return np.diff(ends[self.firsts])

    def edges(self, split: Callable[[NDArray[Any], Ints], Any], most: Ints | None) -> dict[str, Any]:
        """Return where the documents of each batch begin, as int32, and the longest.

        Args:
            split: returns an array or tensor for each batch, of so many values.
            most: documents for which each batch has room; None: just its own.
        """
        if most is None:
            most = np.diff(self.firsts)
        sizes = most + 1
        edges = {
            "cu_seqlens": split(_edges(self.lengths, self.firsts, sizes), sizes),
            "cu_seqlens_padded": split(_edges(self.padded, self.firsts, sizes), sizes),
        }
        longest = [int(self.padded[first:last].max(initial=0)) for first, last in pairwise(self.firsts.tolist())]
        return {**edges, "max_seqlen": longest}


def _edges(lengths: Ints, firsts: Ints, sizes: Ints) -> NDArray[np.int32]:
    """Return the edges of each batch after one another; where there is room for more documents, the end is repeated.

    >>> _edges(np.array([2, 3, 4]), np.array([0, 2, 3]), np.array([3, 4])).tolist()
    [0, 2, 5, 0, 4, 4, 4]
    """
    ends = np.concatenate(([0], np.cumsum(lengths)))
    slot = np.arange(int(sizes.sum())) - (np.cumsum(sizes) - sizes).repeat(sizes)
    first, last = firsts[:-1].repeat(sizes), firsts[1:].repeat(sizes)
    found: NDArray[np.int32] = (ends[np.minimum(first + slot, last)] - ends[first]).astype(np.int32)
    return found
