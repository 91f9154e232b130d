"""Azure Blob Storage: its options, under adlfs's or obstore's names, and how to connect."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from obstore.store import AzureStore

from torch_table_loader.errors import ConfigError
from torch_table_loader.source.object_store import ClientChoice, agree, client_config, open_bucket, sort_options

if TYPE_CHECKING:
    from obstore.store import AzureConfig, AzureCredentialProvider

_NAMES = {
    "account_name": "account_name",
    "account_key": "account_key",
    "access_key": "account_key",
    "sas_token": "sas_key",
    "sas_key": "sas_key",
    "connection_string": "connection_string",
    "tenant_id": "tenant_id",
    "client_id": "client_id",
    "client_secret": "client_secret",
    "credential": "credential",
    "anon": "anonymous",
    "skip_signature": "anonymous",
    "account_host": "account_host",
    "endpoint": "endpoint",
    "endpoint_url": "endpoint",
    "authority_host": "authority_host",
    "federated_token_file": "federated_token_file",
    "use_azure_cli": "use_azure_cli",
}

_IN_STRING = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "sharedaccesssignature": "sas_key",
    "blobendpoint": "endpoint",
}
_PASSED_ON = frozenset(_NAMES.values()) - {"anonymous", "account_host", "connection_string", "credential"}

_CREDENTIALS = frozenset({"account_key", "sas_key", "client_secret", "credential", "use_azure_cli"})
_FIXED = frozenset({"anonymous", "account_key", "sas_key", "connection_string"})
_IN_ENVIRONMENT = (
    *(f"AZURE_STORAGE_{name}" for name in ("ACCOUNT_KEY", "ACCESS_KEY", "SAS_TOKEN", "SAS_KEY", "TOKEN")),
    *(f"AZURE_{name}" for name in ("CLIENT_ID", "FEDERATED_TOKEN_FILE", "MSI_ENDPOINT", "USE_AZURE_CLI")),
    *("AZURE_STORAGE_CLIENT_ID", "IDENTITY_ENDPOINT", "MSI_ENDPOINT"),
)
"""Variables where obstore looks for an identity, and by which platforms indicate that a machine has one."""

_SCOPE = "https://storage.azure.com/.default"
_PUBLIC = ".core.windows.net"


def choose_azure(options: Mapping[str, Any]) -> ClientChoice:
    """Translate Azure's options for obstore, or leave all to adlfs if one of them has no equivalent there.

    Args:
        options: as adlfs or obstore names them.

    Raises:
        ConfigError: two names of one option disagree.

    >>> choose_azure({"account_name": "lake", "sas_token": "sig=abcd"}).options["account_name"]
    'lake'
    >>> choose_azure({"account_name": "lake", "location_mode": "secondary"}).client
    'adlfs'
    """
    known, others = sort_options(options, _NAMES)
    if others:
        return ClientChoice("adlfs", options)
    return ClientChoice("obstore", known, fixed=bool(_FIXED & set(known)))


def azure_container(options: Mapping[str, Any]) -> Callable[[str], AzureStore]:
    """Return a function that opens a container by its name.

    Args:
        options: as returned by `choose_azure` for obstore.

    Raises:
        ConfigError: no account is named, or a connection string cannot be read.
    """
    options = dict(options)
    string = options.pop("connection_string", None)
    if string is None and not _CREDENTIALS & set(options) and "anonymous" not in options:
        string = os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
    for name, value in _connection(string or "").items():
        options.setdefault(name, value)
    account = options.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        raise ConfigError(
            "an Azure URL needs the account's name: write abfs://container@account.dfs.core.windows.net/path, pass "
            "account_name in storage_options, or set AZURE_STORAGE_ACCOUNT_NAME"
        )
    host = options.get("account_host")
    endpoint = options.get("endpoint") or (f"https://{host}" if host else None)
    provider = _sign_in(options)
    config: AzureConfig = {name: value for name, value in options.items() if name in _PASSED_ON}  # type: ignore[assignment]
    config["account_name"] = account
    config["skip_signature"] = bool(options.get("anonymous"))
    if endpoint:
        config["endpoint"] = endpoint
    network = client_config(options, http=(endpoint or "").startswith("http://"))
    return lambda container: open_bucket(AzureStore, container, config, network, provider)


def _connection(string: str) -> dict[str, str]:
    """Read a connection string: https://learn.microsoft.com/azure/storage/common/storage-configure-connection-string."""
    pairs = {}
    for pair in filter(None, string.split(";")):
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError("an Azure connection_string must read Name=Value;Name=Value, as the portal shows it")
        pairs[name.strip().lower()] = value.strip()
    known = {_IN_STRING[name]: value for name, value in pairs.items() if name in _IN_STRING}
    suffix = pairs.get("endpointsuffix", _PUBLIC[1:])
    if "account_name" in known and "endpoint" not in known and f".{suffix}" != _PUBLIC:
        scheme = pairs.get("defaultendpointsprotocol", "https")
        known["endpoint"] = f"{scheme}://{known['account_name']}.blob.{suffix}"
    return known


def _sign_in(options: dict[str, Any]) -> AzureCredentialProvider | None:
    """Choose the login; without one, connect anonymously as adlfs does, unless the caller or machine has a login."""
    credential = options.pop("credential", None)
    if isinstance(credential, str):
        agree(options, "sas_key" if "sig=" in credential else "account_key", credential, "credential")
        credential = None
    if credential is not None:
        return _tokens(credential)
    if "anonymous" in options or _CREDENTIALS & set(options):
        refused = options.get("anonymous") is False and not _CREDENTIALS & set(options)
        return _default_identity() if refused else None
    if os.environ.get("AZURE_STORAGE_ANON", "").lower() in {"false", "0", "f"}:
        return _default_identity()
    options["anonymous"] = not any(os.environ.get(name) for name in _IN_ENVIRONMENT)
    return None


def _default_identity() -> AzureCredentialProvider | None:
    """Return azure-identity's default login if it is installed; otherwise obstore looks for a login itself."""
    if any(os.environ.get(name) for name in _IN_ENVIRONMENT):
        return None
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError:
        return None
    return _tokens(DefaultAzureCredential())


def _tokens(credential: Any) -> AzureCredentialProvider:
    """Get tokens from a credential of azure-identity."""

    def provide() -> Any:
        token = credential.get_token(_SCOPE)
        return {"token": token.token, "expires_at": datetime.fromtimestamp(token.expires_on, UTC)}

    return provide
