"""How full the batches of a budget are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from typing_extensions import override

from torch_table_loader.samples import SampleCounts, in_percent, known_sum, share_of

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class BudgetCounts(SampleCounts):
    """What batches of a budget hold. A value that was not counted is None, and so is any sum with it.

    Args:
        budget: the most tokens of a batch.
        tokens: those of the rows, none counted beyond the budget.
        longer: rows that count as more than the budget, each a batch of its own.

    >>> counts = BudgetCounts(100, batches=2, rows=9, tokens=150) + BudgetCounts(100)
    >>> counts.fill, str(counts)
    (0.75, '2 batches of up to 100 tokens, 75.0 % full, 9 rows')
    """

    key: ClassVar[str] = "budget"
    made: ClassVar[str] = "filled"

    budget: int
    batches: int | None = 0
    rows: int | None = 0
    tokens: int | None = 0
    longer: int | None = 0

    @property
    @override
    def samples(self) -> int | None:
        return self.batches

    @property
    @override
    def rows_held(self) -> int | None:
        return self.rows

    @property
    @override
    def numbers(self) -> dict[str, int | None]:
        return {"rows": self.rows, "tokens": self.tokens, "longer": self.longer}

    @override
    def with_numbers(self, samples: int, numbers: Sequence[int]) -> Self:
        return replace(self, batches=samples, **dict(zip(self.numbers, numbers, strict=True)))

    @property
    @override
    def facts(self) -> list[tuple[str, int | str | None]]:
        return [
            ("most tokens of a batch", self.budget),
            ("batches", self.batches),
            ("rows", self.rows),
            ("tokens", self.tokens),
            ("full", in_percent(self.fill)),
            ("rows longer than a batch", self.longer),
        ]

    @override
    def __add__(self, other: Self) -> Self:
        pairs = ((getattr(self, name), getattr(other, name)) for name in ("batches", *self.numbers))
        return type(self)(self.budget, *(known_sum(*pair) for pair in pairs))

    @property
    def fill(self) -> float | None:
        """The share of the budget that tokens of rows take; None if it is not known, or there is no batch."""
        return share_of(self.tokens, self.batches, self.budget)

    def __str__(self) -> str:
        """Format the numbers as one line; unknown ones are left out."""
        shown = []
        if self.batches is not None:
            shown.append(f"{self.batches:,} batches of up to {self.budget:,} tokens")
        if self.fill is not None:
            shown.append(f"{100 * self.fill:.1f} % full")
        named = {"rows": self.rows, "longer": self.longer}
        return ", ".join([*shown, *(f"{count:,} {name}" for name, count in named.items() if count)])
