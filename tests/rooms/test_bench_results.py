"""Results of the bench as JSON, and the charts drawn from them."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest

from bench.bars import BATCH_SIZE_DUELS, COLUMN_DUELS
from bench.pairing import Pairs, Sample
from bench.report import Outcome, Row, model_of
from bench.results import FOLDER, keep
from tools.machines_table import table, written
from tools.speed_lines import CHARTS, READERS, Chart, drawn, speeds

ROOT = Path(__file__).parents[2]


def row(table: str, asked: str, speed: float, right: str = "") -> Row:
    pairs = Pairs((Sample(1.0, 2.0, round(1000 * speed)),), (Sample(1.0, 1.0, 1000),))
    return Row(table, 8192, "ours:thread", right or asked, pairs, 0.8, asked=asked)


def kept(folder: Path, rows: list[Row], outcomes: list[Outcome]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(keep(rows, outcomes, folder).read_text())
    assert [path.suffix for path in folder.iterdir()] == [".json"]
    return found


def test_a_duel_measured_again_replaces_its_old_result(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    kept(folder, [row("A", "floor", 0.9), row("A", "polars:best", 1.2, "polars:one")], [Outcome("s", 1.0, 2.0)])
    found = kept(
        folder, [row("A", "polars:best", 1.5, "polars:two"), row("B", "floor", 0.7)], [Outcome("ms", 3.0, 2.0)]
    )
    assert [(duel["table"], duel["right"], duel["ratio"], duel["met"]) for duel in found["duels"]] == [
        ("A", "floor", 0.9, True),
        ("A", "polars:two", 1.5, True),
        ("B", "floor", 0.7, False),
    ]
    assert [(number["name"], number["met"]) for number in found["numbers"]] == [("s", True), ("ms", False)]
    assert found["duels"][0]["rows_per_second"] == [900, 1000]
    assert "cores of" in found["machine"]
    assert {"at", "load", "versions"} <= found["numbers"][0].keys()


def test_processors_of_one_name_are_told_apart() -> None:
    core = "processor : {}\ncpu family : {}\nmodel : 1\nmodel name : AMD EPYC\n\n"
    found = [model_of("".join(core.format(number, family) for number in range(2))) for family in (25, 26)]
    assert found == ["AMD EPYC family 25 model 1", "AMD EPYC family 26 model 1"]
    assert model_of("processor : 0\nFeatures : fp\n") == platform.machine()


def test_a_duel_that_could_not_run_says_why(tmp_path: Path) -> None:
    (duel,) = kept(tmp_path, [Row("A", 1, "ours:thread", "lance", None, None, "cannot read it")], [])["duels"]
    assert duel["remark"] == "cannot read it"
    assert "ratio" not in duel


def test_a_line_has_the_speed_of_each_reader_over_that_of_decoding(tmp_path: Path) -> None:
    found = kept(tmp_path, [row("A", "floor", 0.8), row("A", "lance:best", 2.0), row("B", "lance:best", 2.0)], [])
    places = (("one", "A", 8192), ("two", "B", 8192))
    assert speeds(found, places) == {
        "torch-table-loader": [0.8, None],
        "Lance": [0.4, None],
        "polars": [None, None],
        "Hugging Face datasets": [None, None],
        "torch-dataloader-utils": [None, None],
    }


@pytest.mark.parametrize(("chart", "duels"), list(zip(CHARTS, (BATCH_SIZE_DUELS, COLUMN_DUELS), strict=True)))
def test_the_bench_measures_what_a_chart_shows(chart: Chart, duels: Any) -> None:
    measured = {(duel.table, duel.batch_size, duel.right) for duel in duels}
    asked = {asked or "floor" for asked in READERS.values()}
    assert measured == {(table, size, right) for _, table, size in chart.places for right in asked}


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.file)
def test_a_chart_is_up_to_date_with_its_script(chart: Chart) -> None:
    pages = {drawn(json.loads(path.read_text()), chart) for path in FOLDER.glob("*xeon*.json")}
    image = (ROOT / "docs" / "images" / chart.file).read_text()
    assert image in pages, "run: python tools/speed_lines.py bench/results/MACHINE.json docs/images"


def test_the_table_of_machines_agrees_with_the_results() -> None:
    page = (ROOT / "docs" / "speed.md").read_text()
    assert page == written(page), "run: python -m tools.machines_table docs/speed.md"


def test_a_machine_without_a_race_has_a_dash_in_its_line(tmp_path: Path) -> None:
    both, one = (
        {"machine": name, "duels": kept(tmp_path / name[0], rows, [])["duels"]}
        for name, rows in {
            "Fast, 24 GiB": [row("B", "floor", 0.9), row("D", "floor", 0.8)],
            "Slow, 8 GiB": [row("B", "floor", 0.7)],
        }.items()
    )
    head, _, first, second = table([both, one]).splitlines()[1:-1]
    assert [cell.partition(",")[0] for cell in head.split(" | ")] == ["| speed", "Fast", "Slow"]
    assert first == "| 40 numbers, over decoding | 0.90 (0.90–0.90) | 0.70 (0.70–0.70) |"
    assert second == "| documents of 800 tokens, over decoding | 0.80 (0.80–0.80) | – |"
