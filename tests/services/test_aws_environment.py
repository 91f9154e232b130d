"""S3 with nothing but the environment and ~/.aws: endpoints and proxies count as for AWS's own clients."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import botocore.session
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.servers.gate import Gate, gate_before
from tests.services.conftest import ACCESS_KEY, SECRET_KEY
from torch_table_loader import ConfigError, StructuredDataset
from torch_table_loader.errors import AccessRefusedError
from torch_table_loader.extend import open_storage
from torch_table_loader.far.aws_login import aws_login, configured_endpoint
from torch_table_loader.source.table_storage import TableStorage

WRONG = "http://127.0.0.1:9"
"""Nobody listens there: who asks it finds out."""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave nothing of this machine's own configuration but a login."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def table(bucket: str, s3_client: Any) -> str:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": [1, 2, 3]}), sink)
    s3_client.put_object(Bucket=bucket, Key="t/a.parquet", Body=sink.getvalue())
    return f"s3://{bucket}/t"


@pytest.fixture(params=["obstore", "s3fs"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Give options that say nothing of the endpoint, and choose the client."""
    return {} if request.param == "obstore" else {"max_concurrency": 4}


def rows(table: str, **more: Any) -> int:
    loader, _ = StructuredDataset.create_dataloader(table, num_workers=0, **more)
    return sum(len(batch["x"]) for batch in loader)


def configure(folder: Path, text: str, name: str = "config") -> None:
    (folder / ".aws").mkdir(exist_ok=True)
    (folder / ".aws" / name).write_text(text)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@daily(2)
def test_an_endpoint_in_the_environment_is_enough(
    table: str, moto_url: str, options: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, moto_url)
    assert rows(table, storage_options=options) == 3


