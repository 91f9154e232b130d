"""S3 options: which client takes them, pyarrow's own or s3fs, and what they are called there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.source.aws import configured_endpoint

_SHARED = {
    "key": "access_key",
    "username": "access_key",
    "access_key": "access_key",
    "aws_access_key_id": "access_key",
    "secret": "secret_key",
    "password": "secret_key",
    "secret_key": "secret_key",
    "aws_secret_access_key": "secret_key",
    "token": "session_token",
    "session_token": "session_token",
    "aws_session_token": "session_token",
    "anon": "anonymous",
    "anonymous": "anonymous",
    "endpoint": "endpoint_override",
    "endpoint_url": "endpoint_override",
    "endpoint_override": "endpoint_override",
    "region": "region",
    "region_name": "region",
    "scheme": "scheme",
    "use_ssl": "use_ssl",
}
"""What both clients can do, by every name people write, to one name each."""

_ARROW_ONLY = frozenset(
    {
        "allow_bucket_creation",
        "allow_bucket_deletion",
        "allow_delayed_open",
        "background_writes",
        "check_directory_existence_before_creation",
        "connect_timeout",
        "default_metadata",
        "external_id",
        "force_virtual_addressing",
        "load_frequency",
        "proxy_options",
        "request_timeout",
        "retry_strategy",
        "role_arn",
        "session_name",
        "tls_ca_file_path",
    }
)
_MEANINGLESS = frozenset(
    {"use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache", "asynchronous"}
)
"""Of s3fs's caches, which this library does not use: a stale listing would hide a changed file."""


@dataclass(frozen=True, slots=True)
class S3Choice:
    """The client that takes the options, and its keyword arguments.

    Args:
        client: "pyarrow" or "s3fs".
        options: keyword arguments of its S3FileSystem.
    """

    client: str
    options: Mapping[str, Any] = field(repr=False)


def choose_s3(options: Mapping[str, Any]) -> S3Choice:
    """Translate S3 options for pyarrow's client, or, where one of them has no equal there, for s3fs.

    Args:
        options: as s3fs or as pyarrow name them, `client_kwargs` and `config_kwargs` included.

    Raises:
        ConfigError: two names of one option disagree, or two options are each for the other client.

    >>> choose_s3({"key": "K", "secret": "S", "endpoint_url": "http://127.0.0.1:9000"}).options["scheme"]
    'http'
    >>> choose_s3({"profile": "dev"}).client
    's3fs'
    """
    shared, arrow, s3fs = _sorted_out(options)
    if arrow and s3fs:
        raise ConfigError(
            f"storage_options name {', '.join(sorted(arrow))}, which pyarrow's S3 client alone takes, and "
            f"{', '.join(sorted(s3fs))}, which s3fs alone takes; leave one of them out"
        )
    endpoint = shared.pop("endpoint_override", None)
    scheme, host, base_path = _endpoint(endpoint, shared.pop("scheme", None), shared.pop("use_ssl", None))
    if shared.get("anonymous"):
        for name in ("access_key", "secret_key", "session_token"):
            shared.pop(name, None)
    if s3fs or base_path or not _has_arrow_s3():
        return S3Choice("s3fs", _for_s3fs(shared, s3fs, scheme, host and host + base_path))
    if scheme is not None:
        shared["scheme"] = scheme
    if host is not None:
        shared["endpoint_override"] = host
    return S3Choice("pyarrow", {**shared, **arrow})


def with_configured_endpoint(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the endpoint that the environment or ~/.aws names, where the options name none.

    It is added to the options, and not looked up where a client is made: it is part of where a table is, and goes
    along to other machines.

    Raises:
        ConfigError: as `choose_s3` and `configured_endpoint` do.
    """
    shared, _, s3fs = _sorted_out(options)
    if "endpoint_override" in shared or s3fs.get("config_kwargs", {}).get("ignore_configured_endpoint_urls"):
        return options
    endpoint = configured_endpoint(os.environ, options.get("profile"))
    return options if endpoint is None else {**options, "endpoint_url": endpoint}


def _sorted_out(
    options: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Part options into those of both clients, of pyarrow's alone, and of s3fs alone."""
    shared: dict[str, Any] = {}
    arrow: dict[str, Any] = {}
    s3fs: dict[str, Any] = {}
    for name, value in options.items():
        if value is None or name in _MEANINGLESS:
            continue
        if name in _SHARED:
            _agree(shared, _SHARED[name], value, name)
        elif name in _ARROW_ONLY:
            arrow[name] = value
        elif name == "client_kwargs":
            _nested(name, value)
            for inner, entry in value.items():
                if inner in _SHARED:
                    _agree(shared, _SHARED[inner], entry, f"client_kwargs[{inner!r}]")
                else:
                    s3fs.setdefault(name, {})[inner] = entry
        elif name != "config_kwargs":
            s3fs[name] = value
    config = options.get("config_kwargs") or {}
    _nested("config_kwargs", config)
    _config(config, arrow, s3fs, path_style="endpoint_override" in shared)
    return shared, arrow, s3fs


def _nested(name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise ConfigTypeError(f"storage_options[{name!r}] must be a mapping, got {type(value).__name__}")


def _agree(shared: dict[str, Any], canonical: str, value: Any, name: str) -> None:
    if value is None:
        return
    if shared.setdefault(canonical, value) != value:
        raise ConfigError(f"storage_options give {canonical} twice with different values ({name} is one)")


def _config(config: Mapping[str, Any], arrow: dict[str, Any], s3fs: dict[str, Any], *, path_style: bool) -> None:
    """Take from botocore's config what pyarrow can do; if anything remains, all of it goes to s3fs."""
    style = config.get("s3", {}).get("addressing_style", "auto")
    style_known = style in {"auto", "virtual"} or (style == "path" and path_style)
    rest = {key for key in config if key not in {"s3", "signature_version"}}
    rest |= {key for key in config.get("s3", {}) if key != "addressing_style"}
    if rest or not style_known or config.get("signature_version", "s3v4") != "s3v4":
        s3fs["config_kwargs"] = dict(config)
    elif style == "virtual":
        arrow["force_virtual_addressing"] = True


def _endpoint(endpoint: str | None, scheme: str | None, use_ssl: bool | None) -> tuple[str | None, str | None, str]:
    """Give scheme, host with port, and the path behind them."""
    if scheme is None and use_ssl is not None:
        scheme = "https" if use_ssl else "http"
    if endpoint is None:
        return scheme, None, ""
    if "://" not in endpoint:
        return scheme, endpoint, ""
    parts = urlsplit(endpoint)
    return parts.scheme, parts.netloc, parts.path.rstrip("/")


def _for_s3fs(
    shared: Mapping[str, Any], own: Mapping[str, Any], scheme: str | None, host: str | None
) -> dict[str, Any]:
    options = dict(own)
    for ours, theirs in (
        ("access_key", "key"),
        ("secret_key", "secret"),
        ("session_token", "token"),
        ("anonymous", "anon"),
    ):
        if ours in shared:
            options[theirs] = shared[ours]
    if "region" in shared:
        options["client_kwargs"] = {**options.get("client_kwargs", {}), "region_name": shared["region"]}
    if host:
        options["endpoint_url"] = f"{scheme or 'https'}://{host}"
    elif scheme is not None:
        options["use_ssl"] = scheme == "https"
    return options


def _has_arrow_s3() -> bool:
    try:
        from pyarrow.fs import S3FileSystem  # noqa: F401 - pyarrow can be built without S3
    except ImportError:
        return False
    return True
