"""Parts of documents, cut out of rows of units: tokens, which may be cut anywhere, or whole sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

SUMMED = 64
"""Documents of a block of `DocumentLengths`; part of the layout of files of lengths."""


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


class TokenRow(NamedTuple):
    """The tokens of some documents.

    Args:
        offsets: int64[documents + 1] where the tokens of each document begin; documents may be empty.

    >>> TokenRow(np.array([0, 3, 3, 8])).cut(np.array([2, 4]), np.array([5, 8]))[:3]
    (array([0, 2, 2]), array([2, 0, 1]), array([1, 2, 4]))
    """

    offsets: Ints

    @classmethod
    def of(cls, lengths: Ints) -> TokenRow:
        """Put documents of some lengths behind one another."""
        return cls(np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))))

    @property
    def total(self) -> int:
        """Number of tokens."""
        return int(self.offsets[-1])

    def cut(self, starts: Ints, stops: Ints) -> Slices:
        """Return the parts of documents in stretches of the tokens, with two searches for each."""
        first = np.searchsorted(self.offsets, starts, side="right") - 1
        last = np.searchsorted(self.offsets, stops, side="left")
        return _between(
            first, last, lambda document: (self.offsets[document], self.offsets[document + 1]), starts, stops
        )

    def before(self, document: int) -> int:
        """Return the tokens before a document."""
        return int(self.offsets[document])


class DocumentLengths:
    """The tokens of each document of a table, in narrow integers, and the tokens before each block of documents.

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
    def of(cls, lengths: NDArray[Any]) -> DocumentLengths:
        """Store lengths in the narrowest integers that can hold them; an array that is such already is not copied.

        >>> made = DocumentLengths.of(np.array([3, 0, 300]))
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
        return _between(self.find(starts), self.find(stops - 1) + 1, self._bounds, starts, stops)

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


@dataclass(frozen=True, slots=True)
class Windows:
    """Stretches of a row that begin `stride` units apart, as long as each adds a unit.

    Args:
        total: units of the row.
        size: units of a window; the last may have fewer.
        stride: units from one start to the next, at most `size`.
        origin: where the first begins; below 0 there is no unit.

    >>> windows = Windows(total=10, size=4, stride=3)
    >>> windows.count, windows.spans(np.arange(3))[1].tolist()
    (3, [4, 7, 10])
    """

    total: int
    size: int
    stride: int
    origin: int = 0

    @property
    def count(self) -> int:
        """Number of windows."""
        units = self.total - self.origin
        return 1 + max(0, -(-(units - self.size) // self.stride)) if units > 0 else 0

    def before(self, number: int) -> int:
        """Return the units of the row before a window; its number may be one past the last."""
        return min(self.origin + number * self.stride, self.total)

    def spans(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Return where the given windows begin, and where they end."""
        starts = self.origin + numbers * self.stride
        return starts, np.minimum(starts + self.size, self.total)


def in_order(parts: list[Slices], sequences: list[Ints], count: int) -> Slices:
    """Join slices of some sequences, each of which may continue in a later entry.

    Args:
        sequences: for each entry of `parts`, which are in the order of the tokens, the number of each of its sequences.
    """
    whose = np.concatenate(
        [np.repeat(numbers, np.diff(entry.offsets)) for numbers, entry in zip(sequences, parts, strict=True)]
        or [np.empty(0, dtype=np.int64)]
    )
    fields = [np.concatenate([entry[field] for entry in parts] or [whose]) for field in range(3)]
    if (np.diff(whose) < 0).any():
        order = np.argsort(whose, kind="stable")
        whose, fields = whose[order], [values[order] for values in fields]
    return Slices(fields[0], fields[1], fields[2], _offsets(whose, count))


def _between(first: Ints, last: Ints, bounds: Callable[[Ints], tuple[Ints, Ints]], starts: Ints, stops: Ints) -> Slices:
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
    return Slices(document, start, length, _offsets(stretch, len(starts)))


def _offsets(owner: Ints, count: int) -> Ints:
    found = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=count), out=found[1:])
    return found


def _by_parts(find: Callable[[Ints], Ints], wanted: Ints) -> Ints:
    at_once = sizes().lookups_at_once
    if len(wanted) <= at_once:
        return find(wanted)
    return np.concatenate([find(wanted[first : first + at_once]) for first in range(0, len(wanted), at_once)])
