"""What options take beside plain values, each checked when it is made.

Options by column take forms of lists and strings; those of row mode, how often rows come and where they are kept; and
``storage_options``, beside what is for one store, how the files of any store are read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, get_args

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.messages import warn_caller
from torch_table_loader.scrubbing import shown_url
from torch_table_loader.units import integer, one_of, parse_bytes, seconds, whole

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

MOST_SAMPLES = 2**40

DEFAULT_RETRY_SECONDS = 120.0

DEFAULT_MEMORY = 1 << 30
"""Bytes of a rank that are divided over what it holds where the caller does not say how many it may hold."""


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
        value = given
        if hasattr(given, "item") and not getattr(given, "shape", ()):
            value = given.item()
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
            near = str(self.multiple_of)
            if low:
                near = f"{low} or {low + self.multiple_of}"
            raise ConfigError(
                f"Pad(length={self.length}) is not a multiple of multiple_of={self.multiple_of}; the nearest is "
                f"{near}, or leave one of them out"
            )

    @property
    def longest(self) -> int | None:
        """The longest list that is allowed; None: any length."""
        if self.truncate is None:
            return self.length
        return None

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
        given = self.values
        if hasattr(given, "tolist"):
            given = given.tolist()
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
    found: list[str] = []
    for own in columns.values():
        if isinstance(own, str):
            found.append(own)
        else:
            found += own
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How often each row, or document, comes in an epoch of row mode.

    Args:
        column: a column of weights, numbers of at least 0.
        balance: instead of `column`, a column of classes: all classes come equally often, and so do the rows of a
            class. Without a column, no row comes twice.
        samples: number of rows of an epoch; None: the number of live rows that are not excluded.
        repeats: instead of `column`, one of numbers that say how often a row comes in each epoch: 3 brings it three
            times, 0.5 in every other epoch on average. An epoch has as many rows as their sum. Whole numbers are exact
            where all are whole; beside fractions, a row may come once more or less.

    Raises:
        ConfigError: several columns or no argument is given, or `samples` is not an integer of at least 1.

    >>> Weights(balance="label").argument
    "balance='label'"
    """

    column: str | None = None
    balance: str | None = None
    samples: int | None = None
    repeats: str | None = None

    def __post_init__(self) -> None:
        """Check the arguments."""
        for name, value in self._columns.items():
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigTypeError(f"{name} of Weights must be the name of a column, got {value!r}")
        named = [f"{name}={value!r}" for name, value in self._columns.items() if value is not None]
        if len(named) > 1:
            raise ConfigError(
                "Weights takes one of column=, balance= and repeats=, which name the weights, the classes or the "
                f"repeats of rows; got {' and '.join(named)}"
            )
        if not named and self.samples is None:
            raise ConfigError(
                "Weights needs a column= of weights, a column of classes to balance=, one of repeats=, or samples="
            )
        if self.repeats is not None and self.samples is not None:
            raise ConfigError(
                f"repeats= says how many rows an epoch has, got samples={self.samples!r} too; leave it out, or pass "
                f"column={self.repeats!r} for rows in proportion"
            )
        if self.samples is not None:
            object.__setattr__(self, "samples", integer("samples", self.samples, 1, MOST_SAMPLES))

    @property
    def _columns(self) -> dict[str, str | None]:
        return {"column": self.column, "balance": self.balance, "repeats": self.repeats}

    @property
    def source(self) -> str | None:
        """The column that is read; None if every row comes equally often."""
        return next((name for name in self._columns.values() if name is not None), None)

    @property
    def argument(self) -> str:
        """The argument that names the column, as the caller wrote it."""
        return next((f"{name}={value!r}" for name, value in self._columns.items() if value is not None), "column=None")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Batches of as many rows as a number of tokens holds, or of any other unit that rows have some of.

    A row that does not fit waits, and is the first of the next batch; while at most 16 wait, rows after them may fill
    the room that is left. A state goes on with the same budget, on any number of ranks.

    In a stream the rows of a batch are of one block: 4,096 rows of a row group, or `similar` of them. Each block ends
    with a batch that may be short, and the batches are shuffled, within blocks and as ``shuffle=`` asks.

    Args:
        tokens: the most tokens of a batch.
        length: the column that says how many tokens a row has: integers, or lists, whose values are counted.
        at_most: the most rows of a batch.
        counts: what counts as tokens: "rows", those that the rows have; "padded", those of a rectangle, as ``ragged=``
            pads `length`: rows times the longest of the batch.
        similar: so many rows of the order are sorted by length and cut, and their batches shuffled, so that the rows of
            a batch have similar lengths; None leaves rows in their order.
        longer: what a row of more tokens gets: "alone", a batch of its own, with a warning; or "error".

    Raises:
        ConfigError: an argument is wrong.
    """

    tokens: int
    length: str
    at_most: int = 1024
    counts: Literal["rows", "padded"] = "rows"
    similar: int | None = None
    longer: Literal["alone", "error"] = "alone"

    def __post_init__(self) -> None:
        """Check the arguments."""
        if not isinstance(self.length, str) or not self.length:
            raise ConfigTypeError(f"Budget(length=) must be the name of a column, got {self.length!r}")
        for name in ("tokens", "at_most", "similar"):
            if name != "similar" or self.similar is not None:
                object.__setattr__(self, name, integer(f"Budget({name}=)", getattr(self, name), 1, MOST_SAMPLES))
        one_of(("rows", "padded"), "Budget(counts=)", self.counts)
        one_of(("alone", "error"), "Budget(longer=)", self.longer)

    def counted_pad(self, ragged: RaggedOption | None) -> Pad | None:
        """Return how lists are padded whose padding counts, of what ``ragged=`` says; None where it does not count."""
        layout = ragged
        if isinstance(layout, Mapping):
            layout = layout.get(self.length)
        if self.counts == "padded" and isinstance(layout, Pad):
            return layout
        return None

    def warn_of(self, longer: int, rows: int, longest: str = "") -> None:
        """Warn of rows that are longer than a batch."""
        warn_caller(
            f"{longer:,} of {rows:,} rows are longer than tokens={self.tokens} of Budget{longest}; each is a batch of "
            'its own: pass more tokens, leave such rows out with filters=, or refuse them with longer="error"'
        )


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
    if isinstance(given, RowStore):
        return given
    if given is None:
        return RowStore("")
    return RowStore(given)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """What `dataset.statistics` returns for a column of numbers, or for the values in a column of lists.

    Args:
        count: number of values that are neither null nor NaN; all fields below describe these.
        nulls: number of nulls.
        nans: number of NaNs.
        mean: rounded once; NaN if there is no value, None with `bounds_only`.
        std: the standard deviation of the population, likewise.
        min: the least value; None if there is none.
        max: the greatest value.
        quantiles: for each share, the least value that this share of the values does not exceed; empty with
            `bounds_only`.
    """

    count: int
    nulls: int
    nans: int
    mean: float | None
    std: float | None
    min: Any
    max: Any
    quantiles: Mapping[float, float] = field(default_factory=dict)

    @classmethod
    def of(cls, sums: Any, shares: Sequence[float] | None) -> Self:
        """Build from the sums of a column (`extend.ValueSums`), with quantiles for the given shares; None: bounds."""
        if shares is None:
            return cls(sums.count, sums.nulls, sums.nans, None, None, sums.low, sums.high)
        quantiles = {share: sums.quantile(share) for share in shares}
        return cls(sums.count, sums.nulls, sums.nans, sums.mean, sums.std, sums.low, sums.high, quantiles)

    def standardize(self, values: Any) -> Any:
        """Subtract the mean from a tensor or array, and divide by the standard deviation: a function for `transforms`.

        Floats keep their width, and integers become floats. If all values are equal, the result is zeros.

        Raises:
            ConfigError: only bounds are known.

        >>> import numpy as np
        >>> ColumnStatistics(2, 0, 0, 3.0, 2.0, 1, 5).standardize(np.array([1, 3, 5]))
        array([-1.,  0.,  1.])
        """
        if self.mean is None or self.std is None:
            raise ConfigError("these statistics hold bounds alone; measure the column without bounds_only=True")
        return (values - self.mean) / (self.std or 1.0)


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """How requests are repeated, what is fetched ahead and kept on a local disk, and whether checksums are compared.

    Args:
        retry_seconds: how long to retry a request that the store does not serve; 0: one try. Outages of stores, and
            restarts of those that one runs oneself, are mostly over after the default.
        read_ahead_bytes: the most compressed bytes that each process fetches ahead of decoding, of files on this
            machine too; 0: none. None: `ahead_bytes`, and files on this machine are read when they are decoded.
        cache_dir: a directory of this machine that keeps what was fetched, for all its ranks; None keeps nothing.
        cache_bytes: the most bytes that are kept there; the least recently used are removed first.
        verify_checksums: refuse pages of Parquet files, and files of row stores, that differ from their checksums;
            "all" compares row stores whole whenever they are opened.
    """

    retry_seconds: float = DEFAULT_RETRY_SECONDS
    read_ahead_bytes: int | None = None
    cache_dir: str | None = None
    cache_bytes: int = 64 << 30
    verify_checksums: bool | Literal["all"] = True

    def ahead_bytes(self, memory: int = DEFAULT_MEMORY) -> int:
        """Return the bytes that are fetched ahead: an eighth of a rank's memory, unless the caller says how many.

        By default this is enough for a line of 10 Gbit/s over 100 ms, and never more.
        """
        if self.read_ahead_bytes is None:
            return min(memory, DEFAULT_MEMORY) // 8
        return self.read_ahead_bytes

    @classmethod
    def of(cls, storage_options: Mapping[str, Any] | None) -> RemoteOptions:
        """Read them from the caller's options, in which sizes may be text.

        >>> RemoteOptions.of({"key": "K", "cache_bytes": "1GiB", "retry_seconds": 5}).cache_bytes
        1073741824
        """
        if storage_options is not None and not isinstance(storage_options, Mapping):
            raise ConfigTypeError(
                f"storage_options must be a mapping of names to values, got {type(storage_options).__name__}"
            )
        given = anywhere(storage_options)
        if "retry_seconds" in given:
            given["retry_seconds"] = seconds(_called("retry_seconds"), given["retry_seconds"])
        for name in ("read_ahead_bytes", "cache_bytes"):
            if name in given and (name == "cache_bytes" or whole(given[name]) != 0):
                given[name] = parse_bytes(given[name], _called(name))
        if given.get("cache_dir") is not None:
            given["cache_dir"] = _directory(given["cache_dir"])
        verify = given.get("verify_checksums", True)
        if not isinstance(verify, bool) and verify != "all":
            raise ConfigTypeError(f'{_called("verify_checksums")} must be True or False, or "all", got {verify!r}')
        return cls(**given)


OWN = frozenset(entry.name for entry in fields(RemoteOptions))


def anywhere(storage_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options that hold for any store.

    >>> anywhere({"key": "K", "retry_seconds": 5})
    {'retry_seconds': 5}
    """
    return {name: value for name, value in (storage_options or {}).items() if name in OWN}


def of_the_store(storage_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options that are for one store: its login, its endpoint and the like.

    >>> of_the_store({"key": "K", "retry_seconds": 5})
    {'key': 'K'}
    """
    return {name: value for name, value in (storage_options or {}).items() if name not in OWN}


def _called(name: str) -> str:
    return f"storage_options[{name!r}]"


def _directory(given: Any) -> str:
    if not isinstance(given, str | os.PathLike) or "://" in str(given):
        shown = repr(given)
        if isinstance(given, str):
            shown = repr(shown_url(given))
        raise ConfigTypeError(f"{_called('cache_dir')} must be a directory of this machine, got {shown}")
    if sys.platform == "win32":
        raise ConfigError(f"{_called('cache_dir')} needs locks of files that Windows does not have; leave it out")
    return os.fspath(given)
