"""Options of Google's and Azure's stores: their translation for obstore, and options left to gcsfs and adlfs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torch_table_loader.errors import ConfigError, MissingExtraError
from torch_table_loader.extend import open_storage
from torch_table_loader.far.object_store import azure_client, google_client
from torch_table_loader.far.store_options import choose_client, store_options
from torch_table_loader.source.address import parse_address

KEY = "c2VjcmV0LXNlY3JldA=="


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCOUNT_NAME", "ACCOUNT_KEY", "CONNECTION_STRING", "SAS_TOKEN", "ANON", "CLIENT_ID"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    for name in ("AZURE_CLIENT_ID", "IDENTITY_ENDPOINT", "MSI_ENDPOINT", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)


def chosen(protocol: str, options: dict[str, Any]) -> tuple[str, Any]:
    """Return the client for options, and the options for it."""
    return choose_client(protocol, store_options(protocol, options))


@pytest.mark.parametrize(
    ("url", "protocol", "path", "login"),
    [
        ("gs://bucket/a/b/", "gs", "bucket/a/b", {}),
        ("gcs://bucket", "gs", "bucket", {}),
        ("az://box/a%20b/c?d", "az", "box/a%20b/c?d", {}),
        ("abfs://box@lake.dfs.core.windows.net/a", "abfs", "box/a", {"account_name": "lake"}),
        ("abfss://box@lake.blob.core.windows.net", "abfss", "box", {"account_name": "lake"}),
        ("abfs://box@lake/a", "abfs", "box/a", {"account_name": "lake"}),
        (
            "abfss://ws@onelake.dfs.fabric.microsoft.com/house/t",
            "abfss",
            "ws/house/t",
            {"account_name": "onelake", "account_host": "onelake.blob.fabric.microsoft.com"},
        ),
    ],
)
def test_urls_are_resolved_to_buckets(url: str, protocol: str, path: str, login: dict[str, str]) -> None:
    address = parse_address(url)
    assert (address.protocol, address.path, dict(address.login)) == (protocol, path, login)


@pytest.mark.parametrize("url", ["gs://", "az:///path", "gs://key:secret@bucket/a"])
def test_urls_without_a_bucket_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="must read") as caught:
        parse_address(url)
    assert "secret" not in str(caught.value)


def test_an_option_that_obstore_lacks_is_left_to_the_fsspec_package() -> None:
    assert chosen("gs", {"token": "cache"})[0] == "gcsfs"
    for options in (
        {"token": "anon", "requester_pays": True},
        {"token": "me", "endpoint_url": "h", "consistency": "x"},
    ):
        assert chosen("gs", options) == ("gcsfs", options)
    own = {"account_name": "a", "anon": True, "sas_token": "s", "max_concurrency": 3}
    assert chosen("abfss", own) == ("adlfs", own)
    with pytest.raises(ConfigError, match=r"bearer_token, which gcsfs does not take, and requester_pays"):
        chosen("gs", {"bearer_token": "hunter2", "requester_pays": True})
    with pytest.raises(MissingExtraError, match="gcsfs"):
        open_storage("gs://bucket/t", {"token": "browser"})
    with pytest.raises(MissingExtraError, match="adlfs"):
        open_storage("abfss://box/t", {"account_name": "a", "location_mode": "secondary"})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"token": None, "project": "mine"}, {"project": "mine"}),
        ({"token": "google_default"}, {}),
        ({"token": "anon"}, {"skip_signature": True}),
        ({"token": "ya29.abc"}, {"bearer_token": "ya29.abc"}),
        (
            {"token": {"type": "service_account", "client_email": "me"}},
            {"service_account_key": '{"type": "service_account", "client_email": "me"}'},
        ),
        ({"service_account": "/key.json"}, {"service_account": "/key.json"}),
        ({"endpoint_url": "http://h", "request_timeout": 4}, {"base_url": "http://h", "read_timeout": 4}),
    ],
)
def test_google_options_are_translated(options: dict[str, Any], expected: dict[str, Any]) -> None:
    assert chosen("gs", options) == ("obstore", expected)
    assert store_options("gs", expected) == expected


def test_a_token_that_is_a_file(tmp_path: Path) -> None:
    for kind, name in (("service_account", "service_account"), ("authorized_user", "application_credentials")):
        file = tmp_path / f"{kind}.json"
        file.write_text(json.dumps({"type": kind}))
        assert store_options("gs", {"token": str(file)}) == {name: str(file)}
    (tmp_path / "other.json").write_text('{"type": "external_account"}')
    assert chosen("gs", {"token": str(tmp_path / "other.json")})[0] == "gcsfs"
    (tmp_path / "torn.json").write_text("{")
    for name in ("torn.json", "gone.json"):
        with pytest.raises(ConfigError, match="token") as caught:
            store_options("gs", {"token": str(tmp_path / name)})
        assert name not in str(caught.value)


def test_the_path_of_a_login_is_no_part_of_a_place(tmp_path: Path) -> None:
    places = set()
    for name in ("mine.json", "yours.json"):
        (tmp_path / name).write_text('{"type": "service_account"}')
        places.add(open_storage("gs://bucket/t", {"token": str(tmp_path / name)})[0].place)
    assert len(places) == 1


def test_credentials_of_google_auth_are_refreshed_when_they_expire() -> None:
    asked: list[Any] = []
    credentials = SimpleNamespace(valid=True, token="t", expiry=datetime(2030, 1, 1), refresh=asked.append)  # noqa: DTZ001, S106
    store = google_client(store_options("gs", {"token": credentials})).bucket("bucket")
    provide: Any = store.credential_provider
    assert provide() == {"token": credentials.token, "expires_at": datetime(2030, 1, 1, tzinfo=UTC)}
    assert not asked


def test_the_emulator_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:9")
    config = google_client(store_options("gs", {"token": "anon"})).bucket("bucket").config
    assert "http://127.0.0.1:9" in config.values()


def azure(options: dict[str, Any]) -> dict[str, Any]:
    """Return obstore's settings of a container."""
    store = azure_client(store_options("az", options)).bucket("box")
    return {name.removeprefix("azure_").removeprefix("storage_"): str(value) for name, value in store.config.items()}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"account_key": KEY}, {"account_key": KEY, "skip_signature": "false"}),
        ({"credential": KEY}, {"account_key": KEY}),
        ({"credential": "sv=1&sig=abc"}, {"sas_key": "sv=1&sig=abc", "skip_signature": "false"}),
        ({"sas_token": "?sv=1&sig=abc"}, {"sas_key": "?sv=1&sig=abc"}),
        (
            {"tenant_id": "t", "client_id": "c", "client_secret": "s"},
            {"tenant_id": "t", "client_id": "c", "client_secret": "s", "skip_signature": "false"},
        ),
        ({}, {"skip_signature": "true"}),
        ({"anon": True}, {"skip_signature": "true"}),
        ({"anon": False}, {"skip_signature": "false"}),
        ({"account_host": "lake.blob.core.chinacloudapi.cn"}, {"endpoint": "https://lake.blob.core.chinacloudapi.cn"}),
    ],
)
def test_azure_options_are_translated(options: dict[str, Any], expected: dict[str, str]) -> None:
    found = azure({"account_name": "lake", **options})
    assert found["account_name"] == "lake"
    assert {name: found.get(name, "").lower() for name in expected} == {
        name: value.lower() for name, value in expected.items()
    }


