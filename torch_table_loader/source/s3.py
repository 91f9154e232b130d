"""S3: which client takes the options, what AWS's own tools find in the environment and ~/.aws, and pyarrow's client."""

from __future__ import annotations

import configparser
import functools
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs as arrow_fs

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.records import FileVersion
from torch_table_loader.source.clients import Client, Found

_REGION_TIMEOUT_S = 10
_COPY_BYTES = 1 << 24
_SECOND = 1_000_000_000

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
    """Set what pyarrow can do of botocore's config; if anything remains, all of it goes to s3fs."""
    style = config.get("s3", {}).get("addressing_style", "auto")
    style_known = style in {"auto", "virtual"} or (style == "path" and path_style)
    rest = {key for key in config if key not in {"s3", "signature_version"}}
    rest |= {key for key in config.get("s3", {}) if key != "addressing_style"}
    if rest or not style_known or config.get("signature_version", "s3v4") != "s3v4":
        s3fs["config_kwargs"] = dict(config)
    elif style == "virtual":
        arrow["force_virtual_addressing"] = True


def _endpoint(endpoint: str | None, scheme: str | None, use_ssl: bool | None) -> tuple[str | None, str | None, str]:
    """Return scheme, host with port, and the path behind them."""
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


class ArrowS3Client(Client):
    """S3 through pyarrow: no Python and no GIL on the way of the bytes."""

    def __init__(self, options: Mapping[str, Any], bucket: str) -> None:
        """Connect, through the environment's proxy; where nothing names a region, the bucket is asked for its own."""
        options = dict(options)
        host = options.get("endpoint_override") or f"{bucket}.s3.amazonaws.com"
        proxy = options.get("proxy_options") or proxy_of(f"{options.get('scheme', 'https')}://{host}")
        if "region" not in options and "endpoint_override" not in options and not _region_in_environment():
            options["region"] = region_through_proxy(bucket) if proxy else _region_of(bucket)
        if proxy:
            options["proxy_options"] = proxy
        self.native = arrow_fs.S3FileSystem(**options)

    def open(self, path: str) -> pa.NativeFile:
        """Open an object; its bytes come with range requests."""
        return self.native.open_input_file(path)

    def stat(self, path: str) -> Found:
        """Send one HEAD request (and a listing where that finds nothing)."""
        info = self.native.get_file_info(path)
        if info.type == arrow_fs.FileType.NotFound:
            raise FileNotFoundError(path)
        return _of_arrow(info)

    def walk(self, root: str, *, recursive: bool) -> Iterator[Found]:
        """List with one request for every thousand objects."""
        selector = arrow_fs.FileSelector(root, recursive=recursive)
        for info in self.native.get_file_info(selector):
            if not recursive or info.type == arrow_fs.FileType.File:
                yield _of_arrow(info)

    def read(self, path: str) -> bytes:
        """Read an object whole."""
        with self.native.open_input_file(path) as file:
            return bytes(file.readall())

    def write(self, path: str, data: bytes) -> None:
        """Put an object; it appears when the stream closes."""
        with self.native.open_output_stream(path) as stream:
            stream.write(data)

    def put_file(self, local: str, path: str) -> None:
        """Put a file of any size, in parts."""
        with Path(local).open("rb") as source, self.native.open_output_stream(path) as stream:
            while data := source.read(_COPY_BYTES):
                stream.write(data)


def _of_arrow(info: Any) -> Found:
    if info.type != arrow_fs.FileType.File:
        return Found(info.path, None)
    # Listings carry milliseconds and HEAD answers carry seconds: both must name the same version.
    mtime = None if info.mtime_ns is None else info.mtime_ns // _SECOND * _SECOND
    return Found(info.path, FileVersion(info.size, mtime))


