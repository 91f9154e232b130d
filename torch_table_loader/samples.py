"""What a batch counts: rows of the table, or samples that are made of its rows, such as sequences of tokens.

The value of an option says which samples a job has (`SamplesOption.samples`); nothing else asks for that option. The
core asks the samples. What reads them is not known here, below the options: `Samples.parts` is the module of the guest
that has it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch_table_loader.errors import ConfigError
from torch_table_loader.installed import load

if TYPE_CHECKING:
    from torch_table_loader.option_values import Budget, Pad
    from torch_table_loader.schedules import Schedule

LENGTH = "seq_len"
"""What schedules, states and comparisons call the length of samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Rows of the table, each a sample. A guest that makes other samples has a subclass.

    A sample has a width: its tokens, if it is a sequence, and 0 if it is a row.

    Args:
        width: that of the first samples.
        longest: the greatest width of a sample.
        lengths: the widths by the step from which they hold; None if there is only one.
        cut_anywhere: whether samples are cut of rows put after one another, so that their width may change.
        joins_rows: whether a stream has as many rows for each sample as this is wide.
    """

    width: int = 0
    longest: int = 0
    lengths: Schedule | None = None
    cut_anywhere: bool = False
    joins_rows: bool = False

    word: ClassVar[str] = "row"
    title: ClassVar[str] = "rows"
    filled: ClassVar[str] = "rows"
    """What batches are filled with, in words."""

    are_rows: ClassVar[bool] = True
    """Whether samples are rows of the table as they are, which the core reads itself."""

    are_batches: ClassVar[bool] = False
    """Whether each is a whole batch of rows of the table, which are what is counted then."""

    records: ClassVar[tuple[str, ...]] = ()
    """The keys of what states say of samples that are gathered; see `StateRecord`."""

    guest: ClassVar[str] = ""
    """The guest that makes samples that are no rows."""

    @property
    def parts(self) -> Any:
        """The door of the guest, which reads samples that are no rows; see `torch_table_loader.text`."""
        return load(self.guest)

    def rows_of(self, width: int) -> int:
        """Return how many rows of a stream make a sample."""
        if self.joins_rows:
            return width
        return 1

    def check_mixed(self) -> None:
        """Refuse to be the samples of a source of a mixture.

        Raises:
            ConfigError: what the source asks for does not go with a mixture.
        """

    def warn_of(self, counts: SampleCounts | None) -> None:
        """Warn of what the samples of a table hold, as was counted."""

    @property
    def changes_by_round(self) -> bool:
        """Whether each round of a source of a mixture has other samples, and perhaps another number of them."""
        return False

    @property
    def bound(self) -> dict[str, Any]:
        """What a state of a mixture of streams says of the width, which cannot be another then."""
        return {}

    @property
    def compared(self) -> dict[str, Any]:
        """What ranks compare, by name, as plain data."""
        return {}

    @property
    def notes(self) -> list[str]:
        """What `explain()` says of the widths."""
        return []

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """The caller's functions that make samples, by the argument that names them."""
        return {}

    def reads(self, asked: Sequence[str] | None) -> Sequence[str] | None:
        """Return the columns that are read, in order, where the caller asked for some; None: all."""
        return asked

    def check_unit(self, schedule: Schedule) -> None:
        """Refuse a schedule that counts tokens, where these cannot be counted; see `check_tokens`."""
        if schedule.unit == "tokens":
            self.check_tokens('unit="tokens" of Schedule', 'unit="samples", which counts rows or sequences')

    def check_tokens(self, asked: str, remedy: str) -> None:
        """Refuse to count tokens where samples have none, or differ in them.

        Raises:
            ConfigError: names what was asked for, and the remedy.
        """
        self._refuse_tokens(asked, remedy, "sources without pack=")

    def _refuse_tokens(self, asked: str, remedy: str, came: str) -> None:
        raise ConfigError(
            f'{asked} counts tokens, of which sequences of strategy "concat", "windows" or "best_fit" have seq_len '
            f"each, got {came}; pass pack=Pack(...) with one of these to the sources, or {remedy}"
        )


ONE_BY_ONE = Samples()
"""Rows of the table as they are."""


