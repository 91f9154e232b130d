"""How to connect to Google Cloud Storage and Azure: endpoints, and logins that obstore does not find by itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from obstore.store import AzureStore, GCSStore

from torch_table_loader.errors import ConfigError
from torch_table_loader.source.object_store import ObjectStoreClient, client_config, open_bucket

if TYPE_CHECKING:
    from obstore.store import AzureConfig, AzureCredentialProvider, GCSConfig, GCSCredentialProvider

_OF_GOOGLE = frozenset({"service_account", "service_account_key", "application_credentials", "bearer_token"})
_OF_AZURE = frozenset(
    {"account_key", "sas_key", "tenant_id", "client_id", "client_secret"}
    | {"authority_host", "federated_token_file", "use_azure_cli"}
)
"""Options that obstore takes as they are."""

_NOBODY = "anonymous"
"""obstore asks for a token before it writes, signed or not: this fixed token avoids the request."""

_IN_STRING = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "sharedaccesssignature": "sas_key",
    "blobendpoint": "endpoint",
}
_PUBLIC = "core.windows.net"
_SCOPE = "https://storage.azure.com/.default"

_LOGINS = frozenset({"account_key", "sas_key", "client_secret", "credential", "use_azure_cli"})
_IN_ENVIRONMENT = (
    *(f"AZURE_STORAGE_{name}" for name in ("ACCOUNT_KEY", "ACCESS_KEY", "SAS_TOKEN", "SAS_KEY", "TOKEN")),
    *(f"AZURE_{name}" for name in ("CLIENT_ID", "FEDERATED_TOKEN_FILE", "MSI_ENDPOINT", "USE_AZURE_CLI")),
    *("AZURE_STORAGE_CLIENT_ID", "IDENTITY_ENDPOINT", "MSI_ENDPOINT"),
)
"""Variables where obstore looks for an identity, and by which platforms indicate that a machine has one."""


def google_client(options: Mapping[str, Any]) -> ObjectStoreClient:
    """Return a client of Google's buckets, with the options of `store_options`."""
    config: GCSConfig = {name: value for name, value in options.items() if name in _OF_GOOGLE}  # type: ignore[assignment]
    endpoint = options.get("base_url") or os.environ.get("STORAGE_EMULATOR_HOST") or ""
    if endpoint:
        config["base_url"] = endpoint = endpoint if "://" in endpoint else f"http://{endpoint}"
    if options.get("skip_signature"):
        config |= {"skip_signature": True, "bearer_token": _NOBODY}
    network = client_config(options, http=endpoint.startswith("http://"))
    provider = _google_tokens(options["credentials"]) if "credentials" in options else None
    return ObjectStoreClient(lambda bucket: open_bucket(GCSStore, bucket, config, network, provider))


def _google_tokens(credentials: Any) -> GCSCredentialProvider:
    """Get tokens from credentials of google-auth; obstore's own provider renews those that are valid, too."""

    def provide() -> Any:
        if not credentials.valid:
            from google.auth.transport.requests import Request

            credentials.refresh(Request())
        expiry = credentials.expiry
        return {"token": credentials.token, "expires_at": expiry and expiry.replace(tzinfo=UTC)}

    return provide


def azure_client(options: Mapping[str, Any]) -> ObjectStoreClient:
    """Return a client of the containers of an Azure account, with the options of `store_options`.

    Raises:
        ConfigError: no account is named, or a connection string cannot be read.
    """
    string = options.get("connection_string")
    if string is None and not _LOGINS & set(options) and "skip_signature" not in options:
        string = os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
    options = {**_connection(string or ""), **options}
    account = options.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        raise ConfigError(
            "an Azure URL needs the account's name: write abfs://container@account.dfs.core.windows.net/path, pass "
            "account_name in storage_options, or set AZURE_STORAGE_ACCOUNT_NAME"
        )
    host = options.get("account_host")
    endpoint = options.get("endpoint") or (f"https://{host}" if host else None)
    anonymous, provider = _azure_login(options)
    config: AzureConfig = {name: value for name, value in options.items() if name in _OF_AZURE}  # type: ignore[assignment]
    config |= {"account_name": account, "skip_signature": anonymous}
    if endpoint:
        config["endpoint"] = endpoint
    network = client_config(options, http=(endpoint or "").startswith("http://"))
    return ObjectStoreClient(lambda container: open_bucket(AzureStore, container, config, network, provider))


def _connection(string: str) -> dict[str, str]:
    """Read a connection string: https://learn.microsoft.com/azure/storage/common/storage-configure-connection-string."""
    pairs = {}
    for pair in filter(None, string.split(";")):
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError("an Azure connection_string must read Name=Value;Name=Value, as the portal shows it")
        pairs[name.strip().lower()] = value.strip()
    known = {_IN_STRING[name]: value for name, value in pairs.items() if name in _IN_STRING}
    suffix = pairs.get("endpointsuffix", _PUBLIC)
    if "account_name" in known and "endpoint" not in known and suffix != _PUBLIC:
        scheme = pairs.get("defaultendpointsprotocol", "https")
        known["endpoint"] = f"{scheme}://{known['account_name']}.blob.{suffix}"
    return known


def _azure_login(options: Mapping[str, Any]) -> tuple[bool, AzureCredentialProvider | None]:
    """Return whether requests are not signed, and who gives tokens: None for obstore itself.

    Without a login, connect anonymously as adlfs does, unless the caller or machine has a login.
    """
    if "credential" in options:
        return bool(options.get("skip_signature")), _azure_tokens(options["credential"])
    anonymous, given = options.get("skip_signature"), _LOGINS & set(options)
    if anonymous is None and not given:
        refused = os.environ.get("AZURE_STORAGE_ANON", "").lower() in {"false", "0", "f"}
        if not refused:
            return not any(os.environ.get(name) for name in _IN_ENVIRONMENT), None
        anonymous = False
    return bool(anonymous), _default_identity() if anonymous is False and not given else None


def _default_identity() -> AzureCredentialProvider | None:
    """Return azure-identity's default login if it is installed; otherwise obstore looks for a login itself."""
    if any(os.environ.get(name) for name in _IN_ENVIRONMENT):
        return None
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError:
        return None
    return _azure_tokens(DefaultAzureCredential())


def _azure_tokens(credential: Any) -> AzureCredentialProvider:
    """Get tokens from a credential of azure-identity."""

    def provide() -> Any:
        token = credential.get_token(_SCOPE)
        return {"token": token.token, "expires_at": datetime.fromtimestamp(token.expires_on, UTC)}

    return provide