def _region_in_environment() -> bool:
    return any(os.environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION"))


def _region_of(bucket: str) -> str | None:
    try:
        region: str = arrow_fs.resolve_s3_region(bucket)
    except OSError:  # no such bucket, or no way to ask: the request itself will say so
        return None
    return region


def configured_endpoint(environ: Mapping[str, str], profile: str | None = None) -> str | None:
    """Return the endpoint of S3 that is configured outside of the program.

    The order is that of AWS's SDKs, see https://docs.aws.amazon.com/sdkref/latest/guide/feature-ss-endpoints.html:
    ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL``, the ``s3`` part of the profile's ``services`` section, and the
    profile's ``endpoint_url``. ``AWS_IGNORE_CONFIGURED_ENDPOINT_URLS`` switches all of them off.

    Args:
        environ: the environment.
        profile: the caller's; None for the environment's.

    Raises:
        ConfigError: a configuration file does not parse, or names a services section that it does not have.
    """
    name = profile or environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
    files = _files(environ)
    settings: dict[str, str] = {}
    for path, section in zip(files, ("default" if name == "default" else f"profile {name}", name), strict=True):
        settings |= _sections(path).get(section, {})
    ignored = environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") or settings.get("ignore_configured_endpoint_urls", "")
    if ignored.lower() == "true":
        return None
    given = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    if given or "services" not in settings:
        return given or settings.get("endpoint_url")
    services = _sections(files[0]).get(f"services {settings['services']}")
    if services is None:
        raise ConfigError(
            f"the profile {name!r} in {files[0]} names services {settings['services']!r}, and there is no section "
            f"[services {settings['services']}]; add it, or take the line out"
        )
    return _indented(services.get("s3", "")).get("endpoint_url") or settings.get("endpoint_url")


def proxy_of(url: str) -> dict[str, Any] | None:
    """Return the proxy for a URL that the environment names, as pyarrow's ``proxy_options``; None if there is none.

    ``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY`` count as Python's own library and botocore read them.
    """
    parts = urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or urllib.request.proxy_bypass(parts.netloc):
        return None
    found = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if not found.hostname:
        raise ConfigError(f"{parts.scheme.upper()}_PROXY must read http://host:port, and names no host")
    port = found.port or (443 if found.scheme == "https" else 80)
    options: dict[str, Any] = {"scheme": found.scheme, "host": found.hostname, "port": port}
    if found.username:
        options |= {"username": unquote(found.username), "password": unquote(found.password or "")}
    return options


def region_through_proxy(bucket: str) -> str | None:
    """Return what AWS says of the region of a bucket, asked through the proxy that the environment names."""
    request = urllib.request.Request(f"https://s3.amazonaws.com/{bucket}", method="HEAD")
    opener = urllib.request.build_opener()  # urlopen keeps the proxies of its first call
    try:
        with opener.open(request, timeout=_REGION_TIMEOUT_S) as answer:
            headers = answer.headers
    except urllib.error.HTTPError as error:  # 301 and 403 name the region, too
        headers = error.headers
    except OSError:  # the request itself will say so
        return None
    region: str | None = headers.get("x-amz-bucket-region")
    return region


def _files(environ: Mapping[str, str]) -> tuple[Path, Path]:
    """Return the paths of the configuration and of the credentials."""
    folder = Path("~/.aws")
    config = environ.get("AWS_CONFIG_FILE") or folder / "config"
    credentials = environ.get("AWS_SHARED_CREDENTIALS_FILE") or folder / "credentials"
    return Path(config).expanduser(), Path(credentials).expanduser()


def _sections(path: Path) -> Mapping[str, Mapping[str, str]]:
    try:
        status = os.stat(path)  # noqa: PTH116 - asked for each path of a list
    except OSError:
        return {}
    return _parsed(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=8)
def _parsed(path: Path, _mtime_ns: int, _size: int) -> Mapping[str, Mapping[str, str]]:
    parser = configparser.RawConfigParser(default_section="")  # [default] is a section as any other
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except OSError:
        return {}
    except (configparser.Error, UnicodeDecodeError) as error:
        # The parser quotes the line, which may be a secret.
        raise ConfigError(
            f"{path} does not parse as a configuration file of AWS ({type(error).__name__}); correct it"
        ) from None
    return {_normal(name): dict(parser.items(name)) for name in parser.sections()}


def _normal(section: str) -> str:
    """Return a section's name without quotes and spare spaces.

    >>> _normal('profile "dev"')
    'profile dev'
    """
    return " ".join(section.replace('"', "").split())


def _indented(text: str) -> dict[str, str]:
    """Read the indented lines behind a setting."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}
