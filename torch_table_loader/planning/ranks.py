"""The shape of a job, as far as it decides which row comes when."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_table_loader.planning.window_sizes import WindowSizes

if TYPE_CHECKING:
    from torch_table_loader.options import EvenRanks


@dataclass(frozen=True, slots=True)
class Mixing:
    """How a rank mixes what it reads.

    Args:
        rows: about how many rows a window has.
        splits: how many splits are read side by side.
        first: about how many rows the first window has, from which windows grow; None: they are all alike.
    """

    rows: int
    splits: int
    first: int | None = None

    def to_state(self) -> dict[str, int]:
        """Write as plain values by name.

        >>> Mixing(1024, 16).to_state(), Mixing(1024, 16, 64).to_state()
        ({'rows': 1024, 'splits': 16}, {'first': 64, 'rows': 1024, 'splits': 16})
        """
        grows = {} if self.first is None else {"first": self.first}
        return {**grows, "rows": self.rows, "splits": self.splits}

    def windows_of(self, rows: int, lanes: int, batch_size: int) -> WindowSizes:
        """Return what windows have of so many rows that lanes share: whole batches, about equally many, once grown.

        >>> Mixing(1000, 16).windows_of(10_100, 1, 64), Mixing(1000, 16).windows_of(10, 1, 64)
        (WindowSizes(rows=1024, first=()), WindowSizes(rows=64, first=()))
        """
        own, window = -(-rows // lanes), -(-self.rows // lanes)
        return WindowSizes.growing(own, window, self.first or window, batch_size)


@dataclass(frozen=True, slots=True)
class Topology:
    """The shape of a job, as far as it decides which row comes when.

    Args:
        num_ranks: R.
        lanes: workers of a rank.
        batch_size: B, rows of a batch on a rank.
        shuffle_buffer_size: rows of a shuffle window, how splits are mixed, or None.
        even_ranks: None, "balance", "drop" or "pad".
        drop_last: whether a short last batch is dropped.
        micro_batches: k, batches of a rank in a step of the optimizer; 1 for a stream.
    """

    num_ranks: int
    lanes: int
    batch_size: int
    shuffle_buffer_size: int | Mixing | None = None
    even_ranks: EvenRanks | None = None
    drop_last: bool = False
    micro_batches: int = 1

    @classmethod
    def of_state(cls, fields: Mapping[str, Any]) -> Topology:
        """Read what `to_state` wrote, in a checked state."""
        window = fields.get("shuffle_buffer_size")
        if isinstance(window, dict):
            window = Mixing(**window)
        return cls(**{name: fields[name] for name in _NAMED}, shuffle_buffer_size=window)

    def to_state(self) -> dict[str, Any]:
        """Write as plain values by name; micro-batches are for the job to say that has some.

        >>> Topology(4, 1, 64, Mixing(1024, 16)).to_state()["shuffle_buffer_size"]
        {'rows': 1024, 'splits': 16}
        """
        fields = dict(zip(_NAMED, _SHAPE(self), strict=True))
        window = self.shuffle_buffer_size
        if window is not None:
            fields["shuffle_buffer_size"] = window.to_state() if isinstance(window, Mixing) else window
        return fields

    @property
    def marks_padding(self) -> bool:
        """Whether batches have a column that marks padding: where there may be some, whatever the table has."""
        balances = self.even_ranks == "balance" and self.num_ranks > 1 and not self.drop_last
        return balances or self.even_ranks == "pad"

    @property
    def mixing(self) -> Mixing | None:
        """How splits are mixed, if they are."""
        if isinstance(self.shuffle_buffer_size, Mixing):
            return self.shuffle_buffer_size
        return None

    def windows_of(self, rows: int) -> WindowSizes | None:
        """Return what the shuffle windows of a lane have, for a rank of so many rows; None if there are none."""
        window = self.shuffle_buffer_size
        if isinstance(window, Mixing):
            return window.windows_of(rows, self.lanes, self.batch_size)
        if window is None:
            return None
        return WindowSizes(window)

    def has_batches_of(self, other: Topology) -> bool:
        """Return whether batches are as large as in another topology, and as many of them a step of the optimizer."""
        return (self.batch_size, self.micro_batches) == (other.batch_size, other.micro_batches)

    def batches(self, rows: int) -> int:
        """Return the number of batches for so many rows of a rank."""
        if self.drop_last:
            return rows // self.batch_size
        return -(-rows // self.batch_size)


MOST_SPLITS = 1024
"""The most splits that may be read side by side."""

_NAMED = ("num_ranks", "lanes", "batch_size", "even_ranks", "drop_last")
_SHAPE = operator.attrgetter(*_NAMED)
