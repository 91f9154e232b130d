"""Notebooks are pages of the site, with their output and pictures, and the options are headings."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.tables.plain import DEFAULTS
from tools.site_hooks import rendered

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["language-model", "recommender"])
def test_a_notebook_is_a_page_that_can_be_downloaded(name: str, site: Path) -> None:
    page = (site / "notebooks" / f"{name}.html").read_text("utf-8")
    assert '<div class="language-python' in page
    assert '<div class="language-text' in page
    assert f'href="{name}.ipynb"' in page
    assert (site / "notebooks" / f"{name}.ipynb").is_file()


def test_a_picture_and_a_text_of_a_notebook_are_shown() -> None:
    picture = base64.b64encode(b"a picture").decode()
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Text."]},
        {
            "cell_type": "code",
            "source": ["1 + 1"],
            "outputs": [
                {"data": {"text/plain": ["2"]}},
                {"data": {"image/png": [picture], "text/plain": ["<Figure>"]}},
            ],
        },
    ]
    page, pictures = rendered({"cells": cells}, "sums")
    assert page.startswith("# Title\nText.\n\n```python\n1 + 1\n```\n\n```text\n2\n```\n\n![output](sums-1.png)")
    assert pictures == {"sums-1.png": b"a picture"}


def test_each_option_has_an_anchor(site: Path) -> None:
    page = (site / "options.html").read_text("utf-8")
    assert [name for name in DEFAULTS if f'id="{name}"' not in page] == []
