"""The built site hangs together: it builds without a warning, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.site.browsing import PAGES, ROOT, Links

pytestmark = pytest.mark.slow


def test_every_link_of_the_built_site_leads_somewhere(site: Path) -> None:
    pages = {page: Links(page.read_text("utf-8")) for page in sorted(site.glob("*.html")) if page.name != "404.html"}
    assert {page.stem for page in pages} == set(PAGES)
    broken = []
    for page, found in pages.items():
        for link in [*found.links, *found.loads]:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            aim = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            aim = aim / "index.html" if aim.is_dir() else aim
            anchors = pages[aim].anchors if aim in pages else set()
            if not aim.is_file() or (parts.fragment and unquote(parts.fragment) not in anchors):
                broken.append(f"{page.name}: {link}")
    assert broken == []


def test_the_built_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loads = {page.name: Links(page.read_text("utf-8")).loads for page in site.glob("*.html")}
    assert [(page, each) for page, found in loads.items() for each in found if urlsplit(each).netloc] == []


def test_sessions_of_docstrings_are_code_and_no_quotations(site: Path) -> None:
    pages = {page.stem: page.read_text("utf-8") for page in site.glob("api-*.html")}
    assert "language-pycon" in pages["api-plugins"]
    assert [name for name, page in pages.items() if "<blockquote" in page] == []


def test_defaults_of_options_are_shown_and_not_how_they_are_declared(site: Path) -> None:
    pages = {page.stem: re.sub("<[^>]+>", "", page.read_text("utf-8")) for page in site.glob("api-*.html")}
    assert [name for name, page in pages.items() if "_option(" in page] == []
    assert "batch_size: int | Budget = 1024" in pages["api-options"]


def test_what_is_returned_is_one_item_however_many_lines_it_takes(site: Path) -> None:
    page = re.sub(r"<[^>]+>|\s+", " ", (site / "api-table-loader.html").read_text("utf-8"))
    assert re.search(r"since the files that are left are +dealt anew", page)


@pytest.mark.parametrize(
    "page", ["api-structured-dataset", "api-iceberg-dataset", "api-mixed-dataset", "api-table-loader"]
)
def test_members_of_a_class_stand_in_the_order_of_its_page(page: str, site: Path) -> None:
    """What users call first stands first, whether it is a method or an attribute."""
    asked = re.findall(r"^        - (\w+)$", (ROOT / "docs" / f"{page}.md").read_text(), re.MULTILINE)
    text = (site / f"{page}.html").read_text()
    shown = re.findall(r'<h4 id="torch_table_loader\.\w+\.(\w+)" class="doc', text)
    assert shown == asked
    assert "OtherKeywords" not in text  # overloads are for type checkers
