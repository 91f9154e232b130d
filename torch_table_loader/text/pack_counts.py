"""Statistics of packing: how full sequences are, and what became of documents that are too long."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from typing_extensions import override

from torch_table_loader.samples import SampleCounts, in_percent, known_sum, share_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torch_table_loader.planning.lists import Slices
    from torch_table_loader.text.pack import Pack


@dataclass(frozen=True, slots=True)
class PackCounts(SampleCounts):
    """What packing some documents produces. A value that was not counted is None, and so is any sum with it.

    Args:
        seq_len: tokens of a sequence; 0 if sequences differ in length.
        parts: documents, or parts of documents, in them; a whole document counts as one.
        split: documents that no sequence holds whole.
        truncated: documents whose end is left out because they are too long.
        dropped: documents that are left out because they are too long.

    >>> counts = PackCounts(8, sequences=2, tokens=12, parts=3) + PackCounts(8, split=None)
    >>> counts.fill, counts.parts_per_sequence, counts.split
    (0.75, 1.5, None)
    """

    key: ClassVar[str] = "packing"
    made: ClassVar[str] = "packed"

    seq_len: int
    sequences: int | None = 0
    tokens: int | None = 0
    parts: int | None = 0
    split: int | None = 0
    truncated: int | None = 0
    dropped: int | None = 0

    @classmethod
    def of(cls, pack: Pack, slices: Slices, wholes: NDArray[np.int64], dropped: int = 0) -> Self:
        """Count sequences that have each of their documents from its first token on.

        Args:
            wholes: int64[n] the tokens of the document of each slice.
            dropped: documents that are left out because they are too long.
        """
        before = np.cumsum(slices.length) - slices.length
        inside = before - np.repeat(before[slices.offsets[:-1]], np.diff(slices.offsets))
        # Of windows that overlap, the last that begins a document is the one that holds most of it.
        last = inside < (pack.stride or pack.width)
        cut = int(np.count_nonzero((slices.start == 0) & (slices.length < wholes) & last))
        truncates = pack.long_docs == "truncate"
        return cls(
            pack.width,
            slices.total,
            int(slices.length.sum()),
            len(slices.document),
            split=0 if truncates else cut,
            truncated=cut if truncates else 0,
            dropped=dropped,
        )

    @property
    @override
    def samples(self) -> int | None:
        return self.sequences

    @property
    @override
    def numbers(self) -> dict[str, int | None]:
        return {entry.name: getattr(self, entry.name) for entry in fields(self)[2:]}

    @override
    def with_numbers(self, samples: int, numbers: Sequence[int]) -> Self:
        return replace(self, sequences=samples, **dict(zip(self.numbers, numbers, strict=True)))

    @property
    @override
    def facts(self) -> list[tuple[str, int | str | None]]:
        return [
            ("tokens of a sequence", self.seq_len or "several lengths"),
            ("sequences", self.sequences),
            ("tokens", self.tokens),
            ("full", in_percent(self.fill)),
            ("documents or parts of them", self.parts),
            ("documents split", self.split),
            ("documents truncated", self.truncated),
            ("documents dropped", self.dropped),
        ]

    @override
    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.seq_len if self.seq_len == other.seq_len else 0,
            known_sum(self.sequences, other.sequences),
            known_sum(self.tokens, other.tokens),
            known_sum(self.parts, other.parts),
            known_sum(self.split, other.split),
            known_sum(self.truncated, other.truncated),
            known_sum(self.dropped, other.dropped),
        )

    @property
    def fill(self) -> float | None:
        """The share of positions that hold tokens; None if that is not known, or there is no sequence."""
        return share_of(self.tokens, self.sequences, self.seq_len)

    @property
    def parts_per_sequence(self) -> float | None:
        """Documents, or parts of them, in an average sequence; None if that is not known."""
        return share_of(self.parts, self.sequences)

    def __str__(self) -> str:
        """Format the numbers as one line; unknown ones are left out."""
        shown, length = [], "several lengths"
        if self.seq_len:
            length = f"{self.seq_len:,} tokens"
        if self.sequences is not None:
            shown.append(f"{self.sequences:,} sequences of {length}")
        if self.fill is not None:
            shown.append(f"{in_percent(self.fill)} full")
        if self.parts_per_sequence is not None:
            shown.append(f"{self.parts_per_sequence:.2f} documents a sequence")
        named = {"split": self.split, "truncated": self.truncated, "dropped": self.dropped}
        return ", ".join([*shown, *(f"{count:,} {name}" for name, count in named.items() if count)])
