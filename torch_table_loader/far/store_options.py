"""The options of object stores: the names that people write, our name for each, and who reads the store with them.

Our names are obstore's where it has one. Other names are aliases: those of fsspec's packages and pyarrow, of pyiceberg
(``s3.endpoint``) and of deltalake (``aws_endpoint_url``).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.source.address import FAMILIES, check_packages

_NETWORK = frozenset({"connect_timeout", "read_timeout", "proxy_url", "ca_file", "verify"})
_NAMES: Mapping[str, frozenset[str]] = {
    "s3": _NETWORK
    | {"access_key_id", "secret_access_key", "session_token", "skip_signature"}
    | {"profile", "role_arn", "role_session_name", "external_id"}
    | {"endpoint", "region", "scheme", "use_ssl", "ignore_configured_endpoint_urls"}
    | {"request_payer", "virtual_hosted_style_request"},
    "gs": _NETWORK
    | {"service_account", "service_account_key", "application_credentials", "bearer_token", "skip_signature"}
    | {"token", "credentials", "base_url", "project"},
    "abfs": _NETWORK
    | {"account_name", "account_key", "sas_key", "connection_string", "skip_signature"}
    | {"tenant_id", "client_id", "client_secret", "credential", "federated_token_file", "use_azure_cli"}
    | {"account_host", "endpoint", "authority_host"},
}
"""Our names of the options of each kind of store."""

_OF_OTHERS = re.compile(r"aws_|s3\.|client\.")
"""How names of S3 options begin for deltalake and pyiceberg; the rest is a name or an alias, if with other hyphens."""

_ALIASES: Mapping[str, Mapping[str, str]] = {
    "s3": {
        **dict.fromkeys(("key", "username", "access_key"), "access_key_id"),
        **dict.fromkeys(("secret", "password", "secret_key"), "secret_access_key"),
        **dict.fromkeys(("anon", "anonymous"), "skip_signature"),
        **dict.fromkeys(("endpoint_url", "endpoint_override", "endpoint_url_s3"), "endpoint"),
        **dict.fromkeys(("region_name", "default_region"), "region"),
        "token": "session_token",
        "profile_name": "profile",
        "session_name": "role_session_name",
        "requester_pays": "request_payer",
        "force_virtual_addressing": "virtual_hosted_style_request",
        "proxy_uri": "proxy_url",
    },
    "gs": {"anon": "skip_signature", "endpoint_url": "base_url", "service_account_path": "service_account"},
    "abfs": {
        "anon": "skip_signature",
        "access_key": "account_key",
        "sas_token": "sas_key",
        "endpoint_url": "endpoint",
    },
    "all": {
        "request_timeout": "read_timeout",
        "proxy_options": "proxy_url",
        "proxy": "proxy_url",
        "tls_ca_file_path": "ca_file",
    },
}
"""Other names of them."""

OPTION_NAMES = frozenset().union(*_NAMES.values(), *_ALIASES.values())
"""All names that an option of some object store has."""

_PACKAGES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "s3": (
        "s3fs",
        {
            "access_key_id": "key",
            "secret_access_key": "secret",
            "session_token": "token",
            "skip_signature": "anon",
            "profile": "profile",
            "request_payer": "requester_pays",
            "endpoint": "endpoint_url",
            "use_ssl": "use_ssl",
        },
    ),
    "gs": ("gcsfs", {"token": "token", "base_url": "endpoint_url", "project": "project"}),
    "abfs": (
        "adlfs",
        {
            **{name: name for name in ("account_name", "account_key", "connection_string", "account_host")},
            **{name: name for name in ("tenant_id", "client_id", "client_secret", "credential")},
            "sas_key": "sas_token",
            "skip_signature": "anon",
        },
    ),
}
"""For each store the fsspec package that takes what obstore lacks, and its names of our options."""

_WITHOUT_EFFECT = frozenset(
    {
        # of fsspec's caches, which are not used: a stale listing would hide a changed file
        *("use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache", "asynchronous"),
        # of pyarrow, for what this library handles itself for all stores
        *("allow_bucket_creation", "allow_bucket_deletion", "allow_delayed_open", "background_writes"),
        *("check_directory_existence_before_creation", "load_frequency", "retry_strategy"),
        # of deltalake, for those who write; and what the endpoint says
        *("allow_http", "conditional_put", "copy_if_not_exists", "s3_allow_unsafe_rename", "s3_locking_provider"),
    }
)

_FLAGS = frozenset(
    {"skip_signature", "virtual_hosted_style_request", "request_payer", "use_ssl", "use_azure_cli"}
    | {"ignore_configured_endpoint_urls"}
)
_TRUE = frozenset({"1", "on", "requester", "t", "true", "y", "yes"})
_SECONDS = frozenset({"connect_timeout", "read_timeout"})
_OF_CONFIG = frozenset({"s3", "addressing_style", "signature_version", "ignore_configured_endpoint_urls"})

_KEYS = ("access_key_id", "secret_access_key", "session_token")
"""A login of S3 by itself."""

_FIXED = frozenset(
    {"access_key_id", "skip_signature", "bearer_token", "service_account_key"}
    | {"account_key", "sas_key", "connection_string"}
)
"""Logins that are the same for the next client."""


def store_options(protocol: str, *layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return options under our names; those of protocols other than object stores' stay as they are.

    Given what it returned, this function returns the same.

    Args:
        layers: options of different origins; later ones take precedence. Keys of S3 replace those of a layer before as
            a whole: a token belongs to its key.

    Raises:
        ConfigError: two names of one option disagree within a layer, or an option cannot be kept; or a configuration
            file of AWS does not parse.
        MissingExtraError: the packages of the store are not installed.

    >>> store_options("s3", {"s3.endpoint": "http://catalogs"}, {"key": "K", "endpoint_url": "h:9", "use_ssl": False})
    {'access_key_id': 'K', 'endpoint': 'http://h:9'}
    >>> store_options("gs", {"token": "anon"})
    {'skip_signature': True}
    """
    check_packages(protocol)
    family = FAMILIES.get(protocol, protocol)
    options: dict[str, Any] = {}
    for layer in layers:
        given = dict(layer)
        if family in _NAMES:
            given = _named(family, layer)
        if "access_key_id" in given:
            options = {name: value for name, value in options.items() if name not in {*_KEYS, "skip_signature"}}
        options |= given
    if family == "s3":
        return _settled_s3(options)
    if family == "gs" and "token" in options and not _unknown(family, options):
        login = _google_login(options["token"])
        if login is None:
            return options
        return {**_without(options, ["token"]), **login}
    credential = options.get("credential")
    if family == "abfs" and isinstance(credential, str) and not _unknown(family, options):
        options = _without(options, ["credential"])
        _agree(options, "sas_key" if "sig=" in credential else "account_key", credential, "credential")
    return options


