"""What AWS's own tools find, through botocore: endpoint, region and login in the environment and ~/.aws."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botocore import credentials, exceptions
from botocore.session import Session

from torch_table_loader.errors import ConfigError

if TYPE_CHECKING:
    from obstore.store import S3Credential, S3CredentialProvider

_ASKED_AGAIN = timedelta(minutes=10)
"""botocore renews credentials at least this long before they expire; obstore asks for them after half of it."""


def configured_endpoint(profile: str | None = None) -> str | None:
    """Return the S3 endpoint that is configured outside the program, for a profile (None: the environment's).

    The order is that of AWS's SDKs, see https://docs.aws.amazon.com/sdkref/latest/guide/feature-ss-endpoints.html:
    ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL``, the ``s3`` part of the profile's ``services`` section, and the
    profile's ``endpoint_url``. ``AWS_IGNORE_CONFIGURED_ENDPOINT_URLS`` switches all of them off.

    Raises:
        ConfigError: a configuration file does not parse, or names a services section that does not exist.
    """
    settings = _settings(profile)
    environ = os.environ
    ignored = environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") or settings.get("ignore_configured_endpoint_urls", "")
    if ignored.lower() == "true":
        return None
    given = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    if given or "services" not in settings:
        return given or settings.get("endpoint_url")
    section = settings["services"]
    if section not in settings["all services"]:
        raise ConfigError(
            f"a profile in {_files()[0]} names services {section!r}, and there is no section [services {section}]; "
            "add it, or take the line out"
        )
    of_s3 = settings["all services"][section].get("s3", {})
    return of_s3.get("endpoint_url") or settings.get("endpoint_url")


def configured_region(profile: str | None = None) -> str | None:
    """Return the region from the environment or a profile, as AWS's SDKs read them."""
    given = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return given or _settings(profile).get("region")


def aws_login(options: Mapping[str, Any]) -> S3CredentialProvider | None:
    """Return a provider of credentials for obstore; None for anonymous access.

    It gives the keys among the options (see `store_options`) or, without keys or for a role, what botocore finds.

    Raises:
        ConfigError: the login is incomplete, or the profile does not exist.
        botocore.exceptions.BotoCoreError: there is no login, or it cannot be obtained.
    """
    if options.get("skip_signature"):
        return None
    keys = [options.get(name) for name in ("access_key_id", "secret_access_key", "session_token")]
    if bool(keys[0]) != bool(keys[1]):
        raise ConfigError("storage_options must give access key and secret key together, or neither")
    found = credentials.Credentials(*keys) if keys[0] else None
    if found is None or "role_arn" in options:
        found = _of_botocore(options, found)
    renewed = isinstance(found, credentials.RefreshableCredentials)

    def provide() -> S3Credential:
        now = found.get_frozen_credentials()
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": datetime.now(UTC) + _ASKED_AGAIN if renewed else None,
        }

    provide()  # a failure is raised here, with botocore's own error
    return provide


def _of_botocore(options: Mapping[str, Any], keys: credentials.Credentials | None) -> Any:
    """Return what botocore finds, or gets for a role."""
    session = Session(profile=options.get("profile"))
    try:
        if region := options.get("region") or configured_region(options.get("profile")):
            session.set_config_variable("region", region)
        found = keys or session.get_credentials()
    except exceptions.ProfileNotFound as error:
        raise ConfigError(f"{error}; name one of ~/.aws/config as profile, or leave it out") from None
    if found is None:
        raise exceptions.NoCredentialsError
    if "role_arn" not in options:
        return found
    named = {"RoleSessionName": options.get("role_session_name"), "ExternalId": options.get("external_id")}
    fetcher = credentials.AssumeRoleCredentialFetcher(
        session.create_client, found, options["role_arn"], {name: value for name, value in named.items() if value}
    )
    return credentials.DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")


def _settings(profile: str | None) -> Mapping[str, Any]:
    """Return the settings of a profile in both of AWS's files, and all sections of services."""
    name = profile or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    return _parsed(name or "default", tuple((path, _stamp(path)) for path in _files()))


def _files() -> tuple[Path, Path]:
    """Return the paths of the configuration and credentials files."""
    config = os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config"
    login = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    return Path(config).expanduser(), Path(login).expanduser()


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - asked for each path of a list
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@functools.lru_cache(maxsize=8)
def _parsed(name: str, _files: object) -> Mapping[str, Any]:
    try:
        known = Session().full_config
    except exceptions.ConfigParseError as error:
        # Its text quotes the line, which may contain a secret.
        raise ConfigError(
            f"{error.kwargs['path']} does not parse as a configuration file of AWS "
            f"({type(error.kwargs['error']).__name__}); correct it"
        ) from None
    return {**known["profiles"].get(name, {}), "all services": known.get("services", {})}
