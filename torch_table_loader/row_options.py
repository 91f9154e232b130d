"""What options of row mode take: how often rows come, and where they are kept."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.units import integer, parse_bytes

MOST_SAMPLES = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How often each row comes in an epoch of row mode: in proportion to its weight, with repeats.

    Args:
        column: a column of weights, numbers of at least 0.
        balance: instead of `column`, a column of classes: all classes come equally often, and so do the rows of a
            class. Without either, no row comes twice.
        samples: number of rows of an epoch; None: the number of live rows that are not excluded.

    Raises:
        ConfigError: both columns or no argument is given, or `samples` is not an integer of at least 1.

    >>> Weights(balance="label").argument
    "balance='label'"
    """

    column: str | None = None
    balance: str | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        """Check the arguments."""
        for name in ("column", "balance"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigTypeError(f"{name} of Weights must be the name of a column, got {value!r}")
        if self.column is not None and self.balance is not None:
            raise ConfigError(
                "Weights takes column= or balance=, not both: one names the weights and the other classes; got "
                f"column={self.column!r} and balance={self.balance!r}"
            )
        if self.column is None and self.balance is None and self.samples is None:
            raise ConfigError("Weights needs a column= of weights, a column of classes to balance=, or samples=")
        if self.samples is not None:
            object.__setattr__(self, "samples", integer("samples", self.samples, 1, MOST_SAMPLES))

    @property
    def source(self) -> str | None:
        """The column that is read; None if every row comes equally often."""
        return self.balance if self.column is None else self.column

    @property
    def argument(self) -> str:
        """The argument that names the column, as the caller wrote it."""
        return f"column={self.column!r}" if self.balance is None else f"balance={self.balance!r}"


def as_weights(given: object) -> Weights:
    """Return the weights that an option gives: a `Weights`, or the name of a column of weights.

    Raises:
        ConfigTypeError: the option is something else.
    """
    if isinstance(given, Weights):
        return given
    if not isinstance(given, str) or not given:
        raise ConfigTypeError(
            "weights must be the name of a column of numbers, Weights(column=..., samples=...) or "
            f"Weights(balance=...), got {type(given).__name__} {given!r}; shares of several tables are "
            "MixedDataset(sources, weights)"
        )
    return Weights(column=given)


@dataclass(frozen=True, slots=True)
class RowStore:
    """Where a row store is kept, and how much of it each rank may hold in memory.

    Args:
        place: "memory", a directory or a URL; None: memory if the store fits into `memory` and the free memory, else a
            cache directory.
        memory: the most bytes that a rank holds in memory, as an int or such as "4GiB". Of a larger store behind a URL,
            these many are fetched at a time.

    Raises:
        ConfigTypeError: `place` is something else.
        ConfigError: `memory` is no size.

    >>> RowStore(memory="4GiB").memory_bytes
    4294967296
    """

    place: str | os.PathLike[str] | None = field(default=None, repr=False)
    memory: int | str = "1GiB"

    def __post_init__(self) -> None:
        """Check the arguments."""
        if self.place is not None and (not self.place or not isinstance(self.place, str | os.PathLike)):
            raise ConfigTypeError(f'row_store must be "memory", a directory, or a URL, got {self.place!r}')
        parse_bytes(self.memory, "RowStore(memory=)")

    @property
    def memory_bytes(self) -> int:
        """The most bytes that a rank holds in memory."""
        return parse_bytes(self.memory)


def as_row_store(given: object) -> RowStore:
    """Return what an option says of a row store: a `RowStore`, or its place."""
    return given if isinstance(given, RowStore) else RowStore("" if given is None else given)  # type: ignore[arg-type]
