"""Answers of a store, or none: each becomes the right error, which names the file and shows no more than needed."""

from __future__ import annotations

import http.server
import re
import socket
import threading
import traceback
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from obstore.exceptions import GenericError

from tests.servers.folders import answering
from torch_table_loader.errors import AccessRefusedError, StorageError, StorageTimeoutError, TableError
from torch_table_loader.extend import FileStorage, open_storage
from torch_table_loader.records import FileVersion

HEAD = 'Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nETag: "a"\r\nConnection: close\r\n'
PART = f"HTTP/1.1 206 Partial Content\r\n{HEAD}Content-Range: bytes 0-7/100\r\nContent-Length: 8\r\n\r\n"
DENIED = (
    "<?xml version='1.0'?>\n<Error><Code>SignatureDoesNotMatch</Code><Message>differs</Message>"
    "<AWSAccessKeyId>AKIAHUNTER2</AWSAccessKeyId><StringToSign>hunter2</StringToSign></Error>"
)


class Server:
    """Answers each request with the same bytes, or stays silent after them."""

    def __init__(self) -> None:
        self.answer = ""
        self.silent = False
        self.asked = 0
        self.kept: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:  # closed
                return
            connection.recv(1 << 16)
            self.asked += 1
            connection.sendall(self.answer.encode())
            if self.silent:
                self.kept.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        for each in (self.listener, *self.kept):
            each.close()


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.close()


def storage(server: Server) -> FileStorage:
    options = {"endpoint_url": server.url, "key": "AKIAHUNTER2", "secret": "hunter2hunter2", "region": "us-east-1"}
    found, _ = open_storage("s3://bucket/a", {**options, "request_timeout": 0.2, "retry_seconds": 0})
    return found


@pytest.mark.parametrize("answer", ["", PART, f"{PART}abc"])
def test_silence_is_a_timeout(server: Server, answer: str) -> None:
    server.answer, server.silent = answer, True
    with pytest.raises(StorageTimeoutError, match="s3://bucket/a: the store did not answer in time"):
        storage(server).read_range("bucket/a", 0, 8)


@pytest.mark.parametrize(
    "answer",
    [
        f"{PART}abc",
        f"HTTP/1.1 200 OK\r\n{HEAD}Content-Length: 8\r\n\r\nabcdefgh",
        PART.replace("0-7", "4-11") + "abcdefgh",
        PART.replace("0-7", "0-3").replace("Length: 8", "Length: 4") + "abcd",
        f"HTTP/1.1 503 Slow Down\r\n{HEAD}Content-Length: 0\r\n\r\n",
        "",
    ],
    ids=["torn", "whole", "other range", "short", "busy", "closed"],
)
def test_a_response_of_the_wrong_length_is_an_error(server: Server, answer: str) -> None:
    server.answer = answer
    with pytest.raises(StorageError, match="s3://bucket/a: the request to the store failed"):
        storage(server).read_range("bucket/a", 0, 8)


def test_a_refusal_reports_its_code_without_the_keys(server: Server) -> None:
    server.answer = f"HTTP/1.1 403 Forbidden\r\n{HEAD}Content-Length: {len(DENIED)}\r\n\r\n{DENIED}"
    with pytest.raises(AccessRefusedError, match=r"403 Forbidden: SignatureDoesNotMatch\)") as caught:
        storage(server).read_range("bucket/a", 0, 8)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value)).lower()


@pytest.mark.parametrize("answer", [f"HTTP/1.1 500 Oops\r\n{HEAD}Content-Length: 0\r\n\r\n", f"{PART}abc", ""])
def test_obstore_itself_does_not_retry(server: Server, answer: str) -> None:
    server.answer = answer
    with pytest.raises(GenericError):
        storage(server)._connection("bucket/a").client.read_range("bucket/a", 0, 8, None)
    assert server.asked == 1


def test_an_answer_with_the_tag_of_another_version_is_an_error(server: Server) -> None:
    server.answer = f"{PART}abcdefgh"
    assert bytes(storage(server).read_range("bucket/a", 0, 8, FileVersion(100, etag="a"))) == b"abcdefgh"
    with pytest.raises(TableError, match="changed while it was in use: etag was 'b' and is 'a'"):
        storage(server).read_range("bucket/a", 0, 8, FileVersion(100, etag="b"))


class _Signed(http.server.BaseHTTPRequestHandler):
    """Answers with what a request was for, if it is signed as S3 asks."""

    host = ""

    def do_GET(self) -> None:
        url = self.path if "://" in self.path else f"http://{self.headers['Host']}{self.path}"
        signed = {
            name: self.headers[name]
            for name in re.search("SignedHeaders=([^,]*)", self.headers["Authorization"])[1].split(";")  # type: ignore[index]
        }
        request = AWSRequest(self.command, url, headers=signed)
        request.context["timestamp"] = self.headers["x-amz-date"]
        login: Any = Credentials("K", "S")
        signer = S3SigV4Auth(login, "s3", "us-east-1")
        expected = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
        body = url.encode() if expected in self.headers["Authorization"] else b"the signature differs"
        self.send_response(200)
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Keep quiet."""


@pytest.mark.parametrize("virtual", [False, True])
@pytest.mark.parametrize("key", ["t/a b.parquet", "t//a b.parquet", "/a", "w h+//é=1/~x//a%20b.parquet", "t///a"])
def test_a_key_is_asked_for_as_it_is(key: str, virtual: bool) -> None:
    with answering(_Signed) as host:
        options = {"key": "K", "secret": "S", "region": "us-east-1", "retry_seconds": 0}
        options |= {"endpoint_url": "http://s3.test", "proxy_url": f"http://{host}"}
        options |= {"virtual_hosted_style_request": virtual}
        storage, path = open_storage(f"s3://lake/{key}", options)
        address = "http://lake.s3.test/" if virtual else "http://s3.test/lake/"
        assert storage.read_bytes(path).decode() == address + quote(key)
