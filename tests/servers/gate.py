"""A gate before an S3 server, which lets nobody pass who signs with a key that has ended."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

FORBIDDEN = (403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.")
EXPIRED = (400, "ExpiredToken", "The provided token has expired.")
"""How S3 refuses, as status, code and message: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html"""

_OWN_HEADERS = {"connection", "content-length", "date", "server", "transfer-encoding"}


@dataclass
class Gate:
    """A gate that is open.

    Args:
        url: where to knock.
        ended: access keys that are refused.
        ending: a key that will be, when so many more requests for Parquet files came with it.
        refusal: how.
        when_refused: is called before a request is refused.
        refused: requests that were, so far.
        passed: requests that were let through to the server.
        keys: access keys that requests were signed with.
        tunnels: hosts and ports that a client asked it, as its proxy, to connect to; it never does.
    """

    url: str = ""
    ended: set[str] = field(default_factory=set)
    ending: tuple[str, int] | None = None
    refusal: tuple[int, str, str] = FORBIDDEN
    when_refused: Callable[[], object] = lambda: None
    refused: int = 0
    passed: int = 0
    keys: set[str] = field(default_factory=set)
    tunnels: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def refuses(self, signed: str, path: str) -> bool:
        """Say whether a request does not pass, and count it."""
        with self.lock:
            if self.ending is not None and path.endswith(".parquet"):
                key, left = self.ending
                self.ended |= {key} if left == 0 else set()
                self.ending = (key, left - 1) if left else None
            self.keys |= set(re.findall(r"Credential=(\w+)/", signed))
            ended = any(f"Credential={key}/" in signed for key in self.ended)
            self.refused += ended
            self.passed += not ended
            if ended:
                self.when_refused()
            return ended


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
            if gate.refuses(signed, urlsplit(self.path).path):
                status, code, message = gate.refusal
                text = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
                self._answer(status, [("Content-Type", "application/xml")], text.encode())
                return
            server = http.client.HTTPConnection(target, timeout=30)
            try:
                # Who takes the gate for a proxy names the server, too.
                path = self.path[self.path.index("/", len("http://")) :] if "://" in self.path[:8] else self.path
                server.request(self.command, path, body, dict(self.headers))
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

        def do_CONNECT(self) -> None:
            gate.tunnels.append(self.path)
            self.send_error(502)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass  # noqa: N815 - so the base class calls them

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    gate.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield gate
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


__all__ = ["EXPIRED", "FORBIDDEN", "Gate", "gate_before"]
