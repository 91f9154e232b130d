"""The picture of a packed sequence and its mask shows what the library gives."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np

from tools.mask_picture import drawn, mask, sequence

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "mask.svg"


def test_the_picture_is_what_the_script_draws() -> None:
    assert PICTURE.read_text() == drawn(), "run: python -m tools.mask_picture docs/images/mask.svg"


def test_it_is_one_file_that_is_readable_in_light_and_dark() -> None:
    root = ET.fromstring(drawn())  # noqa: S314 we drew it
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme: dark" in drawn()
    assert not re.search(r"href|url\(|<image|<script", drawn())


def test_a_token_attends_to_as_many_as_its_position_says() -> None:
    found = sequence()
    assert len(set(found["doc_ids"])) == 2
    assert np.array_equal(mask(found).sum(axis=1), np.array(found["position_ids"]) + 1)
