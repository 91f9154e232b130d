"""S3 options: which client they choose, and their names there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.far.object_store import client_config
from torch_table_loader.far.s3_client import S3Client
from torch_table_loader.far.store_options import choose_client, store_options

KEYS = {"access_key_id": "K", "secret_access_key": "S"}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no endpoint of this machine's own configuration."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")


def chosen(options: dict[str, Any]) -> tuple[str, Any]:
    """Return the client for options, and the options for it."""
    return choose_client("s3", store_options("s3", options))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"key": "K", "secret": "S", "token": "T"}, {**KEYS, "session_token": "T"}),
        ({"access_key": "K", "secret_key": "S", "region": "eu"}, {**KEYS, "region": "eu"}),
        ({"s3.access-key-id": "K", "s3.secret-access-key": "S", "client.region": "eu"}, {**KEYS, "region": "eu"}),
        (
            {"AWS_ACCESS_KEY_ID": "K", "AWS_SECRET_ACCESS_KEY": "S", "aws_endpoint": "h", "AWS_ALLOW_HTTP": "true"},
            {**KEYS, "endpoint": "https://h"},
        ),
        ({"anon": True, "key": "ignored"}, {"skip_signature": True}),
        ({"anonymous": False}, {"skip_signature": False}),
        (
            {"aws_skip_signature": "TRUE", "s3.force-virtual-addressing": "false"},
            {
                "skip_signature": True,
                "virtual_hosted_style_request": False,
            },
        ),
        ({"endpoint_url": "http://h:9"}, {"endpoint": "http://h:9"}),
        ({"endpoint_override": "h:9", "scheme": "http"}, {"endpoint": "http://h:9"}),
        ({"endpoint_url": "h:9", "use_ssl": False}, {"endpoint": "http://h:9"}),
        ({"endpoint_url": "https://h/behind/a/path/"}, {"endpoint": "https://h/behind/a/path"}),
        ({"use_ssl": False}, {"scheme": "http"}),
        (
            {"client_kwargs": {"endpoint_url": "https://h", "region_name": "eu", "aws_access_key_id": "K"}},
            {"endpoint": "https://h", "region": "eu", "access_key_id": "K"},
        ),
        ({"client_kwargs": {"verify": False}}, {"verify": False}),
        ({"config_kwargs": {"s3": {"addressing_style": "virtual"}}}, {"virtual_hosted_style_request": True}),
        ({"config_kwargs": {"s3": {"addressing_style": "path"}}}, {"virtual_hosted_style_request": False}),
        ({"config_kwargs": {"read_timeout": 5, "connect_timeout": 2}}, {"read_timeout": 5, "connect_timeout": 2}),
        (
            {"role_arn": "arn:aws:iam::1:role/r", "connect_timeout": 2.0, "request_timeout": 3, "token": None},
            {"role_arn": "arn:aws:iam::1:role/r", "connect_timeout": 2.0, "read_timeout": 3},
        ),
        ({"s3.connect-timeout": "2.5", "read_timeout": "soon"}, {"connect_timeout": 2.5, "read_timeout": "soon"}),
        ({"role_arn": "arn", "profile": "dev"}, {"role_arn": "arn", "profile": "dev"}),
        ({"profile": "dev", "region": "eu"}, {"profile": "dev", "region": "eu"}),
        ({"requester_pays": True}, {"request_payer": True}),
        ({"proxy_options": "http://p:1", "tls_ca_file_path": "/ca"}, {"proxy_url": "http://p:1", "ca_file": "/ca"}),
        ({"use_listings_cache": True, "skip_instance_cache": True}, {}),
        ({"allow_delayed_open": True, "background_writes": False, "retry_strategy": object()}, {}),
    ],
)
def test_options_that_translate_choose_obstore(options: dict[str, Any], expected: dict[str, Any]) -> None:
    assert chosen(options) == ("obstore", expected)
    assert store_options("s3", expected) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"profile": "dev", "region": "eu", "max_concurrency": 2},
            {"profile": "dev", "client_kwargs": {"region_name": "eu"}, "max_concurrency": 2},
        ),
        (
            {"access_key": "K", "secret_key": "S", "session_token": "T", "version_aware": True},
            {"key": "K", "secret": "S", "token": "T", "version_aware": True},
        ),
        (
            {"endpoint_override": "h:9", "scheme": "http", "version_aware": True, "anonymous": True},
            {"endpoint_url": "http://h:9", "version_aware": True, "anon": True},
        ),
        (
            {"client_kwargs": {"verify": False, "region_name": "eu", "config": None, "api_version": "1"}},
            {"client_kwargs": {"verify": False, "region_name": "eu", "api_version": "1"}},
        ),
        ({"config_kwargs": {"max_pool_connections": 5}}, {"config_kwargs": {"max_pool_connections": 5}}),
        (
            {"config_kwargs": {"s3": {"addressing_style": "path", "payload_signing_enabled": True}}},
            {"config_kwargs": {"s3": {"addressing_style": "path", "payload_signing_enabled": True}}},
        ),
        ({"use_ssl": False, "max_concurrency": 2}, {"use_ssl": False, "max_concurrency": 2}),
    ],
)
def test_options_that_do_not_translate_choose_s3fs(options: dict[str, Any], expected: dict[str, Any]) -> None:
    assert chosen(options) == ("s3fs", expected)
    assert chosen(store_options("s3", options)) == ("s3fs", expected)


def test_contradictions_are_refused_without_values() -> None:
    with pytest.raises(ConfigError, match="access_key_id twice") as caught:
        store_options("s3", {"key": "AKIAONE", "client_kwargs": {"aws_access_key_id": "AKIATWO"}})
    assert "AKIA" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"role_arn.*version_aware"):
        chosen({"role_arn": "arn", "version_aware": True})
    with pytest.raises(ConfigError, match="default_metadata"):
        chosen({"default_metadata": {"ACL": "private"}})
    with pytest.raises(ConfigTypeError, match="client_kwargs"):
        chosen({"client_kwargs": "region_name=eu"})


def test_later_options_win_whatever_they_are_called_and_a_token_belongs_to_its_key() -> None:
    catalog = {"s3.access-key-id": "C", "s3.secret-access-key": "X", "s3.session-token": "T", "s3.endpoint": "http://c"}
    found = store_options("s3", catalog, {"key": "K", "secret": "S", "endpoint_override": "http://mine"})
    assert found == {**KEYS, "endpoint": "http://mine"}
    assert store_options("s3", catalog, {"region": "eu"})["session_token"] == catalog["s3.session-token"]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"connect_timeout": 0}, "connect_timeout"),
        ({"read_timeout": "soon"}, "read_timeout"),
        ({"proxy_url": {"port": 1}}, "host"),
        ({"proxy_url": 7}, "URL"),
    ],
)
def test_invalid_network_options_are_named(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        client_config(options, http=False)


def test_network_options_are_translated_for_obstore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    assert client_config({}, http=False) == {
        "allow_http": False,
        "connect_timeout": "10000ms",
        "read_timeout": "30000ms",
        "timeout": "30 days",
    }
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(b"PEM")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    found = client_config({"read_timeout": 0.5, "proxy_url": "p:1", "verify": False}, http=True)
    assert found["root_certificate"] == b"PEM"
    assert (found["read_timeout"], found["proxy_url"], found["allow_http"]) == ("500ms", "http://p:1", True)
    assert found["allow_invalid_certificates"] is True
    assert "allow_invalid_certificates" not in client_config({"verify": str(bundle)}, http=True)


@pytest.mark.parametrize(
    ("bucket", "options", "expected"),
    [
        ("b", {}, ("https://b.s3.eu-west-1.amazonaws.com", True)),
        ("b.c", {}, ("https://s3.eu-west-1.amazonaws.com", False)),
        ("b", {"region": "cn-north-1"}, ("https://b.s3.cn-north-1.amazonaws.com.cn", True)),
        ("b", {"use_ssl": False}, ("http://b.s3.eu-west-1.amazonaws.com", True)),
        ("b", {"endpoint_url": "http://h:9/base"}, ("http://h:9/base", False)),
        ("b", {"endpoint_url": "http://h:9", "force_virtual_addressing": True}, ("http://b.h:9", True)),
        ("b", {"config_kwargs": {"s3": {"addressing_style": "path"}}}, ("https://s3.eu-west-1.amazonaws.com", False)),
    ],
)
def test_bucket_urls_are_virtual_hosted_or_path_style(
    bucket: str, options: dict[str, Any], expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    given = store_options("s3", {"anon": True, **options})
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://nowhere")
    store: Any = S3Client(given).bucket(bucket)
    assert store.config["endpoint"] == store.config["endpoint_url_s3"] == expected[0]
    assert str(store.config["virtual_hosted_style_request"]).lower() == str(expected[1]).lower()
    assert store.retry_config is not None
    assert store.retry_config["max_retries"] == 0
