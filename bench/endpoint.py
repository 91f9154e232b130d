"""A store as far away as one likes: S3's reading half over a folder, with latency and a line of limited speed.

    python -m bench.endpoint FOLDER --latency 15 --each 90 --together 125

The folder is the one bucket, by any name. It answers GET (``Range``, ``If-Match``), HEAD and ListObjectsV2, path style;
signatures are ignored. One thread of asyncio and sendfile(2): the kernel copies, this process decides when.

Requests wait for a latency before their first byte, then bytes flow at the speed of the line: each connection at most
at one rate, all together at most at another, a block at a time, in turn. ``/__stats``, ``/__log``, ``/__reset`` and
``/__conf`` say and change what goes on, without latency.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import email.utils
import json
import math
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

_BLOCK = 128 * 1024
_SLACK = 0.005
"""Seconds of unused line that may be made up for: timers are a millisecond late or two."""
_EARLY = 0.002
"""Seconds that a block may leave early rather than sleep: a timer costs more than a block."""
_MOST_HEAD = 64 * 1024
_LISTED = 1000
_REASONS = {200: "OK", 206: "Partial Content", 404: "Not Found", 412: "Precondition Failed"}
_REASONS |= {416: "Range Not Satisfiable", 501: "Not Implemented"}


@dataclass
class Conditions:
    """How far away the store is.

    Args:
        latency: median milliseconds from a request to its first byte.
        sigma: of the lognormal distribution around it; at 0.99 one request in a hundred takes ten times as long.
        each: MB/s of a connection; 0 for no limit.
        together: MB/s of all connections; 0 for no limit.
    """

    latency: float = 0.0
    sigma: float = 0.0
    each: float = 0.0
    together: float = 0.0

    def wait(self) -> float:
        """Draw the seconds until a request's first byte."""
        return self.latency / 1000 * math.exp(random.gauss(0, self.sigma))


@dataclass(slots=True)
class Request:
    """What was asked for, and when; times are seconds since the last reset.

    Args:
        method: "GET", "HEAD" or "LIST".
        key: of the object, or the prefix of a listing.
        start: the first byte that was sent of the object.
        stop: the byte after the last.
        began: when the request had come.
        status: of the answer.
        ended: when the last byte had left; 0 before that.
    """

    method: str
    key: str
    start: int
    stop: int
    began: float
    status: int = 200
    ended: float = 0.0


@dataclass
class Counters:
    """What was served since the last reset."""

    requests: dict[str, int] = field(default_factory=lambda: {"GET": 0, "HEAD": 0, "LIST": 0})
    bytes: int = 0
    most_in_flight: int = 0
    connections: int = 0
    log: list[Request] = field(default_factory=list)
    since: float = field(default_factory=time.monotonic)
    cpu_since: float = field(default_factory=time.process_time)


class Pace:
    """When the next block may leave, at a rate: a bucket of tokens, kept as the time at which it is full."""

    def __init__(self) -> None:
        """Start with a free line."""
        self._free = 0.0

    async def turn(self, num_bytes: int, rate: float) -> None:
        """Reserve the line for a block, and wait until it is free."""
        if not rate:
            return
        now = time.monotonic()
        start = max(self._free, now - _SLACK)
        self._free = start + num_bytes / (rate * 1e6)
        if start - now > _EARLY:
            await asyncio.sleep(start - now)


class BadRequestError(Exception):
    """What a client sent is no request."""


class Answer(Exception):  # noqa: N818 it is an answer
    """An answer without an object.

    Args:
        status: of HTTP.
        body: XML or JSON.
    """

    def __init__(self, status: int, body: str = "") -> None:
        """Keep both."""
        super().__init__(status)
        self.status, self.body = status, body.encode()


