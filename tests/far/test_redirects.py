"""A store that redirects to another host: nothing that proves who asks goes there, whichever client asks for what."""

from __future__ import annotations

import http.server
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import effort
from tests.effort import daily
from tests.secrets import found_in
from tests.servers.folders import answering
from torch_table_loader import DeltaDataset, StructuredDataset
from torch_table_loader.errors import StorageError, TableLoaderError
from torch_table_loader.extend import open_storage
from torch_table_loader.far.object_store import proxy_of, staying_at

SECRET = "canary+7Xq=hunter"  # noqa: S105
KEYS = {"key": "AKIAME", "secret": "hunter2", "region": "us-east-1"}
STORES: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    "S3 with a token": ("s3://bucket/t/k", lambda url: {**KEYS, "token": SECRET, "endpoint_url": url}),
    "S3 with keys": ("s3://bucket/t/k", lambda url: {**KEYS, "secret": SECRET, "endpoint_url": url}),
    "s3fs": ("s3://bucket/t/k", lambda url: {**KEYS, "token": SECRET, "endpoint_url": url, "version_aware": True}),
    "Azure with a signature": (
        "az://box/t/k",
        lambda url: {"account_name": "me", "endpoint": f"{url}/me", "sas_token": f"sv=2024-11-04&sig={SECRET}"},
    ),
    "Azure with a key": (
        "az://box/t/k",
        lambda url: {"account_name": "me", "endpoint": f"{url}/me", "account_key": "aHVudGVyMg=="},
    ),
    "Google with a token": ("gs://bucket/t/k", lambda url: {"base_url": url, "token": SECRET}),
    "HTTP with a header": ("{url}/t/k", lambda _: {"headers": {"X-Key": SECRET, "Authorization": f"Bearer {SECRET}"}}),
    "HTTP with a cookie": ("{url}/t/k", lambda _: {"client_kwargs": {"cookies": {"session": SECRET}}}),
    "HTTP with a signature": ("{url}/t/k?sig={secret}", lambda _: {}),
}
ASKED: dict[str, Callable[[Any, str], Any]] = {
    "look": lambda storage, path: storage.version(path),
    "read": lambda storage, path: storage.read_bytes(path),
    "range": lambda storage, path: storage.read_range(path, 0, 8),
    "list": lambda storage, path: storage.walk(path.partition("?")[0].rpartition("/")[0]),
    "write": lambda storage, path: storage.write_bytes(path, b"abc"),
    "upload": lambda storage, path: storage.put_file(effort.__file__, path),
}


class _Redirects(http.server.BaseHTTPRequestHandler):
    """Answers every request with a redirect to the same path below `to`, or with 404 if there is none."""

    protocol_version = "HTTP/1.1"  # or it would not ask for the body of who waits for that
    to = ""
    status = 307
    asked: list[str]

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.asked.append(f"{self.command} {self.path}\n{self.headers}\n{body.decode('latin-1')}")
        self.send_response(self.status if self.to else 404)
        if self.to:
            self.send_header("Location", f"{self.to}/elsewhere")
        self.send_header("Connection", "close")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 - so the base class calls them

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Keep quiet."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[str, type[_Redirects], type[_Redirects]]]:
    """Give the URL of a store, and the handlers of it and of another host: the same machine under another name."""
    other = type("Other", (_Redirects,), {"asked": []})
    own: type[_Redirects] = type("Own", (_Redirects,), {"asked": []})
    with answering(own) as host, answering(other) as elsewhere:
        own.to = f"http://localhost:{elsewhere.rpartition(':')[2]}"
        yield f"http://{host}", own, other


Hosts = tuple[str, type[_Redirects], type[_Redirects]]


@daily(lambda store, asked, status: status == 307)
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_another_host_takes_no_secret_along(store: str, asked: str, status: int, hosts: Hosts) -> None:
    url, own, other = hosts
    where, options = STORES[store]
    own.status = status
    own.asked.clear()
    other.asked.clear()
    storage, path = open_storage(where.format(url=url, secret=SECRET), {**options(url), "retry_seconds": 0})
    try:
        ASKED[asked](storage, path)  # to list a page of the web without links is no failure
    except TableLoaderError as refused:
        other.asked.append(str(refused))
    assert own.asked or asked in ("write", "upload")  # fsspec's HTTP writes nothing
    assert not found_in("\n".join(other.asked), SECRET)
    assert "hunter2" not in str(other.asked)


@pytest.mark.parametrize("store", ["S3 with a token", "Azure with a signature"])
@pytest.mark.parametrize("asked", ["look", "read", "range", "list"])
def test_the_error_says_that_the_store_redirects(store: str, asked: str, hosts: Hosts) -> None:
    url, own, other = hosts
    where, options = STORES[store]
    own.status = 307
    other.asked.clear()
    storage, path = open_storage(where, {**options(url), "retry_seconds": 60})
    with pytest.raises(StorageError, match=r"redirects the request to another place.*endpoint"):
        ASKED[asked](storage, path)
    assert not other.asked


def test_the_log_of_a_delta_table_is_not_followed_elsewhere(hosts: Hosts) -> None:
    url, own, other = hosts
    own.asked.clear()
    other.asked.clear()
    options = {**STORES["S3 with a token"][1](url), "retry_seconds": 1}
    with pytest.raises(StorageError, match="endpoint"):
        DeltaDataset("s3://bucket/t", storage_options=options)
    assert own.asked
    assert not other.asked


def test_a_redirect_to_the_same_host_is_followed() -> None:
    class Served(_Redirects):
        asked: list[str] = []  # noqa: RUF012 - of this test alone

        def _answer(self) -> None:
            if self.path == "/elsewhere":
                self.send_response(206)
                for name, value in (
                    ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"),
                    ("Content-Range", "bytes 0-7/8"),
                    ("Content-Length", "8"),
                    ("Connection", "close"),
                ):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(b"abcdefgh")
            else:
                super()._answer()

        do_GET = _answer  # noqa: N815

    with answering(Served) as served:
        Served.to = f"http://{served}"
        options = STORES["S3 with a token"][1](Served.to)
        storage, path = open_storage("s3://bucket/t/k", {**options, "retry_seconds": 0})
        assert bytes(storage.read_range(path, 0, 8)) == b"abcdefgh"


def test_a_loader_says_so(hosts: Hosts) -> None:
    url, own, other = hosts
    own.status = 301
    other.asked.clear()
    options = {**STORES["S3 with a token"][1](url), "retry_seconds": 60}
    with pytest.raises(StorageError, match=r"redirects the request to another place"):
        StructuredDataset(["s3://bucket/t/a.parquet"], storage_options=options)
    assert not other.asked


def test_hosts_that_are_reached_through_a_proxy_stay_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    url = "https://bucket.host:9/base"
    assert staying_at({}, {}, url)["proxy_excludes"] == "bucket.host"
    assert staying_at({}, {"proxy_url": "p:1"}, url) == {}
    monkeypatch.setenv("all_proxy", "http://p:2")
    assert proxy_of(url, {}) == "http://p:2"
    assert staying_at({}, {}, url) == {}
    monkeypatch.setenv("no_proxy", "bucket.host")
    assert staying_at({}, {}, url)["proxy_url"] == "http://127.0.0.1:0"
