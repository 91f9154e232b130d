"""Parts of a table by the places of its rows: training and validation documents of files without another column.

A row's part is a pure function of the name of its file, its number there, the shares and the seed: the same for every
order, rank, machine, mount, and after files were added. A hash of both decides, or a run of each file's rows does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.planning.keys import derive_key, keyed_hashes

if TYPE_CHECKING:
    from numpy.typing import NDArray

KIND = "part"
"""What `DeleteFile.kind` calls a value of `RowPart`, which leaves out the rows of other parts."""

_HASHES = 1 << 64

_OF_MEGATRON = ("train", "valid", "test")
"""What Megatron calls the parts of its ``--split``, in their order."""


@dataclass(frozen=True, slots=True)
class HashedRows:
    """The rows of a file whose hash lies in a range.

    Args:
        low: the first hash.
        high: the one after the last, at most 2^64.
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


def named_shares(parts: object) -> Mapping[Any, float]:
    """Return the share of each part, by name; shares sum to 1.

    Args:
        parts: shares by name, or weights in any unit as Megatron takes them: of training, validation and test.

    Raises:
        ConfigError: there are too many weights or none above 0, or the shares do not sum to 1.
        ConfigTypeError: it is none of these.

    >>> named_shares("3,1"), named_shares([3, 1])
    ({'train': 0.75, 'valid': 0.25}, {'train': 0.75, 'valid': 0.25})
    """
    if isinstance(parts, str | Sequence) and not isinstance(parts, bytes):
        return _normalized(parts)
    if not isinstance(parts, Mapping) or not parts:
        raise ConfigTypeError(
            'split takes the share of each part, such as {"train": 0.8, "val": 0.2}, or the weights of Megatron\'s '
            f'--split, such as "969,30,1", got {parts!r}'
        )
    return parts


def _normalized(given: str | Sequence[Any]) -> dict[Any, float]:
    """Return weights as Megatron normalizes them: divided by their sum, as float64."""
    asked = given.split(",") if isinstance(given, str) else given
    try:
        weights = [float(weight) for weight in asked]
    except (TypeError, ValueError):
        weights = []
    whole = sum(weights)
    if not 0 < len(weights) <= len(_OF_MEGATRON) or min(weights) < 0 or not 0 < whole < math.inf:
        raise ConfigError(
            "split takes up to three weights of at least 0, of training, validation and test, one of them above 0, "
            f'such as "969,30,1", got {given!r}; pass {{name: share}} for other parts'
        )
    return {part: weight / whole for part, weight in zip(_OF_MEGATRON, weights, strict=False)}
