"""What is done to single columns: the forms of strings, and what `strings=`, `transforms=` and `decode=` take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.units import integer

StringLayout = Literal["list", "codes"]

UnsupportedForm = Literal["list", "float64"]
UnsupportedOption = UnsupportedForm | Mapping[str, UnsupportedForm]
"""What `unsupported=` takes: what becomes of all columns without a form as tensors, or of some by column."""

ColumnsOption = Sequence[str] | Mapping[str, str | Sequence[str]]
"""What `columns=` takes: names; or, by key of a batch, the name of a column or of several that become one tensor."""

ColumnFunctions = Mapping[str, Callable[[Any], Any]]
"""Functions of the caller's, by the name of a column."""

_MOST_BUCKETS = 2**62
_REMEDIES = {
    "hash": 'pass strings=Hash(buckets=...), or strings={"column": Hash(buckets=...)} for some columns alone',
    "vocabulary": 'pass strings={"column": Vocabulary(values)}',
}


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


def check_strings(given: Any) -> None:
    """Refuse what is not a form of strings.

    Raises:
        ConfigError: says what there is.
    """
    forms = f"{', '.join(map(repr, get_args(StringLayout)))}, a Vocabulary(values) or a Hash(buckets=...)"
    if isinstance(given, Mapping):
        for name, form in given.items():
            if not isinstance(name, str):
                raise ConfigTypeError(f"strings must name columns by str, got {type(name).__name__} {name!r}")
            if not _is_form(form):
                raise ConfigError(f"strings[{name!r}] must be one of {forms}, got {form!r}{_hint(form)}")
    elif not _is_form(given):
        raise ConfigError(f"strings must be one of {forms}, or {{column: one of these}}, got {given!r}{_hint(given)}")


def names_of(columns: ColumnsOption | None) -> Sequence[str] | None:
    """Return the columns that are read, in order; None for all.

    >>> names_of({"features": ["age", "income"], "label": "churn"})
    ('age', 'income', 'churn')
    """
    if not isinstance(columns, Mapping):
        return columns
    return tuple(name for own in columns.values() for name in ([own] if isinstance(own, str) else own))


def check_unsupported(given: Any) -> None:
    """Refuse what is not a form of columns that have none as tensors.

    Raises:
        ConfigError: says what there is.
    """
    forms = " or ".join(f'"{form}"' for form in get_args(UnsupportedForm))
    for name, form in given.items() if isinstance(given, Mapping) else [("", given)]:
        if not isinstance(name, str):
            raise ConfigTypeError(f"unsupported must name columns by str, got {type(name).__name__} {name!r}")
        if not isinstance(form, str) or form not in get_args(UnsupportedForm):
            at, beside = (f"[{name!r}]", "") if name else ("", ", or {column: one of these}")
            raise ConfigError(f"unsupported{at} must be {forms}{beside}, got {form!r}")


def check_functions(option: str, given: Any) -> None:
    """Refuse what is not a dict of functions by column.

    Raises:
        ConfigTypeError: it is something else.
    """
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise ConfigTypeError(f"{option} must be {{column: function}}, got {type(given).__name__} {given!r}")
    for name, function in given.items():
        if not isinstance(name, str):
            raise ConfigTypeError(f"{option} must name columns by str, got {type(name).__name__} {name!r}")
        if not callable(function):
            raise ConfigTypeError(f"{option}[{name!r}] must be callable, got {type(function).__name__} {function!r}")


def _is_form(given: Any) -> bool:
    return isinstance(given, Hash | Vocabulary) or (isinstance(given, str) and given in get_args(StringLayout))


def _hint(given: Any) -> str:
    meant = "hash" if given == "hash" or given is Hash else "vocabulary" if not isinstance(given, str) else ""
    return f"; {_REMEDIES[meant]}" if meant else ""
