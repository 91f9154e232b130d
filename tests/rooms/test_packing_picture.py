"""The picture of how documents fall into sequences shows what the library does."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from tools.packing_picture import LENGTHS, SEQ_LEN, drawn, ways

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "packing.svg"


def test_the_picture_is_what_the_script_draws() -> None:
    assert PICTURE.read_text() == drawn(), "run: python tools/packing_picture.py docs/images/packing.svg"


def test_it_is_one_file_that_is_readable_in_light_and_dark() -> None:
    root = ET.fromstring(drawn())  # noqa: S314 we drew it
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme: dark" in drawn()
    assert not re.search(r"href|url\(|<image|<script", drawn())


def test_each_strategy_has_every_token() -> None:
    for name, _, slices in ways():
        total = int(slices.length.sum())
        assert total == LENGTHS.sum() or (name == "windows" and total > LENGTHS.sum())
        assert all(
            slices.length[first:last].sum() <= SEQ_LEN
            for first, last in zip(slices.offsets, slices.offsets[1:], strict=False)
        )
