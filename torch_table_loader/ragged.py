"""How lists of numbers are delivered: the layouts, and what padding does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.units import whole

RaggedLayout = Literal["nested", "pad", "offsets"]
Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pad:
    """Lists as one rectangle per batch, `Padded(values, lengths)`; `lengths` count the table's own values.

    Args:
        value: the value that fills a short list; for lists of fixed-size lists, it fills each of their places.
        length: length of every row; None: that of the longest list of the batch.
        multiple_of: round the length of rows up to a multiple of it; `length` must be a multiple of it too.
        truncate: the side on which lists longer than `length` are cut; None refuses them.
        side: the side on which padding stands.

    Raises:
        ConfigError: a setting is wrong, or two of them contradict each other.
    """

    value: float = 0
    length: int | None = None
    multiple_of: int | None = None
    truncate: Side | None = None
    side: Side = "right"

    def __post_init__(self) -> None:
        """Check every setting."""
        given: Any = self.value
        value = given.item() if hasattr(given, "item") and not getattr(given, "shape", ()) else given
        if not isinstance(value, int | float):
            raise ConfigTypeError(f"Pad(value=) must be a number or a bool, got {type(given).__name__} {given!r}")
        object.__setattr__(self, "value", value)
        for name in ("length", "multiple_of"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _positive(name, getattr(self, name)))
        for name, allowed in (("truncate", (None, *get_args(Side))), ("side", get_args(Side))):
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"Pad({name}=) must be one of {', '.join(map(repr, allowed))}, got {getattr(self, name)!r}"
                )
        if self.truncate is not None and self.length is None:
            raise ConfigError(
                f"Pad(truncate={self.truncate!r}) says on which side lists are cut, but not at what length; pass "
                "length= too"
            )
        if self.length is not None and self.multiple_of is not None and self.length % self.multiple_of:
            low = self.length // self.multiple_of * self.multiple_of
            near = f"{low} or {low + self.multiple_of}" if low else str(self.multiple_of)
            raise ConfigError(
                f"Pad(length={self.length}) is not a multiple of multiple_of={self.multiple_of}; the nearest is "
                f"{near}, or leave one of them out"
            )

    @property
    def longest(self) -> int | None:
        """The longest list that is allowed; None: any length."""
        return self.length if self.truncate is None else None

    def width(self, longest: int) -> int:
        """Return how long the rows of a batch are.

        Args:
            longest: list of the batch.

        >>> Pad().width(5), Pad(multiple_of=8).width(9), Pad(length=4, truncate="left").width(9)
        (5, 16, 4)
        """
        if self.length is not None:
            return self.length
        unit = self.multiple_of or 1
        return -(-longest // unit) * unit


Layout = RaggedLayout | Pad
RaggedOption = Layout | Mapping[str, Layout]
"""What `ragged=` takes: a layout for all lists, or some by column."""


def check_ragged(given: Any) -> None:
    """Refuse what is not a layout of lists.

    Raises:
        ConfigError: says what there is.
    """
    layouts = ", ".join(map(repr, get_args(RaggedLayout)))
    if isinstance(given, Mapping):
        for name, layout in given.items():
            if not isinstance(name, str):
                raise ConfigTypeError(f"ragged must name columns by str, got {type(name).__name__} {name!r}")
            if not _is_layout(layout):
                raise ConfigError(f"ragged[{name!r}] must be one of {layouts} or a Pad(...), got {layout!r}")
    elif given is not None and not _is_layout(given):
        raise ConfigError(
            f"ragged must be one of None, {layouts}, a Pad(...), or {{column: one of these}}, got {given!r}"
        )


def _is_layout(given: Any) -> bool:
    return isinstance(given, Pad) or (isinstance(given, str) and given in get_args(RaggedLayout))


def _positive(name: str, value: Any) -> int:
    number = whole(value)
    if number is None:
        raise ConfigTypeError(f"Pad({name}=) must be an int, got {type(value).__name__} {value!r}")
    if number < 1:
        raise ConfigError(f"Pad({name}=) must be at least 1, got {number}")
    return number
