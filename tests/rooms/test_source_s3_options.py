"""S3 options: which client they choose, and their names there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.source.object_store import client_config
from torch_table_loader.source.s3 import choose_s3
from torch_table_loader.source.s3_client import S3Client


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"key": "K", "secret": "S", "token": "T"}, {"access_key": "K", "secret_key": "S", "session_token": "T"}),
        (
            {"access_key": "K", "secret_key": "S", "region": "eu"},
            {"access_key": "K", "secret_key": "S", "region": "eu"},
        ),
        ({"anon": True, "key": "ignored"}, {"anonymous": True}),
        ({"anonymous": False}, {"anonymous": False}),
        ({"endpoint_url": "http://h:9"}, {"endpoint": "http://h:9"}),
        ({"endpoint_override": "h:9", "scheme": "http"}, {"endpoint": "http://h:9"}),
        ({"endpoint_url": "h:9", "use_ssl": False}, {"endpoint": "http://h:9"}),
        ({"endpoint_url": "https://h/behind/a/path/"}, {"endpoint": "https://h/behind/a/path"}),
        ({"use_ssl": False}, {"scheme": "http"}),
        (
            {"client_kwargs": {"endpoint_url": "https://h", "region_name": "eu", "aws_access_key_id": "K"}},
            {"endpoint": "https://h", "region": "eu", "access_key": "K"},
        ),
        ({"client_kwargs": {"verify": False}}, {"verify": False}),
        ({"config_kwargs": {"s3": {"addressing_style": "virtual"}}}, {"virtual": True}),
        ({"config_kwargs": {"read_timeout": 5, "connect_timeout": 2}}, {"read_timeout": 5, "connect_timeout": 2}),
        (
            {"endpoint_url": "http://h", "config_kwargs": {"s3": {"addressing_style": "path"}}},
            {"endpoint": "http://h"},
        ),
        (
            {"role_arn": "arn:aws:iam::1:role/r", "connect_timeout": 2.0, "request_timeout": 3, "token": None},
            {"role_arn": "arn:aws:iam::1:role/r", "connect_timeout": 2.0, "read_timeout": 3},
        ),
        ({"role_arn": "arn", "profile": "dev"}, {"role_arn": "arn", "profile": "dev"}),
        ({"profile": "dev", "region": "eu"}, {"profile": "dev", "region": "eu"}),
        ({"requester_pays": True}, {"requester_pays": True}),
        ({"proxy_options": "http://p:1", "tls_ca_file_path": "/ca"}, {"proxy": "http://p:1", "ca_file": "/ca"}),
        ({"use_listings_cache": True, "skip_instance_cache": True}, {}),
        ({"allow_delayed_open": True, "background_writes": False, "retry_strategy": object()}, {}),
    ],
)
def test_options_that_translate_choose_obstore(options: dict[str, Any], expected: dict[str, Any]) -> None:
    choice = choose_s3(options)
    assert choice.client == "obstore"
    assert choice.options == expected


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
            {"config_kwargs": {"s3": {"addressing_style": "path"}}},
            {"config_kwargs": {"s3": {"addressing_style": "path"}}},
        ),
        ({"use_ssl": False, "max_concurrency": 2}, {"use_ssl": False, "max_concurrency": 2}),
    ],
)
def test_options_that_do_not_translate_choose_s3fs(options: dict[str, Any], expected: dict[str, Any]) -> None:
    choice = choose_s3(options)
    assert choice.client == "s3fs"
    assert choice.options == expected


def test_contradictions_are_refused_without_values() -> None:
    with pytest.raises(ConfigError, match="access_key twice") as caught:
        choose_s3({"key": "AKIAONE", "client_kwargs": {"aws_access_key_id": "AKIATWO"}})
    assert "AKIA" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"role_arn.*version_aware"):
        choose_s3({"role_arn": "arn", "version_aware": True})
    with pytest.raises(ConfigError, match="default_metadata"):
        choose_s3({"default_metadata": {"ACL": "private"}})
    with pytest.raises(ConfigTypeError, match="client_kwargs"):
        choose_s3({"client_kwargs": "region_name=eu"})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"connect_timeout": 0}, "connect_timeout"),
        ({"read_timeout": "soon"}, "read_timeout"),
        ({"proxy": {"port": 1}}, "host"),
        ({"proxy": 7}, "URL"),
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
    found = client_config({"read_timeout": 0.5, "proxy": "p:1", "verify": False}, http=True)
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
    ],
)
def test_bucket_urls_are_virtual_hosted_or_path_style(
    bucket: str, options: dict[str, Any], expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://nowhere")
    store: Any = S3Client(choose_s3({"anon": True, **options}).options).bucket(bucket)
    assert store.config["endpoint"] == store.config["endpoint_url_s3"] == expected[0]
    assert str(store.config["virtual_hosted_style_request"]).lower() == str(expected[1]).lower()
    assert store.retry_config is not None
    assert store.retry_config["max_retries"] == 0


def test_options_are_not_shown() -> None:
    assert "hunter2" not in repr(choose_s3({"key": "K", "secret": "hunter2"}))
