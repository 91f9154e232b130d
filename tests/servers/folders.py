"""HTTP servers of a folder, which note what they are asked for."""

from __future__ import annotations

import http.server
import io
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any


@dataclass
class Site:
    """What a server was asked for, and which paths it answers with a redirect."""

    url: str = ""
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    redirects: dict[str, str] = field(default_factory=dict)

    @property
    def headers(self) -> set[str]:
        """Names of all headers that came."""
        return {name for _, headers in self.asked for name in headers}


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serve files whole or by range; `site` is set in a class derived for each server."""

    site: Site

    def send_head(self) -> Any:
        self.site.asked.append((self.path, dict(self.headers)))
        if (target := self.site.redirects.get(self.path)) is not None:
            self.send_response(302)
            self.send_header("Location", target)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        file = Path(self.translate_path(self.path))
        if wanted is None or not file.is_file():
            return super().send_head()
        data = file.read_bytes()
        part = data[int(wanted[1]) : int(wanted[2]) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {wanted[1]}-{int(wanted[1]) + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        return io.BytesIO(part)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Keep quiet."""


@contextmanager
def serving(folder: Path) -> Iterator[Site]:
    """Serve a folder on this machine."""
    site = Site()
    handler = type("Handler", (_Handler,), {"site": site})
    with answering(partial(handler, directory=folder)) as host:
        site.url = f"http://{host}"
        yield site


@contextmanager
def answering(handler: Any) -> Iterator[str]:
    """Run a server with a handler; gives its host and port. At the end every connection ends, answered or not."""
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
            server.hang_up()


class _Server(http.server.ThreadingHTTPServer):
    """Remembers its connections. A process that was forked meanwhile may hold them too, so closing is not enough."""

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        super().__init__(address, handler)
        self._connections = list[socket.socket]()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, client = super().get_request()
        self._connections.append(connection)
        return connection, client

    def hang_up(self) -> None:
        for connection in (self.socket, *self._connections):
            with suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet of clients that have gone."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)
