"""What is done to single columns: the forms of lists and strings, and what options by column take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.units import integer, one_of

RaggedLayout = Literal["nested", "pad", "offsets"]
Side = Literal["left", "right"]
StringLayout = Literal["list", "codes"]

UnsupportedForm = Literal["list", "float64"]
UnsupportedOption = UnsupportedForm | Mapping[str, UnsupportedForm]
"""What `unsupported=` takes: what becomes of all columns without a form as tensors, or of some by column."""

ColumnsOption = Sequence[str] | Mapping[str, str | Sequence[str]]
"""What `columns=` takes: names; or, by key of a batch, the name of a column or of several that become one tensor."""

ColumnFunctions = Mapping[str, Callable[[Any], Any]]
"""Functions of the caller's, by the name of a column."""

_MOST_BUCKETS = 2**62


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
                object.__setattr__(self, name, integer(f"Pad({name}=)", getattr(self, name), 1))
        one_of((None, *get_args(Side)), "Pad(truncate=)", self.truncate)
        one_of(get_args(Side), "Pad(side=)", self.side)
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


@dataclass(frozen=True, slots=True)
class Hash:
    """Strings hashed to numbers below `buckets`: the same on every machine, in every release and language.

    Null is 0. Any other value is ``1 + h % (buckets - 1)``, where h is the XXH3 hash of 64 bits, seed 0, of its bytes
    (of a string: in UTF-8).

    Args:
        buckets: number of values, at least 2; null has one of them.

    Raises:
        ConfigError: `buckets` is less than 2.
    """

    buckets: int

    def __post_init__(self) -> None:
        """Check the number."""
        object.__setattr__(self, "buckets", integer("Hash(buckets=)", self.buckets, 2, _MOST_BUCKETS))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Strings as places in a vocabulary: from 0, and −1 for null and for strings that are not in it.

    Args:
        values: the vocabulary, such as `TableDataset.fit_vocabulary` returns it: strings or bytes, none twice.

    Raises:
        ConfigTypeError: it is no list.
    """

    values: Sequence[Any]

    def __post_init__(self) -> None:
        """Keep the values, of whatever list, array or series, as a tuple."""
        given = self.values.tolist() if hasattr(self.values, "tolist") else self.values
        if isinstance(given, str | bytes) or not isinstance(given, Sequence):
            raise ConfigTypeError(f"Vocabulary(values=) must be a list of values, got {given!r}")
        object.__setattr__(self, "values", tuple(given))


Strings = StringLayout | Hash | Vocabulary
StringsOption = Strings | Mapping[str, Strings]
"""What `strings=` takes: a form for all strings, or some by column."""


def names_of(columns: ColumnsOption | None) -> Sequence[str] | None:
    """Return the columns that are read, in order; None for all.

    >>> names_of({"features": ["age", "income"], "label": "churn"})
    ('age', 'income', 'churn')
    """
    if not isinstance(columns, Mapping):
        return columns
    return tuple(name for own in columns.values() for name in ([own] if isinstance(own, str) else own))
