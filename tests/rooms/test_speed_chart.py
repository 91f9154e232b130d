"""The chart of speed shows the results of the bench."""

from __future__ import annotations

from pathlib import Path

from bench.bars import DUELS
from bench.results import machines
from tools.speed_charts import NEEDED, drawn, speeds

ROOT = Path(__file__).parents[2]


def test_the_chart_is_up_to_date_with_its_script() -> None:
    chart = (ROOT / "docs" / "images" / "speed.svg").read_text()
    assert chart == drawn(machines()), "run: python -m tools.speed_charts docs/images/speed.svg"


def test_the_bench_races_every_reader_of_the_chart() -> None:
    assert set(NEEDED) <= {(duel.table, duel.batch_size, duel.left, duel.right) for duel in DUELS}


def test_a_bar_is_a_reader_over_ours() -> None:
    ratios = {
        "floor": 0.8,
        "lance:best": 1.0,
        "polars:best": 2.0,
        "datasets:best": 4.0,
        "torch-dataloader-utils:best": 5.0,
    }
    duels = [
        {"table": "B", "batch": 8192, "left": "ours:thread", "asked": asked, "ratio": ratio}
        for asked, ratio in ratios.items()
    ]
    assert list(speeds({"duels": duels}, "B").values()) == [1.25, 1.0, 1.0, 0.5, 0.25, 0.2]
