"""The page of a plan is one valid file that agrees with the plan, and shows hostile names as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import accumulate
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables.plain import key
from tests.tables.small_groups import GROUPS, make, write_groups
from torch_table_loader import Explanation
from torch_table_loader.engine.explanation import FetchPlan, SizeCounts
from torch_table_loader.fact_tables import Table
from torch_table_loader.report import MOST_BARS, element, page, table_of
from torch_table_loader.units import Size

STARTS = [0, *accumulate(rows for groups in GROUPS for rows in groups)]
HOSTILE = '"><script>alert(1)</script>&amp;'


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_groups(tmp_path)


def parsed(text: str | None) -> ET.Element:
    """Parse a page or a part of one, which are XML too."""
    assert text is not None
    return ET.fromstring(text.removeprefix("<!DOCTYPE html>"))  # noqa: S314 we wrote it


def said(found: ET.Element) -> str:
    return "".join(found.itertext())


def exact(cell: ET.Element) -> str:
    """Return the exact value of a cell, or its text."""
    value = cell.find("data")
    return said(cell) if value is None else value.get("value", "")


def tables_below(root: ET.Element, title: str) -> list[list[list[str]]]:
    """Return the lines of the tables of a section."""
    [section] = [each for each in root.iter("section") if said(each[0]) == title]
    lines = [table.iterfind("tbody/tr") for table in section.iter("table")]
    return [[[exact(cell) for cell in line] for line in each] for each in lines]


def rows_in(spans: Sequence[Any]) -> list[tuple[str, int]]:
    return [(span.file, row) for span in spans for row in range(span.row_start, span.row_stop)]


def texts(*values: object) -> list[str]:
    return ["unknown" if value is None else str(value) for value in values]


def check_numbers(told: Explanation, root: ET.Element) -> None:
    """Compare every number of a page with the plan."""
    boxes = [box for box in root.iter("div") if box.find("dt") is not None]
    tiles = {said(box[0]): [each.get("value") for each in box.iter("data")] for box in boxes}
    known = [str(told.rows), *([] if told.live_rows is None else [str(told.live_rows)])]
    assert tiles["rows"] == known
    assert tiles["files"] == [str(told.files)]
    assert tiles["row groups"] == [str(told.row_groups)]
    assert tiles["stored"] == [str(told.stored_bytes)]
    assert tiles["memory"] == [str(told.memory_expected), str(told.memory_bound)]
    assert tiles["steps of this rank"] == ([] if told.steps is None else [str(told.steps)])
    [pruning] = tables_below(root, "Pruning")
    assert [line[2:] for line in pruning] == [texts(step.files, step.row_groups, step.rows) for step in told.pruning]
    sizes = tables_below(root, "Files and row groups by size")
    for lines, counts in zip(sizes, (told.file_sizes, told.group_sizes), strict=True):
        assert [line[2] for line in lines] == texts(*(each.count for each in counts.bins))
    workers, *ranks = tables_below(root, "Ranks and workers")
    assert [[line[2], line[3], line[5]] for line in workers] == [
        texts(each.splits, each.rows, each.steps) for each in told.workers
    ]
    if told.rows_per_rank is None or told.steps_per_rank is None:
        assert not ranks
    else:
        found = [texts(*each) for each in zip(told.rows_per_rank, told.steps_per_rank, strict=True)]
        assert [line[2:] for line in ranks[0]] == found
    [columns] = tables_below(root, "Columns")
    assert [tuple(line) for line in columns] == list(told.schema)


PLANS: list[dict[str, Any]] = [
    {},
    {"num_ranks": 3, "rank": 1, "even_ranks": "balance", "shuffle": "splits"},
    {"filters": pc.field("x") >= 46},
    {"filters": pc.field("k") < 5, "num_ranks": 2, "rank": 0},
    {"filters": pc.field("k") < 5, "count_filtered": False},
    {"shuffle": "rows"},
]


@pytest.mark.parametrize("options", PLANS)
def test_a_page_agrees_with_the_plan(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    told = make(table, **options)[1].explain()
    for text in (told.to_html("clicks"), told._repr_html_()):
        root = parsed(text)
        check_numbers(told, root)
        assert all(note in said(root) for note in told.notes)


def test_a_page_is_self_contained(table: Path) -> None:
    text = make(table)[1].explain().to_html()
    assert not re.search(r"https?:|//|\bsrc=|href|url\(|@import|<script|<link|<img|<iframe|\bon\w+=", text)
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_pruning_is_shown_from_the_table_to_the_delivered_rows(table: Path) -> None:
    told = make(table, filters=(pc.field("x") >= 46) & (pc.field("k") < 5))[1].explain()
    files, groups, rows = zip(*((step.files, step.row_groups, step.rows) for step in told.pruning), strict=True)
    assert (files, groups) == ((7, 4, 4, 4), (9, 5, 5, 5)), "the last file holds no k that passes"
    assert rows == (76, 25, 25, sum(key(row) < 5 for row in range(46, 76)))


class Tags(HTMLParser):
    """Collects the tags that a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [tag, *(name for name, _ in attrs)]


