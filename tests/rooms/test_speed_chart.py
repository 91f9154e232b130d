"""The chart of speed shows the results of the bench."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.speed_charts import READERS, TABLES, drawn, measured, speeds

ROOT = Path(__file__).parents[2]
RESULTS = (ROOT / "bench" / "RESULTS.md").read_text()


def test_the_chart_is_up_to_date_with_its_script() -> None:
    chart = (ROOT / "docs" / "images" / "speed.svg").read_text()
    assert chart == drawn(RESULTS), "run: python tools/speed_charts.py bench/RESULTS.md docs/images/speed.svg"


@pytest.mark.parametrize("table", TABLES)
def test_every_reader_is_in_the_results(table: str) -> None:
    assert list(speeds(measured(RESULTS), table)) == list(READERS)


def test_the_best_setting_of_a_reader_is_drawn() -> None:
    lines = [
        "| B | 8,192 | ours:thread | floor | **0.80** |",
        "| B | 8,192 | ours:thread | polars:one | **2.00** |",
        "| B | 8,192 | ours:thread | polars:two, slower | **4.00** |",
        "| B | 1,024 | ours:thread | polars:one | **0.10** |",
        "| B | 8,192 | ours:process | ours:thread | **0.50** |",
    ]
    assert speeds(measured("\n".join(lines)), "B") == {"floor": 1.25, "ours": 1.0, "polars": 0.5}
