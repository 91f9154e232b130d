"""A small Iceberg REST catalog over HTTP for tests: OAuth2, vended credentials, and the tables of another catalog."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table

from tests.servers.rest_commits import as_json, commit, create_table

_ERRORS = {
    NoSuchTableError: 404,
    NoSuchNamespaceError: 404,
    TableAlreadyExistsError: 409,
    NamespaceAlreadyExistsError: 409,
    CommitFailedException: 409,
}


@dataclass
class RestCatalog:
    """What the server serves, and what it was asked.

    Args:
        tables: where the tables are.
        credential: "client:secret" that gets the token; None lets everybody in.
        vend: gives the credentials of each loaded table.
        by_prefix: whether they are said for a prefix of paths, as newer catalogs do, and not for the table.
        views: metadata of views by their names.
    """

    tables: Catalog
    credential: str | None = None
    vend: Callable[[], Mapping[str, str]] = dict
    by_prefix: bool = False
    views: Mapping[tuple[str, ...], Mapping[str, Any]] = field(default_factory=dict)
    loads: int = 0
    calls: list[str] = field(default_factory=list)
    token: str = "the-token"  # noqa: S105 - of nobody
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, method: str, path: str, token: str | None, body: bytes) -> tuple[int, Any]:
        """Answer a request: status and JSON."""
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")][1:]
        if parts == ["oauth", "tokens"]:
            if _credential(token, body) != self.credential:
                return 401, {"error": "invalid_client", "error_description": "who are you"}
            return 200, {"access_token": self.token, "token_type": "bearer", "expires_in": 3600}
        if self.credential is not None and token != f"Bearer {self.token}":
            return _error(401, "NotAuthorizedException", "bad or missing token")
        if parts[2:3] == ["views"] and (view := (*parts[1].split("\x1f"), *parts[3:])) in self.views:
            return (204, None) if method == "HEAD" else (200, dict(self.views[view]))
        above = parse_qs(urlsplit(path).query).get("parent", [])
        return self._route(method, parts, (json.loads(body) if body else {}) | {"parent": above})

    def _route(self, method: str, parts: Sequence[str], asked: Mapping[str, Any]) -> tuple[int, Any]:
        space = tuple(parts[1].split("\x1f")) if len(parts) > 1 else ()
        match parts:
            case ["config"]:
                return 200, {"defaults": {}, "overrides": {}}
            case ["transactions", "commit"]:
                for change in asked["table-changes"]:
                    where = change["identifier"]
                    commit(self.tables, (*where["namespace"], where["name"]), change)
                return 204, None
            case ["namespaces", *_] if len(parts) < 3:
                return self._namespaces(method, space, asked)
            case ["namespaces", _, "tables"]:
                return self._tables(method, space, asked)
            case ["namespaces", _, "tables", name]:
                return self._table(method, (*space, name), asked)
        return _error(404, "NoSuchViewException", "this catalog has no such view, and no functions")

    def _namespaces(self, method: str, space: tuple[str, ...], asked: Mapping[str, Any]) -> tuple[int, Any]:
        if method == "POST":
            self.tables.create_namespace(tuple(asked["namespace"]))
            return 200, {"namespace": asked["namespace"], "properties": {}}
        if not space:
            above = tuple(asked["parent"][0].split("\x1f")) if asked["parent"] else ()
            return 200, {"namespaces": [list(each) for each in self.tables.list_namespaces(above)]}
        return 200, {"namespace": list(space), "properties": dict(self.tables.load_namespace_properties(space))}

    def _tables(self, method: str, space: tuple[str, ...], asked: Mapping[str, Any]) -> tuple[int, Any]:
        if method == "POST":
            made = create_table(self.tables, space, asked)
            return 200, self._loaded(made) if isinstance(made, Table) else {"metadata": as_json(made), "config": {}}
        names = self.tables.list_tables(space)
        return 200, {"identifiers": [{"namespace": list(name[:-1]), "name": name[-1]} for name in names]}

    def _table(self, method: str, name: tuple[str, ...], asked: Mapping[str, Any]) -> tuple[int, Any]:
        if method == "POST":
            return 200, self._loaded(commit(self.tables, name, asked))
        table = self.tables.load_table(name)
        if method == "HEAD":
            return 204, None
        self.loads += 1
        return 200, self._loaded(table)

    def _loaded(self, table: Table) -> dict[str, Any]:
        location, metadata = table.metadata_location, as_json(table.metadata)
        said: dict[str, Any] = {"metadata-location": location, "metadata": metadata}
        if self.by_prefix:
            return said | {"storage-credentials": [{"prefix": table.location(), "config": dict(self.vend())}]}
        return said | {"config": dict(self.vend())}


def _credential(authorization: str | None, body: bytes) -> str:
    """Read who asks for a token: in the form, or as HTTP's basic authentication (RFC 6749, 2.3.1)."""
    if authorization is not None and authorization.startswith("Basic "):
        return base64.b64decode(authorization.removeprefix("Basic ")).decode()
    form = {name: values[-1] for name, values in parse_qs(body.decode()).items()}
    return f"{form.get('client_id')}:{form.get('client_secret')}"


def _error(status: int, kind: str, message: str) -> tuple[int, Any]:
    return status, {"error": {"message": message, "type": kind, "code": status}}


@contextmanager
def serving(catalog: RestCatalog) -> Iterator[str]:
    """Serve on a free port; gives the URI."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            return

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            catalog.calls.append(f"{self.command} {self.path}")
            try:
                with catalog.lock:
                    status, said = catalog.answer(self.command, self.path, self.headers.get("Authorization"), body)
            except tuple(_ERRORS) as error:
                status, said = _error(_ERRORS[type(error)], type(error).__name__, str(error))
            data = b"" if said is None else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_POST = do_HEAD = _handle  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
