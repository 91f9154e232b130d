"""Where a Delta Lake table is, and the options that deltalake takes, made from the caller's."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.table_formats import StoreAddress

_S3_NAMES = {
    "endpoint": "aws_endpoint_url",
    "region": "aws_region",
    "virtual_hosted_style_request": "aws_virtual_hosted_style_request",
    "request_payer": "aws_request_payer",
}
"""Our names of S3 options, and deltalake's names of them."""

_NETWORK = {"connect_timeout": "connect_timeout", "read_timeout": "timeout"}
"""The same for options of all stores."""

_READ_HERE = frozenset(
    {"access_key_id", "secret_access_key", "session_token", "skip_signature", "profile", "role_arn"}
    | {"role_session_name", "external_id", "scheme", "ignore_configured_endpoint_urls"}
)
"""Our names of S3 options that say how to log in and where: deltalake gets what comes of them."""

_HEAD = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://")


@dataclass(frozen=True, slots=True)
class DeltaAddress(StoreAddress):
    """A table's folder, and how this library's storage opens it."""

    def for_deltalake(self, retry_seconds: float) -> dict[str, str] | None:
        """Return the options in deltalake's words; the login is what this library would use itself."""
        if self.protocol == "file":
            return None
        known = dict(self.options)
        found = {"retry_timeout": f"{max(1, round(retry_seconds))}s"}
        found |= {theirs: _text(known[name]) for name, theirs in _NETWORK.items() if name in known}
        found |= {name: f"{found[name]}s" for name in ("connect_timeout", "timeout") if name in found}
        found |= self.proxy_options()
        own = {name: value for name, value in known.items() if name not in (*_NETWORK, "proxy_url")}
        if self.protocol != "s3":
            plain = (str, int, float, bool)
            return found | {name: _text(value) for name, value in own.items() if isinstance(value, plain)}
        if set(own) - _READ_HERE - set(_S3_NAMES):
            raise ConfigError(
                "storage_options of a Delta Lake table must be such as deltalake and this library both take: login, "
                f"region, endpoint, proxy and timeouts, got {', '.join(sorted(known))}"
            )
        found |= {_S3_NAMES[name]: _text(value) for name, value in own.items() if name in _S3_NAMES}
        if own.get("endpoint", "").startswith("http:") or own.get("scheme") == "http":
            found["aws_allow_http"] = "true"
        return found | self._login()

    def _login(self) -> dict[str, str]:
        login = self.s3_login()
        if login is None:
            return {"aws_skip_signature": "true"}
        return {f"aws_{name}": value for name, value in login.items()}


def find_table(table_uri: Any, storage_options: Mapping[str, Any] | None) -> DeltaAddress:
    """Return where a table is, given its path or URL. Connects to nothing."""
    if not isinstance(table_uri, str | os.PathLike):
        raise ConfigTypeError(
            "table_uri must be the path or URL of a table's folder, the one that holds _delta_log, got "
            f"{type(table_uri).__name__}"
        )
    if isinstance(table_uri, str) and table_uri.startswith("uc://"):
        raise ConfigError(
            "a table of a Unity catalog is named by its storage location, as DESCRIBE DETAIL gives it, with the login "
            "of its store in storage_options: deltalake, which resolves uc://, does not pass on the credentials that "
            "it is given"
        )
    return DeltaAddress.of(table_uri, storage_options, "a Delta Lake table")


def path_of(root: str, written: str) -> str:
    """Return where a file is, given its path in the log: percent-encoded, and relative to the table or absolute.

    >>> path_of("/lake/t", "day=a%2520b/1.parquet"), path_of("s3://lake/t", "s3://other/1%202.parquet")
    ('/lake/t/day=a%20b/1.parquet', 's3://other/1 2.parquet')
    """
    path = unquote(written)
    if path.startswith(("/", "file:")) or _HEAD.match(path):
        return path
    return f"{root.rstrip('/')}/{path}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
