"""The documentation as a reader meets it: built, served on this machine, and opened in Chromium."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(page.stem for page in (ROOT / "docs").glob("*.md")), "changelog"])


def build(folder: Path) -> None:
    """Build the site, as ``make docs`` does: ``--quiet`` would hide warnings from ``--strict`` too."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    made = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=100, check=False)
    assert made.returncode == 0, made.stdout + made.stderr


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Leave the log of requests out."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port of this machine; give its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run the Chromium of this machine without a window."""
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        raise FileNotFoundError("these tests need Chromium (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass(frozen=True, slots=True)
class Visit:
    """What went wrong while a page was looked at.

    Args:
        home: the address of the site.
        faults: a line each.
    """

    home: str
    faults: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        """Note errors on the console, requests that fail, and requests to other machines."""
        page.on("console", lambda said: self.faults.append(f"console: {said.text}") if said.type == "error" else None)
        page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        page.on("requestfailed", lambda asked: self.faults.append(f"failed: {asked.url}"))
        page.on("request", lambda asked: self._check_home(asked.url))
        page.on("response", lambda got: self.faults.append(f"{got.status}: {got.url}") if got.status >= 400 else None)

    def _check_home(self, url: str) -> None:
        if not url.startswith((self.home, "data:", "blob:")):
            self.faults.append(f"asks another machine: {url}")


class Links(HTMLParser):
    """The links and anchors of a page, and what else it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take what a tag names."""
        of = dict(attrs)
        self.anchors.update(filter(None, (of.get("id"), of.get("name") if tag == "a" else None)))
        if tag == "a":
            self.links.append(of.get("href") or "")
        elif tag in {"img", "script", "source"}:
            self.loads.append(of.get("src") or "")
        elif tag == "link" and of.get("rel") not in {"canonical", "next", "prev"}:
            self.loads.append(of.get("href") or "")


__all__ = ["PAGES", "ROOT", "Links", "Visit", "build", "chromium", "served"]