def test_connection_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    public = f"DefaultEndpointsProtocol=https;AccountName=lake;AccountKey={KEY};EndpointSuffix=core.windows.net"
    found = azure({"connection_string": public})
    assert (found["account_name"], found["account_key"]) == ("lake", KEY)
    assert "endpoint" not in found
    own = f"AccountName=lake;AccountKey={KEY};BlobEndpoint=http://127.0.0.1:9/lake"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", own)
    assert azure({})["endpoint"] == "http://127.0.0.1:9/lake"
    assert azure({"account_name": "other", "anon": True})["account_name"] == "other"
    with pytest.raises(ConfigError, match="connection_string") as caught:
        azure({"connection_string": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_an_account_name_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    storage, path = open_storage("az://box/t", {"account_key": KEY})
    with pytest.raises(ConfigError, match="account_name"):
        storage.version(path)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "lake")
    assert azure({"account_key": KEY})["account_name"] == "lake"


def test_credentials_of_azure_identity_are_asked_for_tokens() -> None:
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    asked: list[Any] = []

    def get_token(scope: str) -> Any:
        asked.append(scope)
        return SimpleNamespace(token="t", expires_on=end.timestamp())  # noqa: S106

    options = {"account_name": "lake", "credential": SimpleNamespace(get_token=get_token)}
    provide: Any = azure_client(store_options("az", options)).bucket("box").credential_provider
    assert provide() == {"token": "t", "expires_at": end}
    assert asked == ["https://storage.azure.com/.default"]
