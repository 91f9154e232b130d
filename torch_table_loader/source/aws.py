"""What AWS's own clients take from the environment and from ~/.aws, and pyarrow's S3 client does not."""

from __future__ import annotations

import configparser
import functools
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from torch_table_loader.errors import ConfigError

_REGION_TIMEOUT_S = 10


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
    return _nested(services.get("s3", "")).get("endpoint_url") or settings.get("endpoint_url")


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
    """Ask AWS for the region of a bucket, through the proxy that the environment names."""
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
    """Take quotes and spare spaces out of a section's name.

    >>> _normal('profile "dev"')
    'profile dev'
    """
    return " ".join(section.replace('"', "").split())


def _nested(text: str) -> dict[str, str]:
    """Read the indented lines behind a setting."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}
