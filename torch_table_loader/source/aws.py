"""Settings that AWS's own tools find: endpoint, region and login in the environment and ~/.aws, and bucket regions."""

from __future__ import annotations

import configparser
import functools
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_table_loader.errors import ConfigError
from torch_table_loader.source.object_store import CONNECT_TIMEOUT_S, proxy_url, tls_context

if TYPE_CHECKING:
    from obstore.store import S3Credential, S3CredentialProvider

_ASKED_AGAIN = timedelta(minutes=10)
"""botocore renews credentials at least this long before they expire; obstore asks for them after half of it."""


def configured_endpoint(environ: Mapping[str, str], profile: str | None = None) -> str | None:
    """Return the S3 endpoint that is configured outside the program.

    The order is that of AWS's SDKs, see https://docs.aws.amazon.com/sdkref/latest/guide/feature-ss-endpoints.html:
    ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL``, the ``s3`` part of the profile's ``services`` section, and the
    profile's ``endpoint_url``. ``AWS_IGNORE_CONFIGURED_ENDPOINT_URLS`` switches all of them off.

    Args:
        profile: the caller's profile; None for the environment's.

    Raises:
        ConfigError: a configuration file does not parse, or names a services section that does not exist.
    """
    name, settings = _settings(environ, profile)
    ignored = environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") or settings.get("ignore_configured_endpoint_urls", "")
    if ignored.lower() == "true":
        return None
    given = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    if given or "services" not in settings:
        return given or settings.get("endpoint_url")
    services = _sections(_files(environ)[0]).get(f"services {settings['services']}")
    if services is None:
        raise ConfigError(
            f"the profile {name!r} in {_files(environ)[0]} names services {settings['services']!r}, and there is no "
            f"section [services {settings['services']}]; add it, or take the line out"
        )
    return _indented(services.get("s3", "")).get("endpoint_url") or settings.get("endpoint_url")


def configured_region(environ: Mapping[str, str], profile: str | None = None) -> str | None:
    """Return the region from the environment or a profile, as AWS's SDKs read them."""
    given = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    return given or _settings(environ, profile)[1].get("region")


def bucket_region(bucket: str, options: Mapping[str, Any]) -> str | None:
    """Return the region of a bucket, which AWS tells without authentication.

    Args:
        options: proxy and certificates, as `sort_options` names them; the environment's proxy applies too.
    """
    request = urllib.request.Request(f"https://s3.amazonaws.com/{bucket}", method="HEAD")
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=tls_context(options))]
    if "proxy" in options:
        handlers.append(urllib.request.ProxyHandler({"https": proxy_url(options["proxy"])}))
    opener = urllib.request.build_opener(*handlers)  # urlopen keeps the proxies of its first call
    try:
        with opener.open(request, timeout=options.get("connect_timeout", CONNECT_TIMEOUT_S)) as answer:
            headers = answer.headers
    except urllib.error.HTTPError as error:  # 301 and 403 name the region, too
        headers = error.headers
    except OSError:  # the request itself will report it
        return None
    region: str | None = headers.get("x-amz-bucket-region")
    return region


def aws_login(options: Mapping[str, Any]) -> S3CredentialProvider | None:
    """Return a provider of credentials for obstore: fixed ones, or whatever botocore finds or fetches.

    Args:
        options: keys, profile and role, as `s3` names them.

    Returns:
        None for anonymous access.

    Raises:
        ConfigError: the login is incomplete, or the profile does not exist.
        botocore.exceptions.BotoCoreError: there is no login, or it cannot be obtained.
    """
    if options.get("anonymous"):
        return None
    key, secret, token = (options.get(name) for name in ("access_key", "secret_key", "session_token"))
    if bool(key) != bool(secret):
        raise ConfigError("storage_options must give access key and secret key together, or neither")
    if key and "role_arn" not in options:
        fixed: S3Credential = {
            "access_key_id": key,
            "secret_access_key": secret or "",
            "token": token,
            "expires_at": None,
        }
        return lambda: fixed
    return _botocore_login(options, (key, secret, token) if key else None)


def _botocore_login(options: Mapping[str, Any], keys: tuple[Any, ...] | None) -> S3CredentialProvider:
    # Imported here, since it takes 0.15 s, which only users of S3 should pay.
    from botocore import credentials, exceptions
    from botocore.session import Session

    session = Session(profile=options.get("profile"))
    try:
        if region := options.get("region") or configured_region(os.environ, options.get("profile")):
            session.set_config_variable("region", region)
        found = credentials.Credentials(*keys) if keys else session.get_credentials()
    except exceptions.ProfileNotFound as error:
        raise ConfigError(f"{error}; name one of ~/.aws/config as profile, or leave it out") from None
    if found is None:
        raise exceptions.NoCredentialsError
    if "role_arn" in options:
        named = {"RoleSessionName": options.get("session_name"), "ExternalId": options.get("external_id")}
        fetcher = credentials.AssumeRoleCredentialFetcher(
            session.create_client, found, options["role_arn"], {name: value for name, value in named.items() if value}
        )
        found = credentials.DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")
    renewed = isinstance(found, credentials.RefreshableCredentials)

    def provide() -> S3Credential:
        now = found.get_frozen_credentials()
        end = datetime.now(UTC) + _ASKED_AGAIN if renewed else None
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": end,
        }

    provide()  # a failure is raised here, with botocore's own error
    return provide


def _settings(environ: Mapping[str, str], profile: str | None) -> tuple[str, Mapping[str, str]]:
    """Return the name of the profile, and its settings in both of AWS's files."""
    name = profile or environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
    settings: dict[str, str] = {}
    sections = ("default" if name == "default" else f"profile {name}", name)
    for path, section in zip(_files(environ), sections, strict=True):
        settings |= _sections(path).get(section, {})
    return name, settings


def _files(environ: Mapping[str, str]) -> tuple[Path, Path]:
    """Return the paths of the configuration and credentials files."""
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
    parser = configparser.RawConfigParser(default_section="")  # [default] is a section like any other
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except OSError:
        return {}
    except (configparser.Error, UnicodeDecodeError) as error:
        # The parser quotes the line, which may contain a secret.
        raise ConfigError(
            f"{path} does not parse as a configuration file of AWS ({type(error).__name__}); correct it"
        ) from None
    return {_normal(name): dict(parser.items(name)) for name in parser.sections()}


def _normal(section: str) -> str:
    """Return a section's name without quotes and extra spaces.

    >>> _normal('profile "dev"')
    'profile dev'
    """
    return " ".join(section.replace('"', "").split())


def _indented(text: str) -> dict[str, str]:
    """Read the indented lines after a setting."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}