def s3_properties(properties: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the S3 options among a catalog's properties: those for all services of AWS, then those for S3 alone."""
    clients, own = (
        {name: value for name, value in properties.items() if name.startswith(prefix) and _ours("s3", name)}
        for prefix in ("client.", "s3.")
    )
    return clients, own


def login_may_change(protocol: str, options: Mapping[str, Any]) -> bool:
    """Return whether another client may log in with other credentials: those of a file, a role or a machine."""
    fixed = "role_arn" not in options and any(options.get(name) for name in _FIXED)
    return not fixed and choose_client(protocol, options)[0] == "obstore"


def choose_client(protocol: str, options: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return who reads a store, and the options of `store_options` under the names that it takes.

    Returns:
        "obstore"; or the fsspec package for an option that obstore lacks; or the protocol, for stores that obstore does
        not read.

    >>> choose_client("s3", {"access_key_id": "K", "version_aware": True})
    ('s3fs', {'version_aware': True, 'key': 'K'})
    >>> choose_client("gs", {"token": "browser"})[0], choose_client("gs", {})[0], choose_client("ftp", {})[0]
    ('gcsfs', 'obstore', 'ftp')
    """
    family = FAMILIES.get(protocol, protocol)
    if family not in _PACKAGES:
        return protocol, options
    own = _unknown(family, options)
    if not own:
        return "obstore", options
    package, names = _PACKAGES[family]
    theirs = {name: options[name] for name in own}
    given = _without(options, [*own, "ignore_configured_endpoint_urls"])
    if family == "s3":
        of_client = (("region", "region_name"), ("verify", "verify"))
        if inner := {its: given.pop(ours) for ours, its in of_client if ours in given}:
            theirs["client_kwargs"] = {**theirs.get("client_kwargs", {}), **inner}
        if given.pop("scheme", "https") == "http":
            given["use_ssl"] = False
    if alone := sorted(set(given) - set(names)):
        raise ConfigError(
            f"storage_options name {', '.join(alone)}, which {package} does not take, and {', '.join(sorted(own))}, "
            f"which {package} alone takes; leave one of them out"
        )
    return package, theirs | {names[name]: value for name, value in given.items()}


def _unknown(family: str, options: Mapping[str, Any]) -> list[str]:
    """Return the options that obstore lacks."""
    own = [name for name in options if name not in _NAMES[family]]
    token = options.get("token")
    if family == "gs" and token is not None and (own or _google_login(token) is None):
        return [*own, "token"]
    return own


@lru_cache(maxsize=1024)
def _ours(family: str, name: str) -> str | None:
    """Return our name of an option; None if obstore has no word for it.

    >>> _ours("s3", "AWS_ENDPOINT_URL"), _ours("s3", "s3.access-key-id"), _ours("gs", "consistency")
    ('endpoint', 'access_key_id', None)
    """
    if family == "s3" and (other := _OF_OTHERS.match(name.lower())):
        name = name.lower()[other.end() :].replace("-", "_")
    name = _ALIASES[family].get(name) or _ALIASES["all"].get(name) or name
    if name in _NAMES[family] or name in _WITHOUT_EFFECT:
        return name
    return None


def _named(family: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of one origin, with flags and seconds as such, under our names where there is one."""
    known: dict[str, Any] = {}
    for name, value in options.items():
        if name == "default_metadata" and value is not None:
            raise ConfigError(
                f"storage_options[{name!r}] cannot be kept: no metadata is written with objects; leave it out"
            )
        if family == "s3" and name in ("client_kwargs", "config_kwargs") and value is not None:
            if not isinstance(value, Mapping):
                raise ConfigTypeError(f"storage_options[{name!r}] must be a mapping, got {type(value).__name__}")
            continue
        _agree(known, _ours(family, str(name)) or name, value, name)
    if family == "s3":
        _flatten_clients(known, options.get("client_kwargs") or {})
        _flatten_config(known, options.get("config_kwargs") or {})
    return known


def _agree(known: dict[str, Any], ours: str, value: Any, name: str) -> None:
    """Add an option that may have been given already under another name."""
    if value in (None, "") or ours in _WITHOUT_EFFECT:
        return
    if isinstance(value, str) and ours in _FLAGS:
        value = value.lower() in _TRUE
    elif isinstance(value, str) and ours in _SECONDS and value.replace(".", "", 1).isdecimal():
        value = float(value)
    if known.setdefault(ours, value) != value:
        raise ConfigError(f"storage_options give {ours} twice with different values ({name} is one)")


def _flatten_clients(known: dict[str, Any], inner: Mapping[str, Any]) -> None:
    """Take s3fs's ``client_kwargs``; keep those for which obstore has no word."""
    rest = {}
    for name, value in inner.items():
        if ours := _ours("s3", name):
            _agree(known, ours, value, f"client_kwargs[{name!r}]")
        elif value is not None:
            rest[name] = value
    if rest:
        known["client_kwargs"] = rest


def _flatten_config(known: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Take s3fs's ``config_kwargs``; keep all of them if obstore has no word for one."""
    if config.get("ignore_configured_endpoint_urls"):
        known["ignore_configured_endpoint_urls"] = True
    style = config.get("s3", {}).get("addressing_style", "auto")
    rest = {*config, *config.get("s3", {})} - _OF_CONFIG - _SECONDS
    if rest or style not in ("auto", "path", "virtual") or config.get("signature_version", "s3v4") != "s3v4":
        known["config_kwargs"] = dict(config)
        return
    for name in _SECONDS & set(config):
        _agree(known, name, config[name], f"config_kwargs[{name!r}]")
    if style != "auto":
        _agree(known, "virtual_hosted_style_request", style == "virtual", "config_kwargs")


def _settled_s3(options: dict[str, Any]) -> dict[str, Any]:
    """Return S3's options with one endpoint: their own or, else, that of the environment or ~/.aws.

    It is looked up here and not when a client is made: it is part of the table's location, and travels to other
    machines.
    """
    scheme = options.get("scheme", "http" if options.get("use_ssl") is False else "https")
    endpoint = options.get("endpoint")
    options = _without(options, ["scheme", "use_ssl", "endpoint"])
    if endpoint is None and not options.get("ignore_configured_endpoint_urls"):
        from torch_table_loader.far.aws_login import configured_endpoint

        endpoint = configured_endpoint(options.get("profile"))
    if endpoint is not None:
        url = _parsed(endpoint, scheme)
        options["endpoint"] = f"{url.scheme}://{url.netloc}{url.path}".rstrip("/")
    elif scheme != "https":
        options["scheme"] = scheme
    if options.get("skip_signature"):
        return _without(options, _KEYS)
    return options


def _parsed(endpoint: Any, scheme: str) -> SplitResult:
    """Read an endpoint of the caller or of a catalog."""
    got = type(endpoint).__name__
    if isinstance(endpoint, str):
        got, url = "text that does not parse", str(endpoint)
        if "://" not in url:
            url = f"{scheme}://{url}"
        with suppress(ValueError):
            return urlsplit(url)
    raise ConfigError(
        "the endpoint of S3, in storage_options or among the properties of the catalog, must be a URL such as "
        f"https://host:9000, got {got}"
    )


def _without(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def _google_login(token: Any) -> dict[str, Any] | None:
    """Return gcsfs's ``token`` under obstore's names; None if only gcsfs supports it."""
    if token in ("google_default", "cloud"):  # logins that obstore finds by itself
        return {}
    if token == "anon":  # noqa: S105 - gcsfs's word for none
        return {"skip_signature": True}
    if isinstance(token, Mapping):
        if token.get("type") == "service_account":
            return {"service_account_key": json.dumps(dict(token))}
    elif isinstance(token, str | os.PathLike):
        if token not in ("cache", "browser"):  # of gcsfs's own
            return _login_of_file(Path(token).expanduser(), os.fspath(token))
    elif hasattr(token, "refresh"):
        return {"credentials": token}
    return None


def _login_of_file(path: Path, token: str) -> dict[str, Any] | None:
    try:
        kind = json.loads(path.read_text()).get("type")
    except OSError:
        if token.endswith(".json") or os.sep in token:
            raise ConfigError(
                "storage_options['token'] names a file that cannot be read; give the path of a service account's or "
                'of gcloud\'s JSON file, "anon", "google_default", or an access token'
            ) from None
        return {"bearer_token": token}
    except (ValueError, AttributeError):
        raise ConfigError("storage_options['token'] names a file that is not the JSON of a Google login") from None
    if kind == "service_account":
        return {"service_account": str(path)}
    if kind == "authorized_user":
        return {"application_credentials": str(path)}
    return None