@given(st.text(st.characters(), max_size=30))
def test_any_text_is_shown_as_text(text: str) -> None:
    plain = page("plain", element("p", "plain", aria_label="plain"))
    hostile = page(text, element("p", text, aria_label=text))
    assert Tags(hostile).found == Tags(plain).found
    hostile.encode()
    shown = "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in text)
    root = parsed(hostile)
    assert [said(each) for each in (*root.iter("title"), *root.iter("p"))] == [shown, shown]


def test_hostile_columns_are_shown_as_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({HOSTILE: [1, 2], "b\u202ec": [1, 2]}), tmp_path / "a.parquet")
    loader, dataset = make(tmp_path)
    told = dataset.explain()
    for text in (told.to_html(HOSTILE), *(each._repr_html_() for each in (told, dataset, loader))):
        assert text is not None
        assert "<script" not in text
        assert "\u202e" not in text
    assert [line[0] for line in tables_below(parsed(told.to_html()), "Columns")[0]] == [HOSTILE, "b\ufffdc"]


def test_notebooks_show_the_same_as_repr(table: Path) -> None:
    loader, dataset = make(table, num_ranks=2, rank=1, shuffle="splits")
    loader.set_epoch(3)
    for shown, name in ((loader, "TableLoader"), (dataset, "StructuredDataset")):
        lines = {said(line[0]): said(line[1]) for line in parsed(shown._repr_html_()).iter("tr")}
        assert name in lines.values()
        assert f"{lines['files']} files, {lines['rows']} rows; rank {lines['rank']}" in repr(shown)
        assert f"batch_size={lines['batch_size']}, shuffle={lines['shuffle']}, epoch {lines['epoch']}" in repr(shown)
    assert lines["x"] == "int64", "a dataset shows its columns, too"


