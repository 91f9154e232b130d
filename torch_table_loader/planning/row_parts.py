"""Parts of a table by the places of its rows: training and validation documents of files without another column.

A row's part is a pure function of the name of its file, its number there, the shares and the seed: the same for every
order, rank, machine, mount, and after files were added. A hash of both decides, or a run of each file's rows does.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.planning.keys import derive_key, keyed_hashes

if TYPE_CHECKING:
    from numpy.typing import NDArray

KIND = "part"
"""What `DeleteFile.kind` calls a value of `RowPart`, which leaves out the rows of other parts."""

_HASHES = 1 << 64


@dataclass(frozen=True, slots=True)
class HashedRows:
    """The rows of a file whose hash lies in a range.

    Args:
        low: the first hash.
        high: the one behind the last, at most 2^64.
        seed: another one hashes differently.
    """

    low: int
    high: int
    seed: int

    def others(self, name: str, num_rows: int) -> NDArray[np.int64]:
        """Return the rows of a file that are not in the part, ascending.

        Args:
            name: the file's path relative to the table's root, of which the last segment counts.

        >>> train, val = HashedRows(0, 1 << 63, 0), HashedRows(1 << 63, 1 << 64, 0)
        >>> sorted([*train.others("a", 9), *val.others("a", 9)]) == list(range(9))
        True
        """
        hashes = keyed_hashes(num_rows, derive_key(self.seed, 0, f"part {name.rpartition('/')[2]}"))
        outside = hashes < np.uint64(self.low)
        if self.high < _HASHES:
            outside |= hashes >= np.uint64(self.high)
        return np.flatnonzero(outside | (self.low >= self.high))


@dataclass(frozen=True, slots=True)
class RangedRows:
    """A run of the rows of each file, as Megatron's ``--split`` cuts each of its data sets.

    Args:
        begin: the share of a file's rows before it.
        end: that up to its end.
    """

    begin: float
    end: float

    def others(self, name: str, num_rows: int) -> NDArray[np.int64]:  # noqa: ARG002 each file is cut alike
        """Return the rows of a file that are not in the part, ascending.

        >>> RangedRows(0.25, 0.75).others("a", 10).tolist()
        [0, 1, 8, 9]
        """
        begin, end = (round(edge * num_rows) for edge in (self.begin, self.end))
        return np.concatenate((np.arange(begin), np.arange(end, num_rows)))


RowPart = HashedRows | RangedRows


def encoded(part: RowPart) -> bytes:
    """Write a part as text, for `DeleteFile.inline`."""
    return json.dumps({type(part).__name__: asdict(part)}).encode()


def decoded(text: bytes) -> RowPart:
    """Read what `encoded` wrote.

    >>> decoded(encoded(RangedRows(0.0, 0.9)))
    RangedRows(begin=0.0, end=0.9)
    """
    ((name, values),) = json.loads(text).items()
    kinds: dict[str, type[HashedRows | RangedRows]] = {kind.__name__: kind for kind in (HashedRows, RangedRows)}
    return kinds[name](**values)
