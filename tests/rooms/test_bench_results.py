"""Results of the bench as JSON, and the charts drawn from them."""

from __future__ import annotations

import json
import platform
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.bars import BATCH_SIZE_DUELS, COLUMN_DUELS
from bench.pairing import Pairs, Sample
from bench.report import PAGE, PARTS, page
from bench.results import FarRow, Found, Outcome, Row, keep, machines, model_of, newest_complete
from bench.rivals import RIVALS
from bench.run import DUELS
from bench.tables import BenchTable
from tools.machines_table import BEGIN, END, table, written
from tools.speed_lines import CHARTS, READERS, Chart, drawn, speeds

ROOT = Path(__file__).parents[2]


def row(table: str, asked: str, speed: float, right: str = "") -> Row:
    pairs = Pairs((Sample(1.0, 2.0, round(1000 * speed)),), (Sample(1.0, 1.0, 1000),))
    return Row(table, 8192, "ours:thread", right or asked, pairs, 0.8, asked=asked)


def kept(folder: Path, *measured: Found, part: str = "duels") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(keep(part, measured, folder).read_text())
    assert [path.suffix for path in folder.iterdir()] == [".json"]
    return found


def test_a_duel_measured_again_replaces_its_old_result(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    kept(folder, row("A", "floor", 0.9), row("A", "polars:best", 1.2, "polars:one"), Outcome("s", 1.0, 2.0))
    found = kept(folder, row("A", "polars:best", 1.5, "polars:two"), row("B", "floor", 0.7), Outcome("ms", 3.0, 2.0))
    assert [(duel["table"], duel["right"], duel["ratio"], duel["met"]) for duel in found["duels"]] == [
        ("A", "floor", 0.9, True),
        ("A", "polars:two", 1.5, True),
        ("B", "floor", 0.7, False),
    ]
    assert [(number["name"], number["met"]) for number in found["numbers"]] == [("s", True), ("ms", False)]
    assert found["duels"][0]["median_rows_per_second"] == [900, 1000]
    assert "cores of" in found["machine"]
    assert {"at", "load", "versions"} <= found["numbers"][0].keys()


def test_processors_of_one_name_are_told_apart() -> None:
    core = "processor : {}\ncpu family : {}\nmodel : 1\nmodel name : AMD EPYC\n\n"
    found = [model_of("".join(core.format(number, family) for number in range(2))) for family in (25, 26)]
    assert found == ["AMD EPYC family 25 model 1", "AMD EPYC family 26 model 1"]
    assert model_of("processor : 0\nFeatures : fp\n") == platform.machine()


def test_a_duel_that_could_not_run_says_why(tmp_path: Path) -> None:
    (duel,) = kept(tmp_path, Row("A", 1, "ours:thread", "lance", None, None, "cannot read it"))["duels"]
    assert duel["remark"] == "cannot read it"
    assert "ratio" not in duel


def test_a_line_has_the_speed_of_each_reader_over_that_of_decoding(tmp_path: Path) -> None:
    found = kept(tmp_path, row("A", "floor", 0.8), row("A", "lance:best", 2.0), row("B", "lance:best", 2.0))
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
    image = (ROOT / "docs" / "images" / chart.file).read_text()
    assert image == drawn(machines(), chart), "run: python -m tools.speed_lines docs/images"


def test_the_report_is_made_of_the_results_alone() -> None:
    assert PAGE.read_text() == page(machines()), "run: python -m bench.report"


def test_pages_name_no_speed_but_in_the_table_that_is_made() -> None:
    speed = (ROOT / "docs" / "speed.md").read_text()
    before, _, rest = speed.partition(BEGIN)
    about = (ROOT / "README.md").read_text().partition("## Speed")[2].partition("\n## ")[0]
    for text in (before, rest.partition(END)[2], about):
        assert re.findall(r"\b\d+\.\d+\b|\d ?×|\d times", text) == []


def test_each_part_of_the_bench_has_a_section_and_each_result_a_part() -> None:
    assert DUELS.keys() <= PARTS.keys()
    entries = [entry for machine in machines() for kind in ("duels", "numbers", "readers") for entry in machine[kind]]
    assert {entry["part"] for entry in entries} <= PARTS.keys()


def test_a_result_stands_in_the_report_with_pairs_load_and_date(tmp_path: Path) -> None:
    best = Row(
        "A",
        8192,
        "ours:thread",
        "lance:one",
        row("A", "x", 0.9).pairs,
        0.95,
        "",
        "lance:best",
        {"one": 2e6, "two": 1e6},
    )
    kept(tmp_path, best, Outcome("seconds", 1.5, 1.0, note="of 3"), part="duels")
    found = kept(tmp_path, FarRow("lake", "ours", {"remark": "took too long"}, runs=3), part="distant")
    day = found["duels"][0]["at"].partition(" ")[0]
    loads = [found[kind][0]["load"] for kind in ("duels", "numbers", "readers")]
    report = page([found])
    duel = [
        "lance:one (M rows/s of two: 1)",
        "1",
        "**0.90**",
        "0.90 to 0.90",
        "0.0009 / 0.001",
        "2.22e+03 / 1e+03",
        "1",
    ]
    assert f"| A | 8,192 | ours:thread | {' | '.join(duel)} | {loads[0]} | {day} | ≥ 0.95 | **no** |" in report
    assert f"| seconds | 1 | **1.5** | of 3 | 1 | {loads[1]} | {day} | ≤ 1 | **no** |" in report
    assert re.search(rf"\| lake \| ours \| 1 \| took too long [ |]+ 3 \| {loads[2]} \| {day} \|", report)
    assert "| 0 of 2 |" in report


def test_a_duel_of_two_parts_stays_with_the_first(tmp_path: Path) -> None:
    kept(tmp_path, row("A", "floor", 0.9), part="duels")
    (duel,) = kept(tmp_path, row("A", "floor", 0.8), part="batch-sizes")["duels"]
    assert (duel["part"], duel["ratio"]) == ("duels", 0.8)


def test_names_of_numbers_hold_nothing_that_was_measured() -> None:
    names = [number["name"] for machine in machines() for number in machine["numbers"]]
    assert [name for name in names if re.search(r"\(.*\d\.\d.*\)", name)] == []


def test_a_rival_opens_its_table_once_as_ours_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[str] = []

    class Stream:
        def with_format(self, _kind: str) -> Stream:
            return self

        def iter(self, batch_size: int) -> list[dict[str, list[int]]]:
            return [{"x": [0] * batch_size}]

    def load_dataset(kind: str, **_options: Any) -> Stream:
        opened.append(kind)
        return Stream()

    fake = SimpleNamespace(load_dataset=load_dataset, disable_progress_bars=lambda: None)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    monkeypatch.setattr("bench.iceberg.catalog_of", lambda _table: None)
    table = BenchTable("A", tmp_path, 8)
    for name in ("datasets", "datasets, Iceberg"):
        runs = RIVALS[name](table, 8)
        assert [runs['with_format("torch")']() for _ in range(3)] == [8, 8, 8]
    assert opened == ["parquet", "iceberg"]


def test_the_newest_machine_that_has_all_races_is_drawn(tmp_path: Path) -> None:
    results = {}
    for name, day, asked in (
        ("old", "22", ("floor", "x")),
        ("new", "23", ("floor", "x")),
        ("newest", "24", ("floor",)),
    ):
        results[name] = kept(tmp_path / name, *(row("A", each, 0.9) for each in asked))
        for duel in results[name]["duels"]:
            duel["at"] = f"2026-11-{day} 10:00 UTC"
    needed = [("A", 8192, "ours:thread", asked) for asked in ("floor", "x")]
    assert newest_complete(list(results.values()), needed) == results["new"]
    with pytest.raises(ValueError, match="no machine has all"):
        newest_complete([results["newest"]], needed)


def test_the_table_of_machines_agrees_with_the_results() -> None:
    page = (ROOT / "docs" / "speed.md").read_text()
    assert page == written(page), "run: python -m tools.machines_table docs/speed.md"


def test_a_machine_without_a_race_has_a_dash_in_its_line(tmp_path: Path) -> None:
    both, one = (
        {"machine": name, "duels": kept(tmp_path / name[0], *rows)["duels"]}
        for name, rows in {
            "Fast, 24 GiB": [row("B", "floor", 0.9), row("D", "floor", 0.8)],
            "Slow, 8 GiB": [row("B", "floor", 0.7)],
        }.items()
    )
    other = {"machine": "Distant, 8 GiB", "duels": []}
    head, _, first, second = table([both, other, one]).splitlines()[1:-1]
    assert [cell.partition(",")[0] for cell in head.split(" | ")] == ["| speed", "Fast", "Slow"]
    assert first == "| 40 numbers, over decoding | 0.90 (0.90–0.90) | 0.70 (0.70–0.70) |"
    assert second == "| documents of 800 tokens, over decoding | 0.80 (0.80–0.80) | – |"
