"""Which parts of documents lie in sequences cut out of a row of tokens, and which windows a row has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]


class Slices(NamedTuple):
    """Parts of documents, sequence by sequence.

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


@dataclass(frozen=True, slots=True)
class Windows:
    """The sequences of a row of tokens that begin `stride` tokens apart, as long as each adds a token.

    Args:
        seq_len: tokens of a sequence; the last may have fewer.
        stride: tokens from one start to the next, at most `seq_len`.

    >>> windows = Windows(total=10, seq_len=4, stride=3)
    >>> windows.count, windows.spans(np.arange(3))[1].tolist()
    (3, [4, 7, 10])
    """

    total: int
    seq_len: int
    stride: int

    @property
    def count(self) -> int:
        """Number of windows."""
        return 1 + max(0, -(-(self.total - self.seq_len) // self.stride)) if self.total else 0

    def spans(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Return where the given windows begin, and where they end."""
        starts = numbers * self.stride
        return starts, np.minimum(starts + self.seq_len, self.total)


def cut(offsets: Ints, starts: Ints, stops: Ints) -> Slices:
    """Find the documents in stretches of a row of tokens, with two searches for each stretch.

    Args:
        offsets: int64[documents + 1] where the tokens of each document begin; documents may be empty.
        starts: int64[sequences] the first token of each stretch.
        stops: int64[sequences] the token after its last, all of them within the row.

    >>> cut(np.array([0, 3, 3, 8]), np.array([2, 4]), np.array([5, 8]))[:3]
    (array([0, 2, 2]), array([2, 0, 1]), array([1, 2, 4]))
    """
    first = np.searchsorted(offsets, starts, side="right") - 1
    last = np.searchsorted(offsets, stops, side="left")
    return between(first, last, lambda document: (offsets[document], offsets[document + 1]), starts, stops)


def between(first: Ints, last: Ints, bounds: Callable[[Ints], tuple[Ints, Ints]], starts: Ints, stops: Ints) -> Slices:
    """Cut stretches of a row of tokens where documents begin.

    Args:
        first: int64[sequences] the document with the first token of each stretch.
        last: int64[sequences] the document after the one with its last token; nothing is cut where it is not larger.
        bounds: returns where the tokens of given documents begin and end.
        starts: int64[sequences] the first token of each stretch.
        stops: int64[sequences] the token after its last.
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


def _offsets(owner: Ints, count: int) -> Ints:
    found = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=count), out=found[1:])
    return found
