"""A store that fails on purpose: a folder behind S3's and plain HTTP's words, in a process apart."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
import re
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"

LISTINGS = ("error", "no xml", "page", "unasked", "cut", "same token", "same keys", "endless")
"""An error, a text, or a web page in place of the listing; keys that nobody asked for; a part of it, as all; the same
token, or the same keys, for ever; ever new keys."""

_BODIES = {
    "error": b"<?xml version='1.0'?><Error><Code>InternalOops</Code><Message>no</Message></Error>",
    "no xml": b"welcome",
    "page": b"<html><body>welcome</body></html>",
}
_NAMES = {429: "TooManyRequests", 500: "InternalError", 503: "SlowDown"}


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong.

    Args:
        kinds: of those requests; a status, "reset" (in the middle of the body), "truncated" (the body ends before
            its announced length), "short" (fewer bytes than the range, and announced so), "hang" (no answer),
            "ignored" (the whole body instead of the range), "flipped" (one bit of the byte at `place`); or one of
            `LISTINGS`, for a LIST.
        share: of the requests that fail.
        after: requests that could fail and do not, before the first that does.
        methods: which requests fail: GET, HEAD, LIST, PUT.
        suffix: what the paths of those end with.
        seconds: for how long after the first request that fails; None: until further notice.
        gone: seconds for which nothing listens, after the first request, which is reset.
        place: of the byte in the file of which a bit is flipped.
        ignores: headers of requests that the store takes no notice of, in lower case.
        page: the most keys of a page of a listing.
        tag: how answers about one object write its tag; empty: without one.
    """

    kinds: tuple[str, ...] = ()
    share: float = 1.0
    after: int = 0
    methods: tuple[str, ...] = ("GET", "HEAD", "LIST")
    suffix: str = ""
    seconds: float | None = None
    gone: float = 0.0
    place: int = 0
    ignores: tuple[str, ...] = ()
    page: int = 1000
    tag: str = '"{}"'


@dataclass
class FaultyStore:
    """A store that runs.

    Args:
        url: its address.
        folder: what it serves.
    """

    url: str
    folder: Path = Path()

    @property
    def options(self) -> dict[str, Any]:
        """The storage options that reach it by S3's protocol."""
        return {"key": "AKIAFAULTS", "secret": "faulty/secret", "endpoint_url": self.url, "region": "us-east-1"}

    def fail(self, *kinds: str, **faults: Any) -> None:
        """Let requests fail from now on; see `Faults`. Counters begin anew."""
        body = json.dumps(asdict(Faults(kinds, **faults))).encode()
        urllib.request.urlopen(f"{self.url}/__faults", data=body, timeout=60).close()  # noqa: S310 - our own

    def seen(self) -> dict[str, int]:
        """Count the requests since, by method, and those that failed as "faults"."""
        with urllib.request.urlopen(f"{self.url}/__seen", timeout=60) as answer:  # noqa: S310 - our own
            counts: dict[str, int] = json.load(answer)
        return counts


@contextmanager
def serving_faults(folder: Path) -> Iterator[FaultyStore]:
    """Serve a folder as the bucket "bucket".

    Args:
        folder: what it holds; may be written to meanwhile.
    """
    command = [sys.executable, "-m", "tests.servers.faults", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        assert server.stdout is not None
        yield FaultyStore(f"http://127.0.0.1:{int(server.stdout.readline())}", folder)
    finally:
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()


class _Request(NamedTuple):
    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str] = {}
    body: bytes = b""


