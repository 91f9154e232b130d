"""What our pages claim about other loaders, and which tests show it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLAIMS: dict[tuple[str, str], str] = {}
"""The test of each claim: by the page, and the words on it."""

Test = Callable[..., None]


def shows(page: str, *sentences: str) -> Callable[[Test], Test]:
    """Note which words of a page a test shows, and let it run in `make test-all` only."""

    def noted(test: Test) -> Test:
        for sentence in sentences:
            assert (page, sentence) not in CLAIMS
            CLAIMS[page, sentence] = test.__name__
        return pytest.mark.heavy(test)

    return noted


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text()


def words_of(page: str) -> str:
    """A page's words, whatever the ends of its lines."""
    return " ".join(text_of(page).split())


def rows_about_others(page: str) -> list[str]:
    """Return the first cells of the tables that compare another loader with ours."""
    tables = re.findall(r"^\| (?:there|in torch) \| here \|\n\|[-|]+\|\n((?:\|.*\n?)+)", text_of(page), re.MULTILINE)
    return [line.removeprefix("| ").partition(" | ")[0] for table in tables for line in table.splitlines()]


def assert_page_and_tests_agree(page: str) -> None:
    """Each sentence that a test shows stands on its page, and each row about another loader has a test."""
    words = words_of(page)
    assert [sentence for of, sentence in CLAIMS if of == page and sentence not in words] == []
    rows = rows_about_others(page)
    assert len(rows) >= 15
    assert [row for row in rows if (page, row) not in CLAIMS] == []
