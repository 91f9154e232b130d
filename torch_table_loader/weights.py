"""How often rows come, as requested by the caller: validated once, then frozen."""

from __future__ import annotations

from dataclasses import dataclass

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.units import integer

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

    >>> Weights(balance="label").said
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
    def said(self) -> str:
        """The weights' arguments, as the caller wrote them."""
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
