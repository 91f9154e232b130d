"""Where a Delta Lake table is, and what deltalake must be told to get there, from the caller's own words."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import unquote

from botocore.exceptions import BotoCoreError

from torch_table_loader.errors import AccessRefusedError, ConfigError, ConfigTypeError
from torch_table_loader.scrubbing import scrub, secrets_of
from torch_table_loader.source.address import AZURE_PROTOCOLS, parse_address
from torch_table_loader.source.aws import aws_login
from torch_table_loader.source.s3 import choose_s3, with_configured_endpoint

_S3_NAMES = {
    "endpoint": "aws_endpoint_url",
    "region": "aws_region",
    "virtual": "aws_virtual_hosted_style_request",
    "requester_pays": "aws_request_payer",
    "proxy": "proxy_url",
    "connect_timeout": "connect_timeout",
    "read_timeout": "timeout",
}
"""How this library names S3 options for obstore, and deltalake's names of them."""

_LOGIN = frozenset(
    {"access_key", "secret_key", "session_token", "anonymous", "profile", "role_arn", "session_name", "external_id"}
)
_WRITING = frozenset(
    {
        "allow_http",
        "aws_allow_http",
        "aws_conditional_put",
        "aws_copy_if_not_exists",
        "aws_s3_allow_unsafe_rename",
        "aws_s3_locking_provider",
        "conditional_put",
        "copy_if_not_exists",
    }
)
"""deltalake's options for those who write, and one that the endpoint says: reading takes none of them."""

_PREFIXED = {
    "aws_region": "region",
    "aws_default_region": "region",
    "aws_endpoint": "endpoint",
    "aws_endpoint_url": "endpoint",
    "aws_endpoint_url_s3": "endpoint",
    "aws_skip_signature": "anonymous",
    "aws_virtual_hosted_style_request": "force_virtual_addressing",
}
_HEAD = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://")
_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})


@dataclass(frozen=True, slots=True)
class DeltaAddress:
    """A table's folder.

    Args:
        root: as paths of the table begin: a local path, or a URL without login.
        options: how this library's storage opens it; never shown.
        protocol: "file", "s3", "gs" or "az".
    """

    root: str
    options: Mapping[str, Any] = field(repr=False)
    protocol: str = "file"

    def scrubbed(self, error: BaseException) -> str:
        """Return the first line of what deltalake raised, without secrets."""
        return scrub(str(error).strip().split("\n", 1)[0], secrets_of(self.options))

    def for_deltalake(self, retry_seconds: float) -> dict[str, str] | None:
        """Return the options in deltalake's words; the login is what this library would use itself.

        Args:
            retry_seconds: how long to try a request that the store does not serve.

        Raises:
            ConfigError: an option that deltalake does not take.
            AccessRefusedError: there is no login.
        """
        if self.protocol == "file":
            return None
        found = {"retry_timeout": f"{max(1, round(retry_seconds))}s"}
        if self.protocol != "s3":
            plain = (str, int, float, bool)
            return found | {str(name): _text(value) for name, value in self.options.items() if isinstance(value, plain)}
        choice = choose_s3(self.options)
        if choice.client != "obstore" or set(choice.options) - _LOGIN - set(_S3_NAMES) - {"scheme"}:
            raise ConfigError(
                "storage_options of a Delta Lake table must be such as deltalake and this library both take: login, "
                f"region, endpoint, proxy and timeouts, got {', '.join(sorted(self.options))}"
            )
        found |= {_S3_NAMES[name]: _text(value) for name, value in choice.options.items() if name in _S3_NAMES}
        found |= {name: f"{found[name]}s" for name in ("connect_timeout", "timeout") if name in found}
        if choice.options.get("endpoint", "").startswith("http:") or choice.options.get("scheme") == "http":
            found["aws_allow_http"] = "true"
        return found | self._login(choice.options)

    def _login(self, known: Mapping[str, Any]) -> dict[str, str]:
        try:
            provider = aws_login(known)
        except BotoCoreError as error:
            raise AccessRefusedError(
                f"{self.root}: there is no login ({self.scrubbed(error)}); pass credentials in storage_options, or "
                "anon=True for a public bucket",
                self.root,
            ) from None
        if provider is None:
            return {"aws_skip_signature": "true"}
        login = cast("Mapping[str, Any]", provider())
        names = {"access_key_id": login["access_key_id"], "secret_access_key": login["secret_access_key"]}
        names |= {"session_token": login["token"]} if login["token"] else {}
        return {f"aws_{name}": value for name, value in names.items()}


def find_table(table_uri: Any, storage_options: Mapping[str, Any] | None) -> DeltaAddress:
    """Return where a table is. Connects to nothing.

    Args:
        table_uri: the caller's: a local path or a URL.
        storage_options: the caller's; names of deltalake's are taken as well as those of other tables.

    Raises:
        ConfigError: no path, or on a store that deltalake does not know.
    """
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise ConfigTypeError(
            f"storage_options must be a mapping of names to values, got {type(storage_options).__name__}"
        )
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
    address = parse_address(table_uri)
    if address.protocol == "file":
        return DeltaAddress(address.path, {})
    protocol = "az" if address.protocol in AZURE_PROTOCOLS else address.protocol
    if protocol not in ("s3", "gs", "az"):
        raise ConfigError(
            f"a Delta Lake table must be a local folder, or on s3://, gs:// or Azure (abfss://), got {address.shown}"
        )
    options = {**address.login, **_as_ours(storage_options or {}, protocol)}
    if protocol == "s3":
        options = dict(with_configured_endpoint(options))
    return DeltaAddress(f"{protocol}://{address.path}", options, protocol)


def path_of(root: str, written: str) -> str:
    """Return where a file is that the log names: percent-encoded, and relative to the table or absolute.

    >>> path_of("/lake/t", "day=a%2520b/1.parquet"), path_of("s3://lake/t", "s3://other/1%202.parquet")
    ('/lake/t/day=a%20b/1.parquet', 's3://other/1 2.parquet')
    """
    path = unquote(written)
    if path.startswith(("/", "file:")) or _HEAD.match(path):
        return path
    return f"{root.rstrip('/')}/{path}"


def _as_ours(options: Mapping[str, Any], protocol: str) -> dict[str, Any]:
    """Take deltalake's own names of S3 options, in whatever case, beside those of this library."""
    if protocol != "s3":
        return dict(options)
    found: dict[str, Any] = {}
    for name, value in options.items():
        low = str(name).lower()
        if low in _WRITING:
            continue
        ours = _PREFIXED.get(low, low if low.startswith("aws_") else name)
        flag = ours in ("anonymous", "force_virtual_addressing") and isinstance(value, str)
        found[ours] = value.lower() in _TRUE if flag else value
    return found


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
