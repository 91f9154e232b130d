"""A gate before an S3 server, which lets nobody pass who signs with a key that has ended."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_ENDED = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>ExpiredToken</Code>'
    b"<Message>The provided token has expired.</Message></Error>"
)
_OWN_HEADERS = {"connection", "content-length", "date", "server", "transfer-encoding"}


@dataclass
class Gate:
    """A gate that is open.

    Args:
        url: where to knock.
        ended: access keys that are refused.
        refused: requests that were, so far.
    """

    url: str = ""
    ended: set[str] = field(default_factory=set)
    refused: int = 0


@contextmanager
def gate_before(url: str) -> Iterator[Gate]:
    """Stand before a server.

    Args:
        url: the server's.
    """
    gate, target = Gate(), urlsplit(url).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            signed = self.headers.get("Authorization", "")
            if any(f"Credential={key}/" in signed for key in gate.ended):
                gate.refused += 1
                self._answer(403, [("Content-Type", "application/xml")], _ENDED)
                return
            server = http.client.HTTPConnection(target, timeout=30)
            try:
                server.request(self.command, self.path, body, dict(self.headers))
                reply = server.getresponse()
                self._answer(reply.status, reply.getheaders(), reply.read())
            finally:
                server.close()

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response(status)
            length = next((value for name, value in headers if name.lower() == "content-length"), str(len(body)))
            for name, value in headers:
                if name.lower() not in _OWN_HEADERS:
                    self.send_header(name, value)
            head = self.command == "HEAD"
            self.send_header("Content-Length", length if head and status == 200 else str(len(body)))
            self.end_headers()
            if not head:
                self.wfile.write(body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass  # noqa: N815 - so the base class calls them

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    gate.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield gate
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


__all__ = ["Gate", "gate_before"]
