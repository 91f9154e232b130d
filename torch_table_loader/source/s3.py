"""The options of S3, under the names of s3fs, pyarrow or obstore; `s3_client` connects."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.source.aws import configured_endpoint
from torch_table_loader.source.object_store import ClientChoice, agree, sort_options

_NAMES = {
    "key": "access_key",
    "username": "access_key",
    "access_key": "access_key",
    "access_key_id": "access_key",
    "aws_access_key_id": "access_key",
    "secret": "secret_key",
    "password": "secret_key",
    "secret_key": "secret_key",
    "secret_access_key": "secret_key",
    "aws_secret_access_key": "secret_key",
    "token": "session_token",
    "session_token": "session_token",
    "aws_session_token": "session_token",
    "anon": "anonymous",
    "anonymous": "anonymous",
    "skip_signature": "anonymous",
    "endpoint": "endpoint",
    "endpoint_url": "endpoint",
    "endpoint_override": "endpoint",
    "region": "region",
    "region_name": "region",
    "scheme": "scheme",
    "use_ssl": "use_ssl",
    "profile": "profile",
    "role_arn": "role_arn",
    "session_name": "session_name",
    "external_id": "external_id",
    "requester_pays": "requester_pays",
    "request_payer": "requester_pays",
    "force_virtual_addressing": "virtual",
}
"""Options of S3: every name that people write, and our name for it."""

_LOST = frozenset(
    {
        "allow_bucket_creation",
        "allow_bucket_deletion",
        "allow_delayed_open",
        "background_writes",
        "check_directory_existence_before_creation",
        "load_frequency",
        "retry_strategy",
    }
)
"""pyarrow's options that this library lacks, or handles itself for all stores: they have no effect."""

_REFUSED = {"default_metadata": "no metadata is written with objects"}

_S3FS = (
    ("access_key", "key"),
    ("secret_key", "secret"),
    ("session_token", "token"),
    ("anonymous", "anon"),
    ("profile", "profile"),
    ("requester_pays", "requester_pays"),
)
_OBSTORE_ALONE = frozenset(
    {"role_arn", "session_name", "external_id", "virtual", "proxy", "ca_file", "connect_timeout", "read_timeout"}
)
"""Options that s3fs lacks, or expects elsewhere."""


def choose_s3(options: Mapping[str, Any]) -> ClientChoice:
    """Translate S3 options for obstore, or for s3fs if one of them has no equivalent there.

    Args:
        options: as s3fs, pyarrow or obstore names them, including `client_kwargs` and `config_kwargs`.

    Raises:
        ConfigError: two names of one option disagree, or two options each need a different client.

    >>> choose_s3({"key": "K", "secret": "S", "endpoint_url": "http://127.0.0.1:9000"}).options["endpoint"]
    'http://127.0.0.1:9000'
    >>> choose_s3({"version_aware": True}).client
    's3fs'
    """
    known, s3fs = _sorted_out(options)
    scheme = known.pop("scheme", "http" if known.get("use_ssl") is False else "https")
    known.pop("use_ssl", None)
    endpoint = _endpoint(known.pop("endpoint", None), scheme)
    if endpoint is None and scheme != "https":
        known["scheme"] = scheme
    if known.get("anonymous"):
        for name in ("access_key", "secret_key", "session_token"):
            known.pop(name, None)
    if not s3fs:
        fixed = bool(known.get("anonymous")) or ("access_key" in known and "role_arn" not in known)
        return ClientChoice("obstore", known if endpoint is None else {**known, "endpoint": endpoint}, fixed)
    if alone := _OBSTORE_ALONE & set(known):
        raise ConfigError(
            f"storage_options name {', '.join(_as_written(options, alone))}, which s3fs does not take, and "
            f"{', '.join(sorted(s3fs))}, which s3fs alone takes; leave one of them out"
        )
    return ClientChoice("s3fs", _for_s3fs(known, s3fs, endpoint))


def with_configured_endpoint(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the endpoint from the environment or ~/.aws, if the options have none.

    It is added to the options, and not looked up when a client is made: it is part of the table's location, and travels
    to other machines.

    Raises:
        ConfigError: as `choose_s3` and `configured_endpoint` do.
    """
    known, _ = _sorted_out(options)
    if "endpoint" in known or (options.get("config_kwargs") or {}).get("ignore_configured_endpoint_urls"):
        return options
    endpoint = configured_endpoint(os.environ, known.get("profile"))
    return options if endpoint is None else {**options, "endpoint_url": endpoint}


def _sorted_out(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate options into those that obstore supports and those that only s3fs supports."""
    flat = {name: value for name, value in options.items() if name not in {"client_kwargs", "config_kwargs", *_LOST}}
    for name, why in _REFUSED.items():
        if flat.get(name) is not None:
            raise ConfigError(f"storage_options[{name!r}] cannot be kept: {why}; leave it out")
    known, s3fs = sort_options(flat, _NAMES)
    inner = options.get("client_kwargs") or {}
    _nested("client_kwargs", inner)
    for name, value in inner.items():
        if name in _NAMES:
            agree(known, _NAMES[name], value, f"client_kwargs[{name!r}]")
        elif name == "verify":
            known["verify"] = value
        elif value is not None:
            s3fs.setdefault("client_kwargs", {})[name] = value
    config = options.get("config_kwargs") or {}
    _nested("config_kwargs", config)
    _config(config, known, s3fs)
    return known, s3fs


def _nested(name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise ConfigTypeError(f"storage_options[{name!r}] must be a mapping, got {type(value).__name__}")


def _config(config: Mapping[str, Any], known: dict[str, Any], s3fs: dict[str, Any]) -> None:
    """Set the supported part of botocore's config; if anything remains, all of it goes to s3fs."""
    timeouts = {"connect_timeout", "read_timeout"}
    style = config.get("s3", {}).get("addressing_style", "auto")
    style_known = style in {"auto", "virtual"} or (style == "path" and "endpoint" in known)
    rest = {
        key for key in config if key not in {"s3", "signature_version", "ignore_configured_endpoint_urls", *timeouts}
    }
    rest |= {key for key in config.get("s3", {}) if key != "addressing_style"}
    if rest or not style_known or config.get("signature_version", "s3v4") != "s3v4":
        s3fs["config_kwargs"] = dict(config)
        return
    for name in timeouts & set(config):
        agree(known, name, config[name], f"config_kwargs[{name!r}]")
    if style == "virtual":
        known["virtual"] = True


def _endpoint(endpoint: str | None, scheme: str) -> str | None:
    """Return the URL of the endpoint, if there is one, without a trailing slash."""
    if endpoint is None:
        return None
    if "://" not in endpoint:
        return f"{scheme}://{endpoint}".rstrip("/")
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")


def _for_s3fs(known: Mapping[str, Any], own: Mapping[str, Any], endpoint: str | None) -> dict[str, Any]:
    options = dict(own)
    options |= {theirs: known[ours] for ours, theirs in _S3FS if ours in known}
    inner = {"region_name": known["region"]} if "region" in known else {}
    inner |= {"verify": known["verify"]} if "verify" in known else {}
    if inner:
        options["client_kwargs"] = {**options.get("client_kwargs", {}), **inner}
    if endpoint:
        options["endpoint_url"] = endpoint
    elif "scheme" in known:
        options["use_ssl"] = False
    return options


def _as_written(options: Mapping[str, Any], ours: frozenset[str] | set[str]) -> list[str]:
    """Return the options' names as the caller wrote them, for messages."""
    known = {name: next(iter(sort_options({name: value}, _NAMES)[0]), None) for name, value in options.items()}
    return sorted(name for name, meant in known.items() if meant in ours)
