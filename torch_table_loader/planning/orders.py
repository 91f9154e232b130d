"""The contract of orders of single rows: which rows an epoch has, and which of them comes at each place.

An epoch's order is made in two steps, each a value. `Draws` says how often rows come, and makes `Selects` of the rows
that are left: the rows of the epoch, numbered. An `Order` permutes these numbers. Rows that come once each are here;
a guest draws rows by weight, or appends another order to one that has begun.

An order is asked for blocks of places, so that a call of numpy finds many rows. It pickles, and holds no store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from torch_table_loader.planning.exclusion import Remaining
    from torch_table_loader.planning.permutation import Permutation

    Ints: TypeAlias = NDArray[np.int64]


class Selects(Protocol):
    """The rows of an epoch before they are permuted: those that are left, or are drawn of them."""

    @property
    def num_rows(self) -> int:
        """How many there are."""
        ...

    @property
    def gone(self) -> Ints:
        """The rows that are left out: sorted, without duplicates."""
        ...

    def select(self, ranks: Ints, rounds: Ints | int = 0) -> Ints:
        """Return the row of each; `rounds` came before, in each of which others may be drawn."""
        ...


class Order(Protocol):
    """Which row of a store comes at each place. That of a mixture's source goes round, and has no end."""

    def take(self, places: Ints) -> Ints:
        """Return the row of the store at each place of the order."""
        ...


class EpochOrder(Order, Protocol):
    """The order of an epoch of a table, in parts of which each comes to its end before the next begins."""

    @property
    def ends(self) -> Sequence[int] | Ints:
        """The place after the last of each part; there is at least one part."""
        ...


class Draws(Protocol):
    """How often the rows of a table come in an epoch."""

    @property
    def most(self) -> int | None:
        """So many places of the order come at most; None: all."""
        ...

    @property
    def bound(self) -> Mapping[str, str]:
        """What a state is bound to, by name."""
        ...

    @property
    def strategy(self) -> str:
        """What `explain()` calls the order."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Bytes that are held in memory."""
        ...

    def selected(self, remaining: Remaining, seed: int, epoch: int, source: str | None = None) -> Selects:
        """Return the rows of an epoch.

        Args:
            remaining: those that are not excluded.
            source: the name of the table in a mixture.

        Raises:
            ConfigError: no row of those that are left can come.
        """
        ...

    def refuse_rounds_that_differ(self) -> None:
        """Refuse a source of a mixture whose rounds have to have the same rows.

        Raises:
            ConfigError: each round draws others.
        """
        ...

    def in_words(self, rows: str, left: str) -> str:
        """Say that an epoch has some rows of those that are left."""
        ...


@dataclass(frozen=True, slots=True)
class EachOnce:
    """Every row that is left comes once."""

    most: int | None = None
    strategy: str = "rows"
    memory_bytes: int = 0

    @property
    def bound(self) -> Mapping[str, str]:
        """Nothing beside the table."""
        return {}

    def selected(self, remaining: Remaining, seed: int, epoch: int, source: str | None = None) -> Remaining:  # noqa: ARG002
        """Return those that are left."""
        return remaining

    def refuse_rounds_that_differ(self) -> None:
        """Refuse nothing."""

    def in_words(self, rows: str, left: str) -> str:  # noqa: ARG002 all that are left come
        """Say that those that are left come."""
        return f"{left} are in the epoch"


@dataclass(frozen=True, slots=True, eq=False)
class RowOrder:
    """An epoch's order over the rows of a store, permuted.

    >>> import numpy as np
    >>> from torch_table_loader.planning.exclusion import Remaining
    >>> from torch_table_loader.planning.keys import derive_key
    >>> from torch_table_loader.planning.permutation import Permutation
    >>> RowOrder(Permutation(3, derive_key(0, 0, "rows")), Remaining(4, np.array([1]))).take(np.arange(3)).tolist()
    [2, 0, 3]
    """

    permutation: Permutation
    rows: Selects

    @property
    def ends(self) -> Sequence[int]:
        """The place after the last row: the order has one part."""
        return [self.rows.num_rows]

    def take(self, places: Ints) -> Ints:
        """Return the row of the store at each place of the order."""
        return self.rows.select(self.permutation.take(places))
