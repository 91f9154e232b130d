"""A small server of Azure Blob Storage: the calls that reading and writing blobs take, each with its signature checked.

Azurite, Microsoft's own emulator, comes from npm alone; ``AZURITE_URL=http://127.0.0.1:10000`` runs the tests against
one that is running.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""What all emulators of Azure take: https://learn.microsoft.com/azure/storage/common/storage-use-azurite."""

PAGE = 3
"""Entries that a listing gives at once, so that tests come to the next page."""

_SIGNED = (
    *("Content-Encoding", "Content-Language", "Content-Length", "Content-MD5", "Content-Type", "Date"),
    *("If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range"),
)


def signature(method: str, url: str, headers: Mapping[str, str]) -> str:
    """Sign a request: https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key."""
    lower = {name.lower(): value for name, value in headers.items()}
    parts = urlsplit(url)
    lines = [method]
    for name in _SIGNED:
        value = lower.get(name.lower(), "")
        lines.append("" if name == "Content-Length" and value == "0" else value)
    lines += [f"{name}:{lower[name].strip()}" for name in sorted(lower) if name.startswith("x-ms-")]
    lines.append(f"/{ACCOUNT}{parts.path}")
    lines += [f"{name.lower()}:{value}" for name, value in sorted(parse_qsl(parts.query, keep_blank_values=True))]
    digest = hmac.new(base64.b64decode(KEY), "\n".join(lines).encode(), hashlib.sha256).digest()
    return f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"


def create_container(url: str, name: str) -> None:
    """Make an empty container."""
    target = f"{url}/{ACCOUNT}/{name}?restype=container"
    headers = {
        "x-ms-date": format_datetime(datetime.now(UTC), usegmt=True),
        "x-ms-version": "2021-08-06",
        "Content-Type": "text/plain",
        "Content-Length": "0",
    }
    headers["Authorization"] = signature("PUT", target, headers)
    request = urllib.request.Request(target, data=b"", headers=headers, method="PUT")  # noqa: S310 - our own
    with urllib.request.urlopen(request, timeout=30):  # noqa: S310
        pass


class Blobs:
    """What the server keeps: containers of blobs, each its bytes and tag, and blocks that are no blob yet."""

    def __init__(self) -> None:
        """Keep nothing."""
        self.containers: dict[str, dict[str, tuple[bytes, str]]] = {}
        self.blocks: dict[tuple[str, str], bytes] = {}
        self.tags = 0

    def put(self, container: str, name: str, data: bytes) -> str:
        """Keep a blob, under a new tag."""
        self.tags += 1
        tag = f"0x{self.tags:X}"
        self.containers[container][name] = (data, tag)
        return tag


@contextmanager
def serving_blobs() -> Iterator[str]:
    """Run the server, and give its URL."""
    blobs = Blobs()

    class Handler(_Handler):
        kept = blobs

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    kept: Blobs

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        _, account, container, *rest = unquote(parts.path).split("/", 3)
        name = rest[0] if rest else ""
        # What is sent is signed in the order of its bytes; http.client and hyper keep the path as it is.
        expected = signature(self.command, self.path, dict(self.headers))
        if account != ACCOUNT or not hmac.compare_digest(self.headers.get("Authorization", ""), expected):
            self._fail(403, "AuthenticationFailed")
        elif query.get("restype") == "container" and self.command == "PUT":
            self.kept.containers.setdefault(container, {})
            self._answer(201)
        elif container not in self.kept.containers:
            self._fail(404, "ContainerNotFound")
        elif query.get("comp") == "list":
            self._list(container, query)
        elif self.command == "PUT":
            self._put(container, name, query, body)
        else:
            self._get(container, name)

    def _put(self, container: str, name: str, query: Mapping[str, str], body: bytes) -> None:
        if query.get("comp") == "block":
            self.kept.blocks[name, query["blockid"]] = body
            self._answer(201)
            return
        if query.get("comp") == "blocklist":
            ids = [piece.partition("</")[0] for piece in body.decode().split("<Uncommitted>")[1:]]
            body = b"".join(self.kept.blocks.pop((name, each)) for each in ids)
        self._answer(201, {"ETag": f'"{self.kept.put(container, name, body)}"'})

    def _get(self, container: str, name: str) -> None:
        found = self.kept.containers[container].get(name)
        if found is None:
            self._fail(404, "BlobNotFound")
            return
        data, tag = found
        if self.headers.get("If-Match") not in {None, f'"{tag}"'}:
            self._fail(412, "ConditionNotMet")
            return
        headers = {"ETag": f'"{tag}"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "x-ms-blob-type": "BlockBlob"}
        asked = (self.headers.get("x-ms-range") or self.headers.get("Range") or "").removeprefix("bytes=")
        if not asked:
            self._answer(200, headers, data)
            return
        start, _, last = asked.partition("-")
        part = data[int(start) : int(last) + 1 if last else None]
        headers["Content-Range"] = f"bytes {start}-{int(start) + len(part) - 1}/{len(data)}"
        self._answer(206, headers, part)

    def _list(self, container: str, query: Mapping[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        entries: dict[str, str] = {}
        for name, (data, tag) in self.kept.containers[container].items():
            if not name.startswith(prefix):
                continue
            folder, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if found:
                entries[prefix + folder] = f"<BlobPrefix><Name>{escape(prefix + folder + found)}</Name></BlobPrefix>"
                continue
            entries[name] = (
                f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT"
                f"</Last-Modified><Etag>{tag}</Etag><Content-Length>{len(data)}</Content-Length>"
                "<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
            )
        names = [name for name in sorted(entries) if name >= query.get("marker", "")]
        after = names[PAGE] if len(names) > PAGE else ""
        listed = "".join(entries[name] for name in names[:PAGE])
        text = (
            '<?xml version="1.0" encoding="utf-8"?>'
            f'<EnumerationResults ContainerName="{container}"><Blobs>{listed}</Blobs>'
            f"<NextMarker>{escape(after)}</NextMarker></EnumerationResults>"
        )
        self._answer(200, {"Content-Type": "application/xml"}, text.encode())

    def _fail(self, status: int, code: str) -> None:
        self._answer(status, {"Content-Type": "application/xml"}, f"<Error><Code>{code}</Code></Error>".encode())

    def _answer(self, status: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = _serve  # noqa: N815 - so the base class calls them

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


__all__ = ["ACCOUNT", "KEY", "create_container", "serving_blobs"]
