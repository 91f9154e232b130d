"""Stores that never come to an end, or hardly move: each request ends in an error that says so, in time and memory."""

from __future__ import annotations

import http.server
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.effort import daily
from tests.leaks import lane_threads_end
from tests.servers.folders import answering
from tests.waiting import PATIENCE_S
from torch_table_loader import StructuredDataset
from torch_table_loader.errors import StorageError, StorageTimeoutError
from torch_table_loader.extend import open_storage
from torch_table_loader.sizes import Sizes
from torch_table_loader.source.listing_bounds import ListingBounds
from torch_table_loader.testing import small_sizes

MODIFIED = "2026-01-01T00:00:00.000Z"
LAST_MODIFIED = "Thu, 01 Jan 2026 00:00:00 GMT"
SMALL: dict[str, Any] = {
    "answer_s": 0.4,
    "least_bytes_per_s": 1 << 30,
    "listed_files": 3000,
    "pages_without_files": 20,
    "answer_bytes": 1 << 18,
    "whole_file_bytes": 1 << 18,
}
STORES: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    "S3": ("s3://bucket/t/k", lambda url: {"key": "K", "secret": "hunter2", "region": "eu", "endpoint_url": url}),
    "Google": ("gs://bucket/t/k", lambda url: {"base_url": url, "token": "anon"}),
    "Azure": ("az://box/t/k", lambda url: {"account_name": "me", "endpoint": f"{url}/me", "anon": True}),
    "HTTP": ("{url}/t/k", lambda _: {}),
}
ENDLESS = {
    "new keys": "names more than",
    "new tokens": "in a row name no file",
    "long page": "bytes",
    "slow page": "in time",
    "slow headers": "in time",
}
HELD_WHOLE = {("long page", "Google"), ("long page", "Azure")}
"""obstore holds a page of these stores whole, and has no bound of it but time."""

LISTED = [(kind, store) for kind in ENDLESS for store in STORES if (kind, store) not in HELD_WHOLE]


