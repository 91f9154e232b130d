"""An S3 server of our own: moto, started for the session on a free port and stopped after it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

ACCESS_KEY = "AKIAEXAMPLEEXAMPLE"
SECRET_KEY = "not/a+real/secret"  # noqa: S105 - moto takes any


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_it_answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"moto_server ended with {process.returncode}: {log.read_text()}")
        try:
            with urllib.request.urlopen(f"{url}/moto-api/data.json", timeout=5):  # noqa: S310 - our own
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.05)
    raise RuntimeError(f"moto_server did not answer within a minute: {log.read_text()}")


@pytest.fixture(scope="session")
def moto_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the endpoint of a running moto server."""
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    log = tmp_path_factory.mktemp("moto") / "server.log"
    command = [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            _wait_until_it_answers(url, process, log)
            yield url
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def s3_options(moto_url: str) -> dict[str, Any]:
    """Give the storage_options that reach the server, as s3fs names them."""
    return {
        "key": ACCESS_KEY,
        "secret": SECRET_KEY,
        "endpoint_url": moto_url,
        "client_kwargs": {"region_name": "us-east-1"},
    }


@pytest.fixture
def s3_client(moto_url: str) -> Any:
    """Give a boto3 client: the side that writes in tests."""
    return boto3.client(
        "s3",
        endpoint_url=moto_url,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
    )


@pytest.fixture
def bucket(s3_client: Any, request: pytest.FixtureRequest) -> str:
    """Make an empty bucket that is named after the test."""
    name = f"b{abs(hash(request.node.nodeid)):x}"
    s3_client.create_bucket(Bucket=name)
    return name
