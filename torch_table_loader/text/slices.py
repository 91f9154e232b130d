"""Rows of units of which documents become sequences: tokens, which may be cut anywhere, or whole sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from torch_table_loader.planning.lists import Slices, between, offsets_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]


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
        """Put documents of some lengths after one another."""
        return cls(np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))))

    @property
    def total(self) -> int:
        """Number of tokens."""
        return int(self.offsets[-1])

    def cut(self, starts: Ints, stops: Ints) -> Slices:
        """Return the parts of documents in stretches of the tokens, with two searches for each."""
        first = np.searchsorted(self.offsets, starts, side="right") - 1
        last = np.searchsorted(self.offsets, stops, side="left")
        return between(
            first, last, lambda document: (self.offsets[document], self.offsets[document + 1]), starts, stops
        )

    def before(self, document: int) -> int:
        """Return the tokens before a document."""
        return int(self.offsets[document])


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
        if units > 0:
            return 1 + max(0, -(-(units - self.size) // self.stride))
        return 0

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
    return Slices(fields[0], fields[1], fields[2], offsets_of(whose, count))