@dataclass
class _Server:
    folder: Path
    faults: Faults = field(default_factory=Faults)
    since: float | None = None
    """When the first request failed; None before."""
    passed: int = 0
    """Requests so far that could fail."""
    counts: dict[str, int] = field(default_factory=dict)
    random: random.Random = field(default_factory=lambda: random.Random(7))
    open: set[asyncio.StreamWriter] = field(default_factory=set)
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while nobody is there: connections that were just accepted are not served either."""

    async def run(self) -> None:
        with socket.socket() as place:  # bound and never listening, so that nobody else gets the port meanwhile
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind(("127.0.0.1", 0))
            port = place.getsockname()[1]
            server = await asyncio.start_server(self._connection, "127.0.0.1", port)
            print(port, flush=True)
            while True:
                await self.leaving.wait()
                server.close()
                for writer in list(self.open):
                    _reset(writer)
                await asyncio.sleep(self.faults.gone)
                self.leaving.clear()
                server = await asyncio.start_server(self._connection, "127.0.0.1", port)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while (request := await _read_request(reader, writer)) is not None:
                if self.leaving.is_set() or not await self._serve(request, writer):
                    break
        if self.leaving.is_set():
            _reset(writer)
        self.open.discard(writer)
        writer.close()

    async def _serve(self, request: _Request, writer: asyncio.StreamWriter) -> bool:
        """Answer a request; return whether the connection goes on."""
        if request.path.startswith("/__"):
            await _write(writer, request, self._control(request))
            return True
        method = "LIST" if "list-type" in request.query else request.method
        self.counts[method] = self.counts.get(method, 0) + 1
        if self.faults.gone and self.since is None:
            self._count_fault()
            self.leaving.set()
            return False
        kind = self._fault(method, request.path)
        heeded = {name: value for name, value in request.headers.items() if name not in self.faults.ignores}
        request = request._replace(headers=heeded)
        answer = self._answer(request)
        if kind is None or answer.status >= 300:
            await _write(writer, request, answer)
            return True
        self._count_fault()
        return await self._spoil(kind, request, answer, writer)

    def _count_fault(self) -> None:
        """Count a request that fails. Time counts from the first one: under load it may come late."""
        if self.since is None:
            self.since = time.monotonic()
        self.counts["faults"] = self.counts.get("faults", 0) + 1

    def _fault(self, method: str, path: str) -> str | None:
        faults = self.faults
        lasts = faults.seconds is None or self.since is None or time.monotonic() - self.since <= faults.seconds
        meant = method in faults.methods and path.endswith(faults.suffix)
        if not lasts or not meant or not faults.kinds:
            return None
        self.passed += 1
        if self.passed <= faults.after:
            return None
        first = "faults" not in self.counts  # so that few requests meet one, too
        if not first and self.random.random() >= faults.share:
            return None
        return self.random.choice(faults.kinds)

    async def _spoil(self, kind: str, request: _Request, answer: _Answer, writer: asyncio.StreamWriter) -> bool:
        if kind.isdecimal():
            code = _NAMES[int(kind)]
            text = f"<Error><Code>{code}</Code><Message>Please reduce your request rate.</Message></Error>"
            await _write(writer, request, _Answer(int(kind), {"Content-Type": "application/xml"}, text.encode()))
            return True
        if kind == "hang":
            await asyncio.sleep(3600)
        if kind in LISTINGS:
            await _write(writer, request, self._lying(kind, request, answer))
            return True
        if kind == "ignored":
            await _write(writer, request, self._answer(request._replace(headers={})))
            return True
        if kind == "flipped":
            start = int(answer.headers.get("Content-Range", "bytes 0").split()[1].partition("-")[0])
            body, at = bytearray(answer.body), self.faults.place - start
            if 0 <= at < len(body):
                body[at] ^= 4
            await _write(writer, request, answer._replace(body=bytes(body)))
            return True
        if kind == "short":
            cut = len(answer.body) // 2 if answer.status == 206 else None
            await _write(writer, request, answer._replace(body=answer.body[:cut]))
            return True
        await _write(writer, request, answer, cut=len(answer.body) // 2)
        if kind == "reset":
            _reset(writer)
        return False

    def _lying(self, kind: str, request: _Request, answer: _Answer) -> _Answer:
        number = self.counts["faults"]
        if kind in _BODIES:
            return answer._replace(body=_BODIES[kind])
        if kind == "unasked":
            return self._listing(request._replace(query={**request.query, "prefix": [""]}))
        text = answer.body.decode().replace("<IsTruncated>false", "<IsTruncated>true")
        text = re.sub("<NextContinuationToken>.*?</NextContinuationToken>", "", text)
        if kind == "cut":
            return answer._replace(body=text.encode())
        token = "same" if kind == "same token" else f"token-{number}"
        if kind in {"endless", "same token"}:
            text = text.replace(".parquet</Key>", f".{number}.parquet</Key>")
        text = text.replace(
            "</ListBucketResult>", f"<NextContinuationToken>{token}</NextContinuationToken></ListBucketResult>"
        )
        return answer._replace(body=text.encode())

    def _control(self, request: _Request) -> _Answer:
        if request.path == "/__faults":
            given = json.loads(request.body)
            chosen: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
            self.faults = Faults(**chosen)
            self.since, self.passed, self.counts = None, 0, {}
        return _Answer(200, {}, json.dumps(self.counts).encode())

    def _answer(self, request: _Request) -> _Answer:
        bucket, _, key = request.path.lstrip("/").partition("/")
        path = self.folder / key
        if bucket != BUCKET or (key and request.method != "PUT" and not path.is_file()):
            return _Answer(404, {}, b"<Error><Code>NoSuchKey</Code><Message>no</Message></Error>")
        if not key:
            return _Answer(200) if request.method == "HEAD" else self._listing(request)
        if request.method == "PUT":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(request.body)
        data = path.read_bytes()
        tag = self.faults.tag.format(_etag(data))
        headers = {
            **({"ETag": tag} if tag else {}),
            "Last-Modified": formatdate(path.stat().st_mtime, usegmt=True),
            "Content-Type": "application/octet-stream",
            "Accept-Ranges": "bytes",
        }
        if request.method == "PUT":
            return _Answer(200, headers)
        if request.headers.get("if-match", _etag(data)).strip('"') != _etag(data):
            return _Answer(412, {}, b"<Error><Code>PreconditionFailed</Code><Message>no</Message></Error>")
        if "range" not in request.headers:
            return _Answer(200, headers, data)
        return _part(request.headers["range"], headers, data)

    def _listing(self, request: _Request) -> _Answer:
        prefix = request.query.get("prefix", [""])[0]
        delimiter = request.query.get("delimiter", [""])[0]
        most = min(self.faults.page, int(request.query.get("max-keys", ["1000"])[0]))
        after = request.query.get("continuation-token", [""])[0]
        entries, folders = [], set()
        for path in sorted(self.folder.rglob("*")):
            key = path.relative_to(self.folder).as_posix()
            if not path.is_file() or not key.startswith(prefix):
                continue
            inner, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if found:
                folders.add(f"{prefix}{inner}{delimiter}")
                continue
            data = path.read_bytes()
            time_text = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(path.stat().st_mtime))
            entries.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{time_text}</LastModified>"
                f"<ETag>&quot;{_etag(data)}&quot;</ETag><Size>{len(data)}</Size></Contents>"
            )
        if delimiter:
            entries += [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders)]
        first = int(after) if after.isdecimal() else 0
        last = first + most >= len(entries)
        entries = entries[first : first + most]
        token = "" if last else f"<NextContinuationToken>{first + most}</NextContinuationToken>"
        text = (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(entries)}</KeyCount>"
            f"<MaxKeys>{most}</MaxKeys><IsTruncated>{'false' if last else 'true'}</IsTruncated>{''.join(entries)}"
            f"{token}</ListBucketResult>"
        )
        return _Answer(200, {"Content-Type": "application/xml"}, text.encode())


def _part(span: str, headers: Mapping[str, str], data: bytes) -> _Answer:
    first, _, last = span.removeprefix("bytes=").partition("-")
    start = int(first) if first else max(0, len(data) - int(last))
    stop = min(len(data), int(last) + 1) if first and last else len(data)
    if start >= len(data):
        return _Answer(416, {"Content-Range": f"bytes */{len(data)}"})
    return _Answer(206, {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}, data[start:stop])


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _reset(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    if raw is not None and raw.fileno() >= 0:  # its client may have closed it by now
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    pairs = (line.partition(":") for line in lines if ":" in line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if "expect" in headers:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    parts = urlsplit(target)
    return _Request(method, unquote(parts.path), parse_qs(parts.query, keep_blank_values=True), headers, body)


async def _write(writer: asyncio.StreamWriter, request: _Request, answer: _Answer, cut: int | None = None) -> None:
    lines = [f"HTTP/1.1 {answer.status} Answer", f"Content-Length: {len(answer.body)}"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
    if request.method != "HEAD":
        writer.write(answer.body[:cut])
    await writer.drain()


if __name__ == "__main__":
    asyncio.run(_Server(Path(sys.argv[1])).run())
