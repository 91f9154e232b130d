"""What is told of the order of a mixture, as pages of HTML show it: of the guests "report" and "mixtures"."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tables.plain import meant_warnings, write_table
from tests.tables.small_groups import GROUPS
from torch_table_loader import MixedDataset, StructuredDataset


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_table(tmp_path / "table", GROUPS)
    return tmp_path / "table"


def test_the_tables_of_a_mixture_are_stacked(table: Path) -> None:
    sources = {name: StructuredDataset(str(table), "parquet", check_plan=False) for name in ("a", "b")}
    with meant_warnings():
        mixed = MixedDataset(sources, {"a": 1, "b": 1}, batch_size=4, num_workers=0, check_plan=False)
    order = mixed.explain().order
    assert order.rows == 152
    assert {row // 76 for _, row in order.places} == {0, 1}
