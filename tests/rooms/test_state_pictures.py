"""The pictures of how a state goes on show what the library does."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tools.concepts_picture import FILES, GROUPS, ROWS
from tools.state_pictures import PICTURES, TAKEN, grown, resumed

IMAGES = Path(__file__).parents[2] / "docs" / "images"
TABLE = FILES * GROUPS * ROWS


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_is_what_the_script_draws(name: str) -> None:
    drawn = PICTURES[name]()
    assert (IMAGES / name).read_text() == drawn, "run: python -m tools.state_pictures docs/images"
    root = ET.fromstring(drawn)  # noqa: S314 we drew it
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme: dark" in drawn
    assert not re.search(r"href|url\(|<image|<script", drawn)


def test_other_ranks_take_each_row_that_was_left_once() -> None:
    before, after = resumed()
    rows = [row for rank in before for batch in rank[:TAKEN] for row in batch]
    rows += [row for rank in after for batch in rank for row in batch]
    assert sorted(rows) == list(range(TABLE))
    assert len({len(rank) for rank in after}) == 1


def test_the_rest_of_the_epoch_has_the_rows_of_the_new_file() -> None:
    before, after = grown()
    rows = [row for batch in (*before[:TAKEN], *after) for row in batch]
    assert sorted(rows) == list(range(TABLE))
