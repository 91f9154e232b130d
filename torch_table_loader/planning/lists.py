"""Lists that lie one after another, such as documents of tokens: where each is by their lengths, and parts of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

SUMMED = 64
"""Lists of a block of `ListLengths`; part of the layout of files of lengths."""

PUT_IN = 1 << 62
"""The place of the first value that is put in, beyond those of all files; the others of `PlacedLists.added` follow."""


class PlacedLists(Protocol):
    """Lists that lie in files as they were written, with values that are put in around them."""

    @property
    def added(self) -> Sequence[int]:
        """The values that are put in, as one run that begins at `PUT_IN`."""
        ...

    def stored(self, at: Ints, length: Ints) -> tuple[Ints, Ints]:
        """Return where the runs of files under parts of the lists begin, and how long they are."""
        ...


class Slices(NamedTuple):
    """Parts of documents, sequence by sequence; also a row of these sequences.

    Args:
        document: int64[n] the document of each part.
        start: int64[n] its first token in the document.
        length: int64[n] its tokens, at least 1.
        offsets: int64[sequences + 1]; sequence s has the parts ``offsets[s]:offsets[s + 1]``.
    """

    document: Ints
    start: Ints
    length: Ints
    offsets: Ints

    @property
    def total(self) -> int:
        """Number of sequences."""
        return len(self.offsets) - 1

    def cut(self, starts: Ints, stops: Ints) -> Slices:
        """Return the parts in stretches of the sequences, those of a stretch as one sequence."""
        firsts = self.offsets[starts]
        counts = self.offsets[stops] - firsts
        ends = np.cumsum(counts)
        chosen = np.arange(counts.sum()) + np.repeat(firsts - ends + counts, counts)
        return Slices(self.document[chosen], self.start[chosen], self.length[chosen], np.concatenate(([0], ends)))

    def before(self, document: int) -> int:
        """Return the sequences before those of a document, where each is of one document and these ascend."""
        return int(np.searchsorted(self.document, document))


class ListLengths:
    """The length of each list of a table, such as a document, in narrow integers, and the values before each block.

    With these, finding where a document begins takes one sum, and finding the document of a token takes one search over
    blocks and one within a block. They take the bytes of the lengths plus an eighth of a byte a document, and may stay
    in a file.

    Args:
        padded: unsigned [blocks · 64], the length of each document, then zeros.
        sums: int64[blocks + 1], the tokens before each block, then the tokens of all blocks.
    """

    def __init__(self, padded: NDArray[Any], sums: Ints, count: int) -> None:
        """Store the arrays, which may be mapped from a file."""
        self.padded, self.sums, self.count = padded, sums, count
        self._blocks = padded.reshape(-1, SUMMED)
        self._before = np.tri(SUMMED, k=-1, dtype=padded.dtype)
        """For each place in a block, 1 for the documents before it."""

    @classmethod
    def of(cls, lengths: NDArray[Any]) -> ListLengths:
        """Store lengths in the narrowest integers that can hold them; an array that is such already is not copied.

        >>> made = ListLengths.of(np.array([3, 0, 300]))
        >>> made.total, made.starts(np.array([2])).tolist(), made.find(np.array([2, 3])).tolist()
        (303, [3], [0, 2])
        """
        kind, padded = np.min_scalar_type(int(lengths.max(initial=0))), lengths
        if len(lengths) % SUMMED or lengths.dtype != kind:
            padded = np.zeros(-(-len(lengths) // SUMMED) * SUMMED, dtype=kind)
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
        """Return the parts of documents in stretches of the table's tokens."""
        if not self.total:
            none = np.empty(0, dtype=np.int64)
            return Slices(none, none, none, np.zeros(len(starts) + 1, dtype=np.int64))
        return between(self.find(starts), self.find(stops - 1) + 1, self._bounds, starts, stops)

    def _bounds(self, documents: Ints) -> tuple[Ints, Ints]:
        begins = self.starts(documents)
        return begins, begins + self.take(documents)

    def _starts(self, documents: Ints) -> Ints:
        number, place = np.divmod(documents, SUMMED)
        block = self._blocks.take(number, axis=0)
        block *= self._before.take(place, axis=0)
        found: Ints = self.sums[number] + block.sum(axis=1, dtype=np.int64)
        return found

    def _find(self, tokens: Ints) -> Ints:
        number = np.minimum(np.searchsorted(self.sums, tokens, side="right") - 1, len(self._blocks) - 1)
        ends = np.cumsum(self._blocks[number], axis=1, dtype=np.int64)
        inside = np.count_nonzero(ends <= (tokens - self.sums[number])[:, np.newaxis], axis=1)
        found: Ints = number * SUMMED + inside
        return found


def between(first: Ints, last: Ints, bounds: Callable[[Ints], tuple[Ints, Ints]], starts: Ints, stops: Ints) -> Slices:
    """Cut stretches of a row of tokens where documents begin.

    Args:
        first: int64[sequences] the document with the first token of each stretch.
        last: int64[sequences] the document after the one with its last token; nothing is cut where it is not larger.
        bounds: returns where the tokens of given documents begin and end.
    """
    counts = np.maximum(last - first, 0)
    ends = np.cumsum(counts)
    stretch = np.repeat(np.arange(len(starts)), counts)
    document = np.arange(len(stretch)) - np.repeat(ends - counts - first, counts)
    begins, behind = bounds(document)
    at = np.maximum(begins, starts[stretch])
    length = np.minimum(behind, stops[stretch]) - at
    start = at - begins
    if not (length > 0).all():
        some = np.flatnonzero(length > 0)
        document, start, length, stretch = document[some], start[some], length[some], stretch[some]
    return Slices(document, start, length, offsets_of(stretch, len(starts)))


def offsets_of(owner: Ints, count: int) -> Ints:
    """Return where the entries of each owner begin, of `count`, from the owner of each entry; they ascend."""
    found = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=count), out=found[1:])
    return found


def _by_parts(find: Callable[[Ints], Ints], wanted: Ints) -> Ints:
    at_once = sizes().lookups_at_once
    if len(wanted) <= at_once:
        return find(wanted)
    return np.concatenate([find(wanted[first : first + at_once]) for first in range(0, len(wanted), at_once)])
