"""Parse a path or URL: its protocol, the path for the client, and any login in the URL."""

from __future__ import annotations

import base64
import glob
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urlsplit, urlunsplit

from torch_table_loader.errors import ConfigError, ConfigTypeError, MissingExtraError
from torch_table_loader.scrubbing import shown_url

S3_PROTOCOLS = frozenset({"s3", "s3a", "s3n"})
GCS_PROTOCOLS = frozenset({"gs", "gcs"})
AZURE_PROTOCOLS = frozenset({"abfs", "abfss", "adl", "az", "azure", "wasb", "wasbs"})
HTTP_PROTOCOLS = frozenset({"http", "https"})
LOCAL_PROTOCOLS = frozenset({"file", "local"})

FAMILIES = {
    **dict.fromkeys(LOCAL_PROTOCOLS, "file"),
    **dict.fromkeys(S3_PROTOCOLS, "s3"),
    **dict.fromkeys(GCS_PROTOCOLS, "gs"),
    **dict.fromkeys(AZURE_PROTOCOLS, "abfs"),
}
"""Protocols that are other names for a kind of store."""

_WITHOUT_FOLDERS = frozenset({"s3", "gs", "abfs"})
"""Kinds of stores that know keys alone."""

_EXTRAS: dict[str, tuple[str, *tuple[str, ...]]] = {
    "s3": ("s3", "botocore", "obstore", "urllib3"),
    "gs": ("gcs", "obstore"),
    "abfs": ("azure", "obstore"),
    **dict.fromkeys(HTTP_PROTOCOLS, ("http", "aiohttp")),
}
"""By kind of store, the extra that it needs, and its packages."""

