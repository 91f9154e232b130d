"""S3 options: which client they choose, and what they are called there."""

from __future__ import annotations

from typing import Any

import pytest

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.source.s3 import choose_s3


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
        ({"endpoint_url": "http://h:9"}, {"scheme": "http", "endpoint_override": "h:9"}),
        ({"endpoint_override": "h:9", "scheme": "http"}, {"scheme": "http", "endpoint_override": "h:9"}),
        ({"endpoint_url": "h:9", "use_ssl": False}, {"scheme": "http", "endpoint_override": "h:9"}),
        (
            {"client_kwargs": {"endpoint_url": "https://h", "region_name": "eu", "aws_access_key_id": "K"}},
            {"scheme": "https", "endpoint_override": "h", "region": "eu", "access_key": "K"},
        ),
        ({"config_kwargs": {"s3": {"addressing_style": "virtual"}}}, {"force_virtual_addressing": True}),
        (
            {"endpoint_url": "http://h", "config_kwargs": {"s3": {"addressing_style": "path"}}},
            {"scheme": "http", "endpoint_override": "h"},
        ),
        (
            {"role_arn": "arn:aws:iam::1:role/r", "connect_timeout": 2.0, "token": None},
            {"role_arn": "arn:aws:iam::1:role/r", "connect_timeout": 2.0},
        ),
        ({"use_listings_cache": True, "skip_instance_cache": True}, {}),
    ],
)
def test_what_translates_goes_to_pyarrow(options: dict[str, Any], expected: dict[str, Any]) -> None:
    choice = choose_s3(options)
    assert choice.client == "pyarrow"
    assert choice.options == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"profile": "dev", "region": "eu"}, {"profile": "dev", "client_kwargs": {"region_name": "eu"}}),
        (
            {"access_key": "K", "secret_key": "S", "session_token": "T", "requester_pays": True},
            {"key": "K", "secret": "S", "token": "T", "requester_pays": True},
        ),
        (
            {"endpoint_override": "h:9", "scheme": "http", "version_aware": True, "anonymous": True},
            {"endpoint_url": "http://h:9", "version_aware": True, "anon": True},
        ),
        ({"endpoint_url": "https://h/behind/a/path"}, {"endpoint_url": "https://h/behind/a/path"}),
        (
            {"client_kwargs": {"verify": False, "region_name": "eu"}},
            {"client_kwargs": {"verify": False, "region_name": "eu"}},
        ),
        ({"config_kwargs": {"read_timeout": 5}}, {"config_kwargs": {"read_timeout": 5}}),
        (
            {"config_kwargs": {"s3": {"addressing_style": "path"}}},
            {"config_kwargs": {"s3": {"addressing_style": "path"}}},
        ),
        ({"use_ssl": False, "max_concurrency": 2}, {"use_ssl": False, "max_concurrency": 2}),
    ],
)
def test_what_does_not_translate_goes_to_s3fs(options: dict[str, Any], expected: dict[str, Any]) -> None:
    choice = choose_s3(options)
    assert choice.client == "s3fs"
    assert choice.options == expected


def test_contradictions_are_refused_without_values() -> None:
    with pytest.raises(ConfigError, match="access_key twice") as caught:
        choose_s3({"key": "AKIAONE", "client_kwargs": {"aws_access_key_id": "AKIATWO"}})
    assert "AKIA" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"role_arn.*profile"):
        choose_s3({"role_arn": "arn", "profile": "dev"})
    with pytest.raises(ConfigTypeError, match="client_kwargs"):
        choose_s3({"client_kwargs": "region_name=eu"})


def test_options_are_not_shown() -> None:
    assert "hunter2" not in repr(choose_s3({"key": "K", "secret": "hunter2"}))