@pytest.mark.parametrize(
    "text",
    [
        "[default]\nendpoint_url = {url}\n",
        "[default]\nservices = mine\n[services mine]\ns3 =\n  endpoint_url = {url}\n",
    ],
)
@daily(2)
def test_so_is_one_of_the_profile(
    table: str, moto_url: str, options: dict[str, Any], text: str, tmp_path: Path
) -> None:
    configure(tmp_path, text.format(url=moto_url))
    assert rows(table, storage_options=options) == 3


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_workers_and_a_plan_cache_find_it_too(
    table: str, bucket: str, moto_url: str, worker_type: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    loader, _ = StructuredDataset.create_dataloader(
        table, num_workers=1, worker_type=worker_type, plan_cache=f"s3://{bucket}/plans"
    )
    assert sum(len(batch["x"]) for batch in loader) == 3


def test_an_iceberg_storage_finds_it_and_its_own_endpoint_wins(
    table: str, moto_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    assert TableStorage(table).version(f"{table}/a.parquet").num_bytes > 0
    monkeypatch.setenv("AWS_ENDPOINT_URL", WRONG)
    assert TableStorage(table, {"s3.endpoint": moto_url}).version(f"{table}/a.parquet").num_bytes > 0


def test_an_iceberg_storage_whose_login_is_renewed_finds_it_too(
    table: str, moto_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    assert TableStorage(table, provider=dict).version(f"{table}/a.parquet").num_bytes > 0


def test_an_option_wins_over_the_environment(
    table: str, moto_url: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", WRONG)
    assert rows(table, storage_options={**options, "endpoint_url": moto_url}) == 3
    assert rows(table, storage_options={**options, "client_kwargs": {"endpoint_url": moto_url}}) == 3


def test_its_own_endpoint_wins_over_that_of_s3_alone(
    table: str, moto_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", WRONG)
    assert TableStorage(table, {"s3.endpoint": moto_url}).version(f"{table}/a.parquet").num_bytes > 0


def test_keys_of_the_options_take_no_token_from_the_environment(
    table: str, moto_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-other-keys")
    login = aws_login({"access_key_id": "mine", "secret_access_key": "mine, too"})
    assert login is not None
    assert login() == {
        "access_key_id": "mine",
        "secret_access_key": "mine, too",
        "token": None,
        "expires_at": None,
    }


def signed_with(table: str, moto_url: str, **options: Any) -> set[str]:
    """Read a table, and return the access keys that its requests were signed with."""
    with gate_before(moto_url) as gate:
        assert rows(table, storage_options={"endpoint_url": gate.url, **options}) == 3
        return gate.keys


def test_a_profile_is_a_login(table: str, moto_url: str, tmp_path: Path) -> None:
    configure(tmp_path, "[dev]\naws_access_key_id = AKIADEVDEV\naws_secret_access_key = x\n", "credentials")
    assert signed_with(table, moto_url, profile="dev") == {"AKIADEVDEV"}
    with pytest.raises(ConfigError, match="nobody"):
        rows(table, storage_options={"profile": "nobody", "endpoint_url": moto_url})
    with gate_before(moto_url) as gate:
        of_catalog = TableStorage(table, {"s3.endpoint": gate.url, "s3.profile-name": "dev"})
        assert of_catalog.version(f"{table}/a.parquet").num_bytes > 0
        assert gate.keys == {"AKIADEVDEV"}


@pytest.mark.parametrize("keys", [{}, {"key": "AKIAOTHER", "secret": "x"}], ids=["environment", "options"])
@daily(1)
def test_a_role_is_assumed(table: str, moto_url: str, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    role = {"role_arn": "arn:aws:iam::123456789012:role/reader", "session_name": "me", "external_id": "from-afar"}
    with gate_before(moto_url) as sts:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
        signed = signed_with(table, moto_url, **role, **keys)
    assert {key[:4] for key in signed} == {"ASIA"}
    assert sts.keys == {keys.get("key", ACCESS_KEY)}


def test_a_role_is_asked_for_once_until_it_ends(moto_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with gate_before(moto_url) as sts:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
        login: Any = aws_login({"role_arn": "arn:aws:iam::123456789012:role/reader"})
        first, again = login(), login()
        assert first["access_key_id"] == again["access_key_id"]
        assert sts.passed == 1


def test_a_process_gives_a_login_that_ends(table: str, moto_url: str, tmp_path: Path, monkeypatch: Any) -> None:
    answer = {"Version": 1, "AccessKeyId": "AKIAPROCESS", "SecretAccessKey": "x", "SessionToken": "t"}
    ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    (tmp_path / "answer").write_text(json.dumps({**answer, "Expiration": ends}))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    configure(tmp_path, f"[default]\ncredential_process = cat {tmp_path}/answer\n")
    assert signed_with(table, moto_url) == {"AKIAPROCESS"}
    login = aws_login({})
    assert login is not None
    found: Any = login()
    assert found["token"] == answer["SessionToken"]
    assert timedelta(0) < found["expires_at"] - datetime.now(UTC) <= timedelta(minutes=10)


def test_no_login_is_a_refusal(
    table: str, bucket: str, moto_url: str, s3_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(AccessRefusedError, match="credentials"):
        rows(table, storage_options={"endpoint_url": moto_url})
    s3_client.put_bucket_acl(Bucket=bucket, ACL="public-read")
    s3_client.put_object_acl(Bucket=bucket, Key="t/a.parquet", ACL="public-read")
    assert signed_with(table, moto_url, anon=True) == set()


def test_one_bucket_at_two_endpoints_is_two_places(monkeypatch: pytest.MonkeyPatch) -> None:
    places = set()
    for url in (None, "http://one", "http://two"):
        if url is not None:
            monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        places.add(open_storage("s3://bucket/t")[0].place)
    assert len(places) == 3


CONFIG = """
[default]
endpoint_url = http://default
[profile "plain"]
endpoint_url = http://plain
[profile both]
endpoint_url = http://both
services = mine
[profile off]
endpoint_url = http://off
ignore_configured_endpoint_urls = true
[profile other]
services = another
[profile bare]
region = eu-west-1
[services mine]
ec2 =
  endpoint_url = http://ec2
s3 =
  addressing_style = path
  endpoint_url = http://services
[services another]
ec2 =
  endpoint_url = http://ec2
"""
CREDENTIALS = "[bare]\nendpoint_url = http://credentials\n"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"AWS_PROFILE": "plain"},
        {"AWS_DEFAULT_PROFILE": "plain"},
        {"AWS_PROFILE": "both"},
        {"AWS_PROFILE": "off"},
        {"AWS_PROFILE": "other"},
        {"AWS_PROFILE": "bare"},
        {"AWS_ENDPOINT_URL": "http://global"},
        {"AWS_ENDPOINT_URL": "http://global", "AWS_PROFILE": "both"},
        {"AWS_ENDPOINT_URL": "http://global", "AWS_ENDPOINT_URL_S3": "http://s3"},
        {"AWS_ENDPOINT_URL": "http://global", "AWS_PROFILE": "off"},
        {"AWS_ENDPOINT_URL": "http://global", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"},
        {"AWS_PROFILE": "plain", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "TRUE"},
        {"AWS_PROFILE": "off", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false"},
    ],
    ids=str,
)
@daily(5)
def test_the_order_is_botocores(environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(tmp_path, CONFIG)
    configure(tmp_path, CREDENTIALS, "credentials")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    theirs = botocore.session.Session().create_client("s3").meta.endpoint_url
    ours = configured_endpoint()
    assert (ours or "https://s3.amazonaws.com").removeprefix("https://s3.") in theirs


def test_the_callers_profile_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(tmp_path, CONFIG)
    monkeypatch.setenv("AWS_PROFILE", "both")
    assert configured_endpoint("plain") == "http://plain"
    ignoring = {"config_kwargs": {"ignore_configured_endpoint_urls": True}}
    for given, endpoint in (({}, "http://services"), ({"profile": "plain"}, "http://plain"), (ignoring, None)):
        assert open_storage("s3://bucket", given)[0].options.get("endpoint") == endpoint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no section = hunter2\n", "does not parse"),
        ("[default]\na = 1\n[default]\nb = hunter2\n", "does not parse"),
        ("[default]\nservices = gone\n", r"\[services gone\]"),
    ],
)
def test_a_broken_configuration_is_named_and_not_quoted(tmp_path: Path, text: str, message: str) -> None:
    configure(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        open_storage("s3://bucket")
    assert str(tmp_path) in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.fixture
def proxy(moto_url: str) -> Iterator[Gate]:
    """Give a proxy that counts what goes through it."""
    with gate_before(moto_url) as gate:
        yield gate


@daily(1)
def test_requests_go_through_the_proxy(
    table: str, moto_url: str, options: dict[str, Any], proxy: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    assert rows(table, storage_options=options) == 3
    passed = proxy.passed
    assert passed > 0
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert rows(table, storage_options=options) == 3
    assert proxy.passed == passed


def test_a_proxy_that_is_an_option_wins(
    table: str, moto_url: str, proxy: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", WRONG)
    assert rows(table, storage_options={"endpoint_url": moto_url, "proxy_options": proxy.url}) == 3
    assert proxy.passed > 0


def test_the_region_is_asked_for_through_the_proxy(proxy: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    options = {"connect_timeout": 2, "request_timeout": 2}
    storage, path = open_storage("s3://no-such-bucket/x", {**options, "retry_seconds": 0})
    with pytest.raises(OSError, match="no-such-bucket"):
        storage.version(path)
    assert proxy.tunnels[0] == "s3.amazonaws.com:443"
    assert proxy.tunnels[-1].endswith(".amazonaws.com:443")