def test_a_notebook_shows_metrics_with_sizes_that_people_read_and_the_advice(table: Path) -> None:
    loader, _ = make(table)
    assert len(list(loader)) == len(loader)
    told = loader.metrics()
    for text in (said(parsed(told._repr_html_())), str(told)):
        assert f"epoch 0: {told.rows} rows in {len(loader)} batches" in text
        assert f"taken of {told.files} files: {Size(told.stored_bytes or 0)} stored" in text
        assert [worker for worker in told.workers if str(Size(worker.num_bytes)) not in text] == []
    assert told.advice() in said(parsed(told._repr_html_()))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": "splits", "split_size": 4},
        {"shuffle_buffer_size": 10, "shuffle": "splits"},
        {"num_ranks": 2, "rank": 1},
        {"num_ranks": 2, "rank": 1, "even_ranks": "pad"},
        {"shuffle": "rows"},
    ],
)
def test_the_dots_are_at_the_positions_of_the_rows(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    loader, dataset = make(table, **options)
    loader.set_epoch(2)
    start = dataset.job.start(2)
    for step in range(len(loader)):
        whole, first = (rows_in(dataset.job.rows_of(start, step, most)) for most in (None, 3))
        assert first == whole[:3]
    order = dataset.explain().order
    taken = list(loader)
    batches = [batch["x"].tolist() for batch in taken]
    masks = [batch["padding"].tolist() if "padding" in batch else [False] for batch in taken]
    assert (order.steps, order.rows, order.exact, order.unknown) == (len(batches), 76, True, "")
    padding = [step for step, batch in enumerate(masks) if all(batch)]
    assert {int(step) for step, _ in order.places} == set(range(len(batches))) - set(padding)
    assert all(row in batches[int(step)] for step, row in order.places)
    assert [step for step, _ in order.places] == sorted(step for step, _ in order.places)
    assert len({row for _, row in order.places}) == len(order.places)


def test_dots_of_filtered_rows_are_in_the_right_row_group(table: Path) -> None:
    loader, dataset = make(table, filters=pc.field("k") < 5)
    order = dataset.explain().order
    assert not order.exact
    assert "a filter choose" in dataset.explain().to_html()
    batches = [np.searchsorted(STARTS, batch["x"].numpy(), side="right") for batch in loader]
    groups = np.searchsorted(STARTS, [row for _, row in order.places], side="right")
    assert order.places
    assert all(group in batches[int(step)] for group, (step, _) in zip(groups, order.places, strict=True))


def test_unknown_dots_are_left_out_with_the_reason(table: Path) -> None:
    told = make(table, filters=pc.field("k") < 5, count_filtered=False)[1].explain()
    assert told.order.places == ()
    assert "Not shown: rows are not counted" in told.to_html()
    assert "<circle" not in told.to_html()


@given(st.lists(st.integers(0, 1 << 50), max_size=40))
def test_every_size_is_in_its_bin(sizes: list[int]) -> None:
    counts = SizeCounts.of(np.array(sizes, dtype=np.int64))
    assert len(counts.bins) <= 18
    assert [sum(each.start <= size < each.stop for size in sizes) for each in counts.bins] == [
        each.count for each in counts.bins
    ]
    assert sum(each.count for each in counts.bins) == len(sizes)
    assert all(one.stop == two.start for one, two in zip(counts.bins, counts.bins[1:], strict=False))


def test_long_charts_report_how_much_they_leave_out() -> None:
    lines = [(f"rank {rank}", rank) for rank in range(MOST_BARS + 5)]
    text = table_of(Table("ranks", {"rank": "rank", "rows": "rows"}, lines, bar="rows"))
    assert text.count('scope="row"') == MOST_BARS
    assert "… and 5 more" in text


def test_totals_stand_below_the_rows_and_have_no_bar() -> None:
    table = Table("r", {"rank": "rank", "rows": "rows"}, [("rank 0", 1), ("rank 1", 4)], [("most", 4)], bar="rows")
    root = parsed(f"<div>{table_of(table)}</div>")
    assert [said(line) for line in root.iterfind("table/tfoot/tr")] == ["most4"]
    assert re.findall(r'style="([^"]*)"', table_of(table)) == ["width: 25.00%", "width: 100.00%"]
    assert [said(title) for title in root.iter("h3")] == ["r"]
    assert table.records() == [{"rank": "rank 0", "rows": 1}, {"rank": "rank 1", "rows": 4}]


def test_a_page_names_no_section_twice(table: Path) -> None:
    root = parsed(make(table)[1].explain().to_html())
    for section in root.iter("section"):
        assert said(section[0]) not in [said(title) for title in section.iter("h3")]


def test_sizes_are_exact_numbers_for_programs() -> None:
    assert json.dumps([Size(1536)], default=str) == "[1536]"


@pytest.mark.parametrize(
    ("num_bytes", "shown"), [(0, "0 bytes"), (1023, "1,023 bytes"), (1 << 20, "1 MiB"), ((1 << 20) - 1, "1 MiB")]
)
def test_sizes_are_formatted_for_people(num_bytes: int, shown: str) -> None:
    assert str(Size(num_bytes)) == shown


def _ranks(path: Path) -> Iterator[tuple[int, int]]:
    for line in tables_below(parsed(path.read_text()), "Ranks and workers")[1]:
        yield int(line[2]), int(line[3])


def test_inspect_writes_the_page_with_every_rank(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from torch_table_loader.cli.main import main

    target = tmp_path / "page.html"
    typed = ["inspect", str(table), "--num-ranks", "2", "--filter", "k < 5", "--batch-size", "4", "--num-workers", "2"]
    assert main([*typed, "--html", str(target)]) == 0
    assert capsys.readouterr().out.endswith(f"page: {target}\n")
    delivered = []
    for rank in range(2):
        loader = make(table, num_ranks=2, rank=rank, filters=pc.field("k") < 5, num_workers=2)[0]
        batches = list(loader)
        delivered.append((sum(len(batch["x"]) for batch in batches), len(batches)))
    assert list(_ranks(target)) == delivered
    assert said(parsed(target.read_text()).find("head/title")) == str(table)  # type: ignore[arg-type]


def test_a_page_that_cannot_be_written_is_an_error_in_one_line(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from torch_table_loader.cli.main import main

    assert main(["inspect", str(table), "--html", str(tmp_path / "none" / "page.html")]) == 2
    assert "--html must name a file that can be written" in capsys.readouterr().err


def test_fetching_is_shown_on_the_page(table: Path) -> None:
    told = make(table)[1].explain()
    assert "Object store" not in told.to_html()
    assert "Packing" not in told.to_html()
    root = parsed(replace(told, fetch=FetchPlan(21, 5000, 1.25, 7000), collated_batches=3).to_html())
    [fetched], [memory] = (tables_below(root, title) for title in ("Object store", "Memory"))
    assert [line[1] for line in fetched] == ["21", "5000", "1.25 times"]
    expected = texts(told.memory_expected, told.memory_bound, told.footer_bytes, 7000, 3)
    assert [line[1] for line in memory] == expected