class _Endless(http.server.BaseHTTPRequestHandler):
    """Lists ever more, or gives a byte now and then."""

    kind = ""
    numbers = itertools.count()

    def do_GET(self) -> None:
        if self.kind == "slow headers":
            self._trickle(b"HTTP/1.1 200 OK\r\nX-Long: ")
        elif "Range" in self.headers or self.kind == "slow body":
            self._body()
        elif self.kind.startswith("new"):
            self._answer(self._page())
        else:
            self._head(1 << 32)
            self._trickle(b"<") if self.kind == "slow page" else self._flood()

    def do_HEAD(self) -> None:
        self._trickle(b"HTTP/1.1 200 OK\r\nX-Long: ") if self.kind == "slow headers" else self._head(1 << 20)

    def _page(self) -> bytes:
        number = next(self.numbers)
        folder = parse_qs(urlsplit(self.path).query).get("prefix", ["t/"])[0]
        keys = [f"{folder}{number:09}-{each}.csv" for each in range(1000 if self.kind == "new keys" else 0)]
        if "comp=list" in self.path:
            blob = (
                "<Blob><Name>{}</Name><Properties><Last-Modified>{}</Last-Modified><Content-Length>1</Content-Length>"
            )
            blobs = "".join(
                f"{blob.format(key, LAST_MODIFIED)}<Content-Type>a</Content-Type><Etag>a</Etag></Properties></Blob>"
                for key in keys
            )
            return (
                "<EnumerationResults><Prefix>t/</Prefix><MaxResults>1000</MaxResults>"
                f"<Blobs>{blobs}</Blobs><NextMarker>{number}</NextMarker></EnumerationResults>"
            ).encode()
        if "list-type" in self.path:
            entry = "<Contents><Key>{}</Key><LastModified>{}</LastModified><Size>1</Size><ETag>a</ETag></Contents>"
            return (
                "<ListBucketResult><IsTruncated>true</IsTruncated>"
                f"<NextContinuationToken>{number}</NextContinuationToken><KeyCount>{len(keys)}</KeyCount>"
                f"{''.join(entry.format(key, MODIFIED) for key in keys)}</ListBucketResult>"
            ).encode()
        links = [*(key[2:] for key in keys), f"{number}/"]
        return "".join(f'<a href="{link}">{link}</a>' for link in links).encode()

    def _body(self) -> None:
        if span := self.headers.get("Range", "").removeprefix("bytes="):
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {span}/1048576")
        self._head(1 << 17 if self.kind == "slow body" else 1 << 32, started=bool(span))
        self._trickle(b"") if self.kind == "slow body" else self._flood()

    def _head(self, num_bytes: int, *, started: bool = False) -> None:
        if not started:
            self.send_response(200)
        for name, value in (("Content-Type", "text/html"), ("Last-Modified", LAST_MODIFIED), ("ETag", '"a"')):
            self.send_header(name, value)
        self.send_header("Content-Length", str(num_bytes))
        self.end_headers()

    def _answer(self, body: bytes) -> None:
        self._head(len(body))
        self.wfile.write(body)

    def _trickle(self, begun: bytes) -> None:
        self.wfile.write(begun)
        while True:
            time.sleep(0.02)
            self.wfile.write(b"x")
            self.wfile.flush()

    def _flood(self) -> None:
        while True:
            self.wfile.write(b"<" * (1 << 16))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Keep quiet."""


@pytest.fixture
def endless() -> Iterator[tuple[str, type[_Endless]]]:
    handler = type("Handler", (_Endless,), {})
    with answering(handler) as host:
        yield f"http://{host}", handler
    assert lane_threads_end()


def opened(store: str, url: str, **options: Any) -> tuple[Any, str]:
    where, of_store = STORES[store]
    return open_storage(where.format(url=url), {**of_store(url), "retry_seconds": 0, **options})


@daily(lambda kind, store: store in ("S3", "HTTP") or kind in ("new tokens", "slow page"))
@pytest.mark.parametrize(("kind", "store"), LISTED)
def test_a_listing_without_end_is_an_error(store: str, kind: str, endless: tuple[str, type[_Endless]]) -> None:
    url, handler = endless
    handler.kind = kind
    with small_sizes(**SMALL):
        storage, path = opened(store, url)
        began = time.monotonic()
        with pytest.raises(StorageError) as refused:
            storage.walk(path.rpartition("/")[0])
    assert time.monotonic() - began < PATIENCE_S / 2
    in_time = store in ("Google", "Azure") and kind == "new tokens"  # obstore asks for page after page
    if store != "HTTP" or kind != "long page":
        assert ("in time" if in_time else ENDLESS[kind]) in str(refused.value)


@daily(8)
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("kind", ["slow body", "slow headers"])
@pytest.mark.parametrize("asked", ["range", "whole", "look"])
def test_an_answer_that_hardly_comes_is_given_up(
    store: str, kind: str, asked: str, endless: tuple[str, type[_Endless]]
) -> None:
    url, handler = endless
    handler.kind = kind
    calls: dict[str, Callable[[Any, str], Any]] = {
        "range": lambda storage, path: storage.read_range(path, 0, 1 << 17),
        "whole": lambda storage, path: storage.read_bytes(path),
        "look": lambda storage, path: storage.version(path),
    }
    if (kind, asked) == ("slow body", "look"):
        return
    with small_sizes(**SMALL):
        storage, path = opened(store, url, **({} if store == "HTTP" else {"request_timeout": 1}))
        began = time.monotonic()
        with pytest.raises(StorageTimeoutError, match="in time"):
            calls[asked](storage, path)
    assert time.monotonic() - began < PATIENCE_S / 2


def test_a_range_that_is_longer_than_asked_is_not_held(endless: tuple[str, type[_Endless]]) -> None:
    url, handler = endless
    handler.kind = "long range"
    storage, path = opened("HTTP", url)
    with pytest.raises(StorageError, match="bytes 0 to 8 were asked for"):
        storage.read_range(path, 0, 8)
    with small_sizes(**SMALL), pytest.raises(StorageError, match="at most 262,144 bytes"):
        storage.read_bytes(path)


def test_a_whole_file_of_an_object_store_has_a_bound_too(endless: tuple[str, type[_Endless]]) -> None:
    url, handler = endless
    handler.kind = "long file"
    storage, path = opened("S3", url)
    with small_sizes(**SMALL), pytest.raises(StorageError, match="at most 262,144 bytes"):
        storage.read_bytes(path)


def test_a_slow_listing_is_asked_for_again_while_retries_last(endless: tuple[str, type[_Endless]]) -> None:
    url, handler = endless
    handler.kind = "slow page"
    with small_sizes(**SMALL, first_wait_s=0.01):
        storage, path = opened("S3", url, retry_seconds=1)
        with pytest.raises(StorageTimeoutError, match=r"tried ([2-9]|\d\d) times"):
            storage.walk(path.rpartition("/")[0])


def test_a_table_says_that_its_listing_does_not_end(endless: tuple[str, type[_Endless]]) -> None:
    url, handler = endless
    handler.kind = "new keys"
    options = STORES["S3"][1](url)
    with small_sizes(**SMALL), pytest.raises(StorageError, match=r"listing does not end.*pass the files"):
        StructuredDataset("s3://bucket/t/", storage_options=options)


def test_ten_million_files_are_a_listing() -> None:
    bounds = ListingBounds("s3://bucket/t")
    for _ in range(10_000):
        bounds.count(1000)
    for _ in range(1000):
        bounds.count(0)
    bounds.check_page(40 << 20, 60.0)
    assert Sizes().listed_files > 10_000_000


def test_links_in_a_circle_and_missing_pages_end(tmp_path: Path) -> None:
    pages = {"/t/": ["a/", "b.csv", "gone/"], "/t/a/": ["../", "c.csv", "/t/", "/t/a/"]}

    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            links = pages.get(f"{self.path.rstrip('/')}/")
            body = "".join(f'<a href="{link}">{link}</a>' for link in links or ()).encode()
            self.send_response(404 if links is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Keep quiet."""

    with answering(Pages) as host:
        storage, path = open_storage(f"http://{host}/t/", {"retry_seconds": 0})
        assert sorted(found.path.partition("/t/")[2] for found in storage.walk(path)) == ["a/c.csv", "b.csv"]
    assert not list(tmp_path.iterdir())