_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://")
_LOCAL_URL = re.compile("(file|local):")
_CHAINED = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*::\S*://|[A-Za-z][A-Za-z0-9+.\-]*://[^:]*::[a-z0-9+.\-]*://")


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed path or URL.

    The protocol is in lower case. The path is what the client opens: without protocol and login; for http, the whole
    URL without login.
    """

    protocol: str
    path: str
    login: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    @property
    def shown(self) -> str:
        """The address as messages may show it: without login or query."""
        return shown(self.protocol, self.path)


def shown(protocol: str, path: str) -> str:
    """Format a path as messages may show it.

    >>> shown("s3", "bucket/a.parquet"), shown("https", "https://host/a.parquet?signature=abc")
    ('s3://bucket/a.parquet', 'https://host/a.parquet')
    """
    if protocol in LOCAL_PROTOCOLS:
        return path
    if protocol not in HTTP_PROTOCOLS:
        path = f"{protocol}://{path.lstrip('/')}"
    return shown_url(path)


def parse_address(path_or_url: str | os.PathLike[str]) -> Address:
    """Parse a local path or any fsspec URL, without opening anything.

    Raises:
        ConfigError: the path is empty, chained, of an unknown protocol, or has a login that cannot be read.
        MissingExtraError: the protocol's package is not installed.

    >>> parse_address("s3://key:se%2Fcret@bucket/table/").path
    'bucket/table'
    """
    if not isinstance(path_or_url, str | os.PathLike):
        raise ConfigTypeError(
            f"a path must be a string or os.PathLike, got {type(path_or_url).__name__}; "
            "pass a directory, a glob, a file, or a list of them"
        )
    url = os.fspath(path_or_url)
    if not isinstance(url, str) or not url:
        raise ConfigError(f"a path must be a non-empty string, got {url!r}")
    if _CHAINED.match(url):
        raise ConfigError(
            "a chained URL (protocol::protocol://) is not supported as a path; "
            "name the outer protocol alone and pass target_protocol and target_options in storage_options"
        )
    protocol = "file"
    if match := _PROTOCOL.match(url):
        protocol = match[1].lower()
    if protocol in LOCAL_PROTOCOLS:
        return Address("file", _local_path(url))
    if protocol in S3_PROTOCOLS:
        return _s3_address(url)
    if protocol in GCS_PROTOCOLS:
        return Address("gs", _bucket_path("gs", url.partition("://")[2]))
    if protocol in AZURE_PROTOCOLS:
        return _azure_address(protocol, url)
    if protocol in HTTP_PROTOCOLS:
        return _http_address(protocol, url)
    return _fsspec_address(protocol, url)


def has_magic(protocol: str, path: str) -> bool:
    """Return whether a path has characters of globs."""
    if protocol in HTTP_PROTOCOLS:  # "?" begins the query there
        return re.search(r"[*\[]", path.partition("?")[0]) is not None
    return glob.has_magic(path)


def static_root(pattern: str) -> str:
    """Return the part of a glob before its first wildcard."""
    segments = pattern.split("/")
    magic = next(index for index, segment in enumerate(segments) if glob.has_magic(segment))
    return "/".join(segments[:magic])


def is_shallow(relative: str) -> bool:
    """Return whether a glob, below its fixed part, matches files of a single folder only."""
    return "/" not in relative and "**" not in relative


def prefixes_of(name: str) -> Iterable[str]:
    """Return a relative name and the directories above it: ``a/b/c``, ``a``, ``a/b``."""
    yield name
    for index, character in enumerate(name):
        if character == "/":
            yield name[:index]


def seems_folder(protocol: str, path: str) -> bool:
    """Return whether a path of an object store looks like a folder, which can be listed before it is known to be one.

    Any path names a folder there: one that is none is an empty listing, and no error.

    >>> seems_folder("s3", "lake/clicks"), seems_folder("s3", "lake/a.parquet"), seems_folder("file", "/lake/clicks")
    (True, False, False)
    """
    plain = "." not in path.rpartition("/")[2] and not has_magic(protocol, path)
    return plain and FAMILIES.get(protocol) in _WITHOUT_FOLDERS


def check_packages(protocol: str) -> None:
    """Refuse the protocol of a store whose packages are not installed; plain installs read local files."""
    extra, *packages = _EXTRAS.get(FAMILIES.get(protocol, protocol), ("",))
    if missing := [name for name in packages if find_spec(name) is None]:
        raise MissingExtraError(
            f"{protocol}:// needs {' and '.join(missing)}; pip install 'torch-table-loader[{extra}]'"
        )


def filesystem_class(protocol: str) -> Any:
    """Return the fsspec class of a protocol."""
    import fsspec

    try:
        return fsspec.get_filesystem_class(protocol)
    except ValueError as error:
        raise ConfigError(
            f"protocol {protocol!r} is not one that fsspec knows; use a local path, s3://, memory://, "
            "or install the package that registers it with fsspec"
        ) from error
    except ImportError as error:
        raise MissingExtraError(
            f"{protocol}:// with these storage_options needs a package of fsspec that is not installed ({error})"
        ) from error


def _local_path(url: str) -> str:
    """Return the absolute path of a local path or URL. Plain paths do without fsspec, which is slow to import."""
    if _LOCAL_URL.match(url):
        from fsspec.implementations.local import LocalFileSystem

        url = LocalFileSystem._strip_protocol(url)
    return str(Path(os.path.abspath(os.path.expanduser(url))))  # noqa: PTH100, PTH111 - "~" may be part of a name


def _s3_address(url: str) -> Address:
    rest = url.partition("://")[2]
    authority, slash, key = rest.partition("/")
    login, at, bucket = authority.rpartition("@")
    if not bucket or (":" in bucket and not bucket.startswith("arn:")):
        # A secret with a bare "/" ends the authority early: such a URL must not be shown.
        raise ConfigError(
            "an s3 URL must read s3://bucket/path or s3://key:secret@bucket/path with '/' in the secret "
            "written as %2F; or pass key and secret in storage_options"
        )
    options = {}
    if at:
        access, colon, secret = login.partition(":")
        if not (access and colon and secret):
            raise ConfigError(
                f"the login before @ in the URL of bucket {bucket!r} must read key:secret; "
                "or pass key and secret in storage_options"
            )
        options = {"key": unquote(access), "secret": unquote(secret)}
    return Address("s3", (bucket + slash + key).rstrip("/"), options)


def _azure_address(protocol: str, url: str) -> Address:
    authority, slash, rest = url.partition("://")[2].partition("/")
    container, at, host = authority.partition("@")
    return Address(protocol, _bucket_path(protocol, container + slash + rest), account_in(host) if at else {})


def account_in(host: str) -> dict[str, str]:
    """Return the options in the host of an Azure URL: the part after the @.

    >>> account_in("lake.dfs.core.windows.net")
    {'account_name': 'lake'}
    >>> account_in("lake.dfs.core.chinacloudapi.cn")["account_host"]
    'lake.blob.core.chinacloudapi.cn'
    """
    account, _, rest = host.partition(".")
    if rest in {"", "dfs.core.windows.net", "blob.core.windows.net"}:
        return {"account_name": account}
    return {"account_name": account, "account_host": host.replace(".dfs.", ".blob.", 1)}


def _bucket_path(protocol: str, path: str) -> str:
    if not path.partition("/")[0] or ":" in path.partition("/")[0]:
        raise ConfigError(
            f"a {protocol} URL must read {protocol}://bucket/path; pass what it takes to log in as storage_options"
        )
    return path.rstrip("/")


def _http_address(protocol: str, url: str) -> Address:
    url = urldefrag(url)[0]  # no server ever sees a fragment
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    if not re.fullmatch(r"(\[[^\]]+\]|[^:]+)(:\d*)?", host):  # a bare "/" in a login ends the host early
        raise ConfigError(
            f"a {protocol} URL must read {protocol}://host/path or {protocol}://user:password@host/path with '/' "
            "in the password written as %2F"
        )
    plain = re.sub(r":(80)?$" if protocol == "http" else r":(443)?$", "", host.lower())
    if (parts.scheme, plain) != (url.partition(":")[0], host):  # one spelling for one server
        url = urlunsplit((parts.scheme, f"{login}{at}{plain}", parts.path, parts.query, parts.fragment))
        host = plain
    if not at:
        return Address(protocol, url)
    basic = base64.b64encode(unquote(login).encode()).decode("ascii")
    bare = urlunsplit((parts.scheme, host, parts.path, parts.query, parts.fragment))
    return Address(protocol, bare, {"headers": {"Authorization": f"Basic {basic}"}})


def _fsspec_address(protocol: str, url: str) -> Address:
    kind = filesystem_class(protocol)
    path = kind._strip_protocol(url)
    login = kind._get_kwargs_from_urls(url)
    return Address(protocol, path or "/", login)