@dataclass(frozen=True, slots=True)
class FilledSamples(Samples):
    """Batches of a budget as samples of a stream.

    Args:
        pad: how lists are padded, if their padding counts.
        delivers_length: whether batches have the column of lengths.
    """

    budget: Budget
    pad: Pad | None = None
    delivers_length: bool = True

    word: ClassVar[str] = "batch"
    title: ClassVar[str] = "batches of a budget"
    are_rows: ClassVar[bool] = False
    are_batches: ClassVar[bool] = True
    guest: ClassVar[str] = "budgets"

    def reads(self, asked: Sequence[str] | None) -> Sequence[str] | None:
        """Return the columns that are read, in order."""
        if asked is None or self.delivers_length:
            return asked
        return [*asked, self.budget.length]

    def warn_of(self, counts: SampleCounts | None) -> None:
        """Warn of rows that are longer than a batch."""
        if counts is not None and (longer := counts.numbers["longer"]):
            self.budget.warn_of(longer, counts.numbers["rows"] or 0)


class SamplesOption(ABC):
    """The value of an option that asks for samples that are made of rows, such as `Pack`."""

    __slots__ = ()

    @abstractmethod
    def samples(self, *, indexed: bool) -> Samples:
        """Return the samples; `indexed`: they are gathered by index, not read as a stream."""

    @property
    def why_rows_come_once(self) -> str | None:
        """Why rows cannot come several times, as weights ask, with the remedy; None if they can."""
        return None

    @abstractmethod
    def check_beside(self, options: Mapping[str, Any]) -> None:
        """Refuse options that do not go with it.

        Raises:
            ConfigError: names the option.
        """

    @abstractmethod
    def of_columns(self, names: Sequence[str]) -> Self:
        """Return the same for a table with some columns.

        Raises:
            ConfigError: the table lacks one.
        """

    @abstractmethod
    def of_length(self, length: int) -> Self:
        """Return the same with samples of one width."""

    @abstractmethod
    def as_asked(self, found: Self) -> Self:
        """Return another value without what was found in its table, where this one does not say it."""

    @abstractmethod
    def difference(self, other: Self) -> tuple[str, Any, Any] | None:
        """Return in what two sources of a mixture differ that must be alike: its name, and what each says; or None."""


@dataclass(frozen=True, slots=True)
class SampleCounts(ABC):
    """What was counted of samples that are made of rows. An unknown number is None, and so is any sum with it."""

    key: ClassVar[str]
    """What the numbers are kept under, among others; capitalized it is their title."""

    made: ClassVar[str]
    """What happened to the rows, in a word."""

    @property
    @abstractmethod
    def samples(self) -> int | None:
        """How many samples there are."""

    @property
    def rows_held(self) -> int | None:
        """The rows of the table in them, where a sample is a whole batch; None where samples themselves count."""
        return None

    @property
    @abstractmethod
    def numbers(self) -> Mapping[str, int | None]:
        """The other numbers, by name."""

    @abstractmethod
    def with_numbers(self, samples: int, numbers: Sequence[int]) -> Self:
        """Return the same of other samples, whose `numbers` are given in their order."""

    @property
    @abstractmethod
    def facts(self) -> Sequence[tuple[str, int | str | None]]:
        """What `explain()` says of them: names, and what is known of each."""

    @abstractmethod
    def __add__(self, other: Self) -> Self:
        """Add what was counted of other samples."""


class Counted:
    """A value with what was counted of its samples, which it also gives by the name that a guest's users know."""

    __slots__ = ()

    counts: SampleCounts | None

    @property
    def packing(self) -> Any:
        """The counts, of sequences of tokens; None if rows are not packed."""
        return self.counts


def known_sum(one: int | None, two: int | None) -> int | None:
    """Add two numbers, of which None is unknown."""
    if one is None or two is None:
        return None
    return one + two


def share_of(count: int | None, samples: int | None, each: int = 1) -> float | None:
    """Divide a number by that of samples which may have so many each; None if one is unknown, or there is none.

    >>> share_of(3, 2, 2), share_of(3, 0), share_of(None, 2)
    (0.75, None, None)
    """
    if count is not None and samples and each:
        return count / (samples * each)
    return None


def in_percent(share: float | None) -> str | None:
    """Format a share; None if it is unknown.

    >>> in_percent(0.5)
    '50.00 %'
    """
    if share is None:
        return None
    return f"{100 * share:.2f} %"


def sum_of(counts: Iterable[SampleCounts | None]) -> SampleCounts | None:
    """Add up what was counted of several runs of rows; None if there are none, or any of them is unknown."""
    total = None
    for number, each in enumerate(counts):
        if each is None:
            return None
        total = each + total if number and total is not None else each
    return total
