"""An S3 server of our own: moto, started for the session on a free port and stopped after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import boto3
import pytest

from demo.moto import serving_moto
from torch_table_loader.testing import small_sizes

ACCESS_KEY = "AKIAEXAMPLEEXAMPLE"
SECRET_KEY = "not/a+real/secret"  # noqa: S105 - moto takes any


@pytest.fixture(autouse=True)
def short_waits(request: pytest.FixtureRequest) -> Iterator[None]:
    """Wait little between tries, but under `usual_waits`: how long a loader waits is a law of tests/rooms."""
    usual = "usual_waits" in request.fixturenames
    with nullcontext() if usual else small_sizes(first_wait_s=0.02, longest_wait_s=0.1):
        yield


@pytest.fixture
def usual_waits() -> None:
    """Leave the waits between tries as they are."""


@pytest.fixture(scope="session")
def moto_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the endpoint of a running moto server."""
    with serving_moto(tmp_path_factory.mktemp("moto") / "server.log") as url:
        yield url


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
