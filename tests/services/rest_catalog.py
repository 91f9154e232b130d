"""A small Iceberg REST catalog over HTTP for tests: OAuth2, vended credentials, and the tables of another catalog."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.typedef import IcebergBaseModel


@dataclass
class RestCatalog:
    """What the server serves, and what it was asked.

    Args:
        tables: where the tables are.
        credential: "client:secret" that gets the token; None lets everybody in.
        vend: gives the credentials of each loaded table.
    """

    tables: Catalog
    credential: str | None = None
    vend: Callable[[], Mapping[str, str]] = dict
    loads: int = 0
    calls: list[str] = field(default_factory=list)
    token: str = "the-token"  # noqa: S105 - of nobody
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, method: str, path: str, token: str | None, body: bytes) -> tuple[int, Any]:
        """Answer a request: status and JSON."""
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")][1:]
        if parts == ["oauth", "tokens"]:
            form = {name: values[-1] for name, values in parse_qs(body.decode()).items()}
            if f"{form.get('client_id')}:{form.get('client_secret')}" != self.credential:
                return 401, {"error": "invalid_client", "error_description": "who are you"}
            return 200, {"access_token": self.token, "token_type": "bearer", "expires_in": 3600}
        if self.credential is not None and token != f"Bearer {self.token}":
            return _error(401, "NotAuthorizedException", "bad or missing token")
        if parts == ["config"]:
            return 200, {"defaults": {}, "overrides": {}}
        return self._read(method, parts)

    def _read(self, method: str, parts: list[str]) -> tuple[int, Any]:
        if method != "GET":
            return _error(405, "UnsupportedOperationException", "this catalog only reads")
        if parts == ["namespaces"]:
            return 200, {"namespaces": [list(each) for each in self.tables.list_namespaces()]}
        space = tuple(parts[1].split("\x1f"))
        if len(parts) == 3:
            return 200, {
                "identifiers": [{"namespace": list(t[:-1]), "name": t[-1]} for t in self.tables.list_tables(space)]
            }
        return self._load((*space, parts[3]))

    def _load(self, name: tuple[str, ...]) -> tuple[int, Any]:
        table = self.tables.load_table(name)
        self.loads += 1
        metadata = json.loads(IcebergBaseModel.model_dump_json(table.metadata, by_alias=True, exclude_none=True))
        return 200, {"metadata-location": table.metadata_location, "metadata": metadata, "config": dict(self.vend())}


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
            except NoSuchTableError as error:
                status, said = _error(404, "NoSuchTableException", str(error))
            except NoSuchNamespaceError as error:
                status, said = _error(404, "NoSuchNamespaceException", str(error))
            data = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _handle  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
