"""What a REST catalog answers is bounded, and its login goes to no other host."""

from __future__ import annotations

import gzip
import http.server
import json
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from tests.effort import daily
from tests.leaks import lane_threads_end
from tests.servers.folders import answering
from tests.servers.rest_catalog import RestCatalog
from tests.tables.catalogs import load_catalog
from tests.waiting import PATIENCE_S
from torch_table_loader import (
    ConfigError,
    IcebergDataset,
    StorageError,
    StorageTimeoutError,
    TableError,
    TableLoaderError,
)
from torch_table_loader.testing import small_sizes

SECRET = "hunter2hunter2"  # noqa: S105 - of nobody
CONFIG, TABLE, TOKENS = "/v1/config", "/v1/namespaces/db/tables/clicks", "/v1/oauth/tokens"

Body = bytes | Callable[[Any], None]
Answer = tuple[int, Mapping[str, str], Body]


@dataclass
class Scripted:
    """A REST catalog some of whose answers are written by hand, and what it was asked with which headers and bodies."""

    catalog: RestCatalog | None = None
    script: dict[str, Callable[[str], Answer]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    uri: str = ""

    @property
    def host(self) -> str:
        return self.uri.removeprefix("http://")

    def answer(self, handler: Any, body: bytes) -> Answer:
        path = handler.path.partition("?")[0]
        for start in (path, "*"):
            if start in self.script:
                return self.script[start](handler.path)
        if self.catalog is None:
            return 404, {}, b""
        login = handler.headers.get("Authorization")
        with self.catalog.lock:
            try:
                status, said = self.catalog.answer(handler.command, handler.path, login, body)
            except NoSuchTableError:
                status, said = 404, {"error": {"message": "none", "type": "NoSuchTableException", "code": 404}}
        return status, {}, b"" if said is None else json.dumps(said).encode()


@contextmanager
def scripted(catalog: RestCatalog | None = None, **script: Any) -> Iterator[Scripted]:
    served = Scripted(catalog, script)

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Keep quiet."""

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            served.asked.append((self.path, dict(self.headers), body))
            status, headers, said = served.answer(self, body)
            try:
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                said(self.wfile) if callable(said) else self.wfile.write(said)
            except OSError:
                return  # the client has gone

        do_GET = do_POST = do_HEAD = _handle  # noqa: N815

    with answering(Handler) as host:
        served.uri = f"http://{host}"
        yield served
    assert lane_threads_end(), "a request outlives its server"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[RestCatalog]:
    found = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    with closing(found):
        found.create_namespace("db")
        found.create_table("db.clicks", pa.schema([("x", pa.int64())])).append(pa.table({"x": [1, 2, 3]}))
        yield RestCatalog(found, credential=f"me:{SECRET}")


def login(uri: str, **more: Any) -> dict[str, Any]:
    tokens = {"credential": f"me:{SECRET}", "oauth2-server-uri": f"{uri}{TOKENS}"}
    return {"type": "rest", "uri": uri, "header.X-Api-Key": SECRET, "header.Cookie": SECRET, **tokens, **more}


def opened(config: Mapping[str, Any] | Catalog, name: str = "db.clicks") -> IcebergDataset:
    return IcebergDataset(name, config, storage_options={"retry_seconds": 0})


def answer(said: Answer, _: str) -> Answer:
    return said


def as_json(said: Any, **headers: str) -> Callable[[str], Answer]:
    return lambda _: (200, headers, json.dumps(said).encode())


def test_the_login_reaches_the_catalog(lake: RestCatalog) -> None:
    with scripted(lake) as there:
        assert opened(login(there.uri)).explain().rows == 3
        assert any(SECRET in str(headers) for _, headers, _ in there.asked)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("path", [CONFIG, TABLE, TOKENS])
@daily(5)
def test_a_redirect_to_another_host_is_not_followed(lake: RestCatalog, path: str, status: int) -> None:
    with scripted() as other, scripted(lake) as there:
        there.script[path] = lambda asked: (status, {"Location": f"{other.uri}{asked}"}, b"")
        with pytest.raises(StorageError, match="to which its login does not go") as caught:
            opened(login(there.uri))
        assert other.asked == []
        assert f"{there.uri} sends this client to {other.uri}," in str(caught.value)


@pytest.mark.parametrize("status", [301, 307])
def test_a_redirect_is_not_followed_for_a_catalog_that_the_caller_made(lake: RestCatalog, status: int) -> None:
    with scripted() as other, scripted(lake) as there, closing(load_catalog("mine", **login(there.uri))) as mine:
        assert opened(mine).explain().rows == 3
        there.script[TABLE] = lambda asked: (status, {"Location": f"{other.uri}{asked}"}, b"")
        before = dict(vars(mine))
        with pytest.raises(StorageError, match="to which its login does not go"):
            opened(mine)
        assert other.asked == []
        assert vars(mine) == before


def test_a_signed_request_stays_where_it_is(lake: RestCatalog) -> None:
    keys = {"rest.sigv4-enabled": "true", "rest.signing-region": "r", "client.region": "r"}
    keys |= {"client.access-key-id": "AKIAME", "client.secret-access-key": SECRET, "client.session-token": SECRET}
    lake.credential = None
    with scripted() as other, scripted(lake) as there:
        config = {"type": "rest", "uri": there.uri, "token": "t", **keys}
        assert opened(config).explain().rows == 3
        assert all("AWS4-HMAC" in headers["Authorization"] for _, headers, _ in there.asked)
        there.script[TABLE] = lambda asked: (307, {"Location": f"{other.uri}{asked}"}, b"")
        with pytest.raises(StorageError, match="to which its login does not go"):
            opened(config)
        assert other.asked == []


def test_a_redirect_within_the_catalog_is_followed(lake: RestCatalog) -> None:
    with scripted(lake) as there:
        there.script[CONFIG] = lambda asked: (307, {"Location": "/v1/other?x=1"}, b"")
        there.script["/v1/other"] = as_json({"defaults": {}, "overrides": {}})
        assert opened(login(there.uri)).explain().rows == 3


@pytest.mark.parametrize(
    ("name", "place"), [("uri", "overrides"), ("oauth2-server-uri", "overrides"), ("oauth2-server-uri", "defaults")]
)
def test_an_answer_names_no_other_host(lake: RestCatalog, name: str, place: str) -> None:
    with scripted() as other, scripted(lake) as there:
        there.script[CONFIG] = as_json({"defaults": {}, "overrides": {}} | {place: {name: f"{other.uri}{TOKENS}"}})
        config = login(there.uri)
        if place == "defaults":  # which hold for what the caller did not write
            del config[name]
        with (
            pytest.warns(DeprecationWarning, match="OAuth2") if place == "defaults" else nullcontext(),
            pytest.raises(StorageError) as caught,
        ):
            opened(config)
        assert f"sends this client to {other.uri}" in str(caught.value)
        assert other.asked == []
        assert SECRET not in str(caught.value)


def test_an_answer_may_name_the_catalog_s_own_host(lake: RestCatalog) -> None:
    with scripted(lake) as there:
        there.script[CONFIG] = as_json({"defaults": {}, "overrides": {"uri": there.uri.replace("http", "HTTP")}})
        assert opened(login(there.uri)).explain().rows == 3


def endless(piece: bytes, wait: float = 0, status: int = 200) -> Callable[[str], Answer]:
    def write(out: Any) -> None:
        while True:
            out.write(piece)
            out.flush()
            time.sleep(wait)

    return lambda _: (status, {}, write)


@pytest.mark.parametrize(("path", "mine"), [(CONFIG, False), (TABLE, False), (TOKENS, False), (TABLE, True)])
def test_an_answer_without_end_is_cut(lake: RestCatalog, path: str, mine: bool) -> None:
    with scripted(lake) as there, small_sizes(catalog_answer_bytes=1 << 20):
        config = load_catalog("mine", **login(there.uri)) if mine else login(there.uri)
        there.script[path] = endless(b" " * (1 << 16))
        with pytest.raises(StorageError, match=r"must have at most 1,048,576 bytes, decompressed, and has more"):
            opened(config)
        if isinstance(config, Catalog):
            config.close()


def test_a_bomb_is_not_unpacked(lake: RestCatalog) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()
    with scripted(lake) as there, small_sizes(catalog_answer_bytes=1 << 20):
        for encoding, body in (("gzip", bomb), ("gzip, gzip", gzip.compress(bomb))):
            there.script[TABLE] = partial(answer, (200, {"Content-Encoding": encoding}, body))
            tracemalloc.start()
            with pytest.raises(StorageError, match=r"must have at most|must be plain or compressed"):
                opened(login(there.uri))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 32 << 20


@pytest.mark.parametrize("path", [CONFIG, TABLE, TOKENS, "headers"])
def test_an_answer_in_drops_is_left(lake: RestCatalog, path: str) -> None:
    with scripted(lake) as there:
        opened(login(there.uri))
        if path == "headers":
            there.script[TABLE] = endless(b"X", wait=0.05, status=100)  # a header line that does not end
        else:
            there.script[path] = endless(b" ", wait=0.05)
        began = time.monotonic()
        with small_sizes(catalog_answer_s=0.3), pytest.raises(StorageTimeoutError, match=r"must come within 0.3 s"):
            opened(login(there.uri))
        assert time.monotonic() - began < PATIENCE_S / 2


def test_a_deep_answer_is_refused(lake: RestCatalog) -> None:
    with scripted(lake) as there:
        for path in (CONFIG, TABLE):
            there.script = {path: lambda _: (200, {}, b'{"metadata":' + b"[" * 100_000)}
            with pytest.raises(TableError, match="must nest objects and arrays at most"):
                opened(login(there.uri))


@pytest.mark.parametrize("path", ["/v1/namespaces", "/v1/namespaces/db/tables"])
def test_names_on_pages_without_end(lake: RestCatalog, path: str) -> None:
    with scripted(lake) as there, small_sizes(catalog_pages=20):
        entry: Any = ["db"] if path.endswith("namespaces") else {"namespace": ["db"], "name": "a"}
        kind = "namespaces" if path.endswith("namespaces") else "identifiers"

        def page(asked: str) -> Answer:
            return 200, {}, json.dumps({kind: [entry], "next-page-token": f"{len(there.asked)}"}).encode()

        there.script[path] = page
        with pytest.raises(ConfigError, match=r"no table 'db.other'") as caught:
            opened(login(there.uri), "db.other")
        # pyiceberg 0.11 asks for one page alone
        assert ("it lists none: StorageError" in str(caught.value)) == any(
            "pageToken" in each for each, *_ in there.asked
        )
        assert len(there.asked) < 40
        with small_sizes(names_s=0.2, catalog_pages=10**9):
            began = time.monotonic()
            with pytest.raises(ConfigError, match=r"no table 'db.other'"):
                opened(login(there.uri), "db.other")
            assert time.monotonic() - began < PATIENCE_S / 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 419, 500])
@pytest.mark.parametrize("path", [CONFIG, TABLE, TOKENS])
@daily(4)
def test_an_answer_that_is_no_error_is_not_quoted(lake: RestCatalog, path: str, status: int) -> None:
    with scripted(lake) as there:
        for said in ({"access_token": "vended-token", "s3.secret-access-key": "vended-token"}, ["vended-token"]):
            there.script[path] = partial(answer, (status, {}, json.dumps(said).encode()))
            with pytest.raises(TableLoaderError) as caught:
                opened(login(there.uri))
            assert "vended-token" not in str(caught.value)


def test_an_error_is_as_long_as_people_read(lake: RestCatalog) -> None:
    with scripted(lake) as there:
        said = json.dumps({"error": {"message": "no " * 100_000, "type": "A", "code": 400}}).encode()
        there.script[TABLE] = lambda _: (400, {}, said)
        with pytest.raises(StorageError) as caught:
            opened(login(there.uri))
        assert len(str(caught.value)) < 3000


def test_an_answer_without_a_place(lake: RestCatalog) -> None:
    with scripted(lake) as there:
        metadata = json.loads(lake.tables.load_table("db.clicks").metadata.model_dump_json())
        for said in ({"metadata": metadata}, {"metadata": metadata, "metadata-location": None}):
            there.script[TABLE] = as_json(said)
            with pytest.raises(TableError, match=r"must give the metadata-location of 'db.clicks', and gives none"):
                opened(login(there.uri))


@pytest.mark.parametrize("said", [None, [], {"defaults": None}, {"defaults": 5}, {"overrides": None}, "x"], ids=repr)
def test_an_answer_that_is_no_configuration(lake: RestCatalog, said: Any) -> None:
    with scripted(lake) as there:
        there.script[CONFIG] = as_json(said)
        with pytest.raises(StorageError, match="must answer with the configuration of an Iceberg REST catalog"):
            opened(login(there.uri))