class Server:
    """Serves a folder."""

    def __init__(self, folder: Path, conditions: Conditions) -> None:
        """Remember both; `serve` begins."""
        self._folder, self._conditions = folder.resolve(), conditions
        self._line, self._counters, self._in_flight = Pace(), Counters(), 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, port: int) -> None:
        """Accept connections for ever, and print the port first."""
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        listener.setblocking(False)
        print(listener.getsockname()[1], flush=True)
        while True:
            client, _ = await loop.sock_accept(listener)
            client.setblocking(False)
            task = loop.create_task(self._connection(client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connection(self, client: socket.socket) -> None:
        self._counters.connections += 1
        pace, received = Pace(), b""
        gone = (ConnectionError, asyncio.SendfileNotAvailableError)  # the latter where not a byte was taken
        with client, contextlib.suppress(*gone, BadRequestError):
            while True:
                head, received = await _head_of_request(client, received)
                if not head:
                    return
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)  # the head leaves with the first block
                await self._answer(client, head, pace)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
                if "close" in _headers(head).get("connection", ""):
                    return

    async def _answer(self, client: socket.socket, head: str, pace: Pace) -> None:
        method, target, _ = head.split("\r\n", 1)[0].split(" ", 2)
        url = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        if url.path.startswith("/__"):
            await _send(client, 200, self._control(url.path[3:], query).encode(), "application/json")
            return
        _, key = (*unquote(url.path).lstrip("/").split("/", 1), "")[:2]
        kind = "LIST" if method == "GET" and not key else method
        counters = self._counters
        request = Request(kind, key or query.get("prefix", ""), 0, 0, time.monotonic() - counters.since)
        counters.log.append(request)
        counters.requests[kind] = counters.requests.get(kind, 0) + 1
        self._in_flight += 1
        counters.most_in_flight = max(counters.most_in_flight, self._in_flight)
        try:
            if self._conditions.latency:
                await asyncio.sleep(self._conditions.wait())
            if kind == "LIST":
                raise Answer(200, _listing(self._folder, query))  # noqa: TRY301
            await self._object(client, request, _headers(head), pace)
        except Answer as answer:
            request.status = answer.status
            await _send(client, answer.status, b"" if method == "HEAD" else answer.body)
        finally:
            request.ended = time.monotonic() - counters.since
            self._in_flight -= 1

    async def _object(self, client: socket.socket, request: Request, headers: Mapping[str, str], pace: Pace) -> None:
        if request.method not in {"GET", "HEAD"}:
            raise Answer(501, _error("NotImplemented", "this endpoint is read from alone"))
        if not request.key:  # HEAD of the bucket
            raise Answer(200)
        with _open(self._folder, request.key) as file:
            about = os.fstat(file.fileno())
            tag = _tag(about.st_size, about.st_mtime_ns)
            if headers.get("if-match", tag) not in {tag, tag.strip('"'), "*"}:
                raise Answer(412, _error("PreconditionFailed", "the object has another ETag"))
            request.status, (start, stop) = _part(headers.get("range"), about.st_size)
            more = {
                "Content-Length": str(stop - start),
                "ETag": tag,
                "Last-Modified": email.utils.formatdate(about.st_mtime, usegmt=True),
                "Accept-Ranges": "bytes",
            }
            if request.status == 206:
                more["Content-Range"] = f"bytes {start}-{stop - 1}/{about.st_size}"
            await _send(client, request.status, None, "application/octet-stream", more)
            if request.method == "GET":
                request.start, request.stop = start, stop
                await self._flow(client, file, request, pace)

    async def _flow(self, client: socket.socket, file: IO[bytes], request: Request, pace: Pace) -> None:
        loop, conditions, counters = asyncio.get_running_loop(), self._conditions, self._counters
        for start in range(request.start, request.stop, _BLOCK):
            size = min(_BLOCK, request.stop - start)
            await pace.turn(size, conditions.each)
            await self._line.turn(size, conditions.together)
            await loop.sock_sendfile(client, file, start, size, fallback=False)
            counters.bytes += size

    def _control(self, what: str, query: Mapping[str, str]) -> str:
        if what == "conf":
            for name, value in query.items():
                setattr(self._conditions, name, float(value))
        if what == "log":
            return json.dumps([asdict(request) for request in self._counters.log])
        if what in {"reset", "conf"}:
            self._counters = Counters(most_in_flight=self._in_flight)
        counters = self._counters
        told = {name: getattr(counters, name) for name in ("requests", "bytes", "most_in_flight", "connections")}
        seconds = {
            "seconds": time.monotonic() - counters.since,
            "cpu_seconds": time.process_time() - counters.cpu_since,
        }
        return json.dumps(told | seconds | {"in_flight": self._in_flight, "conditions": asdict(self._conditions)})


async def _head_of_request(client: socket.socket, received: bytes) -> tuple[str, bytes]:
    """Receive the lines of a request, "" where there is none; what came behind them is the next one's."""
    loop = asyncio.get_running_loop()
    while b"\r\n\r\n" not in received:
        more = await loop.sock_recv(client, _MOST_HEAD)
        if not more:
            return "", b""
        received += more
        if len(received) > _MOST_HEAD:
            raise BadRequestError
    head, _, rest = received.partition(b"\r\n\r\n")
    return head.decode("latin-1"), rest


def _headers(head: str) -> dict[str, str]:
    lines = (line.partition(":") for line in head.split("\r\n")[1:])
    return {name.strip().lower(): value.strip() for name, _, value in lines}


async def _send(
    client: socket.socket,
    status: int,
    body: bytes | None,
    kind: str = "application/xml",
    more: Mapping[str, str] | None = None,
) -> None:
    """Send a head, and a body if there is one; where it is None the caller's follows, whose length `more` has."""
    headers = {"Content-Type": kind, "Server": "bench", "Date": email.utils.formatdate(usegmt=True)}
    headers |= {"Content-Length": str(len(body))} if body is not None else {}
    lines = (f"{name}: {value}" for name, value in (headers | dict(more or {})).items())
    head = "\r\n".join((f"HTTP/1.1 {status} {_REASONS[status]}", *lines, "", ""))
    await asyncio.get_running_loop().sock_sendall(client, head.encode("latin-1") + (body or b""))


def _open(folder: Path, key: str) -> IO[bytes]:
    path = f"{folder}/{key}"
    if ".." in key.split("/") or not os.path.isfile(path):  # noqa: PTH113 a Path costs more than all the rest
        raise Answer(404, _error("NoSuchKey", "there is no such object"))
    return open(path, "rb", buffering=0)  # noqa: PTH123


def _part(asked: str | None, size: int) -> tuple[int, tuple[int, int]]:
    """Give the status and the bytes that a ``Range`` header means of an object of some size."""
    if asked is None or not asked.startswith("bytes=") or "," in asked:
        return 200, (0, size)
    first, _, last = asked.removeprefix("bytes=").partition("-")
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= stop:
        raise Answer(416, _error("InvalidRange", "the range is not satisfiable"))
    return 206, (start, stop)


def _tag(size: int, changed: int) -> str:
    return f'"{size:x}-{changed:x}"'


def _listing(folder: Path, query: Mapping[str, str]) -> str:
    """Write a page of ListObjectsV2."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = max(query.get("continuation-token", ""), query.get("start-after", ""))
    most = min(int(query.get("max-keys", _LISTED)), _LISTED)
    entries: list[str] = []
    last, cut, common = "", False, ""
    for key, path in _keys(folder, prefix):
        if key <= after or (common and key.startswith(common)):
            continue
        if cut := len(entries) == most:
            break
        inner, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        common = f"{prefix}{inner}{delimiter}" if found else ""
        entries.append(
            f"<CommonPrefixes><Prefix>{escape(common)}</Prefix></CommonPrefixes>" if found else _entry(key, path)
        )
        last = f"{common}\U0010ffff" if found else key  # behind all that the prefix stands for
    token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if cut else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>'
        f"<Prefix>{escape(prefix)}</Prefix><MaxKeys>{most}</MaxKeys><KeyCount>{len(entries)}</KeyCount>"
        f"<IsTruncated>{str(cut).lower()}</IsTruncated>{token}{''.join(entries)}</ListBucketResult>"
    )


def _keys(folder: Path, prefix: str) -> list[tuple[str, Path]]:
    base = folder / prefix.rpartition("/")[0]
    files = (path for path in base.rglob("*") if path.is_file()) if base.is_dir() else ()
    named = ((path.relative_to(folder).as_posix(), path) for path in files)
    return sorted((key, path) for key, path in named if key.startswith(prefix))


def _entry(key: str, path: Path) -> str:
    about = path.stat()
    when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(about.st_mtime))
    tag = escape(_tag(about.st_size, about.st_mtime_ns))
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{when}</LastModified><ETag>{tag}</ETag>"
        f"<Size>{about.st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


def _error(code: str, message: str) -> str:
    return f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server that runs in a process apart.

    Args:
        url: where it listens.
    """

    url: str

    def ask(self, what: str, **conditions: float) -> Any:
        """Ask for "stats" or "log", or "reset" both, or set the fields of `Conditions` by "conf"."""
        with urllib.request.urlopen(f"{self.url}/__{what}?{urlencode(conditions)}") as answer:  # noqa: S310
            return json.load(answer)


@contextlib.contextmanager
def endpoint(folder: Path) -> Iterator[Endpoint]:
    """Serve a folder from a process apart until the block ends."""
    command = [sys.executable, "-m", "bench.endpoint", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as process:
        try:
            assert process.stdout is not None  # noqa: S101 it was asked for
            yield Endpoint(f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.terminate()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0, help="0, the default, takes a free one, which is printed")
    parser.add_argument("--latency", type=float, default=0.0, help="milliseconds to the first byte, in the median")
    parser.add_argument("--sigma", type=float, default=0.0, help="of its lognormal tail; 0.99 is p99 = 10 x median")
    parser.add_argument("--each", type=float, default=0.0, help="MB/s of a connection; 0, the default, for any")
    parser.add_argument("--together", type=float, default=0.0, help="MB/s of all connections; 0, the default, for any")
    options = parser.parse_args()
    conditions = Conditions(options.latency, options.sigma, options.each, options.together)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Server(options.folder, conditions).serve(options.port))


if __name__ == "__main__":
    main()
