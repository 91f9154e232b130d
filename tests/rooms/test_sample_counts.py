"""Counts of samples that a guest makes of rows, in metrics and in explanations, which know no guest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typing_extensions import override

from tests.tables.small_groups import make
from torch_table_loader.engine.explanation import Explanation
from torch_table_loader.metrics import Metrics
from torch_table_loader.samples import SampleCounts


@dataclass(frozen=True, slots=True)
class Sheets(SampleCounts):
    """Samples of no guest of ours: sheets, and the leaves that they are folded to."""

    key: ClassVar[str] = "folding"
    made: ClassVar[str] = "folded"

    sheets: int | None
    leaves: int | None

    @property
    @override
    def samples(self) -> int | None:
        return self.sheets

    @property
    @override
    def numbers(self) -> Mapping[str, int | None]:
        return {"leaves": self.leaves}

    @override
    def with_numbers(self, samples: int, numbers: Sequence[int]) -> Self:
        return type(self)(samples, *numbers)

    @property
    @override
    def facts(self) -> Sequence[tuple[str, int | str | None]]:
        return [("sheets", self.sheets), ("leaves", self.leaves)]

    @override
    def __add__(self, other: Self) -> Self:
        return type(self)((self.sheets or 0) + (other.sheets or 0), None)

    def __str__(self) -> str:
        return f"{self.sheets} sheets"


def metrics(counts: SampleCounts | None) -> Metrics:
    return replace(Metrics.before(epoch=0, lanes=1, servers=1), counts=counts)


@pytest.mark.parametrize("told", [Metrics, Explanation])
def test_counts_are_of_the_contract(told: type) -> None:
    hints: dict[str, Any] = get_type_hints(told, localns={"NDArray": Any, "Iterable": Any, "Iterator": Any})
    assert hints["counts"] == SampleCounts | None
    assert "packing" not in hints


def test_metrics_take_their_words_from_the_counts() -> None:
    told = metrics(Sheets(2, None))
    assert "folded: 2 sheets" in str(told)
    assert {name: value for name, value in told.as_dict().items() if "folding" in name} == {"folding/sheets": 2}
    assert "fold" not in str(metrics(None))


def test_metrics_add_up_the_counts_of_both_legs() -> None:
    assert metrics(Sheets(2, 4)).after(metrics(Sheets(1, 2))).counts == Sheets(3, None)
    assert metrics(None).after(metrics(Sheets(1, 2))).counts == Sheets(1, 2)


def test_an_explanation_takes_its_title_and_facts_from_the_counts(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    told = make(tmp_path)[1].explain()
    assert "Folding" not in str(told)
    parts = str(replace(told, counts=Sheets(2, 4))).split("\n\n")
    assert ["Folding", "sheets", "2", "leaves", "4"] in [part.split() for part in parts]
