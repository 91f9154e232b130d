"""The documentation in a real browser: nothing overflows, is broken or missing, and nothing leaves the machine.

Screenshots of each page, on a telephone and on a desk, are left in ``build/screenshots``.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from tests.site.browsing import PAGES, ROOT, Visit
from tests.site.test_search import WANTED

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]

WIDTHS = (390, 1400)
TOO_WIDE = """() => {
    const edge = document.documentElement.clientWidth;
    const wide = [...document.querySelectorAll("main *")].filter(each => {
        const box = each.getBoundingClientRect();
        return box.width > 0 && box.right > edge + 1 && !each.closest("pre, .md-typeset__scrollwrap, .md-sidebar");
    });
    const names = wide.slice(0, 5).map(each => each.tagName + ": " + each.innerText?.slice(0, 80));
    return document.documentElement.scrollWidth > edge ? ["the page scrolls sideways", ...names] : names;
}"""
NOT_LOADED = """() => [...document.images].filter(each => !each.complete || !each.naturalWidth).map(each => each.src)"""


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_and_is_whole(name: str, width: int, browser: Browser, home: str) -> None:
    shots = ROOT / "build" / "screenshots" / str(width)
    shots.mkdir(parents=True, exist_ok=True)
    visit = Visit(home)
    page = browser.new_page(viewport={"width": width, "height": 900})
    try:
        visit.watch(page)
        page.goto(f"{home}/{name}.html", wait_until="networkidle")
        page.screenshot(path=shots / f"{name}.png", full_page=True)
        assert page.evaluate(TOO_WIDE) == []
        assert page.evaluate(NOT_LOADED) == []
        assert visit.faults == []
    finally:
        page.close()


@pytest.mark.parametrize(
    ("words", "wanted"), [*WANTED.items(), ("OOM", "troubleshooting.html"), ("slow", "speed.html")]
)
def test_search_shows_the_page_that_explains_the_words_first_or_second(
    words: str, wanted: str, browser: Browser, home: str
) -> None:
    visit = Visit(home)
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    try:
        visit.watch(page)
        page.goto(f"{home}/index.html", wait_until="networkidle")
        page.get_by_placeholder("Search").press_sequentially(words)
        page.wait_for_selector(".md-search-result__item a")
        page.wait_for_timeout(300)  # results follow each letter
        links = page.eval_on_selector_all(".md-search-result__item a", "each => each.map(one => one.href)")
        found = [link.removeprefix(f"{home}/").partition("?")[0].partition("#")[0] for link in links]
        assert wanted.partition("#")[0] in [*dict.fromkeys(found)][:2]
        assert visit.faults == []
    finally:
        page.close()


def test_copying_a_session_leaves_prompts_and_results_out(browser: Browser, home: str) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    try:
        page = context.new_page()
        page.goto(f"{home}/engines.html", wait_until="networkidle")
        page.locator(".language-pycon").first.hover()
        page.locator(".language-pycon button").first.click()
        copied = page.evaluate("() => navigator.clipboard.readText()")
        assert copied.startswith("from torch_table_loader import StructuredDataset\ndef prices(**options):\n    loader")
        assert "True" not in copied
        ast.parse(copied)
    finally:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system(scheme: str, browser: Browser, home: str) -> None:
    page = browser.new_page(
        viewport={"width": 1400, "height": 900}, color_scheme="dark" if scheme == "dark" else "light"
    )
    try:
        page.goto(f"{home}/concepts.html", wait_until="networkidle")
        page.screenshot(path=ROOT / "build" / "screenshots" / f"concepts-{scheme}.png", full_page=True)
        back = page.evaluate("() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        assert (max(back[:3]) < 80) == (scheme == "dark"), back
    finally:
        page.close()
